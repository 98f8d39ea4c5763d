// The list of classes: choose, add, rename, recolour, merge, remove, hide and isolate.

import { count, make, swatch } from "./dom.js";

/** The list and its form; `show` updates it. */
export function makeClassPanel(store, { choose, toggle }) {
  const list = make("ul", { class: "class-list", "aria-label": "Classes" });
  const name = make("input", { type: "text", id: "class-name", maxlength: "100", autocomplete: "off", placeholder: "water" });
  const form = make("form", { class: "add-class" }, make("label", { for: "class-name" }, "New class"), name, make("button", { type: "submit", class: "plain" }, "Add"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    choose(store.addClass(name.value.trim()));
    name.value = "";
  });
  let open = 0; // the class that is edited
  let last = [0, new Set()];

  function show(chosen, hidden) {
    last = [chosen, hidden];
    const focused = document.activeElement?.dataset?.key;
    const counts = store.counts;
    list.replaceChildren(...store.classes.map((each, index) => item(each, index, counts.get(each.value), chosen, hidden)));
    if (focused) list.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  function item(each, index, pixels, chosen, hidden) {
    const { value } = each;
    const pick = make(
      "button",
      { type: "button", class: "plain class-pick", "data-key": `pick-${value}`, "aria-pressed": String(value === chosen), onclick: () => choose(value) },
      swatch(each.color), make("span", { class: "class-name" }, each.name),
      make("span", { class: "number quiet" }, `${count(pixels)} px`),
      index < 9 ? make("kbd", {}, String(index + 1)) : null,
    );
    const small = (text, label, handle, more = {}) => make("button", { type: "button", class: "plain small", "aria-label": `${label} ${each.name}`, "data-key": `${text}-${value}`, onclick: handle, ...more }, text);
    return make(
      "li", {}, make("div", { class: "class-row" }, pick,
        small(hidden.has(value) ? "Show" : "Hide", hidden.has(value) ? "Show" : "Hide", () => toggle(value, false)),
        small("Only", "Show only", () => toggle(value, true)),
        small("Edit", "Edit", () => ((open = open === value ? 0 : value), show(...last)), { "aria-expanded": String(open === value) })),
      open === value ? editor(each) : null,
    );
  }

  function editor(each) {
    const { value } = each;
    const rename = make("input", { type: "text", id: `name-${value}`, maxlength: "100", value: each.name });
    rename.addEventListener("change", () => rename.value.trim() && !store.classes.some((other) => other.name === rename.value.trim()) && store.changeClass(value, { name: rename.value.trim() }));
    const color = make("input", { type: "color", id: `color-${value}`, value: each.color });
    color.addEventListener("change", () => store.changeClass(value, { color: color.value }));
    const others = store.classes.filter((other) => other.value !== value);
    const into = make("select", { id: `into-${value}` }, make("option", { value: "" }, "choose"), others.map((other) => make("option", { value: String(other.value) }, other.name)));
    into.addEventListener("change", () => into.value && store.removeClass(value, Number(into.value)));
    const remove = make("button", { type: "button", class: "danger", onclick: () => store.removeClass(value) }, "Delete with its labels");
    const field = (id, label, input) => make("div", { class: "field" }, make("label", { for: id }, label), input);
    return make("div", { class: "class-editor" }, field(rename.id, "Name", rename), field(color.id, "Colour", color), others.length ? field(into.id, "Merge into", into) : null, remove);
  }
  return { element: make("div", { class: "tools" }, list, form), show };
}
