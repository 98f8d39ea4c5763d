// "Train and map": a training job from the labels, then a mapping job with the new model.

import { documentOf, followJob, newIdempotencyKey, request } from "./api.js";
import { announce, dateTime, make, problemBox } from "./dom.js";

/** The panel; it says why where the server cannot train. */
export function makeTrainPanel(scene, store, signal) {
  const name = make("input", { type: "text", id: "model-name", maxlength: "60", pattern: "[A-Za-z0-9][A-Za-z0-9_.-]*", value: modelName(scene.name), required: true });
  const send = make("button", { type: "submit", class: "main" }, "Train and map");
  const status = make("div", { role: "status" });
  const form = make("form", { class: "tools" }, make("div", { class: "field" }, make("label", { for: "model-name" }, "Name of the model"), name), make("div", {}, send));
  const section = make(
    "section", { "aria-labelledby": "train-title" }, make("h2", { id: "train-title" }, "Finish"),
    make("p", { class: "quiet" }, "When the live map looks right: train the network with these labels and map the whole scene."), form, status,
  );
  const maps = make("div");
  section.append(maps);
  showMaps(scene.id, maps, signal).catch(() => {}); // optional
  canTrain(signal).then((reason) => {
    if (!reason) return;
    form.hidden = true;
    status.replaceChildren(make("p", { class: "quiet" }, reason));
  }, () => {});
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    try {
      await store.saved();
      const model = await train(scene, store, name.value, status, signal);
      const job = await map(scene, model);
      status.replaceChildren(make("p", {}, `The model ${model} is trained. `, make("a", { href: `#/jobs/${job.jobID}` }, "Watch its map")));
      announce(`The model ${model} is trained, and the scene is being mapped`);
    } catch (error) {
      if (error.name !== "AbortError") status.replaceChildren(problemBox(error.message));
    }
    send.disabled = false;
  });
  return section;
}

/** Links to the maps of this scene, the newest first. */
async function showMaps(id, box, signal) {
  const { jobs } = await documentOf("jobs?limit=100", { signal });
  const own = jobs.filter((job) => job.scene_id === id && job.processID === "classify-scene" && job.status === "successful");
  if (own.length) box.append(make("p", { class: "quiet" }, "Maps of this scene:"), make("ul", {}, own.map((job) => make("li", {}, make("a", { href: `#/jobs/${job.jobID}` }, `${job.model}, ${dateTime(job.created)}`)))));
}

const modelName = (name) => (name.replace(/\.[^.]*$/, "").replace(/[^A-Za-z0-9_-]+/g, "-").replace(/^-+|-+$/g, "") || "scene").slice(0, 50).toLowerCase();

/** Why the server cannot train; empty if it can. */
async function canTrain(signal) {
  const { processes } = await documentOf("processes", { signal });
  return processes.some(({ id }) => id === "train-model") ? "" : "This server cannot train: export the labels, and train with the command hyperscene train.";
}

async function train(scene, store, name, status, signal) {
  const form = new FormData();
  form.append("scene_id", scene.id);
  form.append("labels", await store.geojson(), "labels.geojson");
  form.append("class_field", "class");
  form.append("name", name);
  const headers = { "Idempotency-Key": newIdempotencyKey(), Prefer: "respond-async" };
  const response = await request("models", { method: "POST", body: form, headers, signal });
  const id = response.headers.get("Location").split("/").at(-1);
  const bar = make("progress", { max: 100, "aria-label": "Progress of the training" });
  const text = make("p", {});
  status.replaceChildren(make("div", { class: "progress" }, text, bar));
  let job = null;
  const show = (changed) => {
    job = changed;
    text.textContent = job.message;
    bar.value = job.progress;
  };
  await followJob(id, show, () => {}, signal);
  if (job.status === "failed") throw new Error(job.problem.detail);
  if (job.status === "dismissed") throw new Error("The training was dismissed.");
  return job.model || name;
}

async function map(scene, model) {
  const inputs = { scene: { href: `/scenes/${scene.id}` }, model };
  const headers = { "Content-Type": "application/json", Prefer: "respond-async", Accept: "application/json" };
  const response = await request("processes/classify-scene/execution", { method: "POST", headers, body: JSON.stringify({ inputs }) });
  return response.json();
}
