// The map: the scene below, one layer of the result above, opacity and swipe between them.

import { call } from "./api.js";
import { make } from "./dom.js";

const L = window.L;
const FINER = 2; // zooms beyond the scene's own that the server still draws: its pixels are squares no more in Mercator
const LINGER_MS = 3000; // a layer under one that does not get there
const CLOSER = 6; // zooms beyond the scene's own that a reader may go

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
        image.onerror = () => (URL.revokeObjectURL(address), done(new Error("no picture"), image));
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
    await new Promise((resolve) => setTimeout(resolve, 1000 * wait_s));
  }
  return ask();
}

/** A map of a job, by its TileJSON. */
export class SceneMap {
  constructor(box, jobId, tilejson) {
    this._jobId = jobId;
    this._tilejson = tilejson;
    this.isPlaced = Boolean(tilejson.crs);
    this._map = L.map(box, {
      crs: this.isPlaced ? L.CRS.EPSG3857 : pixelSystem(tilejson.maxzoom),
      minZoom: this.isPlaced ? Math.max(0, tilejson.minzoom - 3) : -1,
      maxZoom: Math.min(26, tilejson.maxzoom + CLOSER),
      zoomSnap: 0.5,
      zoomDelta: 1,
      attributionControl: false,
      keyboardPanDelta: 100,
    });
    if (this.isPlaced) L.control.scale({ imperial: false }).addTo(this._map);
    this._map.createPane("result").style.zIndex = 300;
    this._map.fitBounds(boundsOf(tilejson));
    this._map.setMaxBounds(boundsOf(tilejson).pad(1));
    this._result = null;
    this._opacity = 1;
    this._swipe = null;
    this._scene = null;
    if (tilejson.layers.some(({ id }) => id === "scene")) this.color([]);
  }

  _layer(layer, pane, query = "") {
    const layers = new KeyedTiles({
      path: `jobs/${this._jobId}/tiles/${layer}`,
      query,
      pane,
      bounds: boundsOf(this._tilejson),
      minNativeZoom: 0,
      maxNativeZoom: this._tilejson.maxzoom + (this.isPlaced ? FINER : 0),
      minZoom: -1,
      maxZoom: 30,
    });
    layers.on("tileunload", ({ tile }) => tile.stop.abort());
    return layers;
  }

  /** Show another layer of the result. */
  show(layer) {
    this._result = this._exchange(this._result, this._layer(layer, "result").setOpacity(this._opacity));
  }

  /** Show the scene in three of its bands; in its own colours where none are given. */
  color(bands) {
    const query = bands.length ? `?bands=${bands.join(",")}` : "";
    this._scene = this._exchange(this._scene, this._layer("scene", "tilePane", query));
  }

  /** Lay a layer over another one, which goes when the new one is there. */
  _exchange(before, after) {
    after.addTo(this._map);
    if (before) after.once("load", () => before.remove());
    if (before) setTimeout(() => before.remove(), LINGER_MS);
    return after;
  }

  /** How much of the result covers the scene, 0 to 1. */
  fade(opacity) {
    this._opacity = opacity;
    this._result?.setOpacity(opacity);
  }

  /** Call back with the place that is clicked: lon and lat, or row and col. */
  onPick(pick) {
    this._map.on("click", ({ latlng }) => {
      if (this.isPlaced) pick({ lon: latlng.wrap().lng, lat: latlng.lat });
      else pick({ row: Math.floor(latlng.lat), col: Math.floor(latlng.lng) });
    });
  }

  /** Mark a pixel with some words, and bring it into view. */
  mark(pixel, words) {
    const place = this.isPlaced ? [pixel.lat, nearest(pixel.lon, this._map.getCenter().lng)] : [pixel.row + 0.5, pixel.col + 0.5];
    this._mark ??= [7, 5].map((radius, ring) =>
      L.circleMarker(place, { radius, weight: 2, fill: false, color: ring ? "#fff" : "#000", interactive: false }).addTo(this._map),
    );
    for (const ring of this._mark) ring.setLatLng(place);
    this._words ??= L.tooltip({ permanent: true, direction: "top", offset: [0, -8], className: "told" }).setLatLng(place).addTo(this._map);
    this._words.setLatLng(place).setContent(make("span", {}, words)); // an element: text would be taken for HTML
    if (!this._map.getBounds().contains(place)) this._map.panTo(place);
  }

  /** Show the result on the right side of a line that can be moved, or everywhere. */
  swipe(isOn) {
    if (isOn && !this._swipe) this._swipe = new Swipe(this._map, this._map.getPane("result"));
    if (!isOn && this._swipe) {
      this._swipe.remove();
      this._swipe = null;
    }
  }

  remove() {
    this._map.remove();
  }
}

/** The line between scene and map: for pointers, and for arrow keys. */
class Swipe {
  constructor(map, pane) {
    this._map = map;
    this._pane = pane;
    this._share = 0.5;
    this._line = make("div", {
      class: "swipe", role: "slider", tabindex: "0", "aria-label": "Scene left of this line, map right of it",
      "aria-valuemin": "0", "aria-valuemax": "100", "aria-orientation": "horizontal",
    });
    this._line.append(make("span", { class: "grip", "aria-hidden": "true" }, "⇆"));
    map.getContainer().append(this._line);
    L.DomEvent.disableClickPropagation(this._line);
    this._line.addEventListener("pointerdown", (event) => {
      this._line.setPointerCapture(event.pointerId);
      map.dragging.disable();
    });
    this._line.addEventListener("pointermove", (event) => {
      if (!this._line.hasPointerCapture(event.pointerId)) return;
      const box = map.getContainer().getBoundingClientRect();
      this._move((event.clientX - box.left) / box.width);
    });
    this._line.addEventListener("lostpointercapture", () => map.dragging.enable());
    this._line.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -0.02, ArrowRight: 0.02, PageDown: -0.1, PageUp: 0.1, Home: -1, End: 1 };
      if (!(event.key in steps)) return;
      event.preventDefault();
      event.stopPropagation(); // the map pans by arrow keys
      this._move(this._share + steps[event.key]);
    });
    this._draw = () => this._clip();
    map.on("move zoom zoomend resize", this._draw);
    this._move(0.5);
  }

  _move(share) {
    this._share = Math.min(1, Math.max(0, share));
    this._line.style.left = `${100 * this._share}%`;
    this._line.setAttribute("aria-valuenow", String(Math.round(100 * this._share)));
    this._line.setAttribute("aria-valuetext", `${Math.round(100 * this._share)} % scene`);
    this._clip();
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
