// The labels of a scene: what is drawn, what is saved, and what can be undone.

import { ApiError, documentOf, pause, request } from "./api.js";

const RETRY_MS = 2000;
const KEPT_STEPS = 200; // of undo
// Colours that stay apart for most colour-blind readers, then any hues.
const COLORS = ["#2b6cb0", "#d9a441", "#1e6b34", "#b83280", "#c05621", "#6b46c1", "#0f8b8d", "#e53e3e", "#7cb342", "#8d5a2b"];

/** Labels by pixel (row * cols + column), stored on the server with each stroke. */
export class LabelStore {
  constructor(sceneId, { onChange, onSaved, onTrouble }) {
    this._path = `scenes/${sceneId}/labels`;
    Object.assign(this, { _onChange: onChange, _onSaved: onSaved, _onTrouble: onTrouble });
    this.pixels = new Map();
    this.classes = [];
    this._done = []; // steps that can be undone
    this._undone = [];
    this._unsaved = [];
    this._isSaving = false;
  }

  /** Read the labels from the server. */
  async load(signal) {
    const response = await request(`${this._path}?format=json`, { signal });
    const found = await response.json();
    this.etag = response.headers.get("ETag");
    this.cols = found.cols;
    this.rows = found.rows;
    this.classes = found.classes.map(({ value, name, color }) => ({ value, name, color }));
    this.pixels = new Map();
    for (const { value, runs } of found.classes) {
      for (const [row, col, length] of runs) for (let step = 0; step < length; step++) this.pixels.set(row * this.cols + col + step, value);
    }
    this._unsaved = [];
    this._done = [];
    this._undone = [];
    this._onChange();
    this._onSaved(this._state());
  }

  get canUndo() {
    return this._done.length > 0;
  }

  get canRedo() {
    return this._undone.length > 0;
  }

  get isSaved() {
    return !this._unsaved.length && !this._isSaving;
  }

  /** Labelled pixels by class value. */
  get counts() {
    const found = new Map(this.classes.map(({ value }) => [value, 0]));
    for (const value of this.pixels.values()) found.set(value, (found.get(value) ?? 0) + 1);
    return found;
  }

  /** A stroke: give pixels a class, or erase them (0). */
  draw(pixels, value) {
    const before = new Map();
    const after = new Map();
    for (const pixel of pixels) {
      const old = this.pixels.get(pixel) ?? 0;
      if (old === value) continue;
      before.set(pixel, old);
      after.set(pixel, value);
    }
    if (after.size) this._step({ before, after });
  }

  /** Replace the classes, after these pixels have changed theirs. */
  setClasses(classes, after = new Map()) {
    const before = new Map([...after.keys()].map((pixel) => [pixel, this.pixels.get(pixel) ?? 0]));
    this._step({ before, after, classesBefore: this.classes, classesAfter: classes });
  }

  addClass(name) {
    const used = new Set(this.classes.map(({ value }) => value));
    const value = [...Array(255).keys()].map((number) => number + 1).find((number) => !used.has(number));
    const color = COLORS.find((each) => !this.classes.some((other) => other.color === each)) ?? randomColor();
    const names = new Set(this.classes.map((other) => other.name));
    let free = name || `class ${value}`;
    for (let number = 2; names.has(free); number++) free = `${name} ${number}`;
    this.setClasses([...this.classes, { value, name: free, color }]);
    return value;
  }

  changeClass(value, changes) {
    this.setClasses(this.classes.map((each) => (each.value === value ? { ...each, ...changes } : each)));
  }

  /** Remove a class; its pixels get another class, or lose their label (0). */
  removeClass(value, into = 0) {
    const after = new Map();
    for (const [pixel, old] of this.pixels) if (old === value) after.set(pixel, into);
    this.setClasses(this.classes.filter((each) => each.value !== value), after);
  }

  undo() {
    const step = this._done.pop();
    if (!step) return;
    this._undone.push(step);
    this._apply({ after: step.before, classesAfter: step.classesBefore });
  }

  redo() {
    const step = this._undone.pop();
    if (!step) return;
    this._done.push(step);
    this._apply(step);
  }

  _step(step) {
    this._done.push(step);
    if (this._done.length > KEPT_STEPS) this._done.shift();
    this._undone = [];
    this._apply(step);
  }

  _apply({ after, classesAfter }) {
    for (const [pixel, value] of after) {
      if (value) this.pixels.set(pixel, value);
      else this.pixels.delete(pixel);
    }
    if (classesAfter) this.classes = classesAfter;
    this._unsaved.push({ set: changesOf(after, this.cols), classes: classesAfter });
    this._onChange();
    this._onSaved(this._state());
    this._save();
  }

  _state() {
    return this.isSaved ? "saved" : "saving";
  }

  /** Send what is not saved, one request after the other; a lost connection is retried. */
  async _save() {
    if (this._isSaving) return;
    this._isSaving = true;
    while (this._unsaved.length) {
      const [next] = this._unsaved;
      try {
        await this._send(next);
        this._unsaved.shift();
      } catch (error) {
        if (error instanceof ApiError && ![0, 429, 502, 503, 504].includes(error.status)) {
          this._isSaving = false;
          this._onTrouble(error, error.status === 412);
          return;
        }
        this._onSaved("offline");
        await pause(RETRY_MS);
      }
    }
    this._isSaving = false;
    this._onSaved("saved");
  }

  async _send({ set, classes }) {
    const body = { set, ...(classes ? { classes } : {}) };
    const headers = { "Content-Type": "application/json", "If-Match": this.etag };
    let response;
    try {
      response = await request(this._path, { method: "PATCH", headers, body: JSON.stringify(body) });
    } catch (error) {
      // A stroke whose response was lost may be stored: the server's version then differs by this stroke only.
      if (error.status !== 412 || !(await this._isStored(body))) throw error;
      return;
    }
    this.etag = response.headers.get("ETag");
  }

  /** Whether the server has these labels although its response did not arrive. */
  async _isStored() {
    const response = await request(`${this._path}?format=json`);
    const found = await response.json();
    const count = found.classes.reduce((sum, { pixels }) => sum + pixels, 0);
    if (this._unsaved.length > 1 || count !== this.pixels.size || found.classes.length !== this.classes.length) return false;
    for (const { value, runs } of found.classes) {
      for (const [row, col, length] of runs) for (let step = 0; step < length; step++) if (this.pixels.get(row * this.cols + col + step) !== value) return false;
    }
    this.etag = response.headers.get("ETag");
    return true;
  }

  /** Replace the labels by those of a file. */
  async importFile(file, classField) {
    const headers = { "Content-Type": mediaTypeOf(file.name), "If-Match": this.etag };
    await request(`${this._path}?class_field=${encodeURIComponent(classField)}`, { method: "PUT", headers, body: file });
    await this.load();
  }

  /** The labels as GeoJSON, as training takes them. */
  async geojson() {
    return (await request(`${this._path}?format=geojson`)).blob();
  }

  /** Mean spectra and others need what is saved: resolves when it is. */
  async saved() {
    while (!this.isSaved) await pause(30);
  }
}

/** Pixels as runs [row, first column, number], by class. */
function changesOf(after, cols) {
  const byClass = new Map();
  for (const [pixel, value] of [...after].sort(([one], [other]) => one - other)) {
    const runs = byClass.get(value) ?? [];
    byClass.set(value, runs);
    const [row, col] = [Math.floor(pixel / cols), pixel % cols];
    const last = runs.at(-1);
    if (last && last[0] === row && last[1] + last[2] === col) last[2] += 1;
    else runs.push([row, col, 1]);
  }
  return [...byClass].map(([value, runs]) => ({ class: value, runs }));
}

function mediaTypeOf(name) {
  const suffix = name.slice(name.lastIndexOf(".")).toLowerCase();
  const types = { ".geojson": "application/geo+json", ".json": "application/geo+json", ".gpkg": "application/geopackage+sqlite3", ".tif": "image/tiff", ".tiff": "image/tiff", ".csv": "text/csv" };
  return types[suffix] ?? "application/octet-stream";
}

function randomColor() {
  return `#${Array.from(crypto.getRandomValues(new Uint8Array(3)), (part) => Math.round(40 + (part / 255) * 180).toString(16).padStart(2, "0")).join("")}`;
}

/** The scene's document. */
export const sceneOf = (id, signal) => documentOf(`scenes/${id}`, { signal });
