// The fields for the model and, under Advanced, stride, blend and masks: each with a sentence about its effect and cost.

import { make } from "./dom.js";

const STRIDES = [1, 2, 4, 8, 16];
const BLENDS = {
  angle: "Overlapping patches are weighted by distance and by how similar their centre's spectrum is to the pixel's: sharp edges, in the same time as linear.",
  linear: "Overlapping patches are weighted by distance only: smoother edges.",
  none: "Each pixel gets the prediction of its own patch, as in the paper. Requires stride 1, which is the slowest.",
};

const SAME_BLEND = "Overlapping patches are weighted by distance: for this model, angle is the same as linear.";

const MASK_HINT =
  "Kinds that become no data, separated by commas: cloud, shadow, cirrus, haze, snow, water, saturated, dilated-cloud; or none. Empty: cloud and shadow, where the product has them.";

/** The form's fields; `read` returns their values. */
export function makeOptions(models) {
  const byName = new Map(models.models.map((model) => [model.name, model]));
  const modelField = selectField("model", "Model", models.models.map((model) => [model.name, model.title]));
  modelField.select.value = models.default;
  const strideField = selectField("stride_px", "Stride", []);
  const blendField = selectField("blend", "Blend", Object.keys(BLENDS).map((name) => [name, name]));

  const unknownField = selectField("unknown", "Unknown class", [["no", "no"], ["yes", "yes"]]);
  unknownField.setHint("Yes: pixels outside the model's area of applicability get the class unknown. The model must carry statistics of what it learnt from.");
  const maskField = textField("mask", "Masks of a product", "cloud,shadow", MASK_HINT);

  function update() {
    const model = byName.get(modelField.select.value);
    modelField.setHint(modelHint(model));
    fillStrides(strideField.select, model, blendField.select.value);
    strideField.setHint(`${strideHint(Number(strideField.select.value), defaultStride(model))} ${costHint(model)}`);
    blendField.setHint(model.head === "token" && blendField.select.value === "angle" ? SAME_BLEND : BLENDS[blendField.select.value]);
  }
  let lastModel = null;
  function fillStrides(select, model, blend) {
    const previous = lastModel === model.name && select.value ? Number(select.value) : defaultStride(model);
    lastModel = model.name;
    const largest = model.head === "token" ? model.patch_px : model.patch_px / 2;
    const strides = blend === "none" ? [1] : STRIDES.filter((stride) => stride <= Math.max(1, largest));
    select.replaceChildren(...strides.map((stride) => make("option", { value: String(stride) }, `${stride} px`)));
    select.value = String(strides.includes(previous) ? previous : blend === "none" ? 1 : defaultStride(model));
  }
  for (const field of [modelField, strideField, blendField]) field.select.addEventListener("change", update);
  update();
  return {
    element: make(
      "div",
      { class: "options" },
      modelField.element,
      make(
        "details",
        { class: "advanced" },
        make("summary", {}, "Advanced"),
        make("div", { class: "option-grid" }, strideField.element, blendField.element, unknownField.element, maskField.element),
      ),
    ),
    read: () => ({
      ...Object.fromEntries([modelField, strideField, blendField, unknownField].map(({ select }) => [select.name, select.value])),
      ...(maskField.input.value.trim() ? { mask: maskField.input.value.trim() } : {}),
    }),
  };
}

const defaultStride = (model) => (model.head === "token" ? 8 : 4);

function selectField(name, label, options) {
  const select = make("select", { id: name, name, "aria-describedby": `${name}-hint` });
  select.append(...options.map(([value, text]) => make("option", { value }, text)));
  const hint = make("p", { id: `${name}-hint`, class: "hint" });
  return {
    select,
    setHint: (text) => hint.replaceChildren(text),
    element: make("div", { class: "option" }, make("label", { for: name }, label), select, hint),
  };
}

function textField(name, label, placeholder, hint) {
  const input = make("input", { type: "text", id: name, name, placeholder, autocomplete: "off", "aria-describedby": `${name}-hint` });
  const text = make("p", { id: `${name}-hint`, class: "hint" }, hint);
  return { input, element: make("div", { class: "option" }, make("label", { for: name }, label), input, text) };
}

function modelHint(model) {
  const names = model.classes.map(({ name }) => name);
  const listed = names.length > 8 ? `${names.slice(0, 7).join(", ")} and ${names.length - 7} more` : names.join(", ");
  const range = model.wavelengths_nm;
  const needs = range
    ? `Needs bands from ${Math.round(range[0])} to ${Math.round(range[1])} nm.`
    : `Needs ${model.bands} bands, in the order used in training.`;
  const sensor = model.sensor ? `Trained on ${model.sensor}${model.acquired ? ` of ${model.acquired.slice(0, 10)}` : ""}.` : "";
  return [model.description, `It finds ${listed}.`, sensor, needs].filter(Boolean).join(" ");
}

function costHint(model) {
  return model.head === "token"
    ? "This model predicts all pixels of a patch at once, so a large stride is enough."
    : "This model predicts one pixel per patch, so the time depends on the stride.";
}

function strideHint(stride, usual) {
  const factor = (usual / stride) ** 2;
  if (stride === usual) return `A patch every ${stride} pixels: the default, a balance of accuracy and time.`;
  if (factor > 1) return `A patch every ${stride === 1 ? "pixel" : `${stride} pixels`}: about ${factor} times the work of stride ${usual}, for finer shapes.`;
  return `A patch every ${stride} pixels: about 1/${1 / factor} of the work of stride ${usual}; small shapes may be lost.`;
}
