// The line below the map: coordinates under the pointer at once, the class there when the pointer rests.

import { documentOf } from "./api.js";
import { make, percent, swatch } from "./dom.js";

const REST_MS = 120; // of the pointer, before the server is asked
const KEPT = 400; // answers

/** A line with the position under the pointer; `lookUp(row, col, signal)` resolves to the elements that tell the value there. */
export class Readout {
  constructor(positions, lookUp) {
    this.element = make("div", { class: "readout" }, (this._where = make("span", { class: "where" })), (this._what = make("span", { class: "what" })));
    this._positions = positions;
    this._lookUp = lookUp;
    this._known = new Map(); // values by pixel; the oldest first
    this._pixel = "";
    this._timer = this._asking = null;
    this.clear();
  }

  /** Follow the pointer on a Leaflet map, whose values another function may look up. */
  follow(map, signal, lookUp = this._lookUp) {
    const show = ({ latlng }) => {
      if (lookUp !== this._lookUp) this.forget();
      this._lookUp = lookUp;
      this.show(latlng);
    };
    map.on("mousemove click", show); // a finger does not move before it taps
    map.getContainer().addEventListener("pointerleave", () => this.clear());
    signal.addEventListener("abort", () => this._stop());
  }

  clear() {
    this._stop();
    this._pixel = "";
    this._where.textContent = "Point at the map, or tap it, to read coordinates.";
    this._what.replaceChildren();
  }

  /** Forget the values, because there are others now. */
  forget() {
    this._known.clear();
    this.clear();
  }

  _stop() {
    clearTimeout(this._timer);
    this._asking?.abort();
  }

  show(latlng) {
    const { lonLat, pixel, ground, isInside } = this._positions.at(latlng);
    const digits = this._positions.digits;
    this._where.textContent = [
      lonLat && `${degrees(lonLat.lat, "N", "S")}, ${degrees(lonLat.lon, "E", "W")}`,
      ground && isInside && this._positions.crs && `${this._positions.crs}: ${ground.x.toFixed(digits)}, ${ground.y.toFixed(digits)}`,
      isInside && `row ${Math.floor(pixel.row)}, column ${Math.floor(pixel.col)}`,
      !isInside && "outside of the scene",
    ].filter(Boolean).join(" · ");
    this._showValue(isInside ? [Math.floor(pixel.row), Math.floor(pixel.col)] : null);
  }

  _showValue(pixel) {
    const key = pixel ? pixel.join() : "";
    if (key === this._pixel) return;
    this._stop();
    this._pixel = key;
    const known = this._known.get(key);
    this._what.replaceChildren(...(known?.() ?? []));
    if (pixel && !known) this._timer = setTimeout(() => this._ask(pixel, key), REST_MS);
  }

  async _ask(pixel, key) {
    this._asking = new AbortController();
    const value = await this._lookUp(...pixel, this._asking.signal).catch(() => null); // optional: a click shows errors
    if (!value) return;
    this._known.set(key, value);
    if (this._known.size > KEPT) this._known.delete(this._known.keys().next().value);
    if (this._pixel === key) this._what.replaceChildren(...value());
  }
}

const degrees = (number, positive, negative) => `${Math.abs(number).toFixed(5)}° ${number < 0 ? negative : positive}`;

/** Looks up the class and confidence of a job's pixels, without reading the scene. */
export function valuesOfJob(jobId) {
  return async (row, col, signal) => {
    const pixel = await documentOf(`jobs/${jobId}/pixel?row=${row}&col=${col}&spectrum=false`, { signal, isQuiet: true });
    if (pixel.class) return () => [swatch(pixel.class.color), `${pixel.class.name}, ${percent(pixel.confidence)}`];
    return () => (pixel.is_valid === false ? ["no data"] : []);
  };
}
