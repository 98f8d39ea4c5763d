// Modal dialogs.

import { make } from "./dom.js";

/** Show a dialog; resolves to the value of the pressed button, or "" if it is closed by Escape or by `signal`. */
function showDialog(signal, ...content) {
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

/** Ask the user for the API key; null if none is entered. */
export async function promptForKey(wasWrong) {
  const field = make("input", { type: "password", id: "key", autocomplete: "off", required: true, autofocus: true });
  const pressed = await showDialog(
    null,
    make("h2", { id: "dialog-title" }, "This server requires an API key"),
    wasWrong ? make("p", { class: "problem", role: "alert" }, "The server does not accept this key.") : null,
    make("p", {}, "The server's operator can give you a key. It is stored for this tab only."),
    make("label", { for: "key" }, "API key"),
    field,
    make(
      "div",
      { class: "actions" },
      make("button", { type: "submit", value: "use", class: "main" }, "Use this key"),
      make("button", { type: "submit", value: "", class: "plain", formnovalidate: true }, "Cancel"),
    ),
  );
  return pressed === "use" ? field.value.trim() : null;
}

/** Ask the user to confirm an action; `signal` closes the dialog. */
export async function confirm(title, text, yes, signal) {
  const pressed = await showDialog(
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
  return pressed === "yes";
}
