// Requests to the service, with the tab's API key; errors carry the server's message.

const KEY = "hyperscene-key";
export const RETRY_MS = 2000; // after a response that says "not ready"
const HIDDEN_POLL_MS = 5000; // interval of polling a job while the tab is hidden
const SILENCE_MS = 40000; // the server sends a keep-alive comment every 15 s
/** Resolve after a time. */
export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

let promptForKey = null; // (wasWrong) => promise of the key
let prompting = null; // the open prompt's promise

/** An error response, or a request without a response (status 0). */
export class ApiError extends Error {
  constructor(text, status, code) {
    super(text);
    this.status = status;
    this.code = code;
  }
}

/** Set the function that asks the user for the key. */
export function onKeyRequired(prompt) {
  promptForKey = prompt;
}

/** The tab's key, if it has one. */
export const key = () => sessionStorage.getItem(KEY);

/** Store a key for this tab, or remove it. */
export function storeKey(newKey) {
  if (newKey) sessionStorage.setItem(KEY, newKey);
  else sessionStorage.removeItem(KEY);
  document.dispatchEvent(new Event("key"));
}

/** Prompt for a key, once for all requests that need it; whether there is a new key. */
async function hasNewKey(used) {
  if (key() !== used) return true; // another request has prompted for it
  prompting ??= promptForKey(Boolean(used)).finally(() => (prompting = null));
  const newKey = await prompting;
  if (newKey) storeKey(newKey);
  return Boolean(newKey);
}

/** The key as a header. Header values are bytes: the key is encoded as UTF-8, one character for each byte. */
function keyHeader(used) {
  return used ? { "X-API-Key": String.fromCharCode(...new TextEncoder().encode(used)) } : {};
}

/** A response of the service; error responses are thrown. `path` is relative to the page, so that the page also works
 *  under a proxy's path. A quiet request never prompts for a key. */
export async function request(path, options = {}) {
  const used = key();
  const headers = { ...options.headers, ...keyHeader(used) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached: check the connection, and whether the server is running.", 0, "unreachable");
  }
  if (response.ok) return response;
  const error = errorOf(response.status, await response.text().catch(() => ""));
  if (error.status === 401 && !options.isQuiet && (await hasNewKey(used))) return request(path, options);
  throw error;
}

/** A JSON document of the service. */
export async function documentOf(path, options) {
  return (await request(path, { ...options, headers: { Accept: "application/json", ...options?.headers } })).json();
}

function errorOf(status, text) {
  try {
    const { detail, code } = JSON.parse(text);
    if (detail) return new ApiError(detail, status, code);
  } catch {
    // no problem document, for example a proxy's error page
  }
  return new ApiError(`The server responded with status ${status} and no reason: try again, or see the server's log.`, status, "");
}

/** Upload a scene; resolves to the job, or to the scene at another path. `onProgress` gets the share that is sent. */
export async function sendScene(files, fields, idempotencyKey, onProgress, signal, path = "classify") {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  for (const file of files) form.append("scene", file, file.name);
  const used = key();
  try {
    return await post(path, form, used, idempotencyKey, onProgress, signal);
  } catch (error) {
    if (error.status === 401 && (await hasNewKey(used))) {
      return sendScene(files, fields, idempotencyKey, onProgress, signal, path);
    }
    throw error;
  }
}

/** Upload a scene to label it; resolves to the scene. */
export async function uploadScene(files, onProgress, signal) {
  const form = new FormData();
  for (const file of files) form.append("scene", file, file.name);
  const used = key();
  try {
    return await post("scenes", form, used, newIdempotencyKey(), onProgress, signal);
  } catch (error) {
    if (error.status === 401 && (await hasNewKey(used))) return uploadScene(files, onProgress, signal);
    throw error;
  }
}

/** A POST that reports upload progress, which fetch does not. */
function post(path, form, used, idempotencyKey, onProgress, signal) {
  return new Promise((resolve, reject) => {
    const xhr = new XMLHttpRequest();
    xhr.open("POST", path);
    xhr.setRequestHeader("Prefer", "respond-async");
    xhr.setRequestHeader("Idempotency-Key", idempotencyKey);
    for (const [name, value] of Object.entries(keyHeader(used))) xhr.setRequestHeader(name, value);
    xhr.upload.addEventListener("progress", (event) => event.lengthComputable && onProgress(event.loaded / event.total));
    xhr.addEventListener("load", () => {
      if (xhr.status === 201) resolve(JSON.parse(xhr.responseText));
      else reject(errorOf(xhr.status, xhr.responseText));
    });
    const broken = "The connection broke during the upload. Try again: the scene will not be mapped twice.";
    xhr.addEventListener("error", () => reject(new ApiError(broken, 0, "unreachable")));
    xhr.addEventListener("abort", () => reject(new DOMException("stopped", "AbortError")));
    signal.addEventListener("abort", () => xhr.abort());
    xhr.send(form);
  });
}

/** A key that prevents a repeated upload from creating a second job. */
export function newIdempotencyKey() {
  const numbers = crypto.getRandomValues(new Uint8Array(16));
  return `page-${Array.from(numbers, (number) => number.toString(16).padStart(2, "0")).join("")}`;
}

/** Follow a job until it is finished. Calls `onStatus` with every change, and `onConnection` with whether the
 *  connection is lost. */
export async function followJob(id, onStatus, onConnection, signal) {
  let last = "";
  while (!signal.aborted) {
    try {
      for await (const { id: eventId, job } of document.hidden ? polled(id, signal) : streamed(id, last, onConnection, signal)) {
        last = eventId ?? last;
        onStatus(job);
        if (["successful", "failed", "dismissed"].includes(job.status)) return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status >= 400 && error.status < 500) throw error;
      onConnection(true);
    }
    await pause(1000);
  }
}

/** A job by polling, while the tab is hidden: a stream would occupy one of the browser's six connections to the host. */
async function* polled(id, signal) {
  while (document.hidden && !signal.aborted) {
    yield { job: await documentOf(`jobs/${id}`, { signal: AbortSignal.any([signal, AbortSignal.timeout(SILENCE_MS)]) }) };
    await Promise.race([pause(HIDDEN_POLL_MS), new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }))]);
  }
}

/** A job by server-sent events, until the tab is hidden or no data arrives. */
async function* streamed(id, last, onConnection, signal) {
  const stop = new AbortController();
  const onHidden = () => document.hidden && stop.abort();
  document.addEventListener("visibilitychange", onHidden);
  signal.addEventListener("abort", () => stop.abort(), { signal: stop.signal });
  const timeout = setTimeout(() => stop.abort(), SILENCE_MS);
  try {
    const response = await request(`jobs/${id}/events`, { signal: stop.signal, headers: last ? { "Last-Event-ID": last } : {} });
    clearTimeout(timeout);
    onConnection(false);
    if (response.status === 204) yield { job: await documentOf(`jobs/${id}`, { signal }) };
    else for await (const event of eventsOf(response, stop)) yield { id: event.id, job: JSON.parse(event.data) };
  } catch (error) {
    if (!document.hidden) throw error;
  } finally {
    clearTimeout(timeout);
    document.removeEventListener("visibilitychange", onHidden);
    stop.abort();
  }
}

/** Server-sent events, read from a response, because EventSource cannot send the key. */
async function* eventsOf(response, stop) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const timer = setTimeout(() => stop.abort(), SILENCE_MS);
    const { value, done } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const fields = Object.fromEntries(text.slice(0, end).split("\n").map((line) => {
        const colon = line.indexOf(":");
        return [line.slice(0, colon), line.slice(colon + 1).trimStart()];
      }));
      text = text.slice(end + 2);
      if (fields.data) yield fields;
    }
  }
}

/** Save a file under its name. A link cannot send a key: with a key, the file is fetched first. */
export async function save(path, name) {
  await request(path, { method: "HEAD" }); // shows an error instead of saving it as a file; may prompt for a key
  const link = Object.assign(document.createElement("a"), { href: path, download: name });
  if (key()) {
    link.href = URL.createObjectURL(await (await request(path)).blob());
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }
  link.click();
}

/** Load an image of the service, with the key, into an element. */
export async function loadImage(image, path, signal) {
  const url = URL.createObjectURL(await (await request(path, { signal })).blob());
  await new Promise((resolve, reject) => {
    image.onload = resolve;
    image.onerror = () => reject(new ApiError("the image cannot be shown", 0, "image"));
    image.src = url;
  }).finally(() => URL.revokeObjectURL(url));
}
