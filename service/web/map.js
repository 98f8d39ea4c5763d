// The map: the scene below, one layer of the result above, opacity and swipe between them.

import { ASK_AGAIN_MS, call, pause } from "./api.js";
import { make } from "./dom.js";
import { Swipe } from "./swipe.js";

const L = window.L;
const FINER = 2; // zooms beyond the scene's own that the server still draws: its pixels are squares no more in Mercator
const CLOSER = 6; // zooms beyond the scene's own that a reader may go
const SECOND_CLICK_MS = 250; // two clicks are a zoom, and ask for no pixel

/** Tiles fetched with the tab's key, which an image's address cannot carry. */
const KeyedTiles = L.GridLayer.extend({
  createTile(place, done) {
    const image = make("img", { alt: "" });
    const stop = new AbortController();
    image.stop = stop;
    const path = `${this.options.path}/${place.z}/${place.x}/${place.y}${L.Browser.retina ? "@2x" : ""}.png${this.options.query}`;
    patient(() => call(path, { signal: stop.signal }), stop.signal)
      .then((answer) => answer.blob())
      .then((blob) => {
        const address = URL.createObjectURL(blob);
        image.onload = () => (URL.revokeObjectURL(address), done(null, image));
        image.onerror = () => (URL.revokeObjectURL(address), done(new Error("a tile cannot be shown"), image));
        image.src = address;
      })
      .catch((error) => done(error, image));
    return image;
  },
  _initTile(image) {
    L.GridLayer.prototype._initTile.call(this, image);
    // A pixel over the next tile: between zooms, and on screens that scale, lines would show between tiles.
    image.style.width = image.style.height = `${this.getTileSize().x + 1}px`;
  },
});

/** Ask again, some times and some seconds apart, where the server is busy or away. */
async function patient(ask, signal) {
  for (const wait_s of [1, 3, 9]) {
    try {
      return await ask();
    } catch (error) {
      if (signal.aborted || ![0, 429, 503].includes(error.status)) throw error;
    }
    await pause(1000 * wait_s);
  }
  return ask();
}

/** A map of a job, by its TileJSON. */
export class SceneMap {
  constructor(box, jobId, tilejson) {
    this._jobId = jobId;
    this._tilejson = tilejson;
    this._gone = new AbortController();
    this.isPlaced = Boolean(tilejson.crs);
    const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this._map = L.map(box, {
      crs: this.isPlaced ? L.CRS.EPSG3857 : pixelSystem(tilejson.maxzoom),
      minZoom: this.isPlaced ? Math.max(0, tilejson.minzoom - 3) : -1,
      maxZoom: Math.min(26, tilejson.maxzoom + CLOSER),
      zoomSnap: 0.5,
      zoomDelta: 1,
      attributionControl: false,
      keyboardPanDelta: 100,
      ...(isCalm ? { zoomAnimation: false, fadeAnimation: false, markerZoomAnimation: false, inertia: false } : {}),
    });
    if (this.isPlaced) L.control.scale({ imperial: false }).addTo(this._map);
    this._map.createPane("result").style.zIndex = 300;
    this._map.fitBounds(boundsOf(tilejson));
    this._map.setMaxBounds(boundsOf(tilejson).pad(1));
    this._note = make("div", { class: "map-note", role: "status" });
    box.append(this._note);
    L.DomEvent.disableClickPropagation(this._note);
    const sizes = new ResizeObserver(() => this._map.invalidateSize({ animate: false }));
    sizes.observe(box);
    this._gone.signal.addEventListener("abort", () => sizes.disconnect());
    this._result = this._scene = this._swipe = this._mark = null;
    this._opacity = 1;
    this._troubles = new Map();
    if (tilejson.layers.some(({ id }) => id === "scene")) this.color([]);
  }

  _layer(layer, pane, query = "") {
    const tiles = new KeyedTiles({
      path: `jobs/${this._jobId}/tiles/${layer}`,
      query,
      pane,
      bounds: boundsOf(this._tilejson),
      minNativeZoom: 0,
      maxNativeZoom: this._tilejson.maxzoom + (this.isPlaced ? FINER : 0),
      minZoom: -1,
      maxZoom: 30,
    });
    tiles.on("tileunload", ({ tile }) => tile.stop.abort());
    tiles.on("remove", () => this._forget(tiles));
    tiles.on("tileerror", ({ error }) => error.name !== "AbortError" && this._tellTrouble(error.message, tiles, () => tiles.redraw()));
    return tiles;
  }

  /** Words over the map. */
  _tell(...words) {
    if (!this._gone.signal.aborted) this._note.replaceChildren(...words);
  }

  /** What went wrong, and a button that mends all of it. */
  _tellTrouble(words, where, again) {
    this._troubles.set(where, again);
    const mend = () => {
      const all = [...this._troubles.values()];
      this._troubles.clear();
      this._tell();
      for (const each of all) each();
      this._map.getContainer().focus();
    };
    if (this._note.firstChild?.textContent === words && this._note.querySelector("button")) return; // it may have the focus
    // Later: Leaflet looks whether a click belongs to the note, and finds it there no more.
    this._tell(words, make("button", { type: "button", class: "plain", onclick: () => setTimeout(mend) }, "Try again"));
  }

  /** A trouble that is none any more. */
  _forget(where) {
    if (this._troubles.delete(where) && !this._troubles.size) this._tell();
  }

  /** Show another layer of the result. */
  show(layer) {
    this._result = this._exchange(this._result, this._layer(layer, "result").setOpacity(this._opacity));
  }

  /** Show the scene in three of its bands, in its own colours where none are given, as soon as there is a picture. */
  async color(bands) {
    const query = bands.length ? `?bands=${bands.join(",")}` : "";
    this._wanted = query;
    this._forget("scene");
    try {
      await this._whenPictured(query);
    } catch (error) {
      if (this._wanted === query) this._tellTrouble(error.message, "scene", () => this.color(bands));
      return;
    }
    if (this._wanted !== query || this._gone.signal.aborted) return;
    if (!this._troubles.size) this._tell();
    this._scene = this._exchange(this._scene, this._layer("scene", "tilePane", query));
  }

  /** A server that still makes the picture refuses its tiles: one is asked for until it comes. */
  async _whenPictured(query) {
    const { signal } = this._gone;
    while (this._wanted === query && !signal.aborted) {
      try {
        return await call(`jobs/${this._jobId}/tiles/scene/0/0/0.png${query}`, { signal });
      } catch (error) {
        if (![429, 503].includes(error.status)) throw error;
        if (!this._troubles.size) this._tell("The picture of the scene is being made …");
      }
      await pause(ASK_AGAIN_MS);
    }
    return null;
  }

  /** Lay a layer over another one, which goes when the new one is there. */
  _exchange(before, after) {
    after.addTo(this._map);
    if (before) after.once("load remove", () => before.remove());
    return after;
  }

  /** How much of the result covers the scene, 0 to 1. */
  fade(opacity) {
    this._opacity = opacity;
    this._result?.setOpacity(opacity);
  }

  /** Call back with the place that is clicked: lon and lat, or row and col. */
  onPick(pick) {
    let timer = null;
    this._gone.signal.addEventListener("abort", () => clearTimeout(timer));
    this._map.on("dblclick", () => clearTimeout(timer));
    this._map.on("click", ({ latlng }) => {
      const place = this.isPlaced
        ? { lon: latlng.wrap().lng, lat: latlng.lat }
        : { row: Math.floor(latlng.lat), col: Math.floor(latlng.lng) };
      clearTimeout(timer);
      timer = setTimeout(() => pick(place), SECOND_CLICK_MS);
    });
  }

  /** Mark a pixel with some words, and bring it into view. */
  mark(pixel, words) {
    const place = this.isPlaced ? [pixel.lat, nearest(pixel.lon, this._map.getCenter().lng)] : [pixel.row + 0.5, pixel.col + 0.5];
    this.unmark();
    const rings = [7, 5].map((radius, ring) => L.circleMarker(place, { radius, weight: 2, fill: false, color: ring ? "#fff" : "#000", interactive: false }));
    const told = L.tooltip({ permanent: true, direction: "top", offset: [0, -8], className: "told" });
    told.setLatLng(place).setContent(make("span", {}, words)); // an element: text would be taken for HTML
    this._mark = L.layerGroup([...rings, told]).addTo(this._map);
    if (!this._map.getBounds().contains(place)) this._map.panTo(place);
  }

  /** Take the mark away. */
  unmark() {
    this._mark?.remove();
    this._mark = null;
  }

  /** Show the result on the right side of a line that can be moved, or everywhere. */
  swipe(isOn) {
    this._swipe?.remove();
    this._swipe = isOn ? new Swipe(this._map, this._map.getPane("result")) : null;
  }

  remove() {
    this._gone.abort();
    this._map.remove();
  }
}

/** Coordinates in pixels of the scene, row as lat and col as lng, down and right. */
function pixelSystem(maxzoom) {
  const scale = 1 / 2 ** maxzoom;
  return L.extend({}, L.CRS.Simple, { transformation: L.transformation(scale, 0, scale, 0) });
}

function boundsOf(tilejson) {
  if (!tilejson.crs) return L.latLngBounds([[0, 0], [tilejson.rows, tilejson.cols]]);
  const [west, south, east, north] = tilejson.bounds;
  return L.latLngBounds([[south, west], [north, east < west ? east + 360 : east]]);
}

/** The same longitude on the side of the date line where the map is. */
function nearest(lon, middle) {
  return lon + 360 * Math.round((middle - lon) / 360);
}
