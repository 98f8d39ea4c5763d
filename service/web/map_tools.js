// What stands on a map's edges: the button that fits the scene, the scale bar and the north arrow.

import { draw, make } from "./dom.js";
import { scaleFor } from "./positions.js";

const L = window.L;
const MAX_BAR_PX = 120;
const LEAST_TURN_DEG = 0.5; // an arrow that points up tells nothing

/** Add a control with this element to a corner of a Leaflet map. */
export function addControl(map, position, element) {
  const control = new L.Control({ position });
  control.onAdd = () => {
    L.DomEvent.disableClickPropagation(element);
    return element;
  };
  return control.addTo(map);
}

/** A button that shows the whole scene. */
export function addFitButton(map, fit) {
  const picture = draw("svg", { viewBox: "0 0 24 24", width: "18", height: "18", "aria-hidden": "true" }, draw("path", { d: "M4 9V4h5M15 4h5v5M20 15v5h-5M9 20H4v-5" }));
  const button = make("button", { type: "button", class: "fit", title: "Fit to scene", "aria-label": "Fit to scene", onclick: fit }, picture);
  return addControl(map, "topleft", make("div", { class: "leaflet-bar" }, button));
}

/** A scale bar that is right in the middle of the map. */
export function addScaleBar(map, positions) {
  const bar = make("div", { class: "scale-bar" });
  const show = () => {
    const scale = scaleFor(positions.lengthOfScreenPixel(map.getCenter(), map.getZoom()), MAX_BAR_PX);
    bar.textContent = scale.text;
    bar.style.width = `${scale.width_px}px`;
  };
  map.whenReady(show);
  map.on("move zoomend resize", show);
  return addControl(map, "bottomleft", bar);
}

/** An arrow to the north, on maps where north is known and not up. */
export function addNorthArrow(map, northDeg) {
  if (!isTurned(northDeg)) return null;
  const arrow = northArrow();
  arrow.style.transform = `rotate(${northDeg}deg)`;
  return addControl(map, "topright", make("div", { class: "north", role: "img", "aria-label": `North is ${Math.round(northDeg)} degrees clockwise from up` }, arrow));
}

const isTurned = (deg) => deg !== null && Math.abs(((deg + 180) % 360) - 180) >= LEAST_TURN_DEG;

function northArrow() {
  return draw("svg", { viewBox: "0 0 32 44", width: "32", height: "44", "aria-hidden": "true" }, draw("path", { d: "M16 2 L26 26 L16 20 L6 26 Z" }), draw("text", { x: 16, y: 41, "text-anchor": "middle" }, "N"));
}
