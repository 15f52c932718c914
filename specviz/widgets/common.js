// Shared by all widgets: this file is joined in front of each widget's own, so nothing is exported here.
// A widget's file ends with:  export default { render: framed("player", build) };

const SVG = "http://www.w3.org/2000/svg";

// How each outcome is told apart: by this glyph, and in common.css by colour and by pattern.
const GLYPHS = { accepted: "✓", rejected: "✗", resampled: "↻", bonus: "★", plain: "•", unreached: "·", ended: "■" };

// --- elements ---------------------------------------------------------------------------------------------------

// h("button", { class: "wide", onclick: f, disabled: true }, "text" or elements …). Text always becomes a text node.
function h(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

// The same for SVG.
function s(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

// Write only what changed: an untouched node costs no layout, and a screen reader does not hear it again.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setAttribute(element, name, value) {
  if (value == null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value === true ? "" : value);
}

let counter = 0;
const uniqueId = (name) => `sv-${name}-${++counter}`;

// A hatched fill for SVG, the draft's pattern: fill = hatch(svg), its colour is that of the class sv-hatch.
function hatch(svg, className = "sv-hatch") {
  const id = uniqueId("hatch");
  const line = s("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: className });
  const turned = { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  svg.append(s("defs", {}, s("pattern", turned, line)));
  return `url(#${id})`;
}

// --- numbers ----------------------------------------------------------------------------------------------------

const clamp = (x, least, most) => Math.min(most, Math.max(least, x));

// A probability: two decimals, or two significant digits when it is small. What is not quite 1 never reads as 1.
function probability(x) {
  if (x == null || Number.isNaN(x)) return "–";
  if (x === 0 || x === 1) return String(x);
  if (x > 0.99) return x >= 0.9999 ? ">.9999" : x.toFixed(4);
  if (x >= 0.1) return x.toFixed(2);
  return x < 0.0001 ? x.toExponential(0) : String(Number(x.toPrecision(2)));
}

// A time in seconds, as text.
function duration(seconds) {
  if (seconds < 0.01) return `${(1000 * seconds).toFixed(1)} ms`;
  return seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(2)} s`;
}

// --- the page around --------------------------------------------------------------------------------------------

const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// The host's theme: JupyterLab, VS Code and Colab say it in the page; else the system's preference holds.
function theme() {
  const { body, documentElement: html } = document;
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false" ? "dark" : "light";
  if (body.matches(".vscode-dark, .vscode-high-contrast:not(.vscode-high-contrast-light)")) return "dark";
  if (body.matches(".vscode-light, .vscode-high-contrast-light")) return "light";
  if (html.hasAttribute("theme")) return html.getAttribute("theme") === "dark" ? "dark" : "light";
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

// --- a widget's view --------------------------------------------------------------------------------------------

// What a widget's build(view) gets: view.root to fill, view.data to draw, and all that is undone when it closes.
class View {
  constructor(model, root, speaker) {
    Object.assign(this, { model, root, speaker, undo: [], saving: null });
  }

  get data() {
    return this.model.get("data");
  }

  // A text of texts.json, its {name} filled in.
  text(key, values = {}) {
    const template = this.model.get("texts")[key];
    if (template === undefined) throw new Error(`texts.json has no text ${key}`);
    return template.replace(/\{(\w+)\}/g, (_, name) => values[name]);
  }

  // An event listener that goes when the view closes.
  listen(target, event, handler, options) {
    target.addEventListener(event, handler, options);
    this.undo.push(() => target.removeEventListener(event, handler, options));
  }

  // Called when a trait changes, from here or from Python.
  watch(trait, handler) {
    this.model.on(`change:${trait}`, handler);
    this.undo.push(() => this.model.off(`change:${trait}`, handler));
  }

  // Set a trait: every view of the widget hears it at once, Python a little later (a drag is not a flood).
  set(trait, value) {
    this.model.set(trait, value);
    this.saving ??= setTimeout(() => this.save(), 120);
  }

  save() {
    clearTimeout(this.saving);
    this.saving = null;
    this.model.save_changes();
  }

  // Say it to screen readers, politely: the last of several in quick succession is the one that counts.
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
function framed(name, build) {
  return ({ model, el }) => {
    const root = h("div", { class: `sv-root sv-${name}-root` });
    const speaker = h("div", { class: "sv-unseen", "aria-live": "polite" });
    // Without the attribute JupyterLab would take arrow keys and letters for its own shortcuts. It looks at the focused
    // element first and at those around it only later, when a shortcut may have matched already.
    const suppress = "data-lm-suppress-shortcuts";
    // A group and no landmark: a page may hold several of one kind, and landmarks must be told apart by name.
    const frame = h("div", { class: `sv sv-${name}`, role: "group", [suppress]: "true" }, root, speaker);
    frame.addEventListener("focusin", (event) => event.target.setAttribute(suppress, "true"));
    // A number counts when Enter is pressed; JupyterLab keeps the key's own effect from happening.
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
        const what = h("strong", {}, view.text("cannot_show"));
        root.append(h("p", { class: "sv-message", role: "alert" }, what, " ", model.get("error")));
        cleanUp = null;
      } else cleanUp = build(view);
      // Who pressed a button that brought new data keeps their place, if the button has a data-key.
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

// --- the end of common.js; the widget's own file follows ------------------------------------------------------------
