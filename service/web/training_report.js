// The report of a finished training: accuracy, confusion, likely mistakes, both maps, and mapping with the new model.

import { documentOf, loadImage, newIdempotencyKey, request, save } from "./api.js";
import { count, duration, make, percent, problemBox, swatch } from "./dom.js";

const MANY = 12; // likely mistakes that are listed at first

/** Fill a box with the report of a job. */
export async function showReport(box, job, signal) {
  const report = await documentOf(`jobs/${job.jobID}/results/report.json`, { signal });
  if (signal.aborted) return;
  const found = report.cross_validation;
  const main = found?.far_from_labels ?? found?.close_to_labels ?? null;
  const cards = [
    makeActions(job, signal),
    makeAccuracy(report, found),
    main ? makeConfusion(report.classes, main.confusion) : null,
    makeMaps(report, job, signal),
    found?.likely_mistakes.length ? makeMistakes(found.likely_mistakes) : null,
    makeSettings(report, job),
  ];
  box.replaceChildren(...cards.filter(Boolean));
}

const card = (id, title, ...content) =>
  make("section", { class: "card", "aria-labelledby": id }, make("h2", { id }, title), ...content);

function makeActions(job, signal) {
  const problems = make("div");
  const map = make("button", { type: "button", class: "main" }, `Map ${job.scene} with it`);
  const key = newIdempotencyKey();
  map.addEventListener("click", async () => {
    map.disabled = true;
    const inputs = { scene: { href: `/scenes/${job.scene_id}` }, model: `${job.model}@${job.model_version}` };
    try {
      const headers = { "Content-Type": "application/json", Prefer: "respond-async", "Idempotency-Key": key };
      const response = await request("processes/classify-scene/execution", { method: "POST", headers, body: JSON.stringify({ inputs }), signal });
      location.hash = `#/jobs/${(await response.json()).jobID}`;
    } catch (error) {
      map.disabled = false;
      problems.replaceChildren(problemBox(error.message));
    }
  });
  const download = (path, name, text) =>
    make("button", { type: "button", onclick: () => save(path, name).catch((error) => problems.replaceChildren(problemBox(error.message))) }, text);
  const results = `jobs/${job.jobID}/results`;
  return card(
    "trained-title",
    `Version ${job.model_version} of ${job.model} is ready`,
    make(
      "div",
      { class: "actions" },
      map,
      download(`${results}/bundle.onnx`, `${job.model}.onnx`, "Download the bundle"),
      download(`${results}/report.json`, "report.json", "Report as JSON"),
      make("a", { class: "button", href: `#/scenes/${job.scene_id}/train` }, "Train again"),
    ),
    problems,
  );
}

const figure = (found) => {
  if (found?.value === null || found?.value === undefined) return "–";
  const range = found.interval ? ` (${(100 * found.interval[0]).toFixed(0)} to ${(100 * found.interval[1]).toFixed(0)})` : "";
  return `${(100 * found.value).toFixed(1)}${range}`;
};

function makeAccuracy(report, found) {
  const lines = report.advice.map((text) => make("li", {}, text));
  const advice = lines.length ? [make("ul", { class: "advice" }, lines)] : [];
  const ways = found ? [["Far from labels", found.far_from_labels], ["Close to labels", found.close_to_labels]].filter(([, way]) => way) : [];
  if (!ways.length) return card("accuracy-title", "Accuracy", make("p", {}, report.text.join(" ")), ...advice);
  const rows = [["Overall accuracy", "oa"], ["Average accuracy", "aa"], ["Kappa x 100", "kappa"]].map(([title, name]) =>
    make("tr", {}, make("th", { scope: "row" }, title), ways.map(([, way]) => make("td", { class: "number" }, figure(way[name])))),
  );
  const classes = report.classes.map(({ name, color, pixels }, index) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, swatch(color), `${name}, ${count(pixels)} pixels`),
      ways.map(([, way]) => make("td", { class: "number" }, figure(way.per_class[index]?.accuracy))),
    ),
  );
  return card(
    "accuracy-title",
    "Accuracy by cross-validation",
    make("p", { class: "quiet" }, "In percent, with 95 % intervals. Whole clusters of labels (far), or single pixels (close), were held out in turn; all labels were used for the model."),
    scrolled(
      make("table", { class: "legend" }, make("thead", {}, make("tr", {}, make("td"), ways.map(([title]) => make("th", { scope: "col", class: "number" }, title)))), make("tbody", {}, rows, classes)),
      "Accuracy",
    ),
    ...advice,
  );
}

/** Wide tables scroll inside their card; the keyboard reaches them. */
const scrolled = (table, label) => make("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": label }, table);

function makeConfusion(classes, confusion) {
  const head = make("tr", {}, make("th", { scope: "col" }, "Label"), classes.map(({ name }) => make("th", { scope: "col", class: "number" }, name)));
  const rows = confusion.map((line, row) => {
    const total = line.reduce((sum, value) => sum + value, 0);
    const cells = line.map((value, column) => make("td", { class: `number${row === column ? " same" : value && value >= total / 5 ? " confused" : ""}` }, count(value)));
    return make("tr", {}, make("th", { scope: "row" }, swatch(classes[row].color), classes[row].name), cells);
  });
  const table = make("table", { class: "legend confusion" }, make("thead", {}, head), make("tbody", {}, rows));
  return card("confusion-title", "Confusion", make("p", { class: "quiet" }, "Pixels of each label (rows) by the class that was predicted without it (columns)."), scrolled(table, "Confusion"));
}

function makeMaps(report, job, signal) {
  const picture = (name, title) => {
    const image = make("img", { alt: title });
    const item = make("figure", { class: "result-map" }, image, make("figcaption", {}, title));
    loadImage(image, `jobs/${job.jobID}/results/${name}`, signal).catch(() => item.remove());
    return item;
  };
  const { rows, cols, agreement } = report.maps;
  const where = rows ? `Rows ${rows[0]} to ${rows[1] - 1}, columns ${cols[0]} to ${cols[1] - 1}.` : "Windows of the scene, side by side.";
  const same = agreement === undefined || agreement === null ? "" : ` The two maps agree on ${percent(agreement)} of the pixels.`;
  return card(
    "maps-title",
    "The network's map beside that of label propagation",
    make("p", { class: "quiet" }, where + same),
    make("div", { class: "result-maps" }, picture("network.png", "Network"), picture("propagation.png", "Label propagation, from which it learned")),
    make("ul", { class: "class-names" }, report.classes.map(({ name, color }) => make("li", {}, swatch(color), name))),
  );
}

function makeMistakes(mistakes) {
  const hasPlace = mistakes[0].x !== undefined;
  const row = (each) =>
    make(
      "tr",
      {},
      make("td", { class: "number" }, count(each.row)),
      make("td", { class: "number" }, count(each.col)),
      hasPlace ? make("td", { class: "number" }, `${each.x.toFixed(1)}, ${each.y.toFixed(1)}`) : null,
      make("td", {}, each.label),
      make("td", {}, `${each.predicted}, ${percent(each.probability)}`),
    );
  const heads = ["Row", "Column", ...(hasPlace ? [mistakes[0].crs] : []), "Label", "Predicted"];
  const body = make("tbody", {}, mistakes.slice(0, MANY).map(row));
  const all = make("button", { type: "button", class: "plain" }, `Show all ${mistakes.length}`);
  all.addEventListener("click", () => {
    body.replaceChildren(...mistakes.map(row));
    all.remove();
  });
  const head = make("thead", {}, make("tr", {}, heads.map((text, index) => make("th", { scope: "col", class: index < heads.length - 2 ? "number" : "" }, text))));
  return card(
    "mistakes-title",
    "Likely label mistakes",
    make("p", { class: "quiet" }, "Labels that all other labels contradict. Look at them before you train again."),
    scrolled(make("table", { class: "legend" }, head, body), "Likely label mistakes"),
    mistakes.length > MANY ? all : null,
  );
}

function makeSettings(report, job) {
  const { settings, seconds } = report;
  const facts = [
    ["Scene", report.scene],
    ["Labels", `${report.labels}${job.settings.class_field ? `, field ${job.settings.class_field}` : ""}: ${count(job.settings.label_pixels)} pixels`],
    ["Recipe", `${settings.recipe.name}, ${settings.recipe.epochs} epochs, seed ${settings.seed}, ${settings.precision}`],
    ...(job.resumes ? [["Resumed", `${job.resumes === 1 ? "once" : `${job.resumes} times`} after an interruption`]] : []),
    ...Object.entries(seconds).map(([stage, spent]) => [stage[0].toUpperCase() + stage.slice(1), duration(spent)]),
    ["Bundle", `sha256 ${report.sha256.slice(0, 12)}…`],
    ...report.warnings.map((text) => ["Warning", text]),
  ];
  return card("settings-title", "Settings and time", make("dl", {}, facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])));
}
