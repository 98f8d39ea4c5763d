// The start: drop a scene, choose how it is mapped, and the list of jobs.

import { documentOf, newIdempotencyKey, sendScene } from "./api.js";
import { makeChoices } from "./choices.js";
import { announce, bytes, make, problemBox } from "./dom.js";
import { showJobs } from "./jobs.js";
import { judge } from "./scene_files.js";

let sending = null; // the progress of an upload, which goes on while another view is looked at
let unsaid = []; // what came of it meanwhile

addEventListener("beforeunload", (event) => sending && event.preventDefault());

/** Fill `main` with the start view. */
export async function showStart(main, signal) {
  const card = make("section", { class: "card send", "aria-labelledby": "send-title" });
  const jobs = make("section", { class: "card", "aria-labelledby": "jobs-title" });
  main.append(card, jobs);
  card.append(make("h1", { id: "send-title", tabindex: "-1" }, "Map a hyperspectral scene"));
  const models = await documentOf("models", { signal });
  if (signal.aborted) return;
  makeSender(card, models, signal);
  await showJobs(jobs, signal);
}

function makeSender(section, models, signal) {
  let files = [];
  let isWhole = false;
  let idempotencyKey = newIdempotencyKey();
  const input = make("input", { type: "file", id: "files", multiple: true, class: "unseen" });
  const list = make("ul", { class: "files", "aria-label": "Chosen files" });
  const words = make("p", { class: "verdict", id: "verdict", role: "status" });
  const send = make("button", { type: "submit", class: "main", disabled: true }, "Map it");
  const trouble = make("div", { class: "trouble" });
  const choices = makeChoices(models);
  const drop = make(
    "div",
    { class: "drop" },
    make("p", { class: "drop-title" }, "Drop a GeoTIFF here, or an ENVI data file with its header"),
    make("p", {}, input, make("label", { for: "files", class: "button" }, "Choose files")),
    list,
    words,
  );
  const form = make("form", { class: "sender" }, drop, choices.element, make("div", { class: "actions" }, send), trouble);

  async function choose(added) {
    if (sending) return;
    const names = new Set(added.map((file) => file.name));
    await settle([...files.filter((file) => !names.has(file.name)), ...added]);
  }
  async function settle(chosen) {
    files = chosen;
    idempotencyKey = newIdempotencyKey();
    const verdict = await judge(files);
    if (files !== chosen) return; // more was dropped meanwhile
    list.replaceChildren(...files.map((file) => fileLine(file, () => settle(files.filter((other) => other !== file)))));
    words.textContent = verdict.text;
    words.className = `verdict${verdict.isWrong ? " wrong" : ""}`;
    isWhole = verdict.isWhole;
    send.disabled = !isWhole || Boolean(sending);
    if (!sending) trouble.replaceChildren();
  }
  input.addEventListener("change", () => {
    choose([...input.files]);
    input.value = ""; // so that the same file can be chosen again
  });
  acceptDrops(drop, choose, signal);
  form.addEventListener("change", () => (idempotencyKey = newIdempotencyKey()));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const stop = new AbortController();
    sending = uploadProgress(files, () => stop.abort());
    showSending();
    let job = null;
    const said = [];
    try {
      job = await sendScene(files, choices.read(), idempotencyKey, sending.show, stop.signal);
    } catch (error) {
      if (error.name !== "AbortError") said.push(problemBox(error.message));
    }
    sending = null;
    unsaid = said;
    announce(job ? `${job.scene} was sent` : "");
    document.dispatchEvent(new CustomEvent("sent", { detail: job }));
  });
  function showSending() {
    trouble.replaceChildren(sending.element);
    form.classList.add("busy");
    drop.inert = choices.element.inert = true;
    send.disabled = true;
    sending.words.focus();
  }
  function showEnd(job) {
    form.classList.remove("busy");
    drop.inert = choices.element.inert = false;
    send.disabled = !isWhole;
    if (trouble.contains(document.activeElement)) (isWhole ? send : input).focus();
    trouble.replaceChildren(...unsaid.splice(0));
    if (job) location.hash = `#/jobs/${job.jobID}`;
  }
  document.addEventListener("sent", ({ detail }) => showEnd(detail), { signal }); // whichever form is shown then
  if (sending) showSending();
  else showEnd(null);
  section.append(form);
}

function fileLine(file, remove) {
  return make(
    "li",
    {},
    make("span", { class: "file-name" }, file.name),
    make("span", { class: "quiet" }, bytes(file.size)),
    make("button", { type: "button", class: "plain", "aria-label": `Remove ${file.name}`, onclick: remove }, "Remove"),
  );
}

/** Files may be dropped anywhere on the page: beside the box, a browser would open them instead. */
function acceptDrops(box, choose, signal) {
  const isFiles = (event) => event.dataTransfer?.types.includes("Files");
  const on = (kind, react) =>
    addEventListener(kind, (event) => isFiles(event) && (event.preventDefault(), react(event)), { signal });
  on("dragover", () => box.classList.add("over"));
  on("dragleave", (event) => event.relatedTarget === null && box.classList.remove("over"));
  on("drop", (event) => {
    box.classList.remove("over");
    choose([...event.dataTransfer.files]);
  });
}

function uploadProgress(files, stop) {
  const total = files.reduce((sum, file) => sum + file.size, 0);
  const bar = make("progress", { max: 1, value: 0, "aria-labelledby": "sent" });
  const words = make("p", { id: "sent", tabindex: "-1" }, "Sending …");
  const began = performance.now();
  return {
    words,
    element: make("div", { class: "progress" }, words, bar, make("button", { type: "button", class: "plain", onclick: stop }, "Stop sending")),
    show(share) {
      bar.value = share;
      const speed = (total * share * 1000) / (performance.now() - began);
      words.textContent =
        share < 1 ? `Sent ${bytes(total * share)} of ${bytes(total)}, ${bytes(speed)} a second` : "Sent; the server looks at the scene …";
      if (share >= 1) announce("Sent; the server looks at the scene");
    },
  };
}
