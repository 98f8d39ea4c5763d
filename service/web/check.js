// "Check this map": the places of a sample one by one, with imagery and spectrum; keys choose the class.

import { documentOf, request } from "./api.js";
import { announce, count, make, problemBox, swatch } from "./dom.js";
import { SceneMap } from "./map.js";
import { saveReport } from "./reports.js";
import { spectrumChart } from "./spectrum.js";

const NAME_KEY = "hyperscene-interpreter";
const CLASS_KEYS = "123456789abcdefghijklmnopqrstuvwxyz";
const CANNOT_TELL_KEY = "0";
const NEIGHBOURHOOD_PX = 40; // that the map shows round a place

/** Fill `main` with the check of a job's map. */
export async function showCheck(main, id, signal) {
  const job = await documentOf(`jobs/${id}`, { signal });
  if (signal.aborted) return;
  document.title = `Check ${job.scene} – hyperscene`;
  const body = make("div");
  main.append(
    make("header", { class: "job-head" }, make("h1", { tabindex: "-1" }, `Check the map of ${job.scene}`), make("a", { href: `#/jobs/${id}` }, "Back to the map")),
    body,
  );
  const sample = await documentOf(`jobs/${id}/sample`, { signal }).catch((error) => {
    if (error.code === "no_such_result") return null;
    throw error;
  });
  if (signal.aborted) return;
  const start = (found, name) => new Check(id, found, name, body, signal).begin();
  body.replaceChildren(makeStart(id, sample, start, signal));
}

/** The form before the first place: who checks, and how large the sample is if there is none. */
function makeStart(id, sample, start, signal) {
  const name = textField("interpreter", "Your name", stored(), { pattern: "[A-Za-z0-9][A-Za-z0-9_\\-]{0,39}", title: "letters, digits, - and _" });
  const total = textField("total", "Number of places", "200", { type: "number", min: "2", max: "5000" });
  const perClass = textField("per-class", "At least per class", "20", { type: "number", min: "2", max: "1000" });
  const problems = make("div");
  const form = make(
    "form",
    { class: "card" },
    make("p", {}, "The places are drawn at random in each class of the map. You decide what is there without seeing what the map says; from your answers follow its accuracy and the areas, with intervals."),
    sample ? make("p", {}, progressOf(sample)) : null,
    name.element,
    ...(sample ? [] : [total.element, perClass.element]),
    make("button", { type: "submit", class: "main" }, sample ? "Go on" : "Draw the sample"),
    problems,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problems.replaceChildren();
    try {
      const found = sample ?? (await drawSample(id, Number(total.input.value), Number(perClass.input.value), signal));
      localStorage.setItem(NAME_KEY, name.input.value.trim());
      await start(found, name.input.value.trim());
    } catch (error) {
      problems.replaceChildren(problemBox(error.message));
    }
  });
  return form;
}

const stored = () => localStorage.getItem(NAME_KEY) ?? "";

function progressOf(sample) {
  const names = sample.interpreters.map(({ name, answered }) => `${name} ${answered}`).join(", ");
  return `The sample has ${count(sample.points.length)} places. ${names ? `Answered so far: ${names}.` : "None is answered yet."}`;
}

const drawSample = (id, total, perClass, signal) =>
  documentOf(`jobs/${id}/sample`, {
    method: "POST",
    body: JSON.stringify({ total, per_class: perClass }),
    headers: { "Content-Type": "application/json" },
    signal,
  });

function textField(id, label, value, attributes) {
  const input = make("input", { id, value, required: true, autocomplete: "off", ...attributes });
  return { input, element: make("div", { class: "field" }, make("label", { for: id }, label), input) };
}

/** One interpreter at work. */
class Check {
  constructor(id, sample, interpreter, body, signal) {
    Object.assign(this, { _id: id, _sample: sample, _name: interpreter, _body: body, _signal: signal, _number: 1, _answers: {} });
    this._latest = null; // the abort controller of the latest spectrum
    this._isSaving = false;
  }

  async begin() {
    const answers = await documentOf(`${this._path()}`, { signal: this._signal });
    const tilejson = await documentOf(`jobs/${this._id}/tilejson.json`, { signal: this._signal });
    if (this._signal.aborted) return;
    this._answers = answers.answers;
    this._build(tilejson);
    this._signal.addEventListener("abort", () => this._map.remove());
    const onKey = (event) => this._onKey(event);
    document.addEventListener("keydown", onKey, { signal: this._signal });
    await this._show(this._nextOpen(0) ?? 1);
  }

  _path = () => `jobs/${this._id}/sample/answers/${this._name}`;

  _build(tilejson) {
    const box = make("div", { class: "map", role: "application", "aria-label": "Map of the scene. Arrow keys move it, plus and minus zoom." });
    this._status = make("p", { class: "check-status", role: "status" });
    this._spectrum = make("div", { class: "pixel" });
    this._problems = make("div");
    this._buttons = this._choices().map(({ key, label, color }) => this._button(key, label, color));
    const done = make("button", { type: "button", class: "plain", onclick: () => saveReport(`jobs/${this._id}/accuracy?interpreter=${this._name}`, "accuracy.html", this._problems) }, "Accuracy report");
    const step = (text, by) => make("button", { type: "button", class: "plain", onclick: () => this._show(this._number + by) }, text);
    const panel = make(
      "aside",
      { class: "panel", "aria-label": "The place" },
      this._status,
      make("div", { class: "choices", role: "group", "aria-label": "What is here?" }, this._buttons.map(({ element }) => element)),
      make("div", { class: "actions" }, step("Previous", -1), step("Next", 1), done),
      make("p", { class: "quiet" }, "The keys beside the classes choose; page up and page down go to the previous and the next place."),
      this._problems,
      this._spectrum,
    );
    this._body.replaceChildren(make("div", { class: "job-body" }, make("div", { class: "map-box" }, box), panel));
    this._map = new SceneMap(box, this._id, tilejson);
  }

  _choices() {
    const classes = this._sample.classes.map(({ name, color }, index) => ({ key: CLASS_KEYS[index] ?? "", label: name, color }));
    return [...classes, { key: CANNOT_TELL_KEY, label: this._sample.cannot_tell, color: null }];
  }

  _button(key, label, color) {
    const element = make("button", { type: "button", "aria-pressed": "false", onclick: () => this._answer(label) }, make("kbd", {}, key), color ? swatch(color) : null, label);
    return { key, label, element };
  }

  _onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.("input, select, textarea")) return;
    const chosen = this._buttons.find(({ key }) => key && key === event.key.toLowerCase());
    if (chosen) this._answer(chosen.label);
    else if (event.key === "PageUp") this._show(this._number - 1);
    else if (event.key === "PageDown") this._show(this._number + 1);
    else return;
    event.preventDefault();
  }

  /** Store an answer on the server, then go on to the next place without one. */
  async _answer(label) {
    if (this._isSaving) return;
    this._isSaving = true;
    const number = this._number;
    try {
      await request(`${this._path()}/${number}`, {
        method: "PUT",
        body: JSON.stringify({ label }),
        headers: { "Content-Type": "application/json" },
      });
      this._answers[number] = label;
      this._problems.replaceChildren();
    } catch (error) {
      this._problems.replaceChildren(problemBox(error.message));
      return;
    } finally {
      this._isSaving = false;
    }
    if (!this._signal.aborted) await this._show(this._nextOpen(number) ?? number);
  }

  /** The first place after `number`, round the end, that has no answer. */
  _nextOpen(number) {
    const numbers = this._sample.points.map((point) => point.number);
    return [...numbers.slice(number), ...numbers.slice(0, number)].find((each) => !(each in this._answers));
  }

  async _show(number) {
    const point = this._sample.points[number - 1];
    if (!point) return;
    this._number = number;
    const answered = Object.keys(this._answers).length;
    this._status.textContent = `Place ${number} of ${this._sample.points.length}, ${answered} answered${answered === this._sample.points.length ? ": all done" : ""}`;
    announce(this._status.textContent);
    for (const { label, element } of this._buttons) element.setAttribute("aria-pressed", String(this._answers[number] === label));
    this._map.lookAt(point, NEIGHBOURHOOD_PX);
    this._map.mark(point, `Place ${number}`);
    await this._showSpectrum(point);
  }

  async _showSpectrum({ row, col }) {
    this._latest?.abort();
    const current = (this._latest = new AbortController());
    try {
      const pixel = await documentOf(`jobs/${this._id}/pixel?${new URLSearchParams({ row, col })}`, { signal: AbortSignal.any([current.signal, this._signal]) });
      if (current.signal.aborted) return;
      this._spectrum.replaceChildren(pixel.spectrum ? spectrumChart(pixel.spectrum) : make("p", { class: "quiet" }, pixel.spectrum_missing ?? "No spectrum."));
    } catch (error) {
      if (error.name !== "AbortError") this._spectrum.replaceChildren(problemBox(error.message));
    }
  }
}
