// The list of jobs, with state and thumbnails.

import { documentOf, showPicture } from "./api.js";
import { make, moment, problemBox } from "./dom.js";

const PAGE = 12;
const STATES = { accepted: "waits", running: "is mapped", successful: "mapped", failed: "failed", dismissed: "dismissed" };
const EVERY_MS = 3000;

/** Fill a section with the jobs, and keep it up to date. */
export async function showJobs(section, signal) {
  const list = new JobList(signal);
  const none = make("p", { class: "quiet", hidden: true }, "None yet. What you send is listed here until it expires.");
  const more = make("button", { type: "button", class: "plain", hidden: true }, "Older jobs");
  section.append(make("h2", { id: "jobs-title" }, "Your maps"), none, list.element, more);
  async function page() {
    const { jobs, links } = await documentOf(`jobs?limit=${PAGE}&offset=${list.size}`, { signal });
    list.add(jobs);
    none.hidden = list.size > 0;
    more.hidden = !links.some(({ rel }) => rel === "next");
  }
  const told = make("div");
  section.append(told);
  more.addEventListener("click", () => page().then(() => told.replaceChildren(), (error) => told.replaceChildren(problemBox(error.message))));
  await page();
  keepUpToDate(list, none, signal);
}

/** Look at the newest jobs again and again; nobody is asked for a key for that. */
async function keepUpToDate(list, none, signal) {
  while (!signal.aborted) {
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    if (signal.aborted || document.hidden) continue;
    const newest = await documentOf(`jobs?limit=${PAGE}`, { signal, isQuiet: true }).catch(() => null);
    if (!newest) continue;
    list.renew(newest.jobs, newest.jobs.length < PAGE);
    none.hidden = list.size > 0;
    for (const id of list.unfinished(newest.jobs)) {
      const job = await documentOf(`jobs/${id}`, { signal, isQuiet: true }).catch((error) => (error.status === 404 ? null : undefined));
      if (job !== undefined) list.put(id, job);
    }
  }
}

/** Lines by job: changed where they stand, so that nobody loses the place or the focus. */
class JobList {
  constructor(signal) {
    this.element = make("ul", { class: "jobs" });
    this._lines = new Map();
    this._signal = signal;
  }

  get size() {
    return this._lines.size;
  }

  /** Jobs at their places, the newest first; those that are there already are brought up to date. */
  add(jobs) {
    for (const job of jobs) {
      if (this._changed(job)) continue;
      const line = new JobLine(job, this._signal);
      const older = [...this._lines.values()].find(({ created }) => created < job.created);
      this._lines.set(job.jobID, line);
      if (older) older.element.before(line.element);
      else this.element.append(line.element);
    }
    this._lines = new Map([...this._lines].sort(([, one], [, other]) => (one.created < other.created ? 1 : -1)));
  }

  /** The newest jobs as they are now: what should stand among them and does not is gone. */
  renew(jobs, areAll) {
    const ids = new Set(jobs.map(({ jobID }) => jobID));
    const isKnown = jobs.some(({ jobID }) => this._lines.has(jobID));
    const oldest = jobs.at(-1)?.created ?? "";
    for (const [id, { created }] of [...this._lines]) {
      if (!ids.has(id) && (areAll || !isKnown || created >= oldest)) this.put(id, null);
    }
    this.add(jobs);
  }

  /** A job as it is now; null where it is gone. */
  put(id, job) {
    if (job) this._changed(job);
    else if (this._lines.has(id)) {
      this._lines.get(id).element.remove();
      this._lines.delete(id);
    }
  }

  /** Ids of jobs that go on, other than these. */
  unfinished(known) {
    const ids = new Set(known.map(({ jobID }) => jobID));
    return [...this._lines].filter(([id, { isFinished }]) => !isFinished && !ids.has(id)).map(([id]) => id);
  }

  _changed(job) {
    const line = this._lines.get(job.jobID);
    line?.show(job);
    return Boolean(line);
  }
}

class JobLine {
  constructor(job, signal) {
    this._signal = signal;
    this.created = job.created;
    this._thumbnail = make("span", { class: "thumbnail" });
    this._state = make("span");
    this.element = make(
      "li",
      {},
      make(
        "a",
        { href: `#/jobs/${job.jobID}` },
        this._thumbnail,
        make("span", { class: "job-name" }, job.scene),
        make("span", { class: "quiet" }, `${job.model}, ${moment(job.created)}`),
        this._state,
      ),
    );
    this.show(job);
  }

  show(job) {
    this.isFinished = ["successful", "failed", "dismissed"].includes(job.status);
    this._state.className = `state ${job.status}`;
    const words = STATES[job.status] + (job.status === "running" ? ` ${job.progress} %` : "");
    if (this._state.textContent !== words) this._state.textContent = words;
    if (job.status === "successful" && this._shown !== "successful") this._showPicture(job);
    if (job.status === "running") this._showProgress(job);
    if (["failed", "dismissed"].includes(job.status)) this._thumbnail.replaceChildren();
    this._shown = job.status;
  }

  _showProgress(job) {
    if (this._shown !== "running") this._thumbnail.replaceChildren(make("progress", { max: 100, "aria-label": `Progress of ${job.scene}` }));
    this._thumbnail.firstChild.value = job.progress;
  }

  /** A small picture of the map, fetched when it comes into view. */
  _showPicture(job) {
    this._thumbnail.replaceChildren();
    const image = make("img", { alt: `Class map of ${job.scene}` });
    const observer = new IntersectionObserver((entries) => {
      if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
      observer.disconnect();
      showPicture(image, `jobs/${job.jobID}/results/preview.png`, this._signal).then(() => this._thumbnail.append(image), () => {});
    });
    observer.observe(this._thumbnail);
    this._signal.addEventListener("abort", () => observer.disconnect());
  }
}
