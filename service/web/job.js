// The view of a job: progress while it is mapped, then its map with legend, pixel panel and downloads.

import { RETRY_MS, documentOf, followJob, key, pause, request, save } from "./api.js";
import { Beside } from "./beside.js";
import { confirm } from "./dialogs.js";
import { announce, count, dateTime, duration, make, percent, problemBox } from "./dom.js";
import { makeLayerPanel } from "./layers.js";
import { makeLegend } from "./legend.js";
import { SceneMap } from "./map.js";
import { savePicture } from "./picture.js";
import { makePixelPanel } from "./pixel.js";
import { Readout, valuesOfJob } from "./readout.js";
import { makeReports } from "./reports.js";
import { showReport } from "./training_report.js";

/** Fill `main` with a job and follow it until it is finished; later errors go to `fail`. */
export async function showJob(main, id, signal, fail) {
  const title = make("h1", { tabindex: "-1" }, "A map");
  const facts = make("p", { class: "quiet" });
  const status = make("div", { class: "job-status" });
  const map = make("div", { class: "map-box" });
  const panel = make("aside", { class: "panel", "aria-label": "About the map" });
  main.append(make("header", { class: "job-head" }, title, facts), status, make("div", { class: "job-body", hidden: true }, map, panel));
  let job = await documentOf(`jobs/${id}`, { signal });
  if (signal.aborted) return;
  title.textContent = job.scene;
  facts.textContent = isTraining(job)
    ? `Training of ${job.model} with ${job.settings.labels}, sent ${dateTime(job.created)}`
    : `Mapped with the model ${job.model}, sent ${dateTime(job.created)}`;
  const view = new MapView(id, map, panel, signal);
  const end = (ended) => showEnd(ended, status, view, signal);
  if (isFinished(job)) return end(job);
  const progress = makeProgress(id, status, signal);
  progress.show(job);
  view.showScene().catch(() => {}); // optional: the scene, until its map is ready
  follow(id, progress, signal) // not awaited: the view is complete
    .then((ended) => ended && end(ended))
    .catch((error) => fail(error, status));
}

/** The job when it is finished; null if the user left the view. */
async function follow(id, progress, signal) {
  let job = null;
  await followJob(id, (changed) => progress.show((job = changed)), progress.showConnection, signal).finally(progress.end);
  if (signal.aborted) return null;
  return job && isFinished(job) ? job : documentOf(`jobs/${id}`, { signal });
}

const isTraining = (job) => job.processID === "train-model";
const isFinished = (job) => ["successful", "failed", "dismissed"].includes(job.status);

async function showEnd(job, status, view, signal) {
  document.title = `${job.scene} – hyperscene`;
  if (status.contains(document.activeElement)) document.querySelector("h1").focus();
  status.replaceChildren();
  if (job.status === "successful" && isTraining(job)) {
    view.clear();
    document.getElementById("main").className = "start"; // one column that scrolls
    return showReport(status, job, signal);
  }
  if (job.status === "successful") return view.showResult(job, status);
  view.clear();
  const text = job.status === "failed" ? job.problem.detail : "This job was dismissed and its results were removed.";
  const back = make("a", { class: "button", href: "#/" }, "Send a scene");
  status.replaceChildren(job.status === "failed" ? problemBox(text, back) : make("div", { class: "card", role: "status" }, make("p", {}, text), back));
}

function makeProgress(id, status, signal) {
  const ended = new AbortController();
  signal.addEventListener("abort", () => ended.abort());
  const bar = make("progress", { max: 100, "aria-labelledby": "progress-text" });
  const text = make("p", { id: "progress-text" });
  const note = make("p", { class: "quiet", role: "status" });
  const dismiss = make("button", { type: "button", class: "danger" }, "Dismiss");
  const problems = make("div");
  const card = make("div", { class: "card progress" }, text, bar, note, dismiss, problems);
  dismiss.addEventListener("click", () => dismissJob(id, dismiss, problems, "The progress so far is lost. A scene that was uploaded with this job is removed.", ended.signal));
  const setNote = (newNote) => note.textContent !== newNote && (note.textContent = newNote);
  let announced = -1;
  return {
    show(job) {
      if (!card.isConnected) status.replaceChildren(card);
      const resumed = job.resumes ? `Resumed ${job.resumes === 1 ? "once" : `${job.resumes} times`} after an interruption; nothing was lost. ` : "";
      setNote(resumed + (job.history.at(-1)?.text ?? ""));
      const left = job.seconds_left === undefined ? "" : `, about ${duration(job.seconds_left)} left`;
      if (isTraining(job) && job.status !== "accepted") text.textContent = `${job.progress} %, ${job.message}`;
      else text.textContent =
        job.status === "accepted" ? `Accepted: it ${job.message}.` : `${job.progress} % mapped${left}${job.patches_total ? ` (${count(job.patches_done)} of ${count(job.patches_total)} patches)` : ""}`;
      if (job.status === "accepted") bar.removeAttribute("value");
      else bar.value = job.progress;
      document.title = `${job.progress} % – ${job.scene}`;
      if (Math.floor(job.progress / 25) !== announced) announce(text.textContent);
      announced = Math.floor(job.progress / 25);
    },
    showConnection(isLost) {
      setNote(isLost ? "The connection is lost. The job continues; reconnecting …" : "");
    },
    end: () => ended.abort(),
  };
}

async function dismissJob(id, button, problems, text, signal) {
  if (!(await confirm("Dismiss this job?", text, "Dismiss it", signal))) return;
  button.disabled = true;
  try {
    await request(`jobs/${id}`, { method: "DELETE" });
  } catch (error) {
    button.disabled = false;
    problems.replaceChildren(problemBox(error.message));
    return;
  }
  announce("Dismissed");
}

/** The map and the panel beside it. */
class MapView {
  constructor(id, box, panel, signal) {
    Object.assign(this, { _id: id, _box: box, _panel: panel, _signal: signal, _map: null, _pixel: null, _readout: null, _version: 0, _isEnded: false });
    signal.addEventListener("abort", () => this._map?.remove());
  }

  /** The map and the pixel panel, created once: the selected pixel is kept when the job ends. */
  async _makeMap() {
    const version = ++this._version;
    const tilejson = await documentOf(`jobs/${this._id}/tilejson.json`, { signal: this._signal });
    if (this._signal.aborted || version !== this._version) throw new DOMException("outdated", "AbortError");
    if (this._map) return tilejson;
    this._box.parentElement.hidden = false;
    const box = make("div", { class: "map", role: "application", "aria-label": "Map. Arrow keys move it, plus and minus zoom." });
    this._box.replaceChildren(box);
    this._map = new SceneMap(box, this._id, tilejson);
    this._readout = new Readout(this._map.positions, valuesOfJob(this._id));
    this._readout.follow(this._map.leaflet, this._signal);
    this._box.append(this._readout.element);
    this._pixel = makePixelPanel(this._id, this._map, tilejson, this._signal);
    this._panel.replaceChildren(this._pixel.element);
    return tilejson;
  }

  clear() {
    this._isEnded = true;
    this._version++;
    this._map?.remove();
    this._map = this._pixel = null;
    this._box.replaceChildren();
    this._panel.replaceChildren();
    this._box.parentElement.hidden = true;
  }

  /** The scene without its map. The server responds with 503 while it renders the scene's preview. */
  async showScene() {
    while (!this._isEnded && !this._signal.aborted) {
      try {
        return await this._makeMap();
      } catch (error) {
        if (error.status !== 503) throw error;
      }
      await pause(RETRY_MS);
    }
    return null;
  }

  async showResult(job, status) {
    this._isEnded = true;
    const summary = await documentOf(`jobs/${this._id}/results/summary.json`, { signal: this._signal });
    const files = await documentOf(`jobs/${this._id}/results`, { signal: this._signal });
    if (summary.warnings.length) status.replaceChildren(warningsOf(summary.warnings));
    const scene = await documentOf(`scenes/${job.scene_id}`, { signal: this._signal }).catch(() => null);
    if (scene && !scene.map) document.querySelector(".job-head").append(make("a", { href: `#/scenes/${job.scene_id}/label` }, "Label this scene"));
    const isNew = !this._map;
    const tilejson = await this._makeMap();
    const shown = { box: this._box, job, map: this._map, tilejson, readout: this._readout, select: this._pixel.select, signal: this._signal };
    const beside = new Beside(shown);
    const hide = (hidden) => [this._map, beside].forEach((each) => each.hideClasses(hidden));
    this._panel.prepend(makeLayerPanel(this._map, tilejson, scene), makeLegend(summary, hide), beside.element);
    const drawn = () => savePicture(this._box, [this._map, beside.shown].filter(Boolean), job);
    const reports = await makeReports(this._id, this._signal);
    this._panel.append(makeDownloads(this._id, files, drawn), reports, makeDetails(this._id, job, summary, tilejson, scene, this._signal));
    this._pixel.refresh();
    this._readout.forget(); // of the job's pixels, only the spectrum was known
    if (!isNew) requestAnimationFrame(() => this._map?.fit()); // when the panel has its size
    if (!summary.warnings.length) announce(`${job.scene} is mapped`); // warnings have the role alert
  }
}

function warningsOf(warnings) {
  return make(
    "div",
    { class: "warnings", role: "alert" },
    make("h2", {}, warnings.length === 1 ? "A warning about this map" : "Warnings about this map"),
    make("ul", {}, warnings.map((text) => make("li", {}, text))),
  );
}

/** Sensor and date, bands that are not used, and what the masks took, of a scene that is a product. */
function productFacts(scene, summary) {
  const { sensor, level, acquired, dropped_bands: dropped } = scene ?? {};
  const reasons = [...new Set((dropped ?? []).map(({ reason }) => reason))].join("; ");
  const masked = Object.entries(summary.masked_pixels ?? {}).map(([kind, pixels]) => `${kind} ${count(pixels)}`);
  return [
    sensor ? ["Product", [sensor, level].filter(Boolean).join(" ")] : null,
    acquired ? ["Acquired", acquired.slice(0, 16).replace("T", " ")] : null,
    dropped ? ["Bands not used", `${count(dropped.length)} (${reasons})`] : null,
    masked.length ? ["Masked pixels", masked.join(", ")] : null,
  ];
}

function makeDownloads(id, files, drawn) {
  const note = make("div");
  const item = (name, title, isMain) => {
    const path = `jobs/${id}/results/${name}`;
    const link = make("a", { href: path, download: name, class: isMain ? "button" : "" }, title);
    link.addEventListener("click", async (event) => {
      event.preventDefault();
      note.replaceChildren(...(key() ? [make("p", { class: "quiet", role: "status" }, `Downloading ${name} …`)] : []));
      await save(path, name).then(() => note.replaceChildren(), (error) => note.replaceChildren(problemBox(error.message)));
    });
    return make("li", {}, link, isMain ? null : make("span", { class: "quiet" }, name));
  };
  return make(
    "section",
    { "aria-labelledby": "downloads-title" },
    make("h2", { id: "downloads-title" }, "Download"),
    make(
      "ul",
      { class: "downloads" },
      make("li", {}, make("button", { type: "button", onclick: () => drawn().then((text) => note.replaceChildren(...(text ? [make("p", { class: "quiet", role: "status" }, text)] : [])), (error) => note.replaceChildren(problemBox(error.message))) }, "Picture of what is shown")),
      item("results.zip", "All files as one zip", true),
      Object.values(files).map(({ href, title }) => item(href.split("/").pop(), title, false)),
    ),
    note,
  );
}

function makeDetails(id, job, summary, tilejson, scene, signal) {
  const problems = make("div");
  const dismiss = make("button", { type: "button", class: "danger" }, "Dismiss this map");
  dismiss.addEventListener("click", () =>
    dismissJob(id, dismiss, problems, "Its results are removed from the server. A scene that was uploaded with it is removed, too.", signal).then(() => dismiss.disabled && location.reload()),
  );
  const facts = [
    ["Scene", `${count(summary.scene.rows)} x ${count(summary.scene.cols)} pixels, ${count(summary.scene.bands)} bands`],
    ...productFacts(scene, summary),
    ["Coordinate reference system", summary.crs ?? "none"],
    summary.applicability ? ["Where the model applies", `${percent(summary.applicability.inside_share)} of the pixels. ${summary.applicability.promise}`] : null,
    ["Mean confidence", summary.mean_confidence === null ? "none" : percent(summary.mean_confidence)],
    job.seconds ? ["Time", duration(job.seconds.total)] : null,
    job.resumes ? ["Resumed", `${job.resumes === 1 ? "once" : `${job.resumes} times`} after an interruption`] : null,
    job.expires ? ["Expires", dateTime(job.expires)] : null,
    ...job.history.map((event) => [dateTime(event.time), event.text]),
  ].filter(Boolean);
  const advanced = [
    ["Bundle", `${summary.bundle.name}, sha256 ${summary.bundle.sha256.slice(0, 12)}…`],
    ["Stride and blend", `${job.settings.stride_px} px, ${job.settings.blend}`],
    ["Patches", count(summary.patches)],
    ["Engine", summary.provider],
  ];
  const list = (rows) => make("dl", {}, rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  return make(
    "section",
    { "aria-labelledby": "details-title" },
    make("h2", { id: "details-title" }, "Details"),
    list(facts),
    make("details", { class: "advanced" }, make("summary", {}, "Advanced"), list(advanced), tilejson.crs ? tileUrlField(tilejson) : null),
    scene ? make("a", { class: "button", href: `#/scenes/${job.scene_id}/train` }, "Train a model on this scene") : null,
    dismiss,
    problems,
  );
}

function tileUrlField(tilejson) {
  const field = make("input", { id: "xyz", readonly: true, value: tilejson.tiles[0], onfocus: () => field.select() });
  return make(
    "div",
    { class: "field" },
    make("label", { for: "xyz" }, "For QGIS: Layer, Add XYZ Layer, with this URL"),
    field,
    key() ? make("p", { class: "quiet" }, "QGIS must send the API key, too: as X-API-Key, under HTTP Headers.") : null,
  );
}
