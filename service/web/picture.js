// A picture of what the maps show, with legend, scale and north, drawn on a canvas and saved as PNG.

import { basemapAttribution } from "./basemap.js";
import { dateTime } from "./dom.js";
import { scaleFor } from "./positions.js";

const FONT = "system-ui, 'Segoe UI', Roboto, sans-serif";
const INK = "#14201b", PAPER = "#ffffff", BEHIND = "#d9e0dc";
const PAD = 12, LINE = 22, MAX_BAR_PX = 120, COLUMN_PX = 190;
const PANES = ["basemap", "tilePane", "result"]; // from below
const MAX_SIDE_PX = 8000; // of the canvas, which browsers limit

/** Save a picture of the maps in a box; resolves to a note on what is missing in it, or "". */
export async function savePicture(box, maps, job) {
  const frame = box.getBoundingClientRect();
  const areas = maps.map((map) => map.leaflet.getContainer().getBoundingClientRect());
  const width = frame.width;
  const height = Math.max(...areas.map((area) => area.bottom)) - frame.top;
  const legends = maps.map((map) => legendOf(map)).filter((legend, index, all) => legend && all.findIndex((each) => each?.key === legend.key) === index);
  const footer = PAD + LINE + legends.reduce((sum, legend) => sum + heightOf(legend, width), 0) + PAD;
  const scale = Math.min(devicePixelRatio, MAX_SIDE_PX / Math.max(width, height + footer));
  const canvas = Object.assign(document.createElement("canvas"), { width: Math.round(width * scale), height: Math.round((height + footer) * scale) });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = PAPER;
  context.fillRect(0, 0, width, height + footer);
  let isMissing = false;
  for (const [index, map] of maps.entries()) isMissing = (await drawMap(context, map, areas[index], frame)) || isMissing;
  drawFooter(context, legends, { width, top: height + PAD, text: factsOf(job, maps[0]) });
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) throw new Error("The browser cannot make a picture of this size: make its window smaller.");
  saveBlob(blob, `${job.scene.replace(/\.[^.]*$/, "")}-${maps[0].layer ?? "scene"}.png`);
  return isMissing ? "The background map is missing in the picture, because its host does not permit copies." : "";
}

function saveBlob(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function factsOf(job, map) {
  const shown = map.layer ? `, mapped with the model ${job.model}, ${dateTime(job.created)}` : "";
  const source = map.isBasemapShown && basemapAttribution ? `. Background: ${basemapAttribution}` : "";
  return `${job.scene}${shown}${source}`;
}

/** Draw a map into its part of the picture; whether tiles of the basemap could not be copied. */
async function drawMap(context, map, area, frame) {
  const [left, top] = [area.left - frame.left, area.top - frame.top];
  const panes = PANES.map((name) => map.leaflet.getPane(name)).filter(Boolean);
  const pictures = await Promise.all(panes.map((pane) => Promise.all([...pane.querySelectorAll("img")].map(ownCopy))));
  context.save();
  context.beginPath();
  context.rect(left, top, area.width, area.height);
  context.clip();
  context.fillStyle = BEHIND;
  context.fillRect(left, top, area.width, area.height);
  context.imageSmoothingEnabled = false;
  panes.forEach((pane, index) => {
    context.save();
    if (pane.style.clipPath) clipToSwipe(context, map, left, top, area);
    for (const picture of pictures[index]) if (picture) drawTile(context, picture, frame);
    context.restore();
  });
  if (map.marked) drawMark(context, map, left, top);
  drawScale(context, map, left + PAD, top + area.height - PAD);
  if (map.positions.northDeg !== null) drawNorth(context, map.positions.northDeg, left + area.width - 36, top + 40);
  context.restore();
  return pictures.flat().includes(null);
}

/** An image that the canvas may read, with the element that it is on; null if its host forbids it. */
async function ownCopy(element) {
  if (!element.complete || !element.naturalWidth) return { element, image: null };
  if (/^(blob|data):/.test(element.src)) return { element, image: element };
  const image = Object.assign(new Image(), { crossOrigin: "anonymous", referrerPolicy: "origin", src: element.src });
  return image.decode().then(() => ({ element, image }), () => null);
}

function drawTile(context, { element, image }, frame) {
  if (!image) return;
  const box = element.getBoundingClientRect();
  const layer = element.closest(".leaflet-layer");
  context.globalAlpha = Number(getComputedStyle(layer).opacity);
  context.drawImage(image, box.left - frame.left, box.top - frame.top, box.width, box.height);
}

function clipToSwipe(context, map, left, top, area) {
  const share = map.swipeShare;
  context.beginPath();
  context.rect(left + share * area.width, top, (1 - share) * area.width, area.height);
  context.clip();
}

/** The pixel that is selected, with its text above. */
function drawMark(context, map, left, top) {
  const { x, y } = map.leaflet.latLngToContainerPoint(map.marked.position);
  for (const [radius, color] of [[7, "#000"], [5, "#fff"]]) {
    context.strokeStyle = color;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(left + x, top + y, radius, 0, 2 * Math.PI);
    context.stroke();
  }
  context.font = `400 14px ${FONT}`;
  const width = context.measureText(map.marked.text).width + 16;
  context.fillStyle = PAPER;
  context.fillRect(left + x - width / 2, top + y - 36, width, 24);
  write(context, map.marked.text, left + x, top + y - 19, { align: "center" });
}

function drawScale(context, map, left, bottom) {
  const { text, width_px } = scaleFor(map.positions.lengthOfScreenPixel(map.leaflet.getCenter(), map.leaflet.getZoom()), MAX_BAR_PX);
  context.fillStyle = "rgb(255 255 255 / 88%)";
  context.fillRect(left, bottom - 20, width_px, 20);
  context.strokeStyle = context.fillStyle = INK;
  context.lineWidth = 2;
  context.beginPath();
  context.moveTo(left, bottom - 20);
  context.lineTo(left, bottom);
  context.lineTo(left + width_px, bottom);
  context.lineTo(left + width_px, bottom - 20);
  context.stroke();
  write(context, text, left + width_px / 2, bottom - 6, { align: "center", size: 12 });
}

function drawNorth(context, deg, x, y) {
  context.save();
  context.translate(x, y);
  context.fillStyle = "rgb(255 255 255 / 88%)";
  context.beginPath();
  context.arc(0, 0, 28, 0, 2 * Math.PI);
  context.fill();
  context.rotate((deg * Math.PI) / 180);
  context.fillStyle = INK;
  context.beginPath();
  context.moveTo(0, -22);
  for (const [right, down] of [[9, 4], [0, -1], [-9, 4]]) context.lineTo(right, down);
  context.fill();
  write(context, "N", 0, 21, { align: "center", size: 14, weight: 700 });
  context.restore();
}

/** The legend of the layer that a map shows: classes that are not hidden, or a ramp; null for the scene. */
function legendOf(map) {
  const layer = map.shownLayer;
  if (!layer) return null;
  const entries = layer.legend?.filter(({ value }) => !map.hidden.has(value)) ?? null;
  return { title: layer.title, entries, ramp: layer.ramp, key: JSON.stringify([layer.title, entries]) };
}

const columnsIn = (width) => Math.max(1, Math.floor((width - 2 * PAD) / COLUMN_PX));
const heightOf = ({ entries }, width) => LINE * (1 + (entries ? Math.ceil(entries.length / columnsIn(width)) : 2));

function drawFooter(context, legends, { width, top, text }) {
  context.fillStyle = INK;
  for (const legend of legends) {
    write(context, legend.title, PAD, top + 15, { weight: 700 });
    if (legend.entries) drawClasses(context, legend.entries, width, top + LINE);
    else drawRamp(context, legend.ramp, top + LINE);
    top += heightOf(legend, width);
  }
  write(context, text, PAD, top + 15, { size: 12, limit: width - 2 * PAD });
}

function drawClasses(context, entries, width, top) {
  const columns = columnsIn(width);
  entries.forEach(({ name, color }, index) => {
    const [x, y] = [PAD + (index % columns) * COLUMN_PX, top + Math.floor(index / columns) * LINE];
    context.fillStyle = color;
    context.fillRect(x, y + 4, 14, 14);
    context.strokeStyle = INK;
    context.lineWidth = 0.5;
    context.strokeRect(x, y + 4, 14, 14);
    write(context, name, x + 22, y + 15, { limit: COLUMN_PX - 30 });
  });
}

function drawRamp(context, colors, top) {
  const gradient = context.createLinearGradient(PAD, 0, PAD + 200, 0);
  colors.forEach((color, index) => gradient.addColorStop(index / (colors.length - 1), color));
  context.fillStyle = gradient;
  context.fillRect(PAD, top + 4, 200, 14);
  for (const [share, align] of [[0, "left"], [0.5, "center"], [1, "right"]]) write(context, String(share), PAD + 200 * share, top + LINE + 12, { align, size: 12 });
}

/** Write a text; one that is too long ends with an ellipsis. */
function write(context, text, x, y, { align = "left", size = 14, weight = 400, limit = Infinity } = {}) {
  context.fillStyle = INK;
  context.font = `${weight} ${size}px ${FONT}`;
  context.textAlign = align;
  let shown = text;
  while (shown.length > 1 && context.measureText(shown).width > limit) shown = `${shown.slice(0, -2).trimEnd()}…`;
  context.fillText(shown, x, y);
}
