// Calls of the service: with the tab's API key, with refusals in the server's own words.

const KEY = "hyperscene-key";
export const ASK_AGAIN_MS = 2000; // where the server says that it is not ready
const HIDDEN_MS = 5000; // between looks at a job from a tab that nobody sees
const SILENT_MS = 40000; // the server says that it is still there every 15 s
/** Wait. */
export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

let askForKey = null; // a function from whether a wrong key was given to a promise of the key
let asking = null;

/** A refusal, in the words of the problem document. */
export class Refused extends Error {
  constructor(text, status, code) {
    super(text);
    this.status = status;
    this.code = code;
  }
}

/** Who asks a person for the key. */
export function onKeyWanted(ask) {
  askForKey = ask;
}

/** The tab's key, if it has one. */
export const key = () => sessionStorage.getItem(KEY);

/** Keep a key for this tab, or forget it. */
export function keepKey(given) {
  if (given) sessionStorage.setItem(KEY, given);
  else sessionStorage.removeItem(KEY);
  document.dispatchEvent(new Event("key"));
}

/** Ask once, however many calls want a key; true where there is another one now. */
async function gotKey(used) {
  if (key() !== used) return true; // another call has asked meanwhile
  asking ??= askForKey(Boolean(used)).finally(() => (asking = null));
  const given = await asking;
  if (given) keepKey(given);
  return Boolean(given);
}

/** The key as a header. Headers are bytes: the letters of a key go as UTF-8, each byte as a letter of its own. */
function keyHeader(used) {
  return used ? { "X-API-Key": String.fromCharCode(...new TextEncoder().encode(used)) } : {};
}

/** An answer of the service; refusals are thrown. `path` is relative to the page, so that a proxy may put it anywhere.
 *  A quiet call asks nobody for a key. */
export async function call(path, options = {}) {
  const used = key();
  const headers = { ...options.headers, ...keyHeader(used) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server cannot be reached: check the connection, or whether it still runs.", 0, "unreachable");
  }
  if (answer.ok) return answer;
  const refusal = refusalOf(answer.status, await answer.text().catch(() => ""));
  if (refusal.status === 401 && !options.isQuiet && (await gotKey(used))) return call(path, options);
  throw refusal;
}

/** A JSON document of the service. */
export async function documentOf(path, options) {
  return (await call(path, { ...options, headers: { Accept: "application/json", ...options?.headers } })).json();
}

function refusalOf(status, text) {
  try {
    const { detail, code } = JSON.parse(text);
    if (detail) return new Refused(detail, status, code);
  } catch {
    // a proxy's page, say
  }
  return new Refused(`The server answered with ${status} and no reason: try again, or look into its log.`, status, "");
}

/** Send a scene; answers the job. `onProgress` hears the share that is sent. */
export async function sendScene(files, choices, idempotencyKey, onProgress, signal) {
  const form = new FormData();
  for (const [name, value] of Object.entries(choices)) form.append(name, value);
  for (const file of files) form.append("scene", file, file.name);
  const used = key();
  try {
    return await post("classify", form, used, idempotencyKey, onProgress, signal);
  } catch (refusal) {
    if (refusal.status === 401 && (await gotKey(used))) {
      return sendScene(files, choices, idempotencyKey, onProgress, signal);
    }
    throw refusal;
  }
}

/** A POST that tells how much has left: fetch does not. */
function post(path, form, used, idempotencyKey, onProgress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    request.setRequestHeader("Prefer", "respond-async");
    request.setRequestHeader("Idempotency-Key", idempotencyKey);
    for (const [name, value] of Object.entries(keyHeader(used))) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => event.lengthComputable && onProgress(event.loaded / event.total));
    request.addEventListener("load", () => {
      if (request.status === 201) resolve(JSON.parse(request.responseText));
      else reject(refusalOf(request.status, request.responseText));
    });
    const broken = "The connection broke while the scene was being sent. Try again: what was accepted is not mapped twice.";
    request.addEventListener("error", () => reject(new Refused(broken, 0, "unreachable")));
    request.addEventListener("abort", () => reject(new DOMException("stopped", "AbortError")));
    signal.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}

/** A key that makes sending the same scene again harmless. */
export function newIdempotencyKey() {
  const numbers = crypto.getRandomValues(new Uint8Array(16));
  return `page-${Array.from(numbers, (number) => number.toString(16).padStart(2, "0")).join("")}`;
}

/** Follow a job until it is finished; `onStatus` hears of every change, `onTrouble` of a connection that is lost, or back. */
export async function watchJob(id, onStatus, onTrouble, signal) {
  let last = "";
  while (!signal.aborted) {
    try {
      for await (const { id: seen, job } of document.hidden ? lookedAt(id, signal) : streamed(id, last, onTrouble, signal)) {
        last = seen ?? last;
        onStatus(job);
        if (["successful", "failed", "dismissed"].includes(job.status)) return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status >= 400 && error.status < 500) throw error;
      onTrouble(true);
    }
    await pause(1000);
  }
}

/** A job by polling, while nobody looks at the tab: a browser has six connections to a host, and a stream keeps one. */
async function* lookedAt(id, signal) {
  while (document.hidden && !signal.aborted) {
    yield { job: await documentOf(`jobs/${id}`, { signal: AbortSignal.any([signal, AbortSignal.timeout(SILENT_MS)]) }) };
    await Promise.race([pause(HIDDEN_MS), new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }))]);
  }
}

/** A job by server-sent events, until the tab is hidden or the connection falls silent. */
async function* streamed(id, last, onTrouble, signal) {
  const stop = new AbortController();
  const onHidden = () => document.hidden && stop.abort();
  document.addEventListener("visibilitychange", onHidden);
  signal.addEventListener("abort", () => stop.abort(), { signal: stop.signal });
  const silent = setTimeout(() => stop.abort(), SILENT_MS);
  try {
    const answer = await call(`jobs/${id}/events`, { signal: stop.signal, headers: last ? { "Last-Event-ID": last } : {} });
    clearTimeout(silent);
    onTrouble(false);
    if (answer.status === 204) yield { job: await documentOf(`jobs/${id}`, { signal }) };
    else for await (const event of eventsOf(answer, stop)) yield { id: event.id, job: JSON.parse(event.data) };
  } catch (error) {
    if (!document.hidden) throw error;
  } finally {
    clearTimeout(silent);
    document.removeEventListener("visibilitychange", onHidden);
    stop.abort();
  }
}

/** Server-sent events, read from an answer: EventSource could not send a key. */
async function* eventsOf(answer, stop) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const timer = setTimeout(() => stop.abort(), SILENT_MS);
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

/** Save a file under its name. A link cannot send a key, so with one the file goes through the browser's store. */
export async function save(path, name) {
  await call(path, { method: "HEAD" }); // a refusal is shown here, and not saved as a file; a key may be asked for
  const link = Object.assign(document.createElement("a"), { href: path, download: name });
  if (key()) {
    link.href = URL.createObjectURL(await (await call(path)).blob());
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }
  link.click();
}

/** Put a picture of the service into an image, with the key. */
export async function showPicture(image, path, signal) {
  const address = URL.createObjectURL(await (await call(path, { signal })).blob());
  await new Promise((resolve, reject) => {
    image.onload = resolve;
    image.onerror = () => reject(new Refused("the picture cannot be shown", 0, "picture"));
    image.src = address;
  }).finally(() => URL.revokeObjectURL(address));
}
