// The spectrum of a pixel as a chart, with the bands that the bundle uses marked.

import { draw, make, short } from "./dom.js";

const WIDTH = 420, HEIGHT = 190;
const LEFT = 52, RIGHT = 8, TOP = 10, BOTTOM = 42;

/** A chart with its words. */
export function spectrumChart(spectrum) {
  const places = spectrum.wavelengths_nm ?? spectrum.bands;
  const points = places
    .map((place, at) => ({ place, value: spectrum.values[at], isUsed: spectrum.used?.[at] ?? false, band: spectrum.bands[at] }))
    .sort((one, other) => one.place - other.place);
  const known = points.filter(({ value }) => value !== null);
  if (!known.length) return make("p", { class: "quiet" }, "The scene has no data here.");
  const unit = spectrum.wavelengths_nm ? "nm" : "";
  const x = scale(ends(points.map(({ place }) => place)), [LEFT, WIDTH - RIGHT]);
  const [low, high] = ends(known.map(({ value }) => value));
  const y = scale([Math.min(low, Math.max(0, low - 0.1 * (high - low))), high === low ? low + 1 : high], [HEIGHT - BOTTOM - 5, TOP]);
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": wordsOf(known, unit), class: "spectrum" });
  svg.append(...axes(x, y, unit));
  svg.append(...lines(points).map((line) => draw("polyline", { class: "line", points: line.map((p) => `${x(p.place)},${y(p.value)}`).join(" ") })));
  svg.append(...known.map((p) => draw("circle", { class: p.isUsed ? "used" : "unused", cx: x(p.place), cy: y(p.value), r: p.isUsed ? 2.2 : 1.4 })));
  svg.append(...points.filter(({ isUsed }) => isUsed).map((p) => draw("line", { class: "rug", x1: x(p.place), x2: x(p.place), y1: HEIGHT - BOTTOM + 1, y2: HEIGHT - BOTTOM + 7 })));
  const reading = make("p", { class: "quiet reading" }, explain(points));
  hover(svg, known, x, (p) => (reading.textContent = `Band ${p.band}${unit ? `, ${short(p.place)} nm` : ""}: ${short(p.value)}`));
  svg.addEventListener("pointerleave", () => (reading.textContent = explain(points)));
  return make("figure", {}, svg, make("figcaption", {}, reading));
}

const ends = (numbers) => [Math.min(...numbers), Math.max(...numbers)];

function scale([from, to], [start, end]) {
  const span = to - from || 1;
  const place = (value) => Number((start + ((value - from) / span) * (end - start)).toFixed(2));
  return Object.assign(place, { from, to });
}

/** Stretches without a gap: a line across missing bands would show what nobody measured. */
function lines(points) {
  const steps = points.slice(1).map((point, at) => point.place - points[at].place).sort((one, other) => one - other);
  const usual = steps[Math.floor(steps.length / 2)] ?? 0;
  const found = [[]];
  points.forEach((point, at) => {
    if (at && point.place - points[at - 1].place > 4 * usual) found.push([]);
    if (point.value === null) found.push([]);
    else found.at(-1).push(point);
  });
  return found.filter(({ length }) => length > 1);
}

function axes(x, y, unit) {
  const ticks = (s, wanted) => {
    const step = niceStep((s.to - s.from) / wanted);
    return Array.from({ length: wanted + 2 }, (_, at) => (Math.ceil(s.from / step) + at) * step).filter((value) => value <= s.to + step / 1000);
  };
  const across = ticks(y, 4).flatMap((value) => [
    draw("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
    draw("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)),
  ]);
  const along = ticks(x, 5).map((value) => draw("text", { x: x(value), y: HEIGHT - BOTTOM + 20, "text-anchor": "middle" }, short(value)));
  const title = draw("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, unit ? "wavelength, nm" : "band");
  return [...across, ...along, title];
}

/** 1, 2 or 5 times a power of ten. */
function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough) ?? power;
}

function explain(points) {
  const used = points.filter(({ isUsed }) => isUsed).length;
  return used ? `${used} of ${points.length} bands, marked below the curve, are used by the bundle.` : "";
}

function wordsOf(known, unit) {
  const highest = known.reduce((best, point) => (point.value > best.value ? point : best));
  const [low, high] = ends(known.map(({ value }) => value));
  const [first, last] = ends(known.map(({ place }) => place));
  const of = unit ? `${short(first)} to ${short(last)} nm` : `${known.length} bands`;
  return `Spectrum over ${of}: values from ${short(low)} to ${short(high)}, highest at ${unit ? `${short(highest.place)} nm` : `band ${highest.band}`}`;
}

function hover(svg, known, x, tell) {
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    tell(known.reduce((best, point) => (Math.abs(x(point.place) - at) < Math.abs(x(best.place) - at) ? point : best)));
  });
}
