// Questions that stand before everything else.

import { make } from "./dom.js";

/** Show a dialog; answers what its form was closed with, "" where it was dismissed, by a person or by `signal`. */
function ask(signal, ...content) {
  const dialog = make("dialog", { "aria-labelledby": "dialog-title" }, make("form", { method: "dialog" }, ...content));
  document.body.append(dialog);
  dialog.showModal();
  signal?.addEventListener("abort", () => dialog.close(""));
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    });
  });
}

/** The API key that the server wants; null where nobody gives one. */
export async function askForKey(wasWrong) {
  const field = make("input", { type: "password", id: "key", autocomplete: "off", required: true, autofocus: true });
  const given = await ask(
    null,
    make("h2", { id: "dialog-title" }, "This server wants an API key"),
    wasWrong ? make("p", { class: "problem", role: "alert" }, "The server does not know the key that was given.") : null,
    make("p", {}, "Whoever runs the server hands it out. It is kept for this tab only."),
    make("label", { for: "key" }, "API key"),
    field,
    make(
      "div",
      { class: "actions" },
      make("button", { type: "submit", value: "given", class: "main" }, "Use it"),
      make("button", { type: "submit", value: "", class: "plain", formnovalidate: true }, "Not now"),
    ),
  );
  return given === "given" ? field.value.trim() : null;
}

/** Whether a person means it; nobody is asked any longer than `signal` lasts. */
export async function confirm(title, text, yes, signal) {
  const given = await ask(
    signal,
    make("h2", { id: "dialog-title" }, title),
    make("p", {}, text),
    make(
      "div",
      { class: "actions" },
      make("button", { type: "submit", value: "yes", class: "danger" }, yes),
      make("button", { type: "submit", value: "", class: "plain", autofocus: true }, "Keep it"),
    ),
  );
  return given === "yes";
}
