// The page's views, selected by the URL's fragment: the start (#/), a job (#/jobs/{id}), and labels and training of a scene
// (#/scenes/{id}/label, #/scenes/{id}/train).

import { key, onKeyRequired, storeKey } from "./api.js";
import { promptForKey } from "./dialogs.js";
import { make, problemBox } from "./dom.js";
import { showCheck } from "./check.js";
import { showJob } from "./job.js";
import { showLabel } from "./label.js";
import { showComparison } from "./reports.js";
import { showStart } from "./start.js";
import { showTraining } from "./train.js";

const main = document.getElementById("main");
let leave = new AbortController();

/** Build the view of the current URL. `fail` shows an error, also later ones of the view. */
async function show() {
  leave.abort();
  leave = new AbortController();
  const signal = leave.signal;
  main.replaceChildren();
  document.title = "hyperscene";
  const fail = (error, parent = main) => !signal.aborted && parent.append(problemBox(error.message, remedyFor(error)));
  try {
    const job = /^#\/jobs\/([0-9a-f]{32})$/.exec(location.hash);
    const labelled = /^#\/scenes\/([0-9a-f]{32})\/label$/.exec(location.hash);
    const check = /^#\/jobs\/([0-9a-f]{32})\/check$/.exec(location.hash);
    const compare = /^#\/compare\/([0-9a-f]{32})\/([0-9a-f]{32})$/.exec(location.hash);
    const training = /^#\/scenes\/([0-9a-f]{32})\/train$/.exec(location.hash);
    main.className = job || labelled || check || compare ? "job" : "start";
    if (check) await showCheck(main, check[1], signal);
    else if (compare) await showComparison(main, compare[1], compare[2], signal);
    else if (labelled) await showLabel(main, labelled[1], signal);
    else if (training) await showTraining(main, training[1], signal);
    else if (job) await showJob(main, job[1], signal, fail);
    else if (/^(#\/?)?$/.test(location.hash)) await showStart(main, signal);
    else main.append(make("section", { class: "card" }, make("h1", { tabindex: "-1" }, "Page not found"), make("a", { href: "#/" }, "Your maps")));
  } catch (error) {
    fail(error);
  }
}

const showAndFocus = () => show().then(() => main.querySelector("h1")?.focus());

function remedyFor(error) {
  if (error.status === 404) return make("a", { class: "button", href: "#/" }, "Your maps");
  return make("button", { type: "button", onclick: showAndFocus }, error.status === 401 ? "Enter a key" : "Try again");
}

function showKeyState() {
  document.getElementById("forget-key").hidden = !key();
  document.getElementById("api-link").hidden = Boolean(key()); // a link cannot send the key
}

onKeyRequired(async (wasWrong) => {
  const newKey = await promptForKey(wasWrong);
  main.focus();
  return newKey;
});
document.addEventListener("key", showKeyState);
showKeyState();
document.getElementById("forget-key").addEventListener("click", () => {
  storeKey(null);
  show();
});
document.getElementById("nav").hidden = false;
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the link's fragment would change the view
  main.focus();
});
addEventListener("hashchange", showAndFocus);
show();
