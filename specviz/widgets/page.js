// In an exported page, a model in place of the kernel: it keeps a widget's state, and its changes as a link.
// The link is the part of the address behind #: a list with one object of changed traits for each widget.

const UNLINKED = ["data", "error", "texts", "kernel", "settings", "progress", "playing"]; // traits that no link sets
const changes = [];
let resting = null;

function linked() {
  try {
    return JSON.parse(decodeURIComponent(location.hash.slice(1)));
  } catch {
    return [];
  }
}

function writeLink() {
  try {
    history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(changes))}`);
  } catch {
    // A page within another page may have no address of its own.
  }
}

class PageModel {
  constructor(state, number) {
    Object.assign(this, { state, handlers: new Map() });
    changes[number] = this.changed = {};
    for (const [name, value] of Object.entries(linked()?.[number] ?? {})) {
      const alike = typeof value === typeof state[name] && Array.isArray(value) === Array.isArray(state[name]);
      if (alike && !UNLINKED.includes(name)) this.set(name, value);
    }
  }

  get(name) {
    return this.state[name];
  }

  set(name, value) {
    if (Object.is(this.state[name], value)) return;
    this.state[name] = value;
    if (!UNLINKED.includes(name)) this.changed[name] = value;
    for (const handler of [...(this.handlers.get(`change:${name}`) ?? [])]) handler();
  }

  on(event, handler) {
    if (!this.handlers.has(event)) this.handlers.set(event, new Set());
    this.handlers.get(event).add(handler);
  }

  off(event, handler) {
    this.handlers.get(event)?.delete(handler);
  }

  save_changes() {
    clearTimeout(resting); // only once the page rests, since browsers limit how often an address may change
    resting = setTimeout(writeLink, 300);
  }

  send() {}
}

// Draws every widget of one kind in its place.
export function mountAll(part, render) {
  window.onhashchange = () => location.reload(); // another link to this page
  for (const place of document.querySelectorAll(`[data-part="${part}"]`)) {
    const { number } = place.dataset;
    const state = JSON.parse(document.getElementById(`state-${number}`).textContent);
    render({ model: new PageModel(state, Number(number)), el: place });
  }
}
