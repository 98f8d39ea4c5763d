// The pixel panel: class, probabilities as bars, and spectrum.

import { documentOf } from "./api.js";
import { announce, make, percent, problemBox, swatch } from "./dom.js";
import { spectrumChart } from "./spectrum.js";

const MAX_BARS = 8;

/** The panel of a pixel that is selected on the map, or by row and column. */
export function makePixelPanel(jobId, map, tilejson, signal) {
  const shown = make("div", { class: "pixel" }, make("p", { class: "quiet" }, "Click the map, or enter a row and a column."));
  const row = numberField("row", "Row", tilejson.rows);
  const col = numberField("col", "Column", tilejson.cols);
  const form = make("form", { class: "position" }, row.element, col.element, make("button", { type: "submit", class: "plain" }, "Show"));
  let latest = null; // the abort controller of the latest request
  let last = null; // the position that was selected last

  async function show(position, isQuiet = false) {
    last = position;
    latest?.abort();
    latest = new AbortController();
    const current = latest;
    try {
      const pixel = await documentOf(`jobs/${jobId}/pixel?${new URLSearchParams(position)}`, { signal: AbortSignal.any([current.signal, signal]) });
      if (current.signal.aborted || signal.aborted) return;
      row.input.value = pixel.row;
      col.input.value = pixel.col;
      const text = pixel.class ? `${pixel.class.name}, ${percent(pixel.confidence)}` : textWithoutClass(pixel);
      map.mark(pixel, text);
      shown.replaceChildren(...contentOf(pixel));
      if (isQuiet) return;
      announce(`Row ${pixel.row}, column ${pixel.col}: ${text}`);
      if (matchMedia("(min-width: 60rem)").matches) section.scrollIntoView({ block: "nearest" }); // scrolls the panel only
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
  map.onSelect((position) => show(position));
  const section = make("section", { "aria-labelledby": "pixel-title" }, make("h2", { id: "pixel-title" }, "Pixel"), form, shown);
  return { element: section, select: (position) => show(position), refresh: () => last && show(last, true) };
}

const textWithoutClass = (pixel) => (pixel.is_valid === false ? "no data" : "not mapped yet");

function numberField(name, label, count) {
  const input = make("input", { type: "number", id: `pixel-${name}`, min: "0", max: String(count - 1), step: "1", required: true });
  return { input, element: make("label", {}, label, input) };
}

function contentOf(pixel) {
  const where = pixel.lon === null || pixel.lon === undefined ? "" : `${pixel.lat.toFixed(5)}°, ${pixel.lon.toFixed(5)}°`;
  return [
    pixel.class
      ? make("p", { class: "pixel-class" }, swatch(pixel.class.color), make("strong", {}, pixel.class.name), ` ${percent(pixel.confidence)}`)
      : make("p", { class: "pixel-class" }, make("strong", {}, textWithoutClass(pixel))),
    where ? make("p", { class: "quiet" }, where) : null,
    pixel.probabilities.length ? bars(pixel.probabilities) : null,
    pixel.spectrum ? spectrumChart(pixel.spectrum) : make("p", { class: "quiet" }, pixel.spectrum_missing ?? ""),
  ].filter(Boolean);
}

/** The most probable classes, longest bar first. */
function bars(probabilities) {
  const sorted = [...probabilities].sort((one, other) => other.probability - one.probability);
  const rest = sorted.slice(MAX_BARS);
  return make(
    "ul",
    { class: "bars", "aria-label": "Probabilities" },
    sorted.slice(0, MAX_BARS).map(({ name, color, probability }) => {
      const bar = make("span", { class: "bar", "aria-hidden": "true" });
      bar.style.width = `${100 * probability}%`;
      bar.style.backgroundColor = color;
      return make("li", {}, make("span", { class: "bar-name" }, name), make("span", { class: "bar-space" }, bar), make("span", { class: "number" }, percent(probability)));
    }),
    rest.length ? make("li", { class: "quiet" }, `${rest.length} more classes, ${percent(rest.reduce((sum, each) => sum + each.probability, 0))} together`) : null,
  );
}
