// The start view: the upload form and the list of jobs.

import { documentOf, newIdempotencyKey, request, sendScene, uploadScene } from "./api.js";
import { announce, bytes, make, problemBox } from "./dom.js";
import { showJobs } from "./jobs.js";
import { makeOptions } from "./options.js";
import { checkFiles, droppedFiles, filesOfProduct } from "./scene_files.js";

let upload = null; // the upload's progress; the upload continues while another view is shown
let nextView = "label"; // of a scene that is uploaded without being mapped
let pendingErrors = []; // of an upload, until the start view shows them

addEventListener("beforeunload", (event) => upload && event.preventDefault());

/** Fill `main` with the start view. */
export async function showStart(main, signal) {
  const card = make("section", { class: "card send", "aria-labelledby": "send-title" });
  const jobs = make("section", { class: "card", "aria-labelledby": "jobs-title" });
  const scenes = make("section", { class: "card", "aria-labelledby": "scenes-title", hidden: true });
  main.append(card, scenes, jobs);
  card.append(
    make("h1", { id: "send-title", tabindex: "-1" }, "Map a hyperspectral scene"),
    make("p", {}, "Send an image with many spectral bands, and see which class each of its pixels belongs to: water, forest, crops or what the model has learned."),
  );
  const models = await documentOf("models", { signal });
  if (signal.aborted) return;
  makeUploadForm(card, models, signal);
  showScenes(scenes, signal).catch(() => {}); // the jobs are listed all the same
  await showJobs(jobs, signal);
}

/** The newest scenes, to label them or go on. */
async function showScenes(section, signal) {
  const { scenes } = await documentOf("scenes?limit=12", { signal });
  if (!scenes.length) return;
  const item = ({ id, name, rows, cols, labelled_pixels: labelled }) =>
    make("li", {}, make("a", { href: `#/scenes/${id}/label` }, `Label ${name}`), ` ${rows} x ${cols} pixels, ${labelled ? `${labelled} labelled` : "no labels yet"}`);
  section.append(make("h2", { id: "scenes-title" }, "Your scenes"), make("ul", { class: "scene-list" }, scenes.map(item)));
  section.hidden = false;
}

function makeUploadForm(section, models, signal) {
  let files = [];
  let isComplete = false;
  let idempotencyKey = newIdempotencyKey();
  const input = make("input", { type: "file", id: "files", multiple: true, class: "unseen" });
  const folder = make("input", { type: "file", id: "folder", webkitdirectory: true, class: "unseen" });
  const list = make("ul", { class: "files", "aria-label": "Chosen files" });
  const check = make("p", { class: "file-check", id: "file-check", role: "status" });
  const send = make("button", { type: "submit", class: "main", disabled: true }, "Map it");
  const storeFor = (view) => () => {
    nextView = view;
    sendTo((share, stop) => uploadScene(files, share, stop));
  };
  const label = make("button", { type: "button", disabled: true, onclick: storeFor("label") }, "Label it");
  const train = make("button", { type: "button", disabled: true, onclick: storeFor("train") }, "Train a model on it");
  const status = make("div", { class: "upload-status" });
  const options = makeOptions(models);
  const trial = makeTrial(models.default, signal);
  const drop = make(
    "div",
    { class: "drop" },
    make("p", { class: "drop-title" }, "Drop a GeoTIFF here, an ENVI data file with its header, or a product: its folder, zip or files"),
    make(
      "p",
      { class: "choose" },
      input,
      make("label", { for: "files", class: "button" }, "Choose files"),
      folder,
      make("label", { for: "folder", class: "button" }, "Choose a folder"),
    ),
    list,
    check,
  );
  const form = make("form", { class: "upload-form" }, drop, options.element, make("div", { class: "actions" }, send, label, train, trial.element), status, trial.status);

  async function addFiles(added) {
    if (upload) return;
    const names = new Set(added.map((file) => file.name));
    await setFiles(filesOfProduct([...files.filter((file) => !names.has(file.name)), ...added]));
  }
  async function setFiles(chosen) {
    files = chosen;
    idempotencyKey = newIdempotencyKey();
    const result = await checkFiles(files);
    if (files !== chosen) return; // more files were added during the check
    list.replaceChildren(...files.map((file) => fileItem(file, () => setFiles(files.filter((other) => other !== file)))));
    check.textContent = result.text;
    check.className = `file-check${result.isInvalid ? " invalid" : ""}`;
    isComplete = result.isComplete;
    send.disabled = label.disabled = train.disabled = !isComplete || Boolean(upload);
    if (!upload) status.replaceChildren();
  }
  for (const chooser of [input, folder]) {
    chooser.addEventListener("change", () => {
      addFiles([...chooser.files]);
      chooser.value = ""; // so that the same file can be chosen again
    });
  }
  acceptDrops(drop, addFiles, signal);
  form.addEventListener("change", () => (idempotencyKey = newIdempotencyKey()));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sendTo((share, stop) => sendScene(files, options.read(), idempotencyKey, share, stop));
  });
  async function sendTo(post) {
    const stop = new AbortController();
    upload = uploadProgress(files, () => stop.abort());
    showUpload();
    let job = null;
    const errors = [];
    try {
      job = await post(upload.show, stop.signal);
    } catch (error) {
      if (error.name !== "AbortError") errors.push(problemBox(error.message));
    }
    upload = null;
    pendingErrors = errors;
    announce(job ? `${job.scene ?? job.name} was sent` : "");
    document.dispatchEvent(new CustomEvent("sent", { detail: job }));
  }
  function showUpload() {
    status.replaceChildren(upload.element);
    form.classList.add("busy");
    drop.inert = options.element.inert = true;
    send.disabled = label.disabled = train.disabled = true;
    upload.text.focus();
  }
  function showEnd(job) {
    form.classList.remove("busy");
    drop.inert = options.element.inert = false;
    send.disabled = label.disabled = train.disabled = !isComplete;
    if (status.contains(document.activeElement)) (isComplete ? send : input).focus();
    status.replaceChildren(...pendingErrors.splice(0));
    if (job) location.hash = job.jobID ? `#/jobs/${job.jobID}` : `#/scenes/${job.id}/${nextView}`;
  }
  document.addEventListener("sent", ({ detail }) => showEnd(detail), { signal }); // also for a form created since then
  if (upload) showUpload();
  else showEnd(null);
  section.append(form);
}

/** The part that maps a synthetic scene, for people without a scene at hand. */
function makeTrial(model, signal) {
  const status = make("div");
  const button = make("button", { type: "button", "aria-describedby": "try-hint" }, "Try it");
  button.addEventListener("click", async () => {
    button.disabled = true;
    status.replaceChildren(make("p", { class: "quiet", role: "status" }, "The demo scene is being made …"));
    try {
      const id = await mapDemoScene(model, signal);
      if (!signal.aborted) location.hash = `#/jobs/${id}`;
    } catch (error) {
      if (error.name !== "AbortError") status.replaceChildren(problemBox(error.message));
    }
    button.disabled = false;
  });
  const hint = make("p", { class: "hint", id: "try-hint" }, "No scene at hand? The server makes a small one, 240 x 240 pixels, and maps it with the model that is chosen first.");
  const label = make("button", { type: "button" }, "Label the demo scene");
  label.addEventListener("click", async () => {
    try {
      const scene = await documentOf("demo-scene", { method: "POST", signal });
      location.hash = `#/scenes/${scene.id}/label`;
    } catch (error) {
      if (error.name !== "AbortError") status.replaceChildren(problemBox(error.message));
    }
  });
  return { element: make("div", { class: "trial" }, button, label, hint), status };
}

/** The id of a job that maps the demo scene: the one that exists already, or a new one. */
async function mapDemoScene(model, signal) {
  const scene = await documentOf("demo-scene", { method: "POST", signal });
  const { jobs } = await documentOf("jobs?limit=100&status=accepted&status=running&status=successful", { signal });
  const known = jobs.find((job) => job.scene_id === scene.id && job.model === model);
  if (known) return known.jobID;
  const body = JSON.stringify({ inputs: { scene: { href: `/scenes/${scene.id}` }, model } });
  const headers = { "Content-Type": "application/json", Prefer: "respond-async" };
  const response = await request("processes/classify-scene/execution", { method: "POST", headers, body, signal });
  return (await response.json()).jobID;
}

function fileItem(file, remove) {
  return make(
    "li",
    {},
    make("span", { class: "file-name" }, file.name),
    make("span", { class: "quiet" }, bytes(file.size)),
    make("button", { type: "button", class: "plain", "aria-label": `Remove ${file.name}`, onclick: remove }, "Remove"),
  );
}

/** Accept dropped files anywhere on the page; outside of the box, the browser would open them. */
function acceptDrops(box, addFiles, signal) {
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const on = (type, handle) =>
    addEventListener(type, (event) => hasFiles(event) && (event.preventDefault(), handle(event)), { signal });
  on("dragover", () => box.classList.add("over"));
  on("dragleave", (event) => event.relatedTarget === null && box.classList.remove("over"));
  on("drop", (event) => {
    box.classList.remove("over");
    droppedFiles(event.dataTransfer).then(addFiles, () => announce("The folder cannot be read: choose its files."));
  });
}

function uploadProgress(files, stop) {
  const total = files.reduce((sum, file) => sum + file.size, 0);
  const bar = make("progress", { max: 1, value: 0, "aria-labelledby": "sent" });
  const text = make("p", { id: "sent", tabindex: "-1" }, "Sending …");
  const started = performance.now();
  return {
    text,
    element: make("div", { class: "progress" }, text, bar, make("button", { type: "button", class: "plain", onclick: stop }, "Stop sending")),
    show(share) {
      bar.value = share;
      const speed = (total * share * 1000) / (performance.now() - started);
      text.textContent =
        share < 1 ? `Sent ${bytes(total * share)} of ${bytes(total)}, ${bytes(speed)} per second` : "Sent; the server is checking the scene …";
      if (share >= 1) announce("Sent; the server is checking the scene");
    },
  };
}
