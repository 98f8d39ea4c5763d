// The page's two views, by the address: the start (#/) and a job (#/jobs/{id}).

import { key, keepKey, onKeyWanted } from "./api.js";
import { askForKey } from "./dialogs.js";
import { make, problemBox } from "./dom.js";
import { showJob } from "./job.js";
import { showStart } from "./start.js";

const main = document.getElementById("main");
let leave = new AbortController();

/** Build the view that the address asks for; what goes on in it afterwards tells its troubles to `fail`. */
async function show() {
  leave.abort();
  leave = new AbortController();
  const signal = leave.signal;
  main.replaceChildren();
  document.title = "hyperscene";
  const fail = (error, place = main) => !signal.aborted && place.append(problemBox(error.message, wayOut(error)));
  try {
    const job = /^#\/jobs\/([0-9a-f]{32})$/.exec(location.hash);
    main.className = job ? "job" : "start";
    if (job) await showJob(main, job[1], signal, fail);
    else if (/^(#\/?)?$/.test(location.hash)) await showStart(main, signal);
    else main.append(make("section", { class: "card" }, make("h1", { tabindex: "-1" }, "There is nothing here"), make("a", { href: "#/" }, "To the maps")));
  } catch (error) {
    fail(error);
  }
}

const showAndFocus = () => show().then(() => main.querySelector("h1")?.focus());

function wayOut(error) {
  if (error.status === 404) return make("a", { class: "button", href: "#/" }, "To the maps");
  return make("button", { type: "button", onclick: showAndFocus }, error.status === 401 ? "Give a key" : "Try again");
}

function showKeyState() {
  document.getElementById("forget-key").hidden = !key();
  document.getElementById("api-link").hidden = Boolean(key()); // a link cannot carry it
}

onKeyWanted(async (wasWrong) => {
  const given = await askForKey(wasWrong);
  main.focus();
  return given;
});
document.addEventListener("key", showKeyState);
showKeyState();
document.getElementById("forget-key").addEventListener("click", () => {
  keepKey(null);
  show();
});
document.getElementById("nav").hidden = false;
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which view is shown
  main.focus();
});
addEventListener("hashchange", showAndFocus);
show();
