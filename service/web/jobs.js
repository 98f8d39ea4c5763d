// The list of jobs, with status and thumbnails.

import { documentOf, loadImage, pause } from "./api.js";
import { dateTime, make, problemBox } from "./dom.js";

const PAGE = 12;
const STATUSES = { accepted: "waiting", running: "being mapped", successful: "mapped", failed: "failed", dismissed: "dismissed" };
const TRAINING = { ...STATUSES, running: "training", successful: "trained" };
const POLL_MS = 3000;

/** Fill a section with the jobs, and keep it up to date. */
export async function showJobs(section, signal) {
  const list = new JobList(signal);
  const none = make("p", { class: "quiet", hidden: true }, "No maps yet. The scenes that you send are listed here until they expire.");
  const more = make("button", { type: "button", class: "plain", hidden: true }, "Older jobs");
  section.append(make("h2", { id: "jobs-title" }, "Your maps"), none, list.element, more);
  async function page() {
    const { jobs, links } = await documentOf(`jobs?limit=${PAGE}&offset=${list.size}`, { signal });
    list.add(jobs);
    none.hidden = list.size > 0;
    more.hidden = !links.some(({ rel }) => rel === "next");
  }
  const problems = make("div");
  section.append(problems);
  more.addEventListener("click", () => page().then(() => problems.replaceChildren(), (error) => problems.replaceChildren(problemBox(error.message))));
  await page();
  keepUpToDate(list, none, signal);
}

/** Poll the newest jobs, without prompting for a key. */
async function keepUpToDate(list, none, signal) {
  while (!signal.aborted) {
    await pause(POLL_MS);
    if (signal.aborted || document.hidden) continue;
    const newest = await documentOf(`jobs?limit=${PAGE}`, { signal, isQuiet: true }).catch(() => null);
    if (!newest) continue;
    list.update(newest.jobs, newest.jobs.length < PAGE);
    none.hidden = list.size > 0;
    for (const id of list.unfinished(newest.jobs)) {
      const job = await documentOf(`jobs/${id}`, { signal, isQuiet: true }).catch((error) => (error.status === 404 ? null : undefined));
      if (job !== undefined) list.put(id, job);
    }
  }
}

/** The list's items, updated in place so that scroll position and focus are kept. */
class JobList {
  constructor(signal) {
    this.element = make("ul", { class: "jobs" });
    this._items = new Map(); // by job id
    this._signal = signal;
  }

  get size() {
    return this._items.size;
  }

  /** Insert jobs, newest first; jobs that are in the list already are updated. */
  add(jobs) {
    for (const job of jobs) {
      if (this._show(job)) continue;
      const item = new JobItem(job, this._signal);
      const older = [...this._items.values()].find(({ created }) => created < job.created);
      this._items.set(job.jobID, item);
      if (older) older.element.before(item.element);
      else this.element.append(item.element);
    }
    this._items = new Map([...this._items].sort(([, one], [, other]) => (one.created < other.created ? 1 : -1)));
  }

  /** Update the list from its newest jobs; an item that should be among them and is not was removed. */
  update(jobs, areAll) {
    const ids = new Set(jobs.map(({ jobID }) => jobID));
    const isKnown = jobs.some(({ jobID }) => this._items.has(jobID));
    const oldest = jobs.at(-1)?.created ?? "";
    for (const [id, { created }] of [...this._items]) {
      if (!ids.has(id) && (areAll || !isKnown || created >= oldest)) this.put(id, null);
    }
    this.add(jobs);
  }

  /** Update one job; null removes it. */
  put(id, job) {
    if (job) this._show(job);
    else if (this._items.has(id)) {
      this._items.get(id).element.remove();
      this._items.delete(id);
    }
  }

  /** Ids of unfinished jobs, other than these. */
  unfinished(known) {
    const ids = new Set(known.map(({ jobID }) => jobID));
    return [...this._items].filter(([id, { isFinished }]) => !isFinished && !ids.has(id)).map(([id]) => id);
  }

  /** Show a job in its item; whether it has one. */
  _show(job) {
    const item = this._items.get(job.jobID);
    item?.show(job);
    return Boolean(item);
  }
}

class JobItem {
  constructor(job, signal) {
    this._signal = signal;
    this.created = job.created;
    this._thumbnail = make("span", { class: "thumbnail" });
    this._status = make("span");
    this.element = make(
      "li",
      {},
      make(
        "a",
        { href: `#/jobs/${job.jobID}` },
        this._thumbnail,
        make("span", { class: "job-name" }, job.scene),
        make("span", { class: "quiet" }, `${job.model}, ${dateTime(job.created)}`),
        this._status,
      ),
    );
    this.show(job);
  }

  show(job) {
    this.isFinished = ["successful", "failed", "dismissed"].includes(job.status);
    this._status.className = `status ${job.status}`;
    const text = (job.processID === "train-model" ? TRAINING : STATUSES)[job.status] + (job.status === "running" ? `, ${job.progress} %` : "");
    if (this._status.textContent !== text) this._status.textContent = text;
    if (job.status === "successful" && this._shown !== "successful") this._showPreview(job);
    if (job.status === "running") this._showProgress(job);
    if (["failed", "dismissed"].includes(job.status)) this._thumbnail.replaceChildren();
    this._shown = job.status;
  }

  _showProgress(job) {
    if (this._shown !== "running") this._thumbnail.replaceChildren(make("progress", { max: 100, "aria-label": `Progress of ${job.scene}` }));
    this._thumbnail.firstChild.value = job.progress;
  }

  /** A small image of the map, loaded when it scrolls into view. */
  _showPreview(job) {
    this._thumbnail.replaceChildren();
    const image = make("img", { alt: `Class map of ${job.scene}` });
    const observer = new IntersectionObserver((entries) => {
      if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
      observer.disconnect();
      const name = job.processID === "train-model" ? "network.png" : "preview.png";
      loadImage(image, `jobs/${job.jobID}/results/${name}`, this._signal).then(() => this._thumbnail.append(image), () => {});
    });
    observer.observe(this._thumbnail);
    this._signal.addEventListener("abort", () => observer.disconnect());
  }
}
