// Reports of a map: pages that are saved, and links to check and compare it.

import { documentOf, request } from "./api.js";
import { linked } from "./beside.js";
import { count, make, percent, problemBox } from "./dom.js";
import { SceneMap } from "./map.js";

/** Save a report as an HTML file; errors go to `problems`. */
export async function saveReport(path, name, problems) {
  problems.replaceChildren();
  try {
    const blob = await (await request(path, { headers: { Accept: "text/html" } })).blob();
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    link.click();
  } catch (error) {
    problems.replaceChildren(problemBox(error.message));
  }
}

/** The section with report, check and comparison on a job's view. */
export async function makeReports(id, signal) {
  const problems = make("div");
  const { jobs } = await documentOf("jobs?status=successful&limit=100", { signal });
  const others = jobs.filter(({ jobID }) => jobID !== id);
  const choice = make("select", { id: "other-map" }, others.map((job) => make("option", { value: job.jobID }, `${job.scene}, ${job.model}`)));
  const compare = make("form", { class: "field" }, make("label", { for: "other-map" }, "Compare with"), choice, make("button", { type: "submit", class: "plain" }, "Compare"));
  compare.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = `#/compare/${id}/${choice.value}`;
  });
  return make(
    "section",
    { "aria-labelledby": "reports-title" },
    make("h2", { id: "reports-title" }, "Accuracy and reports"),
    make(
      "ul",
      { class: "reports" },
      make("li", {}, make("a", { href: `#/jobs/${id}/check` }, "Check this map")),
      make("li", {}, make("button", { type: "button", class: "plain", onclick: () => saveReport(`jobs/${id}/report`, "report.html", problems) }, "Report to print and sign")),
      make("li", {}, make("button", { type: "button", class: "plain", onclick: () => saveReport(`jobs/${id}/accuracy`, "accuracy.html", problems) }, "Accuracy report")),
    ),
    others.length ? compare : null,
    problems,
  );
}

/** Fill `main` with two maps side by side, which move together, and what changed between them. */
export async function showComparison(main, first, second, signal) {
  const found = await documentOf(`jobs/${first}/comparison/${second}`, { signal });
  const documents = await Promise.all([first, second].map((id) => documentOf(`jobs/${id}/tilejson.json`, { signal })));
  if (signal.aborted) return;
  document.title = "Compare two maps – hyperscene";
  const problems = make("div");
  const boxes = [found.first, found.second].map(({ name }) => make("div", { class: "map", role: "application", "aria-label": `Map of ${name}` }));
  const figures = boxes.map((box, index) => make("figure", {}, box, make("figcaption", {}, [found.first, found.second][index].name)));
  main.append(
    make("header", { class: "job-head" }, make("h1", { tabindex: "-1" }, "Compare two maps"), make("a", { href: `#/jobs/${first}` }, "Back to the map")),
    make("p", {}, `${count(found.changed_pixels)} of ${count(found.compared_pixels)} pixels changed (${percent(found.changed_share)}).`),
    make("div", { class: "warnings" }, make("ul", {}, found.warnings.map((text) => make("li", {}, text)))),
    make("div", { class: "linked-maps" }, figures),
    transitions(found),
    make("button", { type: "button", class: "plain", onclick: () => saveReport(`jobs/${first}/comparison/${second}`, "changes.html", problems) }, "Save as a page"),
    problems,
  );
  const maps = [first, second].map((id, index) => new SceneMap(boxes[index], id, documents[index]));
  for (const map of maps) map.show("classes");
  linked(maps[0].leaflet, maps[1].leaflet);
  signal.addEventListener("abort", () => maps.forEach((map) => map.remove()));
}

/** Transitions in pixels: the first map in rows, the second in columns. */
function transitions({ class_names: names, transition_pixels: pixels }) {
  const head = make("tr", {}, make("th", { scope: "col" }, "from \\ to"), names.map((name) => make("th", { scope: "col" }, name)));
  const rows = pixels.map((row, index) => make("tr", {}, make("th", { scope: "row" }, names[index]), row.map((number) => make("td", {}, count(number)))));
  return make("div", { class: "wide" }, make("table", { class: "transitions" }, make("caption", {}, "Pixels: first map in rows, second map in columns"), make("thead", {}, head), make("tbody", {}, rows)));
}
