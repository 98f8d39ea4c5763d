// A second map beside the first: any layer of any map of the same scene, both showing the same place.

import { documentOf } from "./api.js";
import { announce, dateTime, make, problemBox } from "./dom.js";
import { SceneMap } from "./map.js";
import { valuesOfJob } from "./readout.js";

const L = window.L;
const MAX_JOBS = 1000;

/** The panel's section (`element`) that opens the second map; `view` has the first: box, job, map, tilejson, readout, select, signal. */
export class Beside {
  constructor(view) {
    this._view = view;
    this._map = null;
    this._hidden = new Set();
    const box = make("input", { type: "checkbox", id: "beside", onchange: () => (box.checked ? this._open() : this._close()) });
    this._jobs = make("select", { id: "beside-job", "aria-describedby": "beside-hint", onchange: () => this._showJob().catch((error) => this._fail(error)) });
    this._layers = make("select", { id: "beside-layer", onchange: () => this._showLayer() });
    this._fields = make(
      "div",
      { class: "beside-fields", hidden: true },
      make("div", { class: "field" }, make("label", { for: "beside-job" }, "Map of this scene"), this._jobs),
      make("div", { class: "field" }, make("label", { for: "beside-layer" }, "Shown on the second map"), this._layers),
    );
    this._problems = make("div");
    this.element = make(
      "section",
      { "aria-labelledby": "beside-title" },
      make("h2", { id: "beside-title" }, "Compare"),
      make("div", { class: "check" }, box, make("label", { for: "beside" }, "Second map beside it")),
      make("p", { class: "hint", id: "beside-hint" }, "Another layer, or another map of this scene; both always show the same place."),
      this._fields,
      this._problems,
    );
    view.signal.addEventListener("abort", () => this._close());
  }

  _fail(error) {
    if (error.name !== "AbortError") this._problems.replaceChildren(problemBox(error.message));
  }

  async _open() {
    this._closed = new AbortController();
    this._fields.hidden = false;
    this._problems.replaceChildren();
    try {
      const { jobs } = await documentOf(`jobs?limit=${MAX_JOBS}&status=successful`, { signal: this._closed.signal });
      const same = jobs.filter((job) => job.scene_id === this._view.job.scene_id && job.jobID !== this._view.job.jobID);
      const options = [[this._view.job.jobID, "this map"], ...same.map((job) => [job.jobID, `${job.model}, ${dateTime(job.created)}`])];
      this._jobs.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
      await this._showJob();
      announce("A second map is open");
    } catch (error) {
      this._fail(error);
    }
  }

  _close() {
    this._closed?.abort();
    this._removeMap();
    this._fields.hidden = true;
    this._view.box.classList.remove("two");
  }

  _removeMap() {
    this._unlink?.();
    this._map?.remove();
    this._element?.remove();
    this._map = this._unlink = null;
  }

  async _showJob() {
    const id = this._jobs.value;
    const tilejson = id === this._view.job.jobID ? this._view.tilejson : await documentOf(`jobs/${id}/tilejson.json`, { signal: this._closed.signal });
    if (this._closed.signal.aborted || id !== this._jobs.value) return;
    this._removeMap();
    this._tilejson = tilejson;
    this._layers.replaceChildren(...tilejson.layers.map(({ id: layer, title }) => make("option", { value: layer }, title)));
    this._layers.value = id === this._view.job.jobID && tilejson.layers.some(({ id: layer }) => layer === "scene") ? "scene" : "classes";
    this._element = make("div", { class: "map second", role: "application", "aria-label": "Second map. Arrow keys move both, plus and minus zoom." });
    this._view.map.leaflet.getContainer().after(this._element);
    this._view.box.classList.add("two");
    this._map = new SceneMap(this._element, id, tilejson);
    this._map.onSelect(this._view.select);
    this._view.readout.follow(this._map.leaflet, this._closed.signal, valuesOfJob(id));
    this._unlink = linked(this._view.map.leaflet, this._map.leaflet);
    requestAnimationFrame(() => this._map && this._view.map.fit()); // when both have their sizes
    this.hideClasses(this._hidden);
    this._showLayer();
  }

  _showLayer() {
    this._map.show(this._layers.value === "scene" ? null : this._layers.value);
  }

  /** Hide classes here, too, if the classes are the same. */
  hideClasses(hidden) {
    this._hidden = hidden;
    if (this._map && legendOf(this._tilejson) === legendOf(this._view.tilejson)) this._map.hideClasses(hidden);
  }

  /** The second map with what it shows, or null. */
  get shown() {
    return this._map;
  }
}

const legendOf = (tilejson) => JSON.stringify(tilejson.layers.find(({ id }) => id === "classes")?.legend);

/** Let two Leaflet maps show the same place, and the pointer of each on the other; returns a function that ends it. */
export function linked(one, other) {
  let isFollowing = false;
  const ends = [[one, other], [other, one]].map(([from, to]) => {
    const pointer = L.circleMarker([0, 0], { radius: 6, weight: 2, color: "#fff", fillColor: "#000", fillOpacity: 0.6, interactive: false });
    const follow = () => {
      if (isFollowing) return;
      isFollowing = true;
      to.setView(from.getCenter(), from.getZoom(), { animate: false });
      isFollowing = false;
    };
    const point = ({ latlng }) => pointer.setLatLng(latlng).addTo(to);
    const leave = () => pointer.remove();
    from.on("move zoomend", follow);
    from.on("mousemove", point);
    from.on("mouseout", leave);
    return () => {
      from.off("move zoomend", follow).off("mousemove", point).off("mouseout", leave);
      pointer.remove();
    };
  });
  other.setView(one.getCenter(), one.getZoom(), { animate: false });
  return () => ends.forEach((end) => end());
}
