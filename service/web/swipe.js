// The swipe line between scene and map, moved by pointer or arrow keys.

import { make } from "./dom.js";

const L = window.L;
const STEPS = { ArrowLeft: -0.02, ArrowRight: 0.02, ArrowDown: -0.02, ArrowUp: 0.02, PageDown: -0.1, PageUp: 0.1, Home: -1, End: 1 };

/** Shows a pane of a Leaflet map only to the right of a line. */
export class Swipe {
  constructor(map, pane) {
    this._map = map;
    this._pane = pane;
    this._line = make(
      "div",
      {
        class: "swipe", role: "slider", tabindex: "0", "aria-label": "Scene left of this line, map right of it",
        "aria-valuemin": "0", "aria-valuemax": "100", "aria-orientation": "horizontal",
      },
      make("span", { class: "grip", "aria-hidden": "true" }, "⇆"),
    );
    map.getContainer().append(this._line);
    L.DomEvent.disableClickPropagation(this._line);
    this._followPointer();
    this._line.addEventListener("keydown", (event) => {
      if (!(event.key in STEPS)) return;
      event.preventDefault();
      event.stopPropagation(); // the map pans by arrow keys
      this._move(this._share + STEPS[event.key]);
    });
    this._draw = () => this._clip();
    map.on("move zoom zoomend resize", this._draw);
    this._move(0.5);
  }

  _followPointer() {
    this._line.addEventListener("pointerdown", (event) => {
      this._line.setPointerCapture(event.pointerId);
      this._map.dragging.disable();
    });
    this._line.addEventListener("pointermove", (event) => {
      if (!this._line.hasPointerCapture(event.pointerId)) return;
      const box = this._map.getContainer().getBoundingClientRect();
      this._move((event.clientX - box.left) / box.width);
    });
    this._line.addEventListener("lostpointercapture", () => this._map.dragging.enable());
  }

  _move(share) {
    this._share = Math.min(1, Math.max(0, share));
    const percent = String(Math.round(100 * this._share));
    this._line.style.left = `${100 * this._share}%`;
    this._line.setAttribute("aria-valuenow", percent);
    this._line.setAttribute("aria-valuetext", `${percent} % scene`);
    this._clip();
  }

  /** The part left of the line. */
  get share() {
    return this._share;
  }

  _clip() {
    const size = this._map.getSize();
    const { x: left, y: top } = this._map.containerPointToLayerPoint([size.x * this._share, 0]);
    const { x: right, y: bottom } = this._map.containerPointToLayerPoint(size);
    this._pane.style.clipPath = `polygon(${left}px ${top}px, ${right}px ${top}px, ${right}px ${bottom}px, ${left}px ${bottom}px)`;
  }

  remove() {
    this._map.off("move zoom zoomend resize", this._draw);
    this._pane.style.clipPath = "";
    this._line.remove();
  }
}
