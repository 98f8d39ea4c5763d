// The map: the scene, and above it one layer of the result with opacity and swipe.

import { RETRY_MS, pause, request } from "./api.js";
import { addBasemap, hasBasemap } from "./basemap.js";
import { make } from "./dom.js";
import { addFitButton, addNorthArrow, addScaleBar } from "./map_tools.js";
import { withHidden } from "./palette.js";
import { Positions } from "./positions.js";
import { Swipe } from "./swipe.js";

const L = window.L;
const EXTRA_TILE_ZOOMS = 2; // beyond the scene's resolution: in Mercator, the scene's pixels are not squares
const EXTRA_ZOOMS = 6; // beyond the scene's resolution, for the user
const DOUBLE_CLICK_MS = 250; // a double click zooms and selects no pixel

/** Tiles fetched with the tab's key, which an image's URL cannot carry. */
export const KeyedTiles = L.GridLayer.extend({
  createTile(coords, done) {
    const image = make("img", { alt: "" });
    const stop = new AbortController();
    image.stop = stop;
    const path = `${this.options.path}/${coords.z}/${coords.x}/${coords.y}${L.Browser.retina && this.options.hasLargeTiles !== false ? "@2x" : ""}.png${this.options.query}`;
    withRetries(() => request(path, { signal: stop.signal }), stop.signal)
      .then((response) => response.arrayBuffer())
      .then((buffer) => this._draw(image, (image.bytes = new Uint8Array(buffer))))
      .then(() => done(null, image))
      .catch((error) => done(error, image));
    return image;
  },
  /** Show a tile without the hidden classes. */
  async _draw(image, bytes) {
    const { hidden } = this.options;
    const url = URL.createObjectURL(new Blob([hidden?.size ? withHidden(bytes, hidden) : bytes], { type: "image/png" }));
    await new Promise((resolve, reject) => {
      image.onload = resolve;
      image.onerror = () => reject(new Error("a tile cannot be shown"));
      image.src = url;
    }).finally(() => URL.revokeObjectURL(url));
  },
  /** Hide classes, also in the tiles that are loaded already. */
  hide(hidden) {
    this.options.hidden = hidden;
    for (const { el } of Object.values(this._tiles)) if (el.bytes) this._draw(el, el.bytes).catch(() => {}); // it was drawn before
  },
  _initTile(image) {
    L.GridLayer.prototype._initTile.call(this, image);
    // One pixel of overlap: without it, gaps show between tiles at fractional zooms and screen scales.
    image.style.width = image.style.height = `${this.getTileSize().x + 1}px`;
  },
});

/** Retry a request, with growing pauses, while the server is busy or not reachable. */
async function withRetries(send, signal) {
  for (const wait_s of [1, 3, 9]) {
    try {
      return await send();
    } catch (error) {
      if (signal.aborted || ![0, 429, 503].includes(error.status)) throw error;
    }
    await pause(1000 * wait_s);
  }
  return send();
}

/** The map of a job, from its TileJSON. */
export class SceneMap {
  constructor(box, jobId, tilejson) {
    this._jobId = jobId;
    this._tilejson = tilejson;
    this._removed = new AbortController();
    this.positions = new Positions(tilejson);
    this.isGeoreferenced = this.positions.isGeoreferenced;
    const isReducedMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.leaflet = this._map = L.map(box, {
      crs: this.isGeoreferenced ? L.CRS.EPSG3857 : pixelSystem(tilejson.maxzoom),
      minZoom: this.isGeoreferenced ? Math.max(0, tilejson.minzoom - 3) : -1,
      maxZoom: Math.min(26, tilejson.maxzoom + EXTRA_ZOOMS),
      zoomSnap: 0.5,
      zoomDelta: 1,
      attributionControl: false,
      keyboardPanDelta: 100,
      ...(isReducedMotion ? { zoomAnimation: false, fadeAnimation: false, markerZoomAnimation: false, inertia: false } : {}),
    });
    /** Shows or hides the basemap; null if there is none. */
    this.showBasemap = hasBasemap && this.isGeoreferenced ? addBasemap(this._map) : null;
    this._map.createPane("result").style.zIndex = 300;
    this.fit();
    addFitButton(this._map, () => this.fit());
    addScaleBar(this._map, this.positions);
    addNorthArrow(this._map, this.positions.northDeg);
    this._map.setMaxBounds(boundsOf(tilejson).pad(1));
    this._note = make("div", { class: "map-note", role: "status" });
    box.append(this._note);
    L.DomEvent.disableClickPropagation(this._note);
    const sizes = new ResizeObserver(() => this._map.invalidateSize({ animate: false }));
    sizes.observe(box);
    this._removed.signal.addEventListener("abort", () => sizes.disconnect());
    this._result = this._scene = this._swipe = this._marker = null;
    this._opacity = 1;
    this.layer = null; // of the result
    this._hidden = new Set(); // class values
    this._errors = new Map(); // functions that retry, by the layer that failed
    if (tilejson.layers.some(({ id }) => id === "scene")) this.showScene([]);
  }

  /** Class values that are hidden. */
  get hidden() {
    return this._hidden;
  }

  /** The layer of the result that is shown, as TileJSON describes it; undefined if there is none. */
  get shownLayer() {
    return this._tilejson.layers.find(({ id }) => id === this.layer);
  }

  /** Whether tiles of the basemap are shown. */
  get isBasemapShown() {
    return Boolean(this._map.getPane("basemap")?.querySelector("img"));
  }

  /** The part of the map, from the left, that the swipe leaves to the scene. */
  get swipeShare() {
    return this._swipe?.share ?? 0;
  }

  /** Show the whole scene. */
  fit() {
    this._map.fitBounds(boundsOf(this._tilejson));
  }

  _layer(layer, pane, query = "") {
    const tiles = new KeyedTiles({
      path: `jobs/${this._jobId}/tiles/${layer}`,
      query,
      pane,
      hidden: layer === "classes" ? this._hidden : null,
      bounds: boundsOf(this._tilejson),
      minNativeZoom: 0,
      maxNativeZoom: this._tilejson.maxzoom + (this.isGeoreferenced ? EXTRA_TILE_ZOOMS : 0),
      minZoom: -1,
      maxZoom: 30,
    });
    tiles.on("tileunload", ({ tile }) => tile.stop.abort());
    tiles.on("remove", () => this._clearError(tiles));
    tiles.on("tileerror", ({ error }) => error.name !== "AbortError" && this._showError(error.message, tiles, () => tiles.redraw()));
    return tiles;
  }

  /** Show a note over the map. */
  _showNote(...content) {
    if (!this._removed.signal.aborted) this._note.replaceChildren(...content);
  }

  /** Show an error, with a button that retries everything that failed. */
  _showError(text, source, retry) {
    this._errors.set(source, retry);
    const retryAll = () => {
      const retries = [...this._errors.values()];
      this._errors.clear();
      this._showNote();
      for (const each of retries) each();
      this._map.getContainer().focus();
    };
    if (this._note.firstChild?.textContent === text && this._note.querySelector("button")) return; // keep its focus
    // Deferred: Leaflet must still find the button in the note when it handles the click.
    this._showNote(text, make("button", { type: "button", class: "plain", onclick: () => setTimeout(retryAll) }, "Try again"));
  }

  /** Remove the error of a source. */
  _clearError(source) {
    if (this._errors.delete(source) && !this._errors.size) this._showNote();
  }

  /** Show another layer of the result, or none. */
  show(layer) {
    this.layer = layer;
    if (layer === null) {
      this._result?.remove();
      this._result = null;
      return;
    }
    this._result = this._exchange(this._result, this._layer(layer, "result").setOpacity(this._opacity));
  }

  /** Hide classes of the class map; values of the others are shown. */
  hideClasses(hidden) {
    this._hidden = hidden;
    if (this._result?.options.hidden) this._result.hide(hidden);
  }

  /** Show the scene in three of its bands (default: true colours), as soon as the server has rendered its preview. */
  async showScene(bands) {
    const query = bands.length ? `?bands=${bands.join(",")}` : "";
    this._sceneQuery = query;
    this._clearError("scene");
    try {
      await this._untilRendered(query);
    } catch (error) {
      if (this._sceneQuery === query) this._showError(error.message, "scene", () => this.showScene(bands));
      return;
    }
    if (this._sceneQuery !== query || this._removed.signal.aborted) return;
    if (!this._errors.size) this._showNote();
    this._scene = this._exchange(this._scene, this._layer("scene", "tilePane", query));
  }

  /** Request a tile of the scene until the server has rendered the preview. */
  async _untilRendered(query) {
    const { signal } = this._removed;
    while (this._sceneQuery === query && !signal.aborted) {
      try {
        return await request(`jobs/${this._jobId}/tiles/scene/0/0/0.png${query}`, { signal });
      } catch (error) {
        if (![429, 503].includes(error.status)) throw error;
        if (!this._errors.size) this._showNote("The preview of the scene is being rendered …");
      }
      await pause(RETRY_MS);
    }
    return null;
  }

  /** Add a layer; remove the previous one when the new one has loaded. */
  _exchange(before, after) {
    after.addTo(this._map);
    if (before) after.once("load remove", () => before.remove());
    return after;
  }

  /** Set the opacity of the result over the scene, 0 to 1. */
  setOpacity(opacity) {
    this._opacity = opacity;
    this._result?.setOpacity(opacity);
  }

  /** Call `select` with the position that is clicked: lon and lat, or row and col. */
  onSelect(select) {
    let timer = null;
    this._removed.signal.addEventListener("abort", () => clearTimeout(timer));
    this._map.on("dblclick", () => clearTimeout(timer));
    this._map.on("click", ({ latlng }) => {
      const position = this.isGeoreferenced
        ? { lon: latlng.wrap().lng, lat: latlng.lat }
        : { row: Math.floor(latlng.lat), col: Math.floor(latlng.lng) };
      clearTimeout(timer);
      timer = setTimeout(() => select(position), DOUBLE_CLICK_MS);
    });
  }

  /** Mark a pixel with a label, and pan it into view. */
  mark(pixel, text) {
    const position = this.isGeoreferenced ? [pixel.lat, nearest(pixel.lon, this._map.getCenter().lng)] : [pixel.row + 0.5, pixel.col + 0.5];
    this.unmark();
    const rings = [7, 5].map((radius, ring) => L.circleMarker(position, { radius, weight: 2, fill: false, color: ring ? "#fff" : "#000", interactive: false }));
    const label = L.tooltip({ permanent: true, direction: "top", offset: [0, -8], className: "pixel-label" });
    label.setLatLng(position).setContent(make("span", {}, text)); // an element, because Leaflet treats text as HTML
    this._marker = L.layerGroup([...rings, label]).addTo(this._map);
    this.marked = { position, text };
    if (!this._map.getBounds().contains(position)) this._map.panTo(position);
  }

  /** Show the surroundings of a pixel, so many pixels wide. */
  lookAt(pixel, size) {
    const half = size / 2;
    if (!this.isGeoreferenced) {
      this._map.fitBounds([[pixel.row - half, pixel.col - half], [pixel.row + half, pixel.col + half]], { animate: false });
      return;
    }
    const [south, west] = [boundsOf(this._tilejson).getSouth(), boundsOf(this._tilejson).getWest()];
    const [north, east] = [boundsOf(this._tilejson).getNorth(), boundsOf(this._tilejson).getEast()];
    const [high, wide] = [((north - south) / this._tilejson.rows) * half, ((east - west) / this._tilejson.cols) * half];
    const lon = nearest(pixel.lon, (west + east) / 2);
    this._map.fitBounds([[pixel.lat - high, lon - wide], [pixel.lat + high, lon + wide]], { animate: false });
  }

  /** Remove the mark. */
  unmark() {
    this._marker?.remove();
    this._marker = this.marked = null;
  }

  /** Show the result only to the right of a movable line, or everywhere. */
  swipe(isOn) {
    this._swipe?.remove();
    this._swipe = isOn ? new Swipe(this._map, this._map.getPane("result")) : null;
  }

  remove() {
    this._removed.abort();
    this._map.remove();
  }
}

/** A coordinate system in pixels of the scene: row as lat, col as lng. */
export function pixelSystem(maxzoom) {
  const scale = 1 / 2 ** maxzoom;
  return L.extend({}, L.CRS.Simple, { transformation: L.transformation(scale, 0, scale, 0) });
}

function boundsOf(tilejson) {
  if (!tilejson.crs) return L.latLngBounds([[0, 0], [tilejson.rows, tilejson.cols]]);
  const [west, south, east, north] = tilejson.bounds;
  return L.latLngBounds([[south, west], [north, east < west ? east + 360 : east]]);
}

/** The longitude plus a multiple of 360, as near to the map's centre as possible. */
function nearest(lon, center) {
  return lon + 360 * Math.round((center - lon) / 360);
}
