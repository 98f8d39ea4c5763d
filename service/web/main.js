// The page's two views, by the address: the start (#/) and a job (#/jobs/{id}).

import { key, keepKey, onKeyWanted } from "./api.js";
import { askForKey } from "./dialogs.js";
import { make, problemBox } from "./dom.js";
import { showJob } from "./job.js";
import { showStart } from "./start.js";

const main = document.getElementById("main");
const forget = document.getElementById("forget-key");
let leave = new AbortController();

async function show() {
  leave.abort();
  leave = new AbortController();
  const signal = leave.signal;
  const job = /^#\/jobs\/([^/]+)$/.exec(location.hash);
  main.replaceChildren();
  main.className = job ? "job" : "start";
  document.title = "hyperscene";
  try {
    await (job ? showJob(main, decodeURIComponent(job[1]), signal) : showStart(main, signal));
  } catch (error) {
    if (signal.aborted) return;
    const again = make("button", { type: "button", onclick: show }, error.status === 401 ? "Give a key" : "Try again");
    main.append(problemBox(error.message, again));
  }
}

onKeyWanted(askForKey);
function showKeyState() {
  forget.hidden = !key();
  document.getElementById("api-link").hidden = Boolean(key()); // a link cannot carry it
}
document.addEventListener("key", showKeyState);
showKeyState();
forget.addEventListener("click", () => {
  keepKey(null);
  show();
});
document.getElementById("nav").hidden = false;
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which view is shown
  main.focus();
});
addEventListener("hashchange", () => show().then(() => main.querySelector("h1")?.focus()));
show();
