// A chart of a pixel's spectrum that marks the bands used by the bundle.

import { draw, make, short } from "./dom.js";

const WIDTH = 420, HEIGHT = 190;
const LEFT = 52, RIGHT = 8, TOP = 10, BOTTOM = 42;

/** The chart with its caption. */
export function spectrumChart(spectrum) {
  const positions = spectrum.wavelengths_nm ?? spectrum.bands; // on the x axis
  const points = positions
    .map((position, index) => ({ position, value: spectrum.values[index], deviation: spectrum.deviation?.[index] ?? 0, isUsed: spectrum.used?.[index] ?? false, band: spectrum.bands[index] }))
    .sort((one, other) => one.position - other.position);
  const known = points.filter(({ value }) => value !== null);
  if (!known.length) return make("p", { class: "quiet" }, "The scene has no data here.");
  const unit = spectrum.wavelengths_nm ? "nm" : "";
  const x = scale(extent(points.map(({ position }) => position)), [LEFT, WIDTH - RIGHT]);
  const [low, high] = extent(known.flatMap(({ value, deviation }) => [value - deviation, value + deviation]));
  const y = scale([Math.min(low, Math.max(0, low - 0.1 * (high - low))), high === low ? low + 1 : high], [HEIGHT - BOTTOM - 5, TOP]);
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": description(known, unit), class: "spectrum" });
  svg.append(...axes(x, y, unit));
  if (spectrum.deviation) svg.append(spread(known, x, y));
  svg.append(...lines(points).map((line) => draw("polyline", { class: "line", points: line.map((p) => `${x(p.position)},${y(p.value)}`).join(" ") })));
  svg.append(...known.map((p) => draw("circle", { class: p.isUsed ? "used" : "unused", cx: x(p.position), cy: y(p.value), r: p.isUsed ? 2.2 : 1.4 })));
  svg.append(...points.filter(({ isUsed }) => isUsed).map((p) => draw("line", { class: "rug", x1: x(p.position), x2: x(p.position), y1: HEIGHT - BOTTOM + 1, y2: HEIGHT - BOTTOM + 7 })));
  const reading = make("p", { class: "quiet reading" }, explain(points));
  hover(svg, known, x, (p) => (reading.textContent = `Band ${p.band}${unit ? `, ${short(p.position)} nm` : ""}: ${short(p.value)}`));
  svg.addEventListener("pointerleave", () => (reading.textContent = explain(points)));
  return make("figure", {}, svg, make("figcaption", {}, reading));
}

const extent = (numbers) => [Math.min(...numbers), Math.max(...numbers)];

function scale([from, to], [start, end]) {
  const span = to - from || 1;
  const project = (value) => Number((start + ((value - from) / span) * (end - start)).toFixed(2));
  return Object.assign(project, { from, to });
}

/** A band of one standard deviation around the curve. */
function spread(known, x, y) {
  const upper = known.map((p) => `${x(p.position)},${y(p.value + p.deviation)}`);
  const lower = known.map((p) => `${x(p.position)},${y(p.value - p.deviation)}`).reverse();
  return draw("polygon", { class: "spread", points: [...upper, ...lower].join(" ") });
}

/** The points in runs without gaps, so that no line crosses missing bands. */
function lines(points) {
  const steps = points.slice(1).map((point, index) => point.position - points[index].position).sort((one, other) => one - other);
  const usual = steps[Math.floor(steps.length / 2)] ?? 0;
  const found = [[]];
  points.forEach((point, index) => {
    if (index && point.position - points[index - 1].position > 4 * usual) found.push([]);
    if (point.value === null) found.push([]);
    else found.at(-1).push(point);
  });
  return found.filter(({ length }) => length > 1);
}

function axes(x, y, unit) {
  const ticks = (s, count) => {
    const step = niceStep((s.to - s.from) / count);
    return Array.from({ length: count + 2 }, (_, index) => (Math.ceil(s.from / step) + index) * step).filter((value) => value <= s.to + step / 1000);
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
  return used ? `The model uses ${used} of ${points.length} bands, which are marked below the curve.` : "";
}

function description(known, unit) {
  const highest = known.reduce((best, point) => (point.value > best.value ? point : best));
  const [low, high] = extent(known.map(({ value }) => value));
  const [first, last] = extent(known.map(({ position }) => position));
  const of = unit ? `${short(first)} to ${short(last)} nm` : `${known.length} bands`;
  return `Spectrum over ${of}: values from ${short(low)} to ${short(high)}, highest at ${unit ? `${short(highest.position)} nm` : `band ${highest.band}`}`;
}

function hover(svg, known, x, show) {
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const pointerX = ((event.clientX - box.left) / box.width) * WIDTH;
    show(known.reduce((best, point) => (Math.abs(x(point.position) - pointerX) < Math.abs(x(best.position) - pointerX) ? point : best)));
  });
}
