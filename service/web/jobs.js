// The list of jobs, with state and thumbnails.

import { documentOf, showPicture } from "./api.js";
import { make, moment, problemBox } from "./dom.js";

const PAGE = 12;
const STATES = { accepted: "waits", running: "is mapped", successful: "mapped", failed: "failed", dismissed: "dismissed" };
const EVERY_MS = 3000;

/** Fill a section with the jobs, and keep those that are not finished up to date. */
export async function showJobs(section, signal) {
  const list = make("ul", { class: "jobs" });
  const more = make("button", { type: "button", class: "plain", hidden: true }, "Older jobs");
  section.append(make("h2", { id: "jobs-title" }, "Your maps"), list, more);
  let shown = 0;
  async function page() {
    const { jobs, links } = await documentOf(`jobs?limit=${PAGE}&offset=${shown}`, { signal });
    shown += jobs.length;
    list.append(...jobs.map((job) => jobLine(job, signal)));
    more.hidden = !links.some(({ rel }) => rel === "next");
    if (!shown) list.replaceWith(make("p", { class: "quiet" }, "None yet. What you send is listed here until it expires."));
  }
  more.addEventListener("click", () => page().catch((error) => section.append(problemBox(error.message))));
  await page();
  keepUpToDate(list, signal);
}

function keepUpToDate(list, signal) {
  const timer = setInterval(async () => {
    for (const line of list.querySelectorAll("[data-unfinished]")) {
      const job = await documentOf(`jobs/${line.dataset.unfinished}`, { signal }).catch(() => null);
      if (job && line.isConnected) line.replaceWith(jobLine(job, signal));
    }
  }, EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}

function jobLine(job, signal) {
  const isFinished = ["successful", "failed", "dismissed"].includes(job.status);
  return make(
    "li",
    { "data-unfinished": isFinished ? null : job.jobID },
    make(
      "a",
      { href: `#/jobs/${job.jobID}` },
      thumbnail(job, signal),
      make("span", { class: "job-name" }, job.scene),
      make("span", { class: "quiet" }, `${job.model}, ${moment(job.created)}`),
      make("span", { class: `state ${job.status}` }, STATES[job.status], job.status === "running" ? ` ${job.progress} %` : ""),
    ),
  );
}

/** A small picture of the map, fetched when it comes into view. */
function thumbnail(job, signal) {
  const box = make("span", { class: "thumbnail" });
  if (job.status === "successful") {
    const image = make("img", { alt: `Class map of ${job.scene}` });
    new IntersectionObserver((entries, observer) => {
      if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
      observer.disconnect();
      showPicture(image, `jobs/${job.jobID}/results/preview.png`, signal).then(() => box.append(image), () => {});
    }).observe(box);
  } else if (job.status === "running") {
    box.append(make("progress", { max: 100, value: job.progress, "aria-label": `Progress of ${job.scene}` }));
  }
  return box;
}
