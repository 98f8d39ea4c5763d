// The layer panel (layer, opacity, swipe, scene bands) and the legend.

import { count, hectares, make, percent, swatch } from "./dom.js";

const COMPOSITES = [ // name, wavelengths in nm for red, green and blue
  ["true colours", [640, 550, 460]],
  ["near infrared, red, green", [860, 650, 550]],
  ["shortwave, near infrared, red", [1650, 860, 650]],
  ["two shortwave, near infrared", [2200, 1650, 860]],
];
const FIRST_ROWS = 12; // legend rows shown at first, so that the sections below stay near
const MAX_DISTANCE_NM = 60; // from a composite's wavelength to the scene's nearest band

/** The composites that the scene's bands allow, as [name, band numbers]. */
function compositesOf(scene) {
  const nm = scene?.wavelengths_nm;
  if (!nm) return [];
  const found = COMPOSITES.map(([name, targets]) => {
    const indices = targets.map((target) => nm.reduce((best, value, index) => (Math.abs(value - target) < Math.abs(nm[best] - target) ? index : best), 0));
    const isNear = indices.every((index, channel) => Math.abs(nm[index] - targets[channel]) <= MAX_DISTANCE_NM) && new Set(indices).size === 3;
    return isNear ? [name, indices.map((index) => scene.band_numbers?.[index] ?? index + 1)] : null;
  });
  return found.filter(Boolean);
}

/** The controls of a map; `scene` is the scene's document, null if the scene was removed. */
export function makeLayerPanel(map, tilejson, scene) {
  const hasScene = tilejson.layers.some(({ id }) => id === "scene");
  const results = tilejson.layers.filter(({ id }) => id !== "scene");
  const select = make("select", { id: "layer" });
  select.append(...results.map(({ id, title }) => make("option", { value: id }, title)));
  const ramp = make("div", { class: "ramp", hidden: true });
  const opacity = make("input", { type: "range", id: "opacity", min: "0", max: "100", value: "100" });
  const swipe = make("input", { type: "checkbox", id: "swipe" });

  function show() {
    const layer = results.find(({ id }) => id === select.value);
    map.show(layer.id);
    ramp.hidden = !layer.ramp;
    if (layer.ramp) ramp.replaceChildren(...rampOf(layer.ramp));
  }
  const composites = compositesOf(scene);
  const composite = make("select", { id: "composite" });
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
    make("div", { class: "field" }, make("label", { for: "layer" }, "Shown on the map"), select),
    ramp,
    hasScene
      ? [
          make("div", { class: "field" }, make("label", { for: "opacity" }, "Opacity over the scene"), opacity),
          make("div", { class: "check" }, swipe, make("label", { for: "swipe" }, "Swipe: scene left, map right")),
          composites.length > 1 ? make("div", { class: "field" }, make("label", { for: "composite" }, "Scene colours"), composite) : null,
        ]
      : make("p", { class: "quiet" }, "The scene was removed, so only its map is shown."),
  );
}

function rampOf(colors) {
  const bar = make("div", { class: "ramp-bar", "aria-hidden": "true" });
  bar.style.background = `linear-gradient(to right, ${colors.join(", ")})`;
  return [bar, make("div", { class: "ramp-ends" }, make("span", {}, "0"), make("span", {}, "0.5"), make("span", {}, "1"))];
}

/** All classes with colour, area and share, largest first. */
export function makeLegend(summary) {
  const classes = [...summary.classes].sort((one, other) => other.pixels - one.pixels);
  const hasArea = classes.some(({ hectares: area }) => area !== null);
  const row = ({ name, color, pixels, hectares: area, share }) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, swatch(color), name),
      make("td", { class: "number" }, hasArea ? hectares(area) : count(pixels)),
      make("td", { class: "number" }, percent(share)),
    );
  const rows = classes.map(row);
  const all = make("button", { type: "button", class: "plain" }, `Show all ${classes.length} classes`);
  for (const hidden of rows.slice(FIRST_ROWS)) hidden.hidden = true;
  all.addEventListener("click", () => {
    for (const hidden of rows) hidden.hidden = false;
    rows[FIRST_ROWS].querySelector("th").focus();
    all.remove();
  });
  if (rows.length > FIRST_ROWS) rows[FIRST_ROWS].querySelector("th").tabIndex = -1;
  return make(
    "section",
    { "aria-labelledby": "legend-title" },
    make("h2", { id: "legend-title" }, "Classes"),
    make(
      "table",
      { class: "legend" },
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Class"), make("th", { scope: "col", class: "number" }, hasArea ? "Hectares" : "Pixels"), make("th", { scope: "col", class: "number" }, "Share"))),
      make("tbody", {}, rows),
    ),
    rows.length > FIRST_ROWS ? all : null,
    summary.no_data_pixels ? make("p", { class: "quiet" }, `${count(summary.no_data_pixels)} pixels have no data.`) : null,
  );
}
