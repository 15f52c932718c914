// The overlap explorer. Its state is its traits: p, q, labels, rule, seed, counts, accepted. Bars, keys, buttons and
// Python set them, and draw() shows them.

import { chiSquare } from "./chi_square.js";
import {
  GLYPHS, centred, foldedTable, framed, h, hatch, keyOf, numbersOf, reducedMotion, s, setAttribute, setText, uniqueId,
} from "./common.js";
import { clamp, dotted, firstAbove, probability, rounded, share, sumOf, whole } from "./format.js";
import { RULES, outcomeOf, sampler, withBar } from "./rules.js";

const tiny = (x) => (x < 1e-300 ? "<1e-300" : x < 0.001 ? x.toExponential(0) : x.toPrecision(2));
function shorten(label, most = 10) {
  const letters = [...label];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : label;
}

const TOPS = [0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]; // ends of axes
const topFor = (...lists) => firstAbove(TOPS, 1.04 * Math.max(...lists.flat()));

const EXACT = 1e-9; // a smaller distance from p is rounding
const CONVICTS = 1e-6;
const SUSPECT = 0.01;
const SAMPLES = [1, 100, 10000];
const SOURCE = ["p", "q", "rule", "seed"]; // samples belong to these

// The fault of traits that reached the page, as a sentence; null where there is none.
function problemOf(view) {
  const [p, q, labels] = ["p", "q", "labels"].map((trait) => view.get(trait));
  for (const [name, probs] of [["p", p], ["q", q]]) {
    if (!Array.isArray(probs) || probs.length < 2 || probs.length > view.data.max_bars) {
      return view.text("bad_size", { name, most: view.data.max_bars });
    }
    const bad = probs.findIndex((prob) => !(Number.isFinite(prob) && prob >= 0));
    if (bad >= 0) return view.text("bad_number", { name, i: bad, value: probs[bad] });
    const sum = Number(sumOf(probs).toPrecision(6));
    if (Math.abs(sum - 1) > 1e-6) return view.text("bad_sum", { name, sum });
  }
  if (p.length !== q.length || labels.length !== p.length) {
    return view.text("bad_lengths", { p: p.length, q: q.length, labels: labels.length });
  }
  if (!(view.get("rule") in RULES)) return view.text("bad_rule", { rule: view.get("rule") });
  return null;
}

// --- the widget --------------------------------------------------------------------------------------------------

function build(view) {
  let held = null; // the axis' end while a bar is dragged, since it must not move under the pointer

  function now() {
    const [p, q, labels, rule, seed] = ["p", "q", "labels", "rule", "seed"].map((trait) => view.get(trait));
    const fresh = view.get("counts").length !== p.length || view.get("accepted").length !== p.length;
    const [counts, kept] = ["counts", "accepted"].map((trait) => (fresh ? p.map(() => 0) : view.get(trait)));
    const least = p.map((prob, x) => Math.min(prob, q[x]));
    const outcome = outcomeOf(rule, p, q);
    const n = sumOf(counts);
    const preset = view.data.presets.find(
      (each) => each.labels.join("\n") === labels.join("\n") && same(each.p, p) && same(each.q, q),
    );
    return {
      p, q, labels, rule, seed, counts, kept, least, outcome, n, preset,
      beta: sumOf(least),
      tooOften: sumOf(q.map((prob, x) => prob - least[x])),
      missing: sumOf(p.map((prob, x) => prob - least[x])),
      fit: n ? chiSquare(counts, p) : null,
      last: n ? sampler(rule, p, q, seed)(n - 1) : null,
      top: held ?? topFor(p, q, outcome.emitted),
    };
  }

  // Samples belong to the distributions and the rule that they came from.
  function forget() {
    if (view.get("counts").length) view.set({ counts: [], accepted: [] });
  }

  function sample(times) {
    const state = now();
    const [counts, accepted] = [[...state.counts], [...state.kept]];
    const next = sampler(state.rule, state.p, state.q, state.seed);
    for (let n = state.n; n < state.n + times; n++) {
      const one = next(n);
      counts[one.y] += 1;
      if (one.accepted) accepted[one.y] += 1;
    }
    view.set({ counts, accepted });
    story.tell(now(), times);
  }

  const hold = (top) => {
    held = top;
    if (top === null) draw();
  };
  const verdict = h("p", { class: "verdict" });
  const controls = controlsPart(view);
  const numbers = numbersPart(view);
  const bars = barsPart(view, hold);
  const replaced = replacedPart(view);
  const paths = pathsPart(view);
  const histogram = histogramPart(view);
  const story = storyPart(view, sample, forget);
  const table = tablePart(view, (name, i, value) => bars.move(name, i, value));
  const parts = [controls, numbers, bars, replaced, paths, histogram, story, table];
  const content = h(
    "div",
    { class: "content" },
    controls.element,
    verdict,
    numbers.element,
    h("div", { class: "two" }, bars.element, replaced.element, paths.element, histogram.element),
    story.element,
    table.element,
  );
  const message = h("p", { class: "sv-message", role: "alert", hidden: true });
  view.root.append(message, content);

  function draw() {
    const problem = problemOf(view);
    content.hidden = problem !== null;
    message.hidden = problem === null;
    setText(message, problem === null ? "" : `${view.text("cannot_show")} ${problem}`);
    if (problem !== null) return;
    const state = now();
    state.across = view.width > 760 ? (view.width - 24) / 2 : view.width || 500;
    state.slanted = slants(state);
    for (const part of parts) part.draw(state);
    const { rate, wrong } = state.outcome;
    const exact = wrong < EXACT;
    const words = { rate: probability(rate), rest: probability(1 - rate), wrong: probability(wrong) };
    const luck = exact && !RULES[state.rule].exact;
    setText(verdict, view.text(luck ? "verdict_luck" : exact ? "verdict_exact" : "verdict_wrong", words));
    setAttribute(verdict, "data-kind", exact ? "accepted" : "rejected");
  }

  view.watch(SOURCE, forget);
  view.watch([...SOURCE, "labels", "counts", "accepted"], draw);
  view.watchWidth(draw);
  draw();
}

const same = (a, b) => a.length === b.length && a.every((prob, x) => Math.abs(prob - b[x]) < 1e-9);

// --- situation and rule ------------------------------------------------------------------------------------------

function controlsPart(view) {
  const { presets } = view.data;
  const presetText = (preset) => view.text(`preset_${preset.name}`, { after: view.data.prompt });
  const situation = h(
    "select",
    { id: uniqueId("situation") },
    h("option", { value: "" }, view.text("preset_own")),
    ...presets.map((preset, i) => h("option", { value: i }, presetText(preset))),
  );
  view.listen(situation, "change", () => {
    const preset = presets[situation.value];
    if (preset) view.set({ p: preset.p, q: preset.q, labels: preset.labels });
  });
  const option = (rule) => {
    const glyph = RULES[rule].exact ? GLYPHS.accepted : GLYPHS.rejected;
    return h("option", { value: rule }, `${glyph} ${view.text(`rule_${rule}`)}`);
  };
  const options = (exact) =>
    Object.keys(RULES)
      .filter((rule) => Boolean(RULES[rule].exact) === exact)
      .map(option);
  const rules = h(
    "select",
    { id: uniqueId("rule") },
    h("optgroup", { label: view.text("rules_exact") }, ...options(true)),
    h("optgroup", { label: view.text("rules_wrong") }, ...options(false)),
  );
  view.listen(rules, "change", () => view.set({ rule: rules.value }));
  const says = h("p", { class: "sv-soft rule-says" });
  const field = (select, name) => h("div", { class: "field" }, h("label", { for: select.id }, view.text(name)), select);
  return {
    element: h("div", { class: "controls" }, field(situation, "situation"), field(rules, "rule"), says),
    draw(state) {
      const value = state.preset ? String(presets.indexOf(state.preset)) : "";
      if (situation.value !== value) situation.value = value;
      if (rules.value !== state.rule) rules.value = state.rule;
      setText(says, view.text(`says_${state.rule}`));
    },
  };
}

// --- the numbers -------------------------------------------------------------------------------------------------

function numbersPart(view) {
  const { element, put } = numbersOf(view, ["beta", "too_often", "missing", "rate", "wrong"]);
  return {
    element,
    draw({ beta, tooOften, missing, outcome, preset }) {
      const exact = preset?.overlap; // over the whole vocabulary; one bar for many tokens raises β
      put("beta", probability(beta), exact == null ? "" : view.text("true_overlap", { beta: probability(exact) }));
      put("too_often", probability(tooOften));
      put("missing", probability(missing));
      put("rate", probability(outcome.rate));
      put("wrong", outcome.wrong < EXACT ? "0" : probability(outcome.wrong));
    },
  };
}

// --- parts of all charts -----------------------------------------------------------------------------------------

const [LEFT, RIGHT, TOP, HIGH] = [34, 4, 24, 228];

// Names too long for their columns are slanted, and the plot above is then less high, so that nothing below moves.
function slants({ across, labels }) {
  const pitch = (across - LEFT - RIGHT) / labels.length;
  const fits = Math.max(...labels.map((name) => [...shorten(name)].length)) * 8 <= pitch - 4;
  return fits ? 0 : pitch < 26 ? -90 : -35; // degrees
}

// A plot's geometry.
function chartOf({ across, labels, slanted }, top) {
  const low = HIGH - (slanted ? 58 : 26);
  const pitch = (across - LEFT - RIGHT) / labels.length;
  const X = (x) => LEFT + (x + 0.5) * pitch;
  const Y = (prob) => low - (Math.min(prob, top) / top) * (low - TOP); // beyond the top is cut
  return { across, labels, slanted, top, low, pitch, X, Y, roomy: pitch >= 30 };
}

// Draws in svg: drawIn(svg)(chart, parts). Grid and names, which take the most time, are kept while they are the same.
function drawIn(svg) {
  const [grid, middle, names] = ["grid", "middle", "names"].map((name) => s("g", { class: name }));
  svg.append(grid, middle, names);
  let drawn = null;
  return (chart, parts) => {
    const frame = [chart.across, chart.slanted, chart.top, ...chart.labels].join("\n");
    if (frame !== drawn) {
      grid.replaceChildren(...gridOf(chart));
      names.replaceChildren(...namesOf(chart));
      svg.setAttribute("viewBox", `0 0 ${chart.across} ${HIGH}`);
      drawn = frame;
    }
    middle.replaceChildren(...parts);
  };
}

function gridOf({ across, top, Y }) {
  return [0, top / 2, top].flatMap((prob) => [
    s("path", { d: `M${LEFT} ${Y(prob)}H${across - RIGHT}`, class: prob ? "line" : "floor" }),
    s("text", { x: LEFT - 5, y: Y(prob) + 4, class: "sv-soft", "text-anchor": "end" }, dotted(rounded(prob, 4))),
  ]);
}

function namesOf({ labels, slanted, low, X }) {
  const upright = slanted === -90;
  return labels.map((label, x) => {
    const element = centred(X(x), low + 20, shorten(label, upright ? 7 : 10), "sv-mono name");
    element.append(s("title", {}, label));
    if (slanted) {
      const at = upright ? [X(x) + 4, low + 8] : [X(x) + 5, low + 16];
      const turned = { x: at[0], y: at[1], "text-anchor": "end", transform: `rotate(${slanted} ${at})` };
      for (const [name, value] of Object.entries(turned)) element.setAttribute(name, value);
    }
    return element;
  });
}

// A mark at the foot of the last sample's bar.
const newest = ({ low }, x, name) => s("path", { d: `M${x - 5} ${low + 7}l5 -6l5 6z`, class: name });

// changed(values): whether any differs from the previous call's.
function changes() {
  let last = [];
  return (values) => {
    const same = values.length === last.length && values.every((value, i) => Object.is(value, last[i]));
    last = values;
    return !same;
  };
}

const box = (x, y, width, height, name, more = {}) =>
  s("rect", { x, y, width: Math.max(0, width), height: Math.max(0, height), class: name, ...more });

const swatch = { x: 1, y: 2, width: 26, height: 12, rx: 2 };
const fillKey = (text, name, fill) => keyOf(text, s("rect", { ...swatch, class: name, fill }));
const lineKey = (text) => keyOf(text, s("path", { d: "M2 8H26", class: "line-p" }));
const newestKey = (text, name) => keyOf(text, s("path", { d: "M9 13l5 -8l5 8z", class: name }));

// Dots for resampled, a cross-hatch for rejected: never colour alone.
function patterns(svg) {
  const pattern = (name, mark) => {
    const id = uniqueId(name);
    const back = s("rect", { width: 6, height: 6, class: `${name}-back` });
    return s("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, back, mark);
  };
  const dots = pattern("dots", s("circle", { cx: 3, cy: 3, r: 1.2, class: "dots" }));
  const cross = pattern("cross", s("path", { d: "M0 0L6 6M6 0L0 6", class: "cross" }));
  svg.append(s("defs", {}, dots, cross));
  return { dots: `url(#${dots.id})`, cross: `url(#${cross.id})` };
}

function figure(title, how, svg, keys, ...more) {
  const list = h("ul", { class: "keys" }, ...keys);
  return h("div", { class: "figure" }, h("h2", {}, title), how, svg, list, ...more);
}

// --- p and q, to drag --------------------------------------------------------------------------------------------

function barsPart(view, hold) {
  const svg = s("svg", { class: "bars", role: "group", "aria-label": view.text("bars") });
  const fill = hatch(svg);
  const { dots, cross } = patterns(svg);
  const drawBars = drawIn(svg);
  const sliders = s("g");
  svg.querySelector(".middle").before(sliders);
  const hint = h("span", { class: "sv-unseen", id: uniqueId("hint") }, view.text("bars_hint"));
  const moved = h("p", { class: "sv-soft moved" }, view.text("bars_hint")); // until a bar has moved
  let grips = []; // one for each bar: p and q of the first token, of the second, …
  let focused = 0;
  let scale = null; // of the last drawing
  let grabbed = null; // the bar that moves, and the bars before: the others keep these proportions until its release
  let told = null; // the bars that the last words describe

  const lastKey = newestKey(view.text("key_last_draft"), "drafted");
  const keys = [
    fillKey(view.text("target"), "fill-p"),
    fillKey(view.text("draft"), "fill-q", fill),
    fillKey(view.text("key_least"), "fill-least"),
    fillKey(view.text("key_too_often"), "too-often", cross),
    fillKey(view.text("key_missing"), "missing", dots),
    lastKey,
  ];

  function grab(name, i) {
    const probs = view.get(name);
    if (grabbed?.name === name && grabbed.i === i && grabbed.last === probs) return;
    grabbed = { name, i, base: probs, last: probs };
  }

  // Move bar i of p or q, and describe the effect.
  function move(name, i, value) {
    grab(name, i);
    const { base } = grabbed;
    value = clamp(value, 0, 1);
    if (value === view.get(name)[i]) return;
    const probs = withBar(base, i, value);
    grabbed.last = probs;
    told = { name, probs };
    view.set({ [name]: probs });
    const others = sumOf(base) - base[i];
    const words = {
      name,
      other: name === "p" ? "q" : "p",
      token: view.get("labels")[i],
      from: rounded(base[i], 4),
      to: rounded(value, 4),
      factor: Number(((1 - value) / others).toPrecision(3)),
    };
    const how = base.some((prob, j) => j !== i && prob > 0) ? "moved" : "moved_even";
    setText(moved, view.text(how, words));
    view.announce(moved.textContent);
  }

  function focus(at) {
    focused = clamp(at, 0, grips.length - 1);
    grips.forEach((grip, i) => setAttribute(grip.element, "tabindex", i === focused ? 0 : -1));
    grips[focused].element.focus({ preventScroll: true });
  }

  function press(event, at) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const { name, i } = grips[at];
    const value = view.get(name)[i];
    const step = event.shiftKey ? 0.1 : 0.01;
    const to = {
      ArrowUp: value + step, ArrowDown: value - step, PageUp: value + 0.1, PageDown: value - 0.1, Home: 0, End: 1,
    }[event.key];
    if (to !== undefined) move(name, i, Number(to.toFixed(9))); // no digits of rounding
    else if (event.key === "ArrowLeft") focus(at - 1);
    else if (event.key === "ArrowRight") focus(at + 1);
    else return;
    event.preventDefault();
  }

  // The bar moves by as much as the pointer, so a touch alone changes nothing.
  function drag(event, at) {
    const { element, name, i } = grips[at];
    if (event.button !== 0) return;
    event.preventDefault();
    element.setPointerCapture(event.pointerId);
    focus(at);
    const value = view.get(name)[i];
    const { top } = scale;
    const perPixel = top / scale.high / (svg.getBoundingClientRect().width / scale.across);
    const step = top > 0.3 ? 0.01 : 0.002;
    const from = event.clientY;
    grabbed = null;
    grab(name, i);
    hold(top);
    const follow = (moved) => {
      const to = value + (from - moved.clientY) * perPixel;
      if (Math.abs(from - moved.clientY) > 2) move(name, i, Number((Math.round(to / step) * step).toFixed(9)));
    };
    const release = () => {
      element.removeEventListener("pointermove", follow);
      element.removeEventListener("lostpointercapture", release);
      grabbed = null;
      hold(null);
    };
    element.addEventListener("pointermove", follow);
    element.addEventListener("lostpointercapture", release);
  }

  // Sliders stay in the page while they move, since they have the focus and the pointer.
  function rebuild(labels) {
    grips = labels.flatMap((_, i) =>
      ["p", "q"].map((name) => {
        const bar = s("rect", { class: `fill-${name}`, fill: name === "q" ? fill : null });
        const [hit, grip] = [s("rect", { class: "hit" }), s("rect", { class: `grip grip-${name}` })];
        const limits = { "aria-orientation": "vertical", "aria-valuemin": 0, "aria-valuemax": 1 };
        const more = { "aria-describedby": hint.id, "data-bar": `${name}${i}`, tabindex: -1, class: "slider" };
        const element = s("g", { role: "slider", ...limits, ...more }, bar, hit, grip);
        return { element, name, i, hit, bar, grip };
      }),
    );
    grips.forEach(({ element }, at) => {
      element.addEventListener("pointerdown", (event) => drag(event, at));
      element.addEventListener("keydown", (event) => press(event, at));
      element.addEventListener("focus", () => (focused = at));
    });
    focused = 0;
    grips[0].element.setAttribute("tabindex", 0);
    sliders.replaceChildren(...grips.map(({ element }) => element));
  }

  return {
    move,
    element: figure(view.text("title_bars"), moved, svg, keys, hint),
    draw(state) {
      const { p, q, labels, least, top, across, last } = state;
      if (grips.length !== 2 * labels.length) rebuild(labels);
      const chart = chartOf(state, top);
      const { pitch, low, X, Y } = chart;
      scale = { top, across, high: low - TOP };
      const wide = Math.min(46, 0.4 * pitch);
      const over = [];
      for (const { element, name, i, hit, bar, grip } of grips) {
        const prob = (name === "p" ? p : q)[i];
        const x = X(i) + (name === "p" ? -wide - 0.5 : 0.5);
        const y = Y(prob);
        const place = (rect, ...sizes) =>
          ["x", "y", "width", "height"].forEach((side, k) => rect.setAttribute(side, sizes[k]));
        place(bar, x, y, wide, low - y);
        place(hit, x, y - 14, wide, low - y + 22);
        place(grip, x + 0.18 * wide, y - 4, 0.64 * wide, 8);
        grip.setAttribute("rx", Math.min(4, 0.3 * wide));
        element.setAttribute("aria-label", view.text(`bar_${name}`, { token: labels[i] }));
        element.setAttribute("aria-valuenow", prob);
        element.setAttribute("aria-valuetext", probability(prob));
        if (prob > least[i]) {
          const high = Y(least[i]) - y;
          const excess = name === "p" ? "missing" : "too-often";
          over.push(box(x + 1, y, wide - 2, high, excess, { fill: name === "p" ? dots : cross }));
          const glyph = name === "p" ? GLYPHS.resampled : GLYPHS.rejected;
          if (high > 26 && wide > 14) over.push(centred(x + wide / 2, y + high / 2 + 7, glyph, `glyph ${excess}-ink`));
        }
        const room = prob > 0 && prob < 0.005 ? 62 : 46; // "<.01" is wider
        if (pitch >= room) over.push(centred(x + wide / 2, y - 8, share(prob), `value ${name}-ink`));
      }
      labels.forEach((_, i) => {
        const y = Y(least[i]);
        over.push(box(X(i) - wide - 0.5, y, 2 * wide + 1, low - y, "fill-least"));
        over.push(s("path", { d: `M${X(i) - wide - 4} ${y}H${X(i) + wide + 4}`, class: "line-least" }));
      });
      if (last) over.push(newest(chart, X(last.x) + wide / 2, "drafted"));
      setAttribute(lastKey, "data-absent", !last);
      drawBars(chart, over);
      if (told && view.get(told.name) !== told.probs) {
        told = null; // the bars have moved since
        setText(moved, view.text("bars_hint"));
      }
    },
  };
}

// --- the token in place of a rejected draft ----------------------------------------------------------------------

function replacedPart(view) {
  const svg = s("svg", { role: "img", class: "replaced" });
  const { dots } = patterns(svg);
  const drawBars = drawIn(svg);
  const changed = changes();
  const how = h("p", { class: "sv-soft" });
  const keys = [fillKey(view.text("key_replaced"), "fill-re", dots)];
  return {
    element: figure(view.text("title_replaced"), how, svg, keys),
    draw(state) {
      const { outcome, labels, rule } = state;
      if (!changed([state.p, state.q, labels, rule, state.across])) return; // samples change nothing here
      const top = outcome.replaced ? topFor(outcome.replaced) : 1;
      const chart = chartOf(state, top);
      const { pitch, X, Y } = chart;
      const wide = Math.min(64, 0.62 * pitch);
      const parts = [];
      if (outcome.replaced === null) {
        const middle = [(LEFT + state.across) / 2, (TOP + chart.low) / 2];
        parts.push(centred(...middle, view.text("nothing_rejected"), "halo"));
      } else {
        outcome.replaced.forEach((prob, x) => {
          parts.push(box(X(x) - wide / 2, Y(prob), wide, chart.low - Y(prob), "fill-re", { fill: dots }));
          if (chart.roomy) parts.push(centred(X(x), Y(prob) - 6, share(prob), "value re-ink"));
        });
      }
      drawBars(chart, parts);
      const said = outcome.replaced?.map((prob, x) => `${labels[x]} ${probability(prob)}`).join(", ");
      setText(how, view.text(`replaced_${rule}`, { z: probability(1 - outcome.rate) }));
      svg.setAttribute("aria-label", `${view.text("title_replaced")}: ${said ?? view.text("nothing_rejected")}`);
    },
  };
}

// --- two paths, stacked ------------------------------------------------------------------------------------------

// A stack for each token: accepted below, corrected on top.
function stacks(chart, wide, lower, upper, dots) {
  const { X, Y, low: floor } = chart;
  return lower.flatMap((prob, x) => {
    const [low, high] = [Y(prob), Y(prob + upper[x])];
    return [
      box(X(x) - wide / 2, low, wide, floor - low, "fill-accepted"),
      box(X(x) - wide / 2, high, wide, low - high, "fill-re", { fill: dots }),
    ];
  });
}

const lineAt = (chart, wide, p) =>
  p.map((prob, x) => s("path", { d: `M${chart.X(x) - wide / 2 - 4} ${chart.Y(prob)}h${wide + 8}`, class: "line-p" }));

function pathsPart(view) {
  const svg = s("svg", { role: "img", class: "paths" });
  const { dots } = patterns(svg);
  const drawBars = drawIn(svg);
  const changed = changes();
  const how = h("p", { class: "sv-soft" });
  const keys = [
    fillKey(view.text("key_accepted"), "fill-accepted"),
    fillKey(view.text("key_corrected"), "fill-re", dots),
    lineKey(view.text("key_p")),
  ];
  return {
    element: figure(view.text("title_paths"), how, svg, keys),
    draw(state) {
      const { p, outcome, labels, top } = state;
      if (!changed([p, state.q, labels, state.rule, state.across, top])) return;
      const chart = chartOf(state, top);
      const wide = Math.min(64, 0.62 * chart.pitch);
      const stacked = stacks(chart, wide, outcome.accepted, outcome.corrected, dots);
      const parts = [...stacked, ...lineAt(chart, wide, p)];
      outcome.emitted.forEach((prob, x) => {
        const off = prob - p[x];
        if (!chart.roomy || Math.abs(off) < 0.005) return;
        const words = `${off > 0 ? "+" : "−"}${share(Math.abs(off))}`;
        parts.push(centred(chart.X(x), chart.Y(Math.max(prob, p[x])) - 6, words, "value no-ink"));
      });
      drawBars(chart, parts);
      const exact = outcome.wrong < EXACT;
      setText(how, view.text(exact ? "paths_exact" : "paths_wrong"));
      const each = outcome.emitted.map((prob, x) => `${labels[x]} ${probability(prob)} (p ${probability(p[x])})`);
      svg.setAttribute("aria-label", `${view.text("title_paths")}: ${how.textContent} ${each.join(", ")}`);
    },
  };
}

// --- the samples as a histogram ----------------------------------------------------------------------------------

function histogramPart(view) {
  const svg = s("svg", { role: "img", class: "histogram" });
  const { dots } = patterns(svg);
  const drawBars = drawIn(svg);
  const how = h("p", { class: "sv-soft" });
  const lastKey = newestKey(view.text("key_last"), "newest");
  const keys = [
    fillKey(view.text("key_sampled_accepted"), "fill-accepted"),
    fillKey(view.text("key_sampled_corrected"), "fill-re", dots),
    lineKey(view.text("key_p")),
    fillKey(view.text("key_band"), "band"),
    lastKey,
  ];
  return {
    element: figure(view.text("title_histogram"), how, svg, keys),
    draw(state) {
      const { p, counts, n, labels, top, last } = state;
      const of = (many) => many.map((count) => (n ? count / n : 0));
      const shares = of(counts);
      const accepted = of(state.kept);
      const chart = chartOf(state, Math.max(...shares) <= top ? top : topFor(shares)); // beside the paths, if it can be
      const { X, Y } = chart;
      const wide = Math.min(64, 0.62 * chart.pitch);
      const error = p.map((prob) => (n ? Math.sqrt((prob * (1 - prob)) / n) : 0));
      const parts = stacks(chart, wide, accepted, shares.map((prob, x) => prob - accepted[x]), dots);
      p.forEach((prob, x) => {
        const [high, low] = [Y(prob + 2 * error[x]), Y(Math.max(0, prob - 2 * error[x]))];
        if (n) parts.push(box(X(x) - wide / 2 - 4, high, wide + 8, low - high, "band"));
      });
      parts.push(...lineAt(chart, wide, p));
      shares.forEach((prob, x) => {
        const off = n >= 100 && Math.abs(prob - p[x]) > 3 * error[x];
        const high = Math.max(prob, p[x] + 2 * error[x]);
        if (off || (p[x] === 0 && counts[x])) parts.push(centred(X(x), Y(high) - 5, GLYPHS.rejected, "glyph no-ink"));
      });
      if (last) parts.push(newest(chart, X(last.y), "newest"));
      setAttribute(lastKey, "data-absent", !last);
      drawBars(chart, parts);
      setText(how, n ? view.text("sampled", { n: whole(n) }) : view.text("not_sampled"));
      const expects = (x) => view.text("expects", { n: (n * p[x]).toFixed(1) });
      const each = counts.map((count, x) => `${labels[x]} ${whole(count)} (${expects(x)})`);
      svg.setAttribute("aria-label", `${view.text("title_histogram")}: ${how.textContent} ${n ? each.join(", ") : ""}`);
    },
  };
}

// --- the samples: buttons, the last one as a story, the test -----------------------------------------------------

function storyPart(view, sample, forget) {
  const buttons = SAMPLES.map((times) => {
    const attributes = { type: "button", onclick: () => sample(times), "data-sample": times };
    return h("button", attributes, view.text("sample_n", { n: whole(times) }));
  });
  const restart = () => {
    forget();
    view.announce(view.text("not_sampled"));
  };
  const reset = h("button", { type: "button", onclick: restart }, view.text("reset"));
  const seed = h("input", { id: uniqueId("seed"), type: "number", min: 0, max: 2 ** 53 - 1, step: 1 });
  view.listen(seed, "change", () => {
    const value = Number(seed.value);
    if (seed.value.trim() !== "" && Number.isSafeInteger(value) && value >= 0) view.set({ seed: value });
    seed.value = view.get("seed");
  });
  const bar = h(
    "div",
    { class: "sampling", role: "group", "aria-label": view.text("sampling") },
    h("span", { class: "what" }, view.text("sample")), ...buttons, reset,
    h("span", { class: "seed" }, h("label", { for: seed.id }, view.text("seed")), seed),
  );

  const heading = h("h2");
  const boxes = ["draft", "accept", "coin", "out"].map((name) => {
    const [main, note] = [h("span", { class: "main" }), h("span", { class: "note" })];
    const title = h("span", { class: "sv-soft" }, view.text(`story_${name}`));
    return { main, note, element: h("li", { class: `scene scene-${name}` }, title, main, note) };
  });
  const level = h("span", { class: "level" });
  const coin = h("span", { class: "disc" });
  const gauge = h("span", { class: "gauge", "aria-hidden": "true" }, level, coin);
  boxes[2].main.after(gauge);
  const strip = h("ol", { class: "story" }, ...boxes.map((each) => each.element));
  const { element: list, put } = numbersOf(view, ["samples", "accepted", "chi_square", "p_value"]);
  const verdict = h("p", { class: "verdict fit" });

  // The words of the last sample's story.
  function wordsOf({ last, labels, p, q, rule }) {
    const x = labels[last.x];
    return {
      n: whole(last.n + 1), x, y: labels[last.y], p: probability(p[last.x]), q: probability(q[last.x]),
      a: probability(last.a), u: probability(last.u), prob: probability(last.prob),
      from: view.text(`from_${RULES[rule].from}`, { x }),
    };
  }

  function drawStory(state) {
    const { n, last, rule } = state;
    setText(heading, last ? view.text("story", { n: whole(n) }) : view.text("story_none"));
    setAttribute(strip, "data-fate", last ? (last.accepted ? "accepted" : "rejected") : "waiting");
    const put = (i, main, note) => (setText(boxes[i].main, main), setText(boxes[i].note, note));
    if (!last) return boxes.forEach((_, i) => put(i, "–", ""));
    const words = wordsOf(state);
    const kept = last.accepted;
    put(0, words.x, view.text("drawn_from_q", words));
    put(1, words.a, view.text(`how_${RULES[rule].how}`, words));
    put(2, `u = ${words.u}`, view.text(kept ? "below" : "not_below", words));
    put(3, `${kept ? GLYPHS.accepted : GLYPHS.resampled} ${words.y}`, view.text(kept ? "kept" : "replaced", words));
    setText(coin, kept ? GLYPHS.accepted : GLYPHS.rejected);
    coin.style.left = `${100 * last.u}%`;
    level.style.width = `${100 * last.a}%`;
  }

  function drawTest({ n, outcome, kept, fit }) {
    const tested = fit && (fit.dof || fit.impossible);
    const pValue = !tested ? "–" : fit.impossible ? "0" : tiny(fit.pValue);
    const statistic = !tested ? "–" : fit.impossible ? "∞" : fit.statistic.toFixed(1);
    put("samples", whole(n));
    const expected = view.text("expected", { rate: probability(outcome.rate) });
    put("accepted", n ? probability(sumOf(kept) / n) : "–", expected);
    put("chi_square", statistic, tested ? view.text("dof", { dof: fit.dof }) : "");
    put("p_value", pValue);
    const name = !n ? "none" : fit.impossible ? "impossible" : !tested ? "few"
      : fit.pValue < CONVICTS ? "misses" : fit.pValue < SUSPECT ? "suspect" : "fits";
    const tries = name === "suspect" ? whole(Math.round(1 / fit.pValue)) : "";
    setText(verdict, view.text(`fit_${name}`, { p_value: pValue, tries }));
    const kinds = { impossible: "rejected", misses: "rejected", fits: "accepted" };
    setAttribute(verdict, "data-kind", kinds[name] ?? "open");
  }

  const caution = h("p", { class: "sv-soft" }, view.text("caution"));
  return {
    element: h("div", { class: "samples" }, bar, heading, strip, verdict, list, caution),
    draw(state) {
      if (seed.value !== String(state.seed)) seed.value = state.seed;
      drawStory(state);
      drawTest(state);
    },
    // After a click, for screen readers; a single sample also scene by scene.
    tell(state, times) {
      const sentence = state.last.accepted ? "tale_accepted" : "tale_rejected";
      if (times > 1) view.announce(`${view.text("sampled", { n: whole(state.n) })} ${verdict.textContent}`);
      else view.announce(view.text(sentence, wordsOf(state)));
      if (times > 1 || reducedMotion()) return;
      const appear = [{ opacity: 0, transform: "translateY(-4px)" }, { opacity: 1, transform: "none" }];
      boxes.forEach(({ element }, i) => {
        element.animate(appear, { duration: 220, delay: 320 * i, fill: "backwards" });
      });
      const roll = [{ left: "0%" }, { left: `${100 * state.last.u}%` }];
      coin.animate(roll, { duration: 260, delay: 700, easing: "ease-out", fill: "backwards" });
    },
  };
}

// --- the same as a table, p and q to type ------------------------------------------------------------------------

function tablePart(view, move) {
  const columns = ["token", "p", "q", "a", "least", "too_often", "missing", "replaced", "emitted", "sampled"];
  const { body, element } = foldedTable(view, columns, h("p", { class: "sv-soft" }, view.text("table_hint")));
  let rows = [];
  let last = null;

  const field = (name, i) => {
    const input = h("input", { type: "number", min: 0, max: 1, step: "any", "data-field": `${name}${i}` });
    // A number counts once it is complete; text that is no number is replaced.
    input.addEventListener("change", () => {
      const value = Number(input.value);
      if (input.value.trim() !== "" && Number.isFinite(value)) move(name, i, value);
      draw(last);
    });
    return input;
  };

  function draw(state) {
    last = state;
    if (!element.open) return;
    const { p, q, labels, least, outcome, counts, n } = state;
    if (rows.length !== labels.length) {
      rows = labels.map((_, i) => {
        const inputs = [field("p", i), field("q", i)];
        const cells = [h("th", { scope: "row", class: "sv-mono" }), ...columns.slice(1).map(() => h("td"))];
        inputs.forEach((input, k) => cells[k + 1].append(input));
        return { inputs, cells };
      });
      body.replaceChildren(...rows.map(({ cells }) => h("tr", {}, ...cells)));
    }
    rows.forEach(({ inputs, cells }, x) => {
      setText(cells[0], labels[x]);
      [p, q].forEach((probs, k) => {
        const text = rounded(probs[x], 4);
        if (inputs[k].value !== text) inputs[k].value = text;
        const name = view.text(`bar_${"pq"[k]}`, { token: labels[x] });
        inputs[k].setAttribute("aria-label", view.text("as_number", { name }));
      });
      const a = outcome.a[x] === null ? "–" : rounded(outcome.a[x], 4);
      const { replaced, emitted } = outcome;
      const values = [a, least[x], q[x] - least[x], p[x] - least[x], replaced?.[x] ?? "–", emitted[x]];
      [...values, n ? `${whole(counts[x])} (${rounded(counts[x] / n, 4)})` : "–"].forEach((value, k) => {
        setText(cells[k + 3], typeof value === "number" ? rounded(value, 4) : value);
      });
    });
  }
  view.listen(element, "toggle", () => last && draw(last));
  return { element, draw };
}

export const render = framed("overlap", build);
