// The view "Label" of a scene: mark pixels, see the map at once, train and map the whole scene.

import { documentOf, save } from "./api.js";
import { announce, make, problemBox } from "./dom.js";
import { makeClassPanel } from "./label_classes.js";
import { Drawing, LabelMap } from "./label_map.js";
import { LabelStore, sceneOf } from "./label_store.js";
import { compositesOf, rampColors } from "./layers.js";
import { LiveMap } from "./live.js";
import { spectrumChart } from "./spectrum.js";
import { makeTrainPanel } from "./train_label.js";

const TOOLS = [
  ["move", "Move", "m"], ["point", "Point", "p"], ["brush", "Brush", "b"], ["rectangle", "Rectangle", "r"],
  ["polygon", "Polygon", "g"], ["eraser", "Eraser", "e"],
];
const HOVER_MS = 150;
const STATES = { saved: "All labels are saved.", saving: "Saving …", offline: "The connection is lost: the last strokes are not saved yet. Trying again …" };

/** Fill `main` with the label view of a scene. */
export async function showLabel(main, id, signal) {
  const title = make("h1", { tabindex: "-1" }, "Label a scene");
  const facts = make("p", { class: "quiet" });
  const box = make("div", { class: "map-box" });
  const holder = make("div", { class: "map", role: "application", "aria-label": "Map. Arrow keys move it, plus and minus zoom." });
  const panel = make("aside", { class: "panel", "aria-label": "Labels" });
  main.append(make("header", { class: "job-head" }, title, facts), make("div", { class: "job-body" }, box, panel));
  box.append(holder);
  const scene = await sceneOf(id, signal);
  if (signal.aborted) return;
  title.textContent = `Label ${scene.name}`;
  document.title = `Label ${scene.name} – hyperscene`;
  facts.textContent = "Choose a class, mark a few pixels of it, do the same for the next class: the map appears while you go on.";
  const view = new LabelView(scene, holder, panel, signal);
  await view.start();
}

class LabelView {
  constructor(scene, box, panel, signal) {
    Object.assign(this, { _scene: scene, _panel: panel, _signal: signal, _hidden: new Set(), _value: 0, _picture: null, _isConfidence: false, _places: [], _place: -1 });
    this._store = new LabelStore(scene.id, {
      onChange: () => this._onLabels(), onSaved: (state) => this._onSaved(state), onTrouble: (error, isOld) => this._onTrouble(error, isOld),
    });
    this._map = new LabelMap(box, scene, this._store);
    this._drawing = new Drawing(this._map, {
      onStroke: (pixels, isErased) => this._onStroke(pixels, isErased), onMove: (at) => this._onMove(at),
    });
    this._live = new LiveMap(scene.id, this._map, {
      onPicture: (picture, ms, why) => this._onPicture(picture, ms, why), onState: (state) => this._onState(state), onEstimate: (found) => this._onEstimate(found),
    }, signal);
    signal.addEventListener("abort", () => this._map.remove());
    addEventListener("keydown", (event) => this._onKey(event), { signal, capture: true }); // before Leaflet, which zooms by key 6
    addEventListener("beforeunload", (event) => !this._store.isSaved && event.preventDefault(), { signal });
  }

  async start() {
    this._build();
    this._map.showBackground("scene");
    await this._store.load(this._signal);
    if (this._store.classes.length) this._choose(this._store.classes[0].value);
    this._pickTool("brush");
    this._live.prepare();
  }

  _build() {
    this._trouble = make("div");
    this._saved = make("p", { class: "quiet saved", role: "status" });
    this._liveState = make("p", { class: "quiet live-state", role: "status" });
    this._bar = make("progress", { max: 100, "aria-label": "Preparing the live map", hidden: true });
    this._classes = makeClassPanel(this._store, { choose: (value) => this._choose(value), toggle: (value, isOnly) => this._toggle(value, isOnly) });
    this._panel.append(
      make("section", { "aria-labelledby": "tools-title" }, make("h2", { id: "tools-title" }, "Mark"), this._tools(), this._classes.element, this._saved, this._trouble),
      make("section", { "aria-labelledby": "live-title" }, make("h2", { id: "live-title" }, "Map"), this._liveState, this._bar, this._shown()),
      this._quality(),
      this._next(),
      makeTrainPanel(this._scene, this._store, this._signal),
      this._pixelPanel(),
      this._files(),
    );
  }

  _tools() {
    this._toolButtons = new Map(TOOLS.map(([tool, name, key]) => [tool, make("button", { type: "button", class: "plain", "aria-pressed": "false", title: `Key ${key.toUpperCase()}`, onclick: () => this._pickTool(tool) }, name)]));
    this._undo = make("button", { type: "button", class: "plain", title: "Ctrl Z", onclick: () => this._store.undo() }, "Undo");
    this._redo = make("button", { type: "button", class: "plain", title: "Ctrl Y", onclick: () => this._store.redo() }, "Redo");
    const size = make("input", { type: "range", id: "brush", min: "1", max: "15", value: "3" });
    size.addEventListener("input", () => (this._drawing.size = Number(size.value)));
    return make(
      "div", { class: "tools" },
      make("div", { class: "actions", role: "group", "aria-label": "Tool" }, [...this._toolButtons.values()]),
      make("div", { class: "actions" }, this._undo, this._redo, make("button", { type: "button", class: "plain", onclick: () => this._map.fit() }, "Whole scene"), make("button", { type: "button", class: "plain", onclick: () => this._download() }, "Save picture")),
      make("div", { class: "field" }, make("label", { for: "brush" }, "Width of brush and eraser"), size),
    );
  }

  _shown() {
    const background = make("select", { id: "background" });
    const composites = compositesOf(this._scene);
    const options = [...(composites.length ? composites.map(([name, bands]) => [name, bands]) : [["scene", null]]), ["first components", "components"]];
    background.append(...options.map(([name], index) => make("option", { value: String(index) }, name)), make("option", { value: "bands" }, "three bands of my choice"));
    const bands = make("input", { type: "text", id: "bands", placeholder: "29,20,12", pattern: "[0-9]+,[0-9]+,[0-9]+" });
    const chosen = make("div", { class: "field", hidden: true }, make("label", { for: "bands" }, "Red, green, blue (numbers of bands)"), bands);
    const showBands = () => /^\d+,\d+,\d+$/.test(bands.value) && this._map.showBackground("scene", `?bands=${bands.value}`);
    background.addEventListener("change", () => {
      chosen.hidden = background.value !== "bands";
      if (background.value === "bands") return showBands();
      const wanted = options[Number(background.value)][1];
      if (wanted === "components") this._map.showBackground("components");
      else this._map.showBackground("scene", wanted ? `?bands=${wanted.join(",")}` : "");
    });
    bands.addEventListener("change", showBands);
    const layer = make("select", { id: "live-layer" }, make("option", { value: "classes" }, "Classes"), make("option", { value: "confidence" }, "Confidence"), make("option", { value: "none" }, "Nothing"));
    layer.addEventListener("change", () => {
      this._isConfidence = layer.value === "confidence";
      this._map.setLiveOpacity(layer.value === "none" ? 0 : Number(opacity.value) / 100);
      this._paint();
    });
    const opacity = make("input", { type: "range", id: "live-opacity", min: "0", max: "100", value: "60" });
    opacity.addEventListener("input", () => this._map.setLiveOpacity(Number(opacity.value) / 100));
    const swipe = make("input", { type: "checkbox", id: "live-swipe" });
    swipe.addEventListener("change", () => this._map.swipe(swipe.checked));
    return make(
      "div", { class: "tools" },
      make("div", { class: "field" }, make("label", { for: "background" }, "Below: the scene as"), background), chosen,
      make("div", { class: "field" }, make("label", { for: "live-layer" }, "Above: the live map as"), layer),
      make("div", { class: "field" }, make("label", { for: "live-opacity" }, "Opacity of the live map"), opacity),
      make("div", { class: "check" }, swipe, make("label", { for: "live-swipe" }, "Swipe: scene left, live map right")),
    );
  }

  /** What is on the screen as a PNG, with the classes below it. */
  async _download() {
    const canvas = this._map.picture(this._store.classes.filter(({ value }) => !this._hidden.has(value)));
    const link = make("a", { href: URL.createObjectURL(await canvas.convertToBlob()), download: `${this._scene.name.replace(/\.[^.]*$/, "")}.png` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  _quality() {
    this._estimate = make("div", { class: "estimate", role: "status" }, make("p", { class: "quiet" }, "Mark at least two places of each class; then an estimate appears here."));
    return make("section", { "aria-labelledby": "quality-title" }, make("h2", { id: "quality-title" }, "How good is it?"), this._estimate);
  }

  _next() {
    this._nextText = make("p", { class: "quiet", role: "status" }, "Ten places whose label would help most. N and Shift N step through them.");
    const ask = make("button", { type: "button", class: "plain", onclick: () => this._suggest() }, "Where next?");
    const step = (by) => make("button", { type: "button", class: "plain", onclick: () => this._visit(by) }, by > 0 ? "Next place" : "Previous");
    this._steps = make("div", { class: "actions", hidden: true }, step(-1), step(1));
    return make("section", { "aria-labelledby": "next-title" }, make("h2", { id: "next-title" }, "Be led"), this._nextText, make("div", { class: "actions" }, ask), this._steps);
  }

  _pixelPanel() {
    this._position = make("p", { class: "quiet reading" }, "Move over the map.");
    this._spectrum = make("div", { class: "pixel" });
    const means = make("button", { type: "button", class: "plain", onclick: () => this._showMeans() }, "Mean spectra of the classes");
    this._means = make("div", { class: "pixel" });
    const row = make("input", { type: "number", id: "at-row", min: "0", max: String(this._scene.rows - 1), required: true });
    const col = make("input", { type: "number", id: "at-col", min: "0", max: String(this._scene.cols - 1), required: true });
    const form = make("form", { class: "position" }, make("label", {}, "Row", row), make("label", {}, "Column", col), make("button", { type: "submit", class: "plain" }, "Mark it"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this._onStroke([[Number(row.value), Number(col.value)]], false);
      this._map.showPlaces([{ row: Number(row.value), col: Number(col.value) }], 0);
    });
    return make("section", { "aria-labelledby": "pixel-title" }, make("h2", { id: "pixel-title" }, "Pixel"), this._position, this._spectrum, form, means, this._means);
  }

  _files() {
    const file = make("input", { type: "file", id: "label-file", class: "unseen", accept: ".geojson,.json,.gpkg,.tif,.tiff,.csv" });
    const field = make("input", { type: "text", id: "class-field", value: "class" });
    const problems = make("div");
    const report = (work) => work.then(() => problems.replaceChildren(), (error) => problems.replaceChildren(problemBox(error.message)));
    file.addEventListener("change", () => {
      if (file.files.length) report(this._store.importFile(file.files[0], field.value).then(() => this._live.update(true)));
      file.value = "";
    });
    const link = (format, name) => make("button", { type: "button", class: "plain", onclick: () => report(save(`scenes/${this._scene.id}/labels?format=${format}`, `labels.${format}`)) }, name);
    return make(
      "section", { "aria-labelledby": "files-title" }, make("h2", { id: "files-title" }, "Label files"),
      make("div", { class: "actions" }, link("geojson", "GeoJSON"), link("gpkg", "GeoPackage"), link("tif", "Raster")),
      make("div", { class: "field" }, make("label", { for: "class-field" }, "Field of a vector file with the class"), field),
      make("p", { class: "choose" }, file, make("label", { for: "label-file", class: "button" }, "Replace the labels by a file")),
      problems,
    );
  }

  // Labels

  _pickTool(tool) {
    this._drawing.choose(tool);
    for (const [name, button] of this._toolButtons) button.setAttribute("aria-pressed", String(name === tool));
  }

  _choose(value) {
    this._value = value;
    this._classes.show(value, this._hidden);
    if (this._drawing.tool === "eraser" || this._drawing.tool === "move") this._pickTool("brush");
  }

  _toggle(value, isOnly) {
    const others = this._store.classes.map((each) => each.value).filter((each) => each !== value);
    if (isOnly) this._hidden = this._hidden.size === others.length && !this._hidden.has(value) ? new Set() : new Set(others);
    else if (!this._hidden.delete(value)) this._hidden.add(value);
    this._classes.show(this._value, this._hidden);
    this._paint();
  }

  _onStroke(pixels, isErased) {
    if (!isErased && !this._store.classes.some(({ value }) => value === this._value)) this._value = this._store.addClass("class 1");
    this._strokeBegan = performance.now();
    this._store.draw(pixels.map(([row, col]) => row * this._scene.cols + col), isErased ? 0 : this._value);
  }

  _onLabels() {
    this._map.drawLabels();
    if (!this._store.classes.some(({ value }) => value === this._value)) this._value = this._store.classes[0]?.value ?? 0;
    this._classes.show(this._value, this._hidden);
    this._undo.disabled = !this._store.canUndo;
    this._redo.disabled = !this._store.canRedo;
    this._paint();
  }

  _onSaved(state) {
    this._saved.textContent = STATES[state];
    Object.assign(this._saved.dataset, { state, etag: this._store.etag ?? "" });
    if (state === "saved") this._live.update(true);
  }

  _onTrouble(error, isOld) {
    const reload = make("button", { type: "button", class: "plain", onclick: () => this._store.load(this._signal).then(() => this._trouble.replaceChildren()) }, isOld ? "Show the other labels" : "Go back to what is saved");
    this._saved.textContent = "The last strokes are not saved.";
    this._saved.dataset.state = "refused";
    this._trouble.replaceChildren(problemBox(error.message, reload));
  }

  // The live map

  _onState({ state, progress, detail }) {
    this._bar.hidden = state !== "computing";
    if (state === "computing") this._bar.value = progress;
    const texts = { computing: `Preparing the live map: ${progress} %. You can mark meanwhile.`, ready: "", "not started": "", failed: detail, error: detail };
    this._liveState.textContent = texts[state] ?? "";
  }

  _onPicture(picture, ms, why = "") {
    this._picture = picture;
    this._liveState.textContent = picture ? "" : why;
    this._paint();
    if (picture && this._strokeBegan && this._store.isSaved && picture.etag === this._store.etag) {
      const took = performance.now() - this._strokeBegan;
      this._strokeBegan = 0;
      requestAnimationFrame(() => (this._map.map.getContainer().dataset.strokeMs = took.toFixed(0)));
    }
    // Which labels are shown, at which resolution: for tests and benchmarks.
    Object.assign(this._map.map.getContainer().dataset, { etag: picture?.etag ?? "", scale: String(picture?.scale ?? "") });
  }

  _paint() {
    if (!this._picture) return;
    const colors = [];
    for (const { value, color } of this._store.classes) if (!this._hidden.has(value)) colors[value] = packed(color);
    this._map.paintLive(this._picture, colors, this._isConfidence, rampColors());
  }

  _onEstimate({ estimate, classes, mistakes }) {
    if (!estimate) return;
    const { value, interval } = estimate.oa;
    const asText = (share) => `${Math.round(100 * share)} %`;
    const known = estimate.per_class.filter(({ accuracy }) => accuracy.value !== null);
    const worst = known.reduce((least, each) => (each.accuracy.value < least.accuracy.value ? each : least), known[0]);
    const confused = estimate.confusion.flatMap((row, from) => row.map((count, to) => ({ from, to, count }))).filter(({ from, to, count }) => from !== to && count).sort((one, other) => other.count - one.count).slice(0, 3);
    const text = `About ${asText(value)} right (${asText(interval[0])} to ${asText(interval[1])}) at places like those you marked`;
    this._mistakes = mistakes;
    const visit = make("button", { type: "button", class: "plain", onclick: () => this._visitMistake() }, `Look at ${mistakes.length === 1 ? "it" : "them one by one"}`);
    this._estimate.replaceChildren(
      make("p", {}, make("strong", {}, text)),
      make("p", { class: "quiet" }, `From ${estimate.clusters} marked places: each is left out and predicted from the others. Worst: ${worst.name}, ${asText(worst.accuracy.value)}.`),
      confused.length ? make("ul", { class: "quiet" }, confused.map(({ from, to, count }) => make("li", {}, `${count} pixels of ${classes[from]} taken for ${classes[to]}`))) : null,
      mistakes.length ? make("p", {}, `${mistakes.length} ${mistakes.length === 1 ? "label looks" : "labels look"} like a mistake. `, visit) : "",
    );
  }

  _visitMistake() {
    this._mistake = ((this._mistake ?? -1) + 1) % this._mistakes.length;
    const each = this._mistakes[this._mistake];
    this._map.showPlaces(this._mistakes, this._mistake);
    announce(`Row ${each.row}, column ${each.col}: labelled ${each.label}, looks like ${each.predicted}`);
    this._nextText.textContent = `Row ${each.row}, column ${each.col}: labelled ${each.label}, looks like ${each.predicted}.`;
  }

  async _suggest() {
    try {
      await this._store.saved();
      this._places = (await this._live.suggestions()).places;
    } catch (error) {
      this._nextText.textContent = error.message;
      return;
    }
    this._place = -1;
    this._steps.hidden = !this._places.length;
    this._visit(1);
  }

  _visit(by) {
    if (!this._places.length) return;
    this._place = (this._place + by + this._places.length) % this._places.length;
    const { row, col, guess } = this._places[this._place];
    this._map.showPlaces(this._places, this._place);
    const name = this._store.classes.find(({ value }) => value === guess)?.name ?? "";
    this._nextText.textContent = `Place ${this._place + 1} of ${this._places.length}: row ${row}, column ${col}. The map says ${name}. Enter marks it with the chosen class.`;
  }

  _onKey(event) {
    if (event.defaultPrevented) return;
    if (event.target.closest("input:not([type=range]):not([type=checkbox]), select, textarea, dialog")) return;
    const key = event.key.toLowerCase();
    if (event.ctrlKey || event.metaKey) {
      if (key === "z" && !event.shiftKey) this._store.undo();
      else if (key === "y" || key === "z") this._store.redo();
      else return;
    } else if (/^[1-9]$/.test(key) && this._store.classes[Number(key) - 1]) this._choose(this._store.classes[Number(key) - 1].value);
    else if (key === "n" && this._places.length) this._visit(event.shiftKey ? -1 : 1);
    else if (key === "escape") this._drawing.cancel();
    else if (key === "enter" && this._drawing.tool === "polygon" && !event.target.closest("button")) this._drawing.closePolygon();
    else if (key === "enter" && this._place >= 0 && !event.target.closest("button, a")) this._onStroke([[this._places[this._place].row, this._places[this._place].col]], false);
    else {
      const tool = TOOLS.find(([, , own]) => own === key);
      if (!tool) return;
      this._pickTool(tool[0]);
    }
    event.preventDefault();
    event.stopPropagation();
  }

  // The pixel under the pointer

  _onMove([row, col]) {
    const at = { row: Math.floor(row), col: Math.floor(col) };
    if (!this._map.isInside([row, col])) return;
    const [a, b, c, d, e, f] = this._scene.transform;
    const where = this._scene.crs ? `; ${(a * col + b * row + c).toFixed(1)}, ${(d * col + e * row + f).toFixed(1)} (${this._scene.crs})` : "";
    this._position.textContent = `Row ${at.row}, column ${at.col}${where}${this._valueAt(at)}`;
    clearTimeout(this._hover);
    this._hover = setTimeout(() => this._showSpectrum(at), HOVER_MS);
  }

  _valueAt({ row, col }) {
    if (!this._picture) return "";
    const [top, left, rows, cols] = this._picture.window;
    const [y, x] = [Math.floor(((row - top) / rows) * this._picture.height), Math.floor(((col - left) / cols) * this._picture.width)];
    if (y < 0 || x < 0 || y >= this._picture.height || x >= this._picture.width) return "";
    const index = y * this._picture.width + x;
    const name = this._store.classes.find(({ value }) => value === this._picture.values[index])?.name;
    return name ? `: ${name}, ${Math.round(this._picture.confidence[index] / 2.55)} %` : ": no data";
  }

  async _showSpectrum({ row, col }) {
    this._lookup?.abort();
    this._lookup = new AbortController();
    try {
      const found = await documentOf(`scenes/${this._scene.id}/pixel?row=${row}&col=${col}`, { signal: AbortSignal.any([this._lookup.signal, this._signal]), isQuiet: true });
      this._spectrum.replaceChildren(spectrumChart(found));
    } catch (error) {
      if (error.name !== "AbortError") this._spectrum.replaceChildren(make("p", { class: "quiet" }, error.message));
    }
  }

  async _showMeans() {
    try {
      await this._store.saved();
      const { classes, ...bands } = await this._live.spectra();
      this._means.replaceChildren(...classes.map((each) => make("div", {}, make("p", { class: "quiet" }, `${each.name}: mean of ${each.pixels} pixels, and its spread`), spectrumChart({ ...bands, values: each.mean, deviation: each.deviation }))));
    } catch (error) {
      this._means.replaceChildren(problemBox(error.message));
    }
  }
}

/** A colour like #1e6b34 as a pixel of a canvas. */
function packed(color) {
  const [red, green, blue] = [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
