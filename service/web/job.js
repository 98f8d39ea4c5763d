// A job: progress while it is mapped, then the map with everything about it.

import { ASK_AGAIN_MS, call, documentOf, key, pause, save, watchJob } from "./api.js";
import { confirm } from "./dialogs.js";
import { announce, count, duration, make, moment, percent, problemBox } from "./dom.js";
import { makeLayerPanel, makeLegend } from "./layers.js";
import { SceneMap } from "./map.js";
import { makePixelPanel } from "./pixel.js";

/** Fill `main` with a job, and follow it until it is finished; `fail` hears of trouble on the way. */
export async function showJob(main, id, signal, fail) {
  const title = make("h1", { tabindex: "-1" }, "A map");
  const facts = make("p", { class: "quiet" });
  const state = make("div", { class: "job-state" });
  const map = make("div", { class: "map-place" });
  const panel = make("aside", { class: "panel", "aria-label": "About the map" });
  main.append(make("header", { class: "job-head" }, title, facts), state, make("div", { class: "job-body", hidden: true }, map, panel));
  let job = await documentOf(`jobs/${id}`, { signal });
  if (signal.aborted) return;
  title.textContent = job.scene;
  facts.textContent = `${job.model}, stride ${job.settings.stride_px} px, blend ${job.settings.blend}, sent ${moment(job.created)}`;
  const stage = new Stage(id, map, panel, signal);
  if (isFinished(job)) return showEnd(job, state, stage);
  const progress = makeProgress(id, state, signal);
  progress.show(job);
  stage.showScene().catch(() => {}); // the scene alone, while its map is made: a pleasure, and no more
  follow(id, progress, signal) // the view is there meanwhile
    .then((end) => end && showEnd(end, state, stage))
    .catch((error) => fail(error, state));
}

/** The job once it is finished; null where nobody looks any more. */
async function follow(id, progress, signal) {
  let job = null;
  await watchJob(id, (changed) => progress.show((job = changed)), progress.trouble, signal).finally(progress.end);
  if (signal.aborted) return null;
  return job && isFinished(job) ? job : documentOf(`jobs/${id}`, { signal });
}

const isFinished = (job) => ["successful", "failed", "dismissed"].includes(job.status);

async function showEnd(job, state, stage) {
  document.title = `${job.scene} – hyperscene`;
  if (state.contains(document.activeElement)) document.querySelector("h1").focus();
  state.replaceChildren();
  if (job.status === "successful") return stage.showResult(job, state);
  stage.clear();
  const words = job.status === "failed" ? job.problem.detail : "This job was dismissed, and its results are gone.";
  const again = make("a", { class: "button", href: "#/" }, "Send a scene");
  state.replaceChildren(job.status === "failed" ? problemBox(words, again) : make("div", { class: "card", role: "status" }, make("p", {}, words), again));
}

function makeProgress(id, state, signal) {
  const over = new AbortController();
  signal.addEventListener("abort", () => over.abort());
  const bar = make("progress", { max: 100, "aria-labelledby": "progress-words" });
  const words = make("p", { id: "progress-words" });
  const trouble = make("p", { class: "quiet", role: "status" });
  const dismiss = make("button", { type: "button", class: "danger" }, "Dismiss");
  const refused = make("div");
  const card = make("div", { class: "card progress" }, words, bar, trouble, dismiss, refused);
  dismiss.addEventListener("click", () => dismissJob(id, dismiss, refused, "The work so far is lost, and the scene that came with it is removed.", over.signal));
  const say = (text) => trouble.textContent !== text && (trouble.textContent = text);
  let told = -1;
  return {
    show(job) {
      if (!card.isConnected) state.replaceChildren(card);
      const again = job.resumes ? `Taken up again ${job.resumes === 1 ? "once" : `${job.resumes} times`} after a stop; nothing was lost. ` : "";
      say(again + (job.history.at(-1)?.text ?? ""));
      const left = job.seconds_left === undefined ? "" : `, about ${duration(job.seconds_left)} left`;
      words.textContent =
        job.status === "accepted" ? `Accepted: it ${job.message}.` : `${job.progress} % mapped${left}${job.patches_total ? ` (${count(job.patches_done)} of ${count(job.patches_total)} patches)` : ""}`;
      if (job.status === "accepted") bar.removeAttribute("value");
      else bar.value = job.progress;
      document.title = `${job.progress} % – ${job.scene}`;
      if (Math.floor(job.progress / 25) !== told) announce(words.textContent);
      told = Math.floor(job.progress / 25);
    },
    trouble(isLost) {
      say(isLost ? "The connection is lost. The job goes on without it; trying to reach the server again …" : "");
    },
    end: () => over.abort(),
  };
}

async function dismissJob(id, button, told, words, signal) {
  if (!(await confirm("Dismiss this job?", words, "Dismiss it", signal))) return;
  button.disabled = true;
  try {
    await call(`jobs/${id}`, { method: "DELETE" });
  } catch (error) {
    button.disabled = false;
    told.replaceChildren(problemBox(error.message));
    return;
  }
  announce("Dismissed");
}

/** Where map and panel stand. */
class Stage {
  constructor(id, place, panel, signal) {
    Object.assign(this, { _id: id, _place: place, _panel: panel, _signal: signal, _map: null, _pixel: null, _turn: 0, _isOver: false });
    signal.addEventListener("abort", () => this._map?.remove());
  }

  /** A map and a panel for pixels, made once: what a reader does there is not lost when the job ends. */
  async _makeMap() {
    const turn = ++this._turn;
    const tilejson = await documentOf(`jobs/${this._id}/tilejson.json`, { signal: this._signal });
    if (this._signal.aborted || turn !== this._turn) throw new DOMException("left", "AbortError"); // something newer is shown
    if (this._map) return tilejson;
    this._place.parentElement.hidden = false;
    const box = make("div", { class: "map", role: "application", "aria-label": "Map. Arrow keys move it, plus and minus zoom." });
    this._place.replaceChildren(box);
    this._map = new SceneMap(box, this._id, tilejson);
    this._pixel = makePixelPanel(this._id, this._map, tilejson, this._signal);
    this._panel.replaceChildren(this._pixel.element);
    return tilejson;
  }

  clear() {
    this._isOver = true;
    this._turn++;
    this._map?.remove();
    this._map = this._pixel = null;
    this._place.replaceChildren();
    this._panel.replaceChildren();
    this._place.parentElement.hidden = true;
  }

  /** The scene alone; a server that still makes its picture may not know yet where it lies. */
  async showScene() {
    while (!this._isOver && !this._signal.aborted) {
      try {
        return await this._makeMap();
      } catch (error) {
        if (error.status !== 503) throw error;
      }
      await pause(ASK_AGAIN_MS);
    }
    return null;
  }

  async showResult(job, state) {
    this._isOver = true;
    const summary = await documentOf(`jobs/${this._id}/results/summary.json`, { signal: this._signal });
    const files = await documentOf(`jobs/${this._id}/results`, { signal: this._signal });
    if (summary.warnings.length) state.replaceChildren(warningsOf(summary.warnings));
    const scene = await documentOf(`scenes/${job.scene_id}`, { signal: this._signal }).catch(() => null);
    const tilejson = await this._makeMap();
    this._panel.prepend(makeLayerPanel(this._map, tilejson, scene), makeLegend(summary));
    this._panel.append(makeDownloads(this._id, files), makeDetails(this._id, job, summary, tilejson, this._signal));
    this._pixel.refresh();
    if (!summary.warnings.length) announce(`${job.scene} is mapped`); // the warnings speak for themselves
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

function makeDownloads(id, files) {
  const told = make("div");
  const line = (name, title, isMain) => {
    const path = `jobs/${id}/results/${name}`;
    const link = make("a", { href: path, download: name, class: isMain ? "button" : "" }, title);
    link.addEventListener("click", async (event) => {
      event.preventDefault();
      told.replaceChildren(...(key() ? [make("p", { class: "quiet", role: "status" }, `Fetching ${name} …`)] : []));
      await save(path, name).then(() => told.replaceChildren(), (error) => told.replaceChildren(problemBox(error.message)));
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
      line("results.zip", "Everything as one zip", true),
      Object.values(files).map(({ href, title }) => line(href.split("/").pop(), title, false)),
    ),
    told,
  );
}

function makeDetails(id, job, summary, tilejson, signal) {
  const told = make("div");
  const dismiss = make("button", { type: "button", class: "danger" }, "Dismiss this map");
  dismiss.addEventListener("click", () =>
    dismissJob(id, dismiss, told, "Its results are removed from the server, and the scene that came with it.", signal).then(() => dismiss.disabled && location.reload()),
  );
  const facts = [
    ["Scene", `${count(summary.scene.rows)} x ${count(summary.scene.cols)} pixels, ${count(summary.scene.bands)} bands`],
    ["Reference system", summary.crs ?? "none"],
    ["Mean confidence", summary.mean_confidence === null ? "none" : percent(summary.mean_confidence)],
    ["Bundle", `${summary.bundle.name}, sha256 ${summary.bundle.sha256.slice(0, 12)}…`],
    ["Run by", summary.provider],
    job.seconds ? ["Work", `${duration(job.seconds.total)} for ${count(summary.patches)} patches`] : null,
    job.resumes ? ["Taken up again", `${job.resumes} times, after a stop`] : null,
    job.expires ? ["Kept until", moment(job.expires)] : null,
    ...job.history.map((past) => [moment(past.time), past.text]),
  ].filter(Boolean);
  return make(
    "section",
    { "aria-labelledby": "details-title" },
    make("h2", { id: "details-title" }, "Details"),
    make("dl", {}, facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
    tilejson.crs ? addressField(tilejson) : null,
    dismiss,
    told,
  );
}

function addressField(tilejson) {
  const field = make("input", { id: "xyz", readonly: true, value: tilejson.tiles[0], onfocus: () => field.select() });
  return make(
    "div",
    { class: "field" },
    make("label", { for: "xyz" }, "For QGIS: Layer, Add XYZ Layer, with this address"),
    field,
    key() ? make("p", { class: "quiet" }, "QGIS has to send the key, too: as X-API-Key, under HTTP Headers.") : null,
  );
}
