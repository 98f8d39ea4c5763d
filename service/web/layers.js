// The layer panel: layer, opacity, swipe, scene bands.

import { make } from "./dom.js";

const COMPOSITES = [ // name, wavelengths in nm for red, green and blue
  ["true colours", [640, 550, 460]],
  ["near infrared, red, green", [860, 650, 550]],
  ["shortwave, near infrared, red", [1650, 860, 650]],
  ["two shortwave, near infrared", [2200, 1650, 860]],
];
const MAX_DISTANCE_NM = 60; // from a composite's wavelength to the scene's nearest band

/** The composites that the scene's bands allow, as [name, band numbers]. */
export function compositesOf(scene) {
  const nm = scene?.wavelengths_nm;
  if (!nm) return [];
  const found = COMPOSITES.map(([name, targets]) => {
    const indices = targets.map((target) => nm.reduce((best, value, index) => (Math.abs(value - target) < Math.abs(nm[best] - target) ? index : best), 0));
    const isNear = indices.every((index, channel) => Math.abs(nm[index] - targets[channel]) <= MAX_DISTANCE_NM) && new Set(indices).size === 3;
    return isNear ? [name, indices.map((index) => scene.band_numbers?.[index] ?? index + 1)] : null;
  });
  return found.filter(Boolean);
}

const RAMP = ["#440154", "#472c7b", "#3a528b", "#2c728e", "#20908c", "#27ad80", "#5bc862", "#aadb32", "#fde724"]; // viridis
let packedRamp = null;

/** The ramp as pixels of a canvas, by value 0 to 255. */
export function rampColors() {
  packedRamp ??= Uint32Array.from({ length: 256 }, (_, value) => {
    const at = (value / 255) * (RAMP.length - 1);
    const [low, high] = [Math.floor(at), Math.ceil(at)].map((index) => [1, 3, 5].map((start) => parseInt(RAMP[index].slice(start, start + 2), 16)));
    const [red, green, blue] = low.map((part, index) => Math.round(part + (high[index] - part) * (at - Math.floor(at))));
    return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  });
  return packedRamp;
}

/** The controls of a map; `scene` is the scene's document, null if the scene was removed. */
export function makeLayerPanel(map, tilejson, scene) {
  const hasScene = tilejson.layers.some(({ id }) => id === "scene");
  const results = tilejson.layers.filter(({ id }) => id !== "scene");
  const select = make("select", { id: "layer", "aria-describedby": "layer-hint" });
  select.append(...results.map(({ id, title }) => make("option", { value: id }, title)));
  const ramp = make("div", { class: "ramp", hidden: true });
  const opacity = make("input", { type: "range", id: "opacity", min: "0", max: "100", value: "100", "aria-describedby": "opacity-hint" });
  const swipe = make("input", { type: "checkbox", id: "swipe" });

  function show() {
    const layer = results.find(({ id }) => id === select.value);
    map.show(layer.id);
    ramp.hidden = !layer.ramp;
    if (layer.ramp) ramp.replaceChildren(...rampOf(layer.ramp));
  }
  const composites = compositesOf(scene);
  const composite = make("select", { id: "composite", "aria-describedby": "composite-hint" });
  composite.append(...composites.map(([name], index) => make("option", { value: String(index) }, name)));
  composite.addEventListener("change", () => map.showScene(composites[Number(composite.value)][1]));
  select.addEventListener("change", show);
  opacity.addEventListener("input", () => map.setOpacity(Number(opacity.value) / 100));
  swipe.addEventListener("change", () => map.swipe(swipe.checked));
  show();
  return make(
    "section",
    { class: "layers", "aria-labelledby": "layers-title" },
    make("h2", { id: "layers-title" }, "Layer"),
    make("div", { class: "field" }, make("label", { for: "layer" }, "Shown on the map"), select, hint("layer", "The class of each pixel, how sure the model is of it, or the probability of one class.")),
    ramp,
    hasScene
      ? [
          make("div", { class: "field" }, make("label", { for: "opacity" }, "Opacity over the scene"), opacity, hint("opacity", "To the left, the scene shows through the map.")),
          make("div", { class: "check" }, swipe, make("label", { for: "swipe" }, "Swipe: scene left, map right")),
          basemapField(map),
          composites.length > 1 ? make("div", { class: "field" }, make("label", { for: "composite" }, "Scene colours"), composite, hint("composite", "Which bands of the scene are shown as red, green and blue.")) : null,
        ]
      : [basemapField(map), make("p", { class: "quiet" }, "The scene was removed, so only its map is shown.")],
  );
}

/** The switch of the basemap, if there is one. */
function basemapField(map) {
  if (!map.showBasemap) return null;
  const box = make("input", { type: "checkbox", id: "basemap", checked: true, onchange: () => map.showBasemap(box.checked) });
  return make("div", { class: "check" }, box, make("label", { for: "basemap" }, "Background map around the scene"));
}

const hint = (id, text) => make("p", { id: `${id}-hint`, class: "hint" }, text);

function rampOf(colors) {
  const bar = make("div", { class: "ramp-bar", "aria-hidden": "true" });
  bar.style.background = `linear-gradient(to right, ${colors.join(", ")})`;
  return [bar, make("div", { class: "ramp-ends" }, make("span", {}, "0"), make("span", {}, "0.5"), make("span", {}, "1"))];
}
