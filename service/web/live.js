// The live map: asks for what is on screen after each stroke, first roughly, then in full.

import { documentOf, pause, request } from "./api.js";

const ROUGH_PIXELS = 120000; // of the first picture; the second has the resolution of the screen
const SETTLE_MS = 400; // without a stroke, until the estimate is updated
const POLL_MS = 500;

/** Follows the labels and the view of one scene. */
export class LiveMap {
  constructor(sceneId, labelMap, { onPicture, onState, onEstimate }, signal) {
    this._path = `scenes/${sceneId}/live`;
    Object.assign(this, { _map: labelMap, _onPicture: onPicture, _onState: onState, _onEstimate: onEstimate, _signal: signal });
    this._place = Math.random().toString(36).slice(2);
    this._wanted = 0; // counts what has changed; an older answer is not shown
    this.isReady = false;
    this.isOn = true;
    labelMap.map.on("moveend zoomend resize", () => this.update());
  }

  /** Prepare the features; resolves when the live map can be drawn. */
  async prepare() {
    try {
      await request(this._path, { method: "POST", signal: this._signal });
    } catch (error) {
      return this._onState({ state: "failed", detail: error.message });
    }
    while (!this._signal.aborted) {
      const found = await documentOf(this._path, { signal: this._signal }).catch((error) => ({ state: "error", detail: error.message }));
      this._onState(found);
      if (found.state === "ready") break;
      if (found.state === "failed") return; // other errors may pass
      await pause(POLL_MS);
    }
    this.isReady = true;
    this.update(true);
  }

  /** Draw the view again; `isLabelChange` also updates the estimate. */
  async update(isLabelChange = false) {
    const wanted = ++this._wanted;
    if (!this.isReady || !this.isOn) return;
    this._stop?.abort();
    this._stop = new AbortController();
    if (isLabelChange) this._isEstimateOld = true;
    const began = performance.now();
    try {
      const view = this._map.window();
      const share = Math.min(1, Math.sqrt(ROUGH_PIXELS / (view.width * view.height)));
      const rough = await this._fetch(share, this._stop.signal);
      if (wanted !== this._wanted) return;
      this._onPicture(rough, performance.now() - began);
      if (share < 1 && rough.scale > 1 / this._map.pixelsPerPixel()) {
        await pause(60); // another stroke comes first
        if (wanted !== this._wanted) return;
        const fine = await this._fetch(1, this._stop.signal);
        if (wanted !== this._wanted) return;
        this._onPicture(fine, performance.now() - began);
      }
      await pause(SETTLE_MS);
      if (wanted === this._wanted && this._isEstimateOld) await this._estimate(wanted);
    } catch (error) {
      if (error.name === "AbortError" || wanted !== this._wanted) return;
      if (error.code === "labels_unusable") return this._onPicture(null, 0, error.message);
      this._onState({ state: "error", detail: error.message });
      await pause(1000);
      if (wanted === this._wanted && [0, 409, 503].includes(error.status)) this.update(isLabelChange);
    }
  }

  async _fetch(share, signal) {
    const { top, left, rows, cols, width, height } = this._map.window();
    const size = { width: Math.max(1, Math.round(width * share)), height: Math.max(1, Math.round(height * share)) };
    const query = new URLSearchParams({ top, left, rows, cols, ...size, layer: "values", place: this._place });
    const response = await request(`${this._path}/view.png?${query}`, { signal });
    const window = response.headers.get("X-Window").split(",").map(Number);
    const bitmap = await createImageBitmap(await response.blob(), { colorSpaceConversion: "none", premultiplyAlpha: "none" });
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(bitmap, 0, 0);
    const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
    const values = new Uint8Array(bitmap.width * bitmap.height);
    const confidence = new Uint8Array(values.length);
    for (let index = 0; index < values.length; index++) {
      values[index] = data[4 * index];
      confidence[index] = data[4 * index + 1];
    }
    return { width: bitmap.width, height: bitmap.height, values, confidence, window, scale: window[3] / bitmap.width, etag: response.headers.get("ETag") };
  }

  async _estimate(wanted) {
    const found = await documentOf(`${this._path}/estimate?place=${this._place}`, { signal: this._signal });
    if (wanted !== this._wanted) return;
    if (!found.is_done) return this._estimate(wanted); // it takes long, and goes on where it was
    this._isEstimateOld = false;
    this._onEstimate(found);
  }

  suggestions() {
    return documentOf(`${this._path}/suggestions?count=10`, { signal: this._signal });
  }

  spectra() {
    return documentOf(`${this._path}/spectra`, { signal: this._signal });
  }
}
