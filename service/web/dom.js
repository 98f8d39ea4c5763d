// Creating elements, and formatting numbers and times. Text is always inserted as text, never as HTML.

/** An element with properties, attributes, listeners and children; strings become text. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** The same for SVG, with attributes only. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Announce a text to screen readers. */
export function announce(text) {
  const live = document.getElementById("live");
  if (live.textContent !== text) live.textContent = text;
}

/** A box for an error. */
export function problemBox(text, ...more) {
  return make("div", { class: "problem", role: "alert" }, make("p", {}, text), ...more);
}

/** A square of a class's colour. */
export function swatch(color) {
  const square = make("span", { class: "swatch", "aria-hidden": "true" });
  square.style.backgroundColor = color;
  return square;
}

const wholeNumbers = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const dateTimes = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** A count. */
export const count = (number) => wholeNumbers.format(number);

/** An area, rounded by its size. */
export function hectares(number) {
  return new Intl.NumberFormat("en", { maximumFractionDigits: number >= 100 ? 0 : number >= 1 ? 1 : 3 }).format(number);
}

/** A share of 1 as a percentage. */
export function percent(share) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return `${(100 * share).toFixed(1)} %`;
}

/** A size on disk. */
export function bytes(number) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; number >= 1000 && unit < units.length - 1; unit++) number /= 1000;
  return `${unit && number < 100 ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
}

/** A number in three significant digits. */
export function short(number) {
  const size = Math.abs(number);
  if (size !== 0 && (size < 0.001 || size >= 100000)) return number.toExponential(1);
  return String(Number(number.toPrecision(3)));
}

/** A date and time, in the user's time zone. */
export const dateTime = (text) => dateTimes.format(new Date(text));

/** A duration, rounded by its size. */
export function duration(seconds) {
  if (seconds < 10) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 90) return `${Math.round(seconds / 5) * 5} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
