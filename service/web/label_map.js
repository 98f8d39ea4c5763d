// The map of the label view: the scene on its own grid, the live map, the labels, and drawing them.

import { make } from "./dom.js";
import { KeyedTiles, pixelSystem } from "./map.js";
import { addNorthArrow, addScaleBar } from "./map_tools.js";
import { pixelsOfDisc, pixelsOfLine, pixelsOfPolygon, pixelsOfRectangle } from "./shapes.js";
import { Swipe } from "./swipe.js";

const L = window.L;
const TILE_PX = 256;
const MAX_CANVAS_PX = 2048; // side of the labels' canvas

/** A Leaflet map of a scene; lat is the row and lng the column. */
export class LabelMap {
  constructor(box, scene, store) {
    this._scene = scene;
    this._store = store;
    this.maxZoom = Math.max(0, Math.ceil(Math.log2(Math.max(scene.rows, scene.cols) / TILE_PX)));
    this.map = L.map(box, {
      crs: pixelSystem(this.maxZoom), minZoom: -2, maxZoom: this.maxZoom + 6, zoomSnap: 0.5, attributionControl: false,
      keyboardPanDelta: 100, doubleClickZoom: false, zoomAnimation: false, fadeAnimation: false, inertia: false, boxZoom: false,
    });
    this.bounds = L.latLngBounds([[0, 0], [scene.rows, scene.cols]]);
    for (const [name, order] of [["live", 300], ["labels", 350]]) this.map.createPane(name).style.zIndex = order;
    this.map.setMaxBounds(this.bounds.pad(1));
    this.fit();
    this._labels = L.svgOverlay(make("canvas", { class: "labels" }), this.bounds, { pane: "labels" }).addTo(this.map);
    this._live = L.svgOverlay(make("canvas", { class: "live" }), this.bounds, { pane: "live", opacity: 0.6 }).addTo(this.map);
    this._marks = L.layerGroup().addTo(this.map);
    this._sketch = L.layerGroup().addTo(this.map);
    this._swipe = null;
    this._background = null;
    this.map.on("moveend zoomend resize", () => this.drawLabels());
    this._sizes = new ResizeObserver(() => this.map.invalidateSize({ animate: false }));
    this._sizes.observe(box);
    addScaleBar(this.map, lengths(scene, this.maxZoom));
    addNorthArrow(this.map, northOf(scene));
  }

  fit() {
    this.map.fitBounds(this.bounds);
  }

  remove() {
    this._sizes.disconnect();
    this.map.remove();
  }

  /** Show the scene in some bands, or its components. */
  showBackground(layer, query = "") {
    const tiles = new KeyedTiles({
      path: `scenes/${this._scene.id}/live/tiles/${layer}`, query, bounds: this.bounds, minNativeZoom: 0,
      maxNativeZoom: this.maxZoom, minZoom: -2, maxZoom: 30, hasLargeTiles: false,
    });
    tiles.on("tileunload", ({ tile }) => tile.stop.abort());
    this._background?.remove();
    this._background = tiles.addTo(this.map);
  }

  /** The visible part of the scene, in its pixels, and the size of the screen. */
  window() {
    const seen = this.map.getBounds();
    const top = clamp(Math.floor(seen.getSouth()), 0, this._scene.rows - 1);
    const left = clamp(Math.floor(seen.getWest()), 0, this._scene.cols - 1);
    const bottom = clamp(Math.ceil(seen.getNorth()), top + 1, this._scene.rows);
    const right = clamp(Math.ceil(seen.getEast()), left + 1, this._scene.cols);
    const scale = this.pixelsPerPixel();
    const [width, height] = [right - left, bottom - top].map((size) => clamp(Math.round(size * scale), 1, 4096));
    return { top, left, rows: bottom - top, cols: right - left, width, height };
  }

  /** Screen pixels per pixel of the scene. */
  pixelsPerPixel() {
    return 2 ** (this.map.getZoom() - this.maxZoom);
  }

  /** Paint the live map; `colors` has red, green, blue and opacity for each class value. */
  paintLive(live, colors, isConfidence, ramp) {
    const canvas = this._live.getElement();
    Object.assign(canvas, { width: live.width, height: live.height });
    const context = canvas.getContext("2d");
    const image = context.createImageData(live.width, live.height);
    const out = new Uint32Array(image.data.buffer);
    for (let index = 0; index < out.length; index++) {
      const value = live.values[index];
      out[index] = value && colors[value] ? (isConfidence ? ramp[live.confidence[index]] : colors[value]) : 0;
    }
    context.putImageData(image, 0, 0);
    const [top, left, rows, cols] = live.window;
    this._live.setBounds(L.latLngBounds([[top, left], [top + rows, left + cols]]));
  }

  setLiveOpacity(opacity) {
    this._live.setOpacity(opacity);
  }

  swipe(isOn) {
    this._swipe?.remove();
    this._swipe = isOn ? new Swipe(this.map, this.map.getPane("live")) : null;
  }

  /** Draw the labels of the visible part. */
  drawLabels() {
    if (!this._store.cols) return;
    const { top, left, rows, cols } = this.window();
    const factor = Math.min(1, MAX_CANVAS_PX / Math.max(rows, cols));
    const canvas = this._labels.getElement();
    Object.assign(canvas, { width: Math.max(1, Math.ceil(cols * factor)), height: Math.max(1, Math.ceil(rows * factor)) });
    const context = canvas.getContext("2d");
    const colors = new Map(this._store.classes.map(({ value, color }) => [value, color]));
    const size = Math.max(1, factor);
    for (const [pixel, value] of this._store.pixels) {
      const row = Math.floor(pixel / this._store.cols) - top;
      const col = (pixel % this._store.cols) - left;
      if (row < 0 || col < 0 || row >= rows || col >= cols) continue;
      context.fillStyle = colors.get(value);
      context.fillRect(Math.floor(col * factor), Math.floor(row * factor), size, size);
    }
    this._labels.setBounds(L.latLngBounds([[top, left], [top + rows, left + cols]]));
  }

  /** Numbered marks at places of interest; the current one is larger. */
  showPlaces(places, current) {
    this._marks.clearLayers();
    places.forEach(({ row, col }, index) => {
      const isCurrent = index === current;
      const at = [row + 0.5, col + 0.5];
      for (const [radius, color] of [[isCurrent ? 11 : 7, "#000"], [isCurrent ? 9 : 5, "#fff"]]) {
        L.circleMarker(at, { radius, weight: isCurrent ? 3 : 2, fill: false, color, interactive: false }).addTo(this._marks);
      }
      if (isCurrent && !this.map.getBounds().pad(-0.1).contains(at)) this.map.panTo(at, { animate: false });
    });
  }

  /** What is on the screen with a legend below, as a canvas. */
  picture(classes) {
    const box = this.map.getContainer().getBoundingClientRect();
    const rowPx = 24;
    const columns = Math.max(1, Math.floor(box.width / 180));
    const canvas = new OffscreenCanvas(box.width, box.height + rowPx * Math.ceil(classes.length / columns) + 8);
    const context = canvas.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.save();
    context.beginPath();
    context.rect(0, 0, box.width, box.height);
    context.clip();
    context.imageSmoothingEnabled = false;
    for (const pane of ["tilePane", "live", "labels"]) {
      for (const image of this.map.getPane(pane).querySelectorAll("img, canvas")) {
        const { left, top, width, height } = image.getBoundingClientRect();
        context.globalAlpha = Number(getComputedStyle(image).opacity);
        if (image.width) context.drawImage(image, left - box.left, top - box.top, width, height);
      }
    }
    context.restore();
    context.font = "14px sans-serif";
    classes.forEach(({ name, color }, index) => {
      const [x, y] = [8 + 180 * (index % columns), box.height + 8 + rowPx * Math.floor(index / columns)];
      context.fillStyle = color;
      context.fillRect(x, y, 14, 14);
      context.fillStyle = "#14201b";
      context.fillText(name, x + 20, y + 12, 150);
    });
    return canvas;
  }

  /** An outline while a shape is drawn. */
  sketch(points, isClosed) {
    this._sketch.clearLayers();
    if (points.length < 1) return;
    const style = { weight: 2, color: "#fff", interactive: false, dashArray: "4 4" };
    const line = points.map(([row, col]) => [row, col]);
    L.polyline(isClosed ? [...line, line[0]] : line, { ...style, color: "#000", dashArray: null }).addTo(this._sketch);
    L.polyline(isClosed ? [...line, line[0]] : line, style).addTo(this._sketch);
  }

  /** Row and column of a pointer event, with fractions. */
  positionOf(event) {
    const { lat, lng } = this.map.mouseEventToLatLng(event);
    return [lat, lng];
  }

  isInside([row, col]) {
    return row >= 0 && col >= 0 && row < this._scene.rows && col < this._scene.cols;
  }
}

/** Turns pointer events into strokes while a drawing tool is chosen. */
export class Drawing {
  constructor(labelMap, { onStroke, onMove }) {
    this._map = labelMap;
    this._onStroke = onStroke;
    this._shape = labelMap.bounds;
    this._corners = []; // of a polygon
    this._path = null; // of a brush or a rectangle
    this.tool = "move";
    this.size = 3;
    const box = labelMap.map.getContainer();
    box.addEventListener("pointerdown", (event) => this._down(event));
    box.addEventListener("pointermove", (event) => {
      onMove(labelMap.positionOf(event));
      this._move(event);
    });
    box.addEventListener("pointerup", (event) => this._up(event));
    box.addEventListener("pointercancel", () => this.cancel());
    box.addEventListener("dblclick", () => this.tool === "polygon" && this.closePolygon());
  }

  choose(tool) {
    this.cancel();
    this.tool = tool;
    const { dragging } = this._map.map;
    if (tool === "move") dragging.enable();
    else dragging.disable();
    this._map.map.getContainer().classList.toggle("drawing", tool !== "move");
  }

  /** Drop an unfinished shape. */
  cancel() {
    this._path = null;
    this._corners = [];
    this._map.sketch([]);
  }

  closePolygon() {
    const corners = this._corners;
    this.cancel();
    if (corners.length > 2) this._finish(pixelsOfPolygon(corners));
  }

  _isForUs(event) {
    return this.tool !== "move" && event.isPrimary && event.button <= 0 && !event.target.closest(".leaflet-control, .swipe, button");
  }

  _down(event) {
    if (!event.isPrimary) return this.cancel(); // a second finger zooms
    if (!this._isForUs(event)) return;
    const at = this._map.positionOf(event);
    if (this.tool === "polygon") {
      if (event.detail < 2) this._corners.push(at);
      this._map.sketch(this._corners, this._corners.length > 2);
      return;
    }
    this._map.map.getContainer().setPointerCapture(event.pointerId);
    this._path = [at];
    this._preview();
  }

  _move(event) {
    if (!this._path || !event.isPrimary) return;
    for (const each of event.getCoalescedEvents?.() ?? [event]) this._path.push(this._map.positionOf(each));
    this._preview();
  }

  _preview() {
    const [first, last] = [this._path[0], this._path.at(-1)];
    if (this.tool === "rectangle") this._map.sketch([first, [first[0], last[1]], last, [last[0], first[1]]], true);
    else this._map.sketch(this._path, false);
  }

  _up(event) {
    if (!this._path || !event.isPrimary) return;
    const path = this._path;
    const isRectangle = this.tool === "rectangle";
    const isPoint = this.tool === "point";
    this.cancel();
    if (isRectangle) return this._finish(pixelsOfRectangle(path[0], path.at(-1)));
    if (isPoint) return this._finish(pixelsOfDisc(path[0], 1));
    return this._finish(path.flatMap((point, index) => pixelsOfLine(path[Math.max(0, index - 1)], point).flatMap((at) => pixelsOfDisc(at, this.size))));
  }

  _finish(pixels) {
    const inside = pixels.filter((pixel) => this._map.isInside(pixel));
    if (inside.length) this._onStroke(inside, this.tool === "eraser");
  }
}

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** Metres, or pixels where the scene has none, for each pixel of the screen. */
function lengths(scene, maxZoom) {
  const isMetric = Boolean(scene.crs) && scene.pixel_size?.[0] > 0.01 && !/4326|CRS84/.test(scene.crs);
  const size = isMetric ? scene.pixel_size[0] : 1;
  return { lengthOfScreenPixel: (_, zoom) => ({ length: size / 2 ** (zoom - maxZoom), isMetres: isMetric }) };
}

/** Where north is on the scene's grid, clockwise from up; null without a reference system. */
function northOf({ crs, transform }) {
  const [a, b, , d, e] = transform;
  if (!crs) return null;
  const sign = Math.sign(a * e - b * d); // columns and rows of growing northing are (-b, a) times the determinant
  return (Math.atan2(-b * sign, -a * sign) * 180) / Math.PI;
}
