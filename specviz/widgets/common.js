// The parts that all widgets share: elements, a widget's frame and its view, legends, tables.
// A widget's file ends with:  export const render = framed("player", build);

const SVG = "http://www.w3.org/2000/svg";

// Each outcome has a glyph, and in common.css a colour and a pattern.
export const GLYPHS = {
  accepted: "✓", rejected: "✗", resampled: "↻", bonus: "★", plain: "•", unreached: "·", ended: "■",
};

// --- elements ----------------------------------------------------------------------------------------------------

// h("button", { class: "wide", onclick: f, disabled: true }, "text" or elements …). Text always becomes a text node.
export function h(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

// The same for SVG.
export function s(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

export function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

// Write only what changed: an untouched node costs no layout, and a screen reader does not hear it again.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (value == null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value === true ? "" : value);
}

// Random, since a notebook loads this module once for each kind of widget.
export const uniqueId = (name) => `sv-${name}-${Math.random().toString(36).slice(2)}`;

// A hatched fill for SVG, the draft's pattern: fill = hatch(svg), its colour is that of the class sv-hatch.
export function hatch(svg, className = "sv-hatch") {
  const id = uniqueId("hatch");
  const line = s("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: className });
  const turned = { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  svg.append(s("defs", {}, s("pattern", turned, line)));
  return `url(#${id})`;
}

// --- parts of charts ---------------------------------------------------------------------------------------------

export const centred = (x, y, words, name) => s("text", { x, y, class: name, "text-anchor": "middle" }, words);

// A line of a legend: shapes on 28 × 16, and what they stand for.
export function keyOf(text, ...shapes) {
  return h("li", {}, s("svg", { viewBox: "0 0 28 16", "aria-hidden": "true", class: "icon" }, ...shapes), text);
}

// Numbers with their names (texts number_…): put(name, value, note).
export function numbersOf(view, names) {
  const values = new Map(names.map((name) => [name, h("dd", { "data-number": name })]));
  const notes = new Map(names.map((name) => [name, h("dd", { class: "note" })]));
  const pairs = names.map((name) =>
    h("div", {}, h("dt", {}, view.text(`number_${name}`)), values.get(name), notes.get(name)),
  );
  const put = (name, text, note = "") => {
    setText(values.get(name), text);
    setText(notes.get(name), note);
  };
  return { element: h("dl", { class: "numbers" }, ...pairs), put };
}

// A table that is opened by a click, with the columns of texts column_…
export function foldedTable(view, columns, ...below) {
  const head = h("tr", {}, ...columns.map((name) => h("th", { scope: "col" }, view.text(`column_${name}`))));
  const body = h("tbody");
  const table = h("table", {}, h("thead", {}, head), body);
  const wide = h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": view.text("table") }, table);
  return { body, element: h("details", {}, h("summary", {}, view.text("table")), wide, ...below) };
}

// --- the page around ---------------------------------------------------------------------------------------------

export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// The theme that JupyterLab, VS Code or Colab notes in the page, else the system's preference.
function theme() {
  const { body, documentElement: html } = document;
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false" ? "dark" : "light";
  if (body.matches(".vscode-dark, .vscode-high-contrast:not(.vscode-high-contrast-light)")) return "dark";
  if (body.matches(".vscode-light, .vscode-high-contrast-light")) return "light";
  if (html.hasAttribute("theme")) return html.getAttribute("theme") === "dark" ? "dark" : "light";
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

// --- a widget's view ---------------------------------------------------------------------------------------------

// The argument of a widget's build(view): view.root to fill, view.data to draw, and all that is undone when it closes.
// A widget's state is its traits alone; build() keeps only what a pointer or a timer needs for a moment.
class View {
  constructor(model, root, speaker) {
    Object.assign(this, { model, root, speaker, undo: [], saving: null, due: null, width: 0 });
  }

  get data() {
    return this.get("data");
  }

  get(trait) {
    return this.model.get(trait);
  }

  // A text of texts.json, its {name} filled in.
  text(key, values = {}) {
    const template = this.get("texts")[key];
    if (template === undefined) throw new Error(`texts.json has no text ${key}`);
    return template.replace(/\{(\w+)\}/g, (_, name) => values[name]);
  }

  // An event listener that goes when the view closes.
  listen(target, event, handler, options) {
    target.addEventListener(event, handler, options);
    this.undo.push(() => target.removeEventListener(event, handler, options));
  }

  // Called when one of these traits changes, from here or from Python.
  watch(traits, handler) {
    const heard = () => (this.due ? this.due.add(handler) : handler());
    for (const trait of traits) {
      this.model.on(`change:${trait}`, heard);
      this.undo.push(() => this.model.off(`change:${trait}`, heard));
    }
  }

  // Called when the widget's width changes; view.width is 0 before the first time.
  watchWidth(handler) {
    const sizes = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width); // down, as the 761 px of the style sheets
      if (width === this.width || width === 0) return;
      this.width = width;
      handler();
    });
    sizes.observe(this.root);
    this.undo.push(() => sizes.disconnect());
  }

  // Set traits: every view of the widget hears it at once, each watcher once. Python hears it a little later, so that
  // a drag sends few messages.
  set(values) {
    const outermost = this.due === null;
    const due = (this.due ??= new Set());
    try {
      for (const [trait, value] of Object.entries(values)) this.model.set(trait, value);
    } finally {
      if (outermost) this.due = null;
    }
    this.saving ??= setTimeout(() => this.save(), 120);
    if (outermost) for (const handler of due) handler();
  }

  save() {
    clearTimeout(this.saving);
    this.saving = null;
    this.model.save_changes();
  }

  // Announce a message to screen readers; of several in quick succession, the last.
  announce(message) {
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => setText(this.speaker, message), 150);
  }

  close() {
    for (const step of this.undo.splice(0)) step();
    clearTimeout(this.speaking);
    if (this.saving !== null) this.save();
  }
}

// render() for a widget whose build(view) fills view.root, and may return a function that cleans up.
// Bad data gets its message in the widget's place; new data from Python builds anew.
export function framed(name, build) {
  return ({ model, el }) => {
    const root = h("div", { class: `sv-root sv-${name}-root` });
    const speaker = h("div", { class: "sv-unseen", "aria-live": "polite" });
    // Without this attribute JupyterLab would take arrow keys and letters for its shortcuts. It must be on the focused
    // element too: a shortcut may have matched before JupyterLab looks at the elements around it.
    const suppress = "data-lm-suppress-shortcuts";
    // A group, not a landmark: landmarks need different names, and a page may hold two widgets of one kind.
    const frame = h("div", { class: `sv sv-${name}`, role: "group", [suppress]: "true" }, root, speaker);
    frame.addEventListener("focusin", (event) => event.target.setAttribute(suppress, "true"));
    // Enter confirms a number; JupyterLab prevents the key's own effect.
    frame.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target.matches("input[type=number]")) {
        event.target.dispatchEvent(new Event("change", { bubbles: true }));
      }
    });
    frame.setAttribute("aria-label", model.get("texts").title);
    el.append(frame);

    let view = null;
    let cleanUp = null;
    const close = () => {
      cleanUp?.();
      view?.close();
      root.replaceChildren();
    };
    const refresh = () => {
      const focused = root.contains(document.activeElement) ? document.activeElement.dataset.key : null;
      close();
      view = new View(model, root, speaker);
      if (model.get("error")) {
        const begin = h("strong", {}, view.text("cannot_show"));
        root.append(h("p", { class: "sv-message", role: "alert" }, begin, " ", model.get("error")));
        cleanUp = null;
      } else cleanUp = build(view);
      // The focus stays on a button that brought new data, if the button has a data-key.
      if (focused) root.querySelector(`[data-key="${focused}"]`)?.focus({ preventScroll: true });
    };

    const paint = () => setAttribute(frame, "data-theme", theme());
    const watcher = new MutationObserver(paint);
    const attributeFilter = ["class", "theme", "data-jp-theme-light"];
    for (const node of [document.body, document.documentElement]) watcher.observe(node, { attributeFilter });
    const preference = matchMedia("(prefers-color-scheme: dark)");
    preference.addEventListener("change", paint);

    paint();
    refresh();
    for (const trait of ["data", "error"]) model.on(`change:${trait}`, refresh);
    return () => {
      close();
      watcher.disconnect();
      preference.removeEventListener("change", paint);
      for (const trait of ["data", "error"]) model.off(`change:${trait}`, refresh);
    };
  };
}
