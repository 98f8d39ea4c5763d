// One pixel: its class, the probabilities as bars, and its spectrum.

import { documentOf } from "./api.js";
import { announce, make, percent, problemBox, swatch } from "./dom.js";
import { spectrumChart } from "./spectrum.js";

const BARS = 8;

/** The panel for a pixel; `map` is clicked, or row and column are typed. */
export function makePixelPanel(jobId, map, tilejson, signal) {
  const shown = make("div", { class: "pixel" }, make("p", { class: "quiet" }, "Click the map, or give a row and a column."));
  const row = numberField("row", "Row", tilejson.rows);
  const col = numberField("col", "Column", tilejson.cols);
  const form = make("form", { class: "place" }, row.element, col.element, make("button", { type: "submit", class: "plain" }, "Show"));
  let asked = null;
  let last = null;

  async function show(place, isQuiet = false) {
    last = place;
    asked?.abort();
    asked = new AbortController();
    const mine = asked;
    try {
      const pixel = await documentOf(`jobs/${jobId}/pixel?${new URLSearchParams(place)}`, { signal: AbortSignal.any([mine.signal, signal]) });
      if (mine.signal.aborted || signal.aborted) return;
      row.input.value = pixel.row;
      col.input.value = pixel.col;
      const words = pixel.class ? `${pixel.class.name}, ${percent(pixel.confidence)}` : nameless(pixel);
      map.mark(pixel, words);
      shown.replaceChildren(...contentOf(pixel));
      if (isQuiet) return;
      announce(`Row ${pixel.row}, column ${pixel.col}: ${words}`);
      if (matchMedia("(min-width: 60rem)").matches) section.scrollIntoView({ block: "nearest" }); // the panel, not the page
    } catch (error) {
      if (error.name === "AbortError") return;
      map.unmark();
      shown.replaceChildren(problemBox(error.message));
    }
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show({ row: row.input.value, col: col.input.value });
  });
  map.onPick((place) => show(place));
  const section = make("section", { "aria-labelledby": "pixel-title" }, make("h2", { id: "pixel-title" }, "Pixel"), form, shown);
  return { element: section, refresh: () => last && show(last, true) };
}

const nameless = (pixel) => (pixel.is_valid === false ? "no data" : "not mapped yet");

function numberField(name, label, count) {
  const input = make("input", { type: "number", id: `pixel-${name}`, min: "0", max: String(count - 1), step: "1", required: true });
  return { input, element: make("label", {}, label, input) };
}

function contentOf(pixel) {
  const where = pixel.lon === null || pixel.lon === undefined ? "" : `${pixel.lat.toFixed(5)}°, ${pixel.lon.toFixed(5)}°`;
  return [
    pixel.class
      ? make("p", { class: "verdict-of-pixel" }, swatch(pixel.class.color), make("strong", {}, pixel.class.name), ` ${percent(pixel.confidence)}`)
      : make("p", { class: "verdict-of-pixel" }, make("strong", {}, nameless(pixel))),
    where ? make("p", { class: "quiet" }, where) : null,
    pixel.probabilities.length ? bars(pixel.probabilities) : null,
    pixel.spectrum ? spectrumChart(pixel.spectrum) : make("p", { class: "quiet" }, pixel.spectrum_missing ?? ""),
  ].filter(Boolean);
}

/** The likeliest classes, longest bar first. */
function bars(probabilities) {
  const sorted = [...probabilities].sort((one, other) => other.probability - one.probability);
  const rest = sorted.slice(BARS);
  return make(
    "ul",
    { class: "bars", "aria-label": "Probabilities" },
    sorted.slice(0, BARS).map(({ name, color, probability }) => {
      const bar = make("span", { class: "bar", "aria-hidden": "true" });
      bar.style.width = `${100 * probability}%`;
      bar.style.backgroundColor = color;
      return make("li", {}, make("span", { class: "bar-name" }, name), make("span", { class: "bar-space" }, bar), make("span", { class: "number" }, percent(probability)));
    }),
    rest.length ? make("li", { class: "quiet" }, `${rest.length} more classes, ${percent(rest.reduce((sum, each) => sum + each.probability, 0))} together`) : null,
  );
}
