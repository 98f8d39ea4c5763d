// Bundle, stride and blend, each with a sentence on what it does and costs.

import { make } from "./dom.js";

const STRIDES = [1, 2, 4, 8, 16];
const BLENDS = {
  angle: "Neighbouring patches vote on each pixel, and those whose centre has a similar spectrum count for more: sharp edges, at no extra time.",
  linear: "Neighbouring patches vote on each pixel by their distance alone: smoother edges, in the same time as angle.",
  none: "Each pixel takes the answer of its own patch, as in the paper. That needs stride 1, the slowest.",
};

const SAME_BLEND = "Each patch answers for its own pixels and votes by distance: with this bundle, angle is the same as linear.";

/** The form's fields; `read` answers what was chosen. */
export function makeChoices(models) {
  const byName = new Map(models.models.map((model) => [model.name, model]));
  const modelField = choice("model", "Bundle", models.models.map((model) => [model.name, model.title]));
  modelField.select.value = models.default;
  const strideField = choice("stride_px", "Stride", []);
  const blendField = choice("blend", "Blend", Object.keys(BLENDS).map((name) => [name, name]));

  function tell() {
    const model = byName.get(modelField.select.value);
    modelField.say(sentenceOfModel(model));
    fillStrides(strideField.select, model, blendField.select.value);
    strideField.say(sentenceOfStride(Number(strideField.select.value), defaultStride(model)));
    blendField.say(model.head === "token" && blendField.select.value === "angle" ? SAME_BLEND : BLENDS[blendField.select.value]);
  }
  let lastModel = null;
  function fillStrides(select, model, blend) {
    const wanted = lastModel === model.name && select.value ? Number(select.value) : defaultStride(model);
    lastModel = model.name;
    const most = model.head === "token" ? model.patch_px : model.patch_px / 2;
    const strides = blend === "none" ? [1] : STRIDES.filter((stride) => stride <= Math.max(1, most));
    select.replaceChildren(...strides.map((stride) => make("option", { value: String(stride) }, `${stride} px`)));
    select.value = String(strides.includes(wanted) ? wanted : blend === "none" ? 1 : defaultStride(model));
  }
  for (const field of [modelField, strideField, blendField]) field.select.addEventListener("change", tell);
  tell();
  return {
    element: make("div", { class: "choices" }, modelField.element, strideField.element, blendField.element),
    read: () => Object.fromEntries([modelField, strideField, blendField].map(({ select }) => [select.name, select.value])),
  };
}

const defaultStride = (model) => (model.head === "token" ? 8 : 4);

function choice(name, label, options) {
  const select = make("select", { id: name, name, "aria-describedby": `${name}-words` });
  select.append(...options.map(([value, text]) => make("option", { value }, text)));
  const words = make("p", { id: `${name}-words`, class: "words" });
  return {
    select,
    say: (text) => words.replaceChildren(text),
    element: make("div", { class: "choice" }, make("label", { for: name }, label), select, words),
  };
}

function sentenceOfModel(model) {
  const names = model.classes.map(({ name }) => name);
  const listed = names.length > 8 ? `${names.slice(0, 7).join(", ")} and ${names.length - 7} more` : names.join(", ");
  const range = model.wavelengths_nm;
  const needs = range
    ? `It needs bands from ${Math.round(range[0])} to ${Math.round(range[1])} nm.`
    : `It needs ${model.bands} bands in the order it learnt them.`;
  const cost =
    model.head === "token"
      ? "It answers for whole patches at once, so a wide stride will do."
      : "It answers a pixel a patch, so time goes by the stride.";
  return `Tells apart ${listed}. ${needs} ${cost}`;
}

function sentenceOfStride(stride, usual) {
  const factor = (usual / stride) ** 2;
  if (stride === usual) return `A patch every ${stride} pixels, the usual choice of accuracy and time.`;
  if (factor > 1) return `A patch every ${stride === 1 ? "pixel" : `${stride} pixels`}: about ${factor} times the work of stride ${usual}, for finer shapes.`;
  return `A patch every ${stride} pixels: about 1/${1 / factor} of the work of stride ${usual}; small shapes may be lost.`;
}
