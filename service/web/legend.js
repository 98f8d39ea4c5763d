// The legend of a class map: areas and shares, and buttons that hide a class or all others.

import { announce, count, hectares, make, percent, swatch } from "./dom.js";

const FIRST_ROWS = 12; // shown at first, so that the sections below stay near
const MAX_VALUE = 255; // of a class that tiles hold in a palette

/** All classes with colour, area and share, largest first; `hide` is called with the set of hidden class values. */
export function makeLegend(summary, hide) {
  const classes = [...summary.classes].sort((one, other) => other.pixels - one.pixels);
  const hasArea = classes.some(({ hectares: area }) => area !== null);
  const choice = classes.every(({ value }) => value <= MAX_VALUE) ? new ClassChoice(classes, hide) : null;
  const row = (entry) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, choice ? choice.switchOf(entry) : [swatch(entry.color), entry.name]),
      make("td", { class: "number" }, hasArea ? hectares(entry.hectares) : count(entry.pixels)),
      make("td", { class: "number" }, percent(entry.share)),
      choice ? make("td", { class: "number" }, choice.onlyOf(entry)) : null,
    );
  const rows = classes.map(row);
  const head = [
    make("th", { scope: "col" }, "Class"),
    make("th", { scope: "col", class: "number" }, hasArea ? "Hectares" : "Pixels"),
    make("th", { scope: "col", class: "number" }, "Share"),
    choice ? make("th", { scope: "col" }, make("span", { class: "unseen" }, "Alone")) : null,
  ];
  return make(
    "section",
    { "aria-labelledby": "legend-title" },
    make("h2", { id: "legend-title" }, "Classes"),
    make("table", { class: "legend" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, rows)),
    moreButton(rows),
    choice?.all,
    choice ? make("p", { class: "hint" }, "Click a class to hide it or to show it again; Only hides all others.") : null,
    summary.no_data_pixels ? make("p", { class: "quiet" }, `${count(summary.no_data_pixels)} pixels have no data.`) : null,
  );
}

/** A button for the rows that are not shown at first. */
function moreButton(rows) {
  if (rows.length <= FIRST_ROWS) return null;
  for (const hidden of rows.slice(FIRST_ROWS)) hidden.hidden = true;
  const next = rows[FIRST_ROWS].querySelector("th");
  next.tabIndex = -1;
  const more = make("button", { type: "button", class: "plain" }, `List all ${rows.length} classes`);
  more.addEventListener("click", () => {
    for (const hidden of rows) hidden.hidden = false;
    next.focus();
    more.remove();
  });
  return more;
}

/** Which classes are shown. */
class ClassChoice {
  constructor(classes, hide) {
    this._classes = classes;
    this._hide = hide;
    this._hidden = new Set();
    this._switches = new Map(); // by value
    this.all = make("button", { type: "button", class: "plain", hidden: true, onclick: () => this._set(new Set(), "All classes are shown") }, "Show all classes");
  }

  /** The button with a class's name, pressed while the class is shown. */
  switchOf({ value, name, color }) {
    const button = make("button", { type: "button", class: "class-switch", "aria-pressed": "true" }, swatch(color), make("span", {}, name));
    button.addEventListener("click", () => {
      const hidden = new Set(this._hidden);
      const isShown = hidden.delete(value) || !hidden.add(value);
      this._set(hidden, `${name} is ${isShown ? "shown" : "hidden"}`);
    });
    this._switches.set(value, button);
    return button;
  }

  /** The button that hides all other classes. */
  onlyOf({ value, name }) {
    const others = this._classes.map((each) => each.value).filter((each) => each !== value);
    const text = `Only ${name} is shown`;
    return make("button", { type: "button", class: "only", "aria-label": `Show only ${name}`, onclick: () => this._set(new Set(others), text) }, "Only");
  }

  _set(hidden, text) {
    this._hidden = hidden;
    for (const [value, button] of this._switches) button.setAttribute("aria-pressed", String(!hidden.has(value)));
    if (!hidden.size && document.activeElement === this.all) this._switches.values().next().value.focus();
    this.all.hidden = !hidden.size;
    this._hide(hidden);
    announce(text);
  }
}
