// The view for training on a scene: a label file, the field with its classes, and the model's name.

import { documentOf, newIdempotencyKey, request } from "./api.js";
import { announce, bytes, count, make, problemBox, swatch } from "./dom.js";

const NAME = /[^A-Za-z0-9._-]+/g; // what the name of a model cannot contain
const MANY = 12; // classes that are listed at first
const RECIPES = {
  strong: "Propagates the labels over the scene first; the network learns the result. For few labels.",
  paper: "The recipe of the paper: learns from labelled patches only. Gives no estimate of the accuracy.",
};

/** Fill `main` with the form. */
export async function showTraining(main, id, signal) {
  const scene = await documentOf(`scenes/${id}`, { signal });
  if (signal.aborted) return;
  document.title = "Train a model – hyperscene";
  const card = make("section", { class: "card send", "aria-labelledby": "train-title" });
  card.append(
    make("h1", { id: "train-title", tabindex: "-1" }, "Train a model"),
    make("p", { class: "quiet" }, `On ${scene.name}: ${count(scene.rows)} x ${count(scene.cols)} pixels, ${count(scene.bands)} bands.`),
  );
  main.append(card);
  makeForm(card, id, signal);
}

function makeForm(section, id, signal) {
  const state = { file: null, found: null, key: newIdempotencyKey() };
  const input = make("input", { type: "file", id: "labels", class: "unseen", accept: ".gpkg,.geojson,.json,.fgb,.zip,.csv,.tif,.tiff" });
  const drop = make(
    "div",
    { class: "drop" },
    make("p", { class: "drop-title" }, "Drop a file with labels here: GeoPackage, GeoJSON, FlatGeobuf, zipped Shapefile, CSV or a GeoTIFF on the scene's grid"),
    make("p", { class: "choose" }, input, make("label", { for: "labels", class: "button" }, "Choose a label file")),
  );
  const chosen = make("p", { class: "file-check", role: "status" });
  const status = make("div", { class: "upload-status" });
  const classes = make("div", { class: "label-classes" });
  const fields = makeFields();
  const start = make("button", { type: "submit", class: "main", disabled: true }, "Train");
  const form = make("form", { class: "upload-form" }, drop, chosen, status, classes, fields.element, make("div", { class: "actions" }, start));

  async function describe(field) {
    const { file } = state;
    start.disabled = true;
    chosen.textContent = `Reading ${file.name} …`;
    status.replaceChildren();
    const body = new FormData();
    body.append("labels", file, file.name);
    if (field) body.append("class_field", field);
    const path = `scenes/${id}/label-file`;
    const found = await request(path, { method: "POST", body, signal }).then((response) => response.json()).catch((error) => error);
    if (signal.aborted || state.file !== file) return;
    state.key = newIdempotencyKey();
    if (found instanceof Error) {
      chosen.textContent = `${file.name}, ${bytes(file.size)}`;
      status.replaceChildren(problemBox(found.message));
      if (!field) classes.replaceChildren();
      for (const outdated of classes.querySelectorAll("h2, table, button")) outdated.remove(); // of another field
      return;
    }
    state.found = found;
    chosen.textContent = `${file.name}, ${found.format}, ${bytes(file.size)}`;
    classes.replaceChildren(...describeClasses(found, describe));
    fields.suggest(file.name);
    start.disabled = found.classes.length < 2;
    if (found.classes.length) announce(`${found.classes.length} classes, ${found.pixels} labelled pixels`);
  }
  function choose(file) {
    if (!file) return;
    state.file = file;
    classes.replaceChildren();
    describe("");
  }
  input.addEventListener("change", () => {
    choose(input.files[0]);
    input.value = ""; // so that the same file can be chosen again
  });
  acceptDrops(drop, choose, signal);
  form.addEventListener("change", () => (state.key = newIdempotencyKey()));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    start.disabled = true;
    status.replaceChildren(make("p", { role: "status" }, "Sending …"));
    const body = new FormData();
    body.append("scene_id", id);
    body.append("labels", state.file, state.file.name);
    if (state.found.class_field) body.append("class_field", state.found.class_field);
    for (const [name, value] of Object.entries(fields.read())) if (value) body.append(name, value);
    try {
      const job = await (await request("models", { method: "POST", body, headers: { "Idempotency-Key": state.key } })).json();
      announce(`Training of ${job.model} was accepted`);
      location.hash = `#/jobs/${job.jobID}`;
    } catch (error) {
      status.replaceChildren(problemBox(error.message));
      start.disabled = false;
    }
  });
  section.append(form);
}

/** The field with the classes, and a table of the classes. */
function describeClasses(found, describe) {
  const parts = [];
  if (found.fields.length) {
    const select = make("select", { id: "class_field" });
    if (!found.class_field) select.append(make("option", { value: "" }, "Choose a field"));
    for (const { name, values, examples } of found.fields) {
      select.append(make("option", { value: name }, `${name} (${values} ${values === 1 ? "value" : "values"}: ${examples.slice(0, 3).join(", ")})`));
    }
    select.value = found.class_field ?? "";
    select.addEventListener("change", () => describe(select.value));
    parts.push(make("div", { class: "option" }, make("label", { for: "class_field" }, "Field with the classes"), select));
  }
  if (found.classes.length) parts.push(...classTable(found));
  for (const text of found.warnings) parts.push(make("p", { class: "quiet" }, text));
  return parts;
}

function classTable(found) {
  const hasShapes = found.classes[0].shapes !== undefined;
  const row = ({ name, color, pixels, shapes }) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, swatch(color), name),
      make("td", { class: "number" }, count(pixels)),
      hasShapes ? make("td", { class: "number" }, count(shapes)) : null,
    );
  const body = make("tbody", {}, found.classes.slice(0, MANY).map(row));
  const rest = found.classes.slice(MANY);
  const all = make("button", { type: "button", class: "plain" }, `Show ${rest.length} more`);
  all.addEventListener("click", () => {
    body.append(...rest.map(row));
    all.remove();
  });
  const heads = ["Class", "Pixels", ...(hasShapes ? ["Shapes"] : [])];
  return [
    make("h2", {}, `${count(found.classes.length)} classes, ${count(found.pixels)} labelled pixels`),
    make(
      "table",
      { class: "legend" },
      make("thead", {}, make("tr", {}, heads.map((text, index) => make("th", { scope: "col", class: index ? "number" : "" }, text)))),
      body,
    ),
    ...(rest.length ? [all] : []),
  ];
}

/** The model's name and the options of training. */
function makeFields() {
  const name = make("input", { type: "text", id: "model-name", required: true, maxlength: "100", autocomplete: "off", pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*", "aria-describedby": "model-name-hint" });
  const recipe = make("select", { id: "recipe", "aria-describedby": "recipe-hint" }, Object.keys(RECIPES).map((each) => make("option", { value: each }, each)));
  const hint = make("p", { class: "hint", id: "recipe-hint" }, RECIPES.strong);
  const epochs = make("input", { type: "number", id: "epochs", min: "1", max: "1000", placeholder: "from the recipe" });
  const seed = make("input", { type: "number", id: "seed", min: "0", max: "2147483647", value: "0" });
  recipe.addEventListener("change", () => (hint.textContent = RECIPES[recipe.value]));
  let isOwn = false;
  name.addEventListener("input", () => (isOwn = true));
  const field = (id, label, ...content) => make("div", { class: "option" }, make("label", { for: id }, label), ...content);
  return {
    element: make(
      "div",
      { class: "options" },
      field("model-name", "Name of the model", name, make("p", { class: "hint", id: "model-name-hint" }, "Letters, digits, dots, hyphens and underscores. A name that you used before gets its next version.")),
      field("recipe", "Recipe", recipe, hint),
      field("epochs", "Epochs", epochs),
      field("seed", "Seed", seed),
    ),
    suggest(file) {
      if (!isOwn) name.value = file.replace(/\.\w+$/, "").replace(NAME, "-").replace(/^[^A-Za-z0-9]+/, "").slice(0, 100);
    },
    read: () => ({ name: name.value, recipe: recipe.value, epochs: epochs.value, seed: seed.value }),
  };
}

/** Accept a dropped file anywhere on the page; outside of the box, the browser would open it. */
function acceptDrops(box, choose, signal) {
  const on = (type, handle) =>
    addEventListener(type, (event) => event.dataTransfer?.types.includes("Files") && (event.preventDefault(), handle(event)), { signal });
  on("dragover", () => box.classList.add("over"));
  on("dragleave", (event) => event.relatedTarget === null && box.classList.remove("over"));
  on("drop", (event) => {
    box.classList.remove("over");
    choose(event.dataTransfer.files[0]);
  });
}
