// The speedup explorer. Its state is its traits. All times are in target steps: 1 is the target's time for one token.

import {
  GLYPHS, foldedTable, framed, h, hatch, keyOf, numbersOf, s, setAttribute, setText, uniqueId,
} from "./common.js";
import { clamp, firstAbove, rounded, share } from "./format.js";
import {
  bestGamma, expectedTokens, leastAlpha, operations, oracleSpeedup, roundCost, speedup, verifyCost, wastedDrafts,
} from "./theory.js";

const digits = (x) => (!Number.isFinite(x) ? "∞" : x.toFixed(x < 10 ? 2 : 1));
const times = (x) => (Number.isFinite(x) ? `${digits(x)}×` : "∞");

const TOPS = [1.5, 2, 3, 4, 6, 8, 12, 18]; // ends of the curve's axis
const SPANS = [2, 3, 4, 6, 8, 12, 18, 24, 34]; // and of the timeline's

const SLIDERS = [
  { trait: "gamma", least: 1, step: 1 },
  { trait: "alpha", least: 0, most: 1, step: 0.01 },
  { trait: "c", least: 0, most: 1, step: 0.01 },
  { trait: "verify_slope", least: 0, most: 1, step: 0.01 },
];
const CURVE = ["alpha", "c", "verify_slope"]; // these determine the curve
const TRAITS = ["gamma", ...CURVE, "c_hat"];

// --- the widget --------------------------------------------------------------------------------------------------

function build(view) {
  const { data } = view;

  function now() {
    const [gamma, alpha, c, slope, cHat] = TRAITS.map((trait) => view.get(trait));
    const factors = Array.from({ length: data.max_gamma }, (_, i) => speedup(alpha, i + 1, c, slope));
    const best = bestGamma(alpha, c, slope, data.max_gamma);
    // No γ may be the best: at c = 0 and V = 1 each longer window is faster still.
    const rising = best === data.max_gamma && speedup(alpha, best + 1, c, slope) > factors[best - 1];
    const tokens = expectedTokens(alpha, gamma);
    const preset = matching(data.presets, { gamma, alpha, c, verify_slope: slope });
    return { gamma, alpha, c, slope, cHat, factors, best, rising, tokens, preset, factor: factors[gamma - 1] };
  }

  const [says, advice] = [h("span"), h("span")];
  const verdict = h("p", { class: "verdict" }, says, " ", advice);
  const parts = [
    curvePart(view),
    controlsPart(view),
    numbersPart(view),
    timelinePart(view),
    yieldPart(view),
    tablePart(view),
  ];
  const [curve, controls, numbers, timeline, yields, table] = parts.map((part) => part.element);
  view.root.append(
    verdict,
    h("div", { class: "two" }, curve, controls),
    numbers,
    h("div", { class: "two halves" }, timeline, yields),
    table,
  );

  let said = null;
  function draw() {
    const state = now();
    for (const part of parts) part.draw(state, view.width);
    const { gamma, best, rising } = state;
    setText(says, view.text(state.factor > 1 ? "faster" : "slower", { gamma, factor: times(state.factor) }));
    const name = best === 0 ? "none" : rising ? "rising" : best === gamma ? "is_best" : "best";
    setText(advice, view.text(name, { best, factor: best ? times(state.factors[best - 1]) : "" }));
    setAttribute(verdict, "data-kind", state.factor > 1 ? "accepted" : "rejected");
    if (said !== null && said !== verdict.textContent) view.announce(verdict.textContent);
    said = verdict.textContent;
  }

  view.watch([...TRAITS, "overhead"], draw);
  view.watchWidth(draw);
  draw();
}

// The preset with these values: one with the same γ before others, which are other points of the same curve.
function matching(presets, values) {
  const same = presets.filter((preset) => CURVE.every((trait) => Math.abs(preset[trait] - values[trait]) < 1e-9));
  return same.find((preset) => preset.gamma === values.gamma) ?? same[0] ?? null;
}

// --- the sliders -------------------------------------------------------------------------------------------------

function controlsPart(view) {
  const { presets, profile, max_gamma: maxGamma } = view.data;
  const rows = SLIDERS.map(({ trait, least, most = maxGamma, step }) => {
    const id = uniqueId(trait);
    const name = view.text(trait);
    const range = h("input", { id, type: "range", min: least, max: most, step });
    const number = h("input", { type: "number", min: least, max: most, step: "any" });
    number.setAttribute("aria-label", view.text("as_number", { name }));
    // A number counts once it is complete (Enter, or leaving the field); text that is no number is replaced.
    const take = (text) => {
      const value = trait === "gamma" ? Math.round(Number(text)) : Number(text);
      if (text.trim() === "" || Number.isNaN(value)) return draw(view.get(trait));
      view.set({ [trait]: clamp(value, least, most) });
      draw(view.get(trait));
    };
    const draw = (value) => {
      if (Number(range.value) !== value) range.value = value;
      const text = rounded(value, 3);
      setAttribute(range, "aria-valuetext", text);
      if (number.value !== text) number.value = text;
    };
    view.listen(range, "input", () => view.set({ [trait]: Number(range.value) }));
    view.listen(number, "change", () => take(number.value));
    return { trait, draw, element: h("div", { class: "slider" }, h("label", { for: id }, name), range, number) };
  });

  const options = (source) =>
    presets.flatMap((preset, i) =>
      preset.source === source ? [h("option", { value: i }, view.text(`preset_${source}`, preset))] : [],
    );
  const groups = [...new Set(presets.map((preset) => preset.source))].map((source) =>
    h("optgroup", { label: view.text(`group_${source}`) }, ...options(source)),
  );
  const menuId = uniqueId("preset");
  const menu = h("select", { id: menuId }, h("option", { value: "" }, view.text("preset_own")), ...groups);
  view.listen(menu, "change", () => {
    const preset = presets[menu.value];
    if (preset) view.set(Object.fromEntries(TRAITS.map((trait) => [trait, preset[trait]])));
  });
  const extra = [];
  if (profile) {
    const box = h("input", { type: "checkbox" });
    view.listen(box, "change", () => view.set({ overhead: box.checked }));
    view.watch(["overhead"], () => (box.checked = view.get("overhead")));
    box.checked = view.get("overhead");
    extra.push(h("label", { class: "check" }, box, view.text("overhead")));
    extra.push(h("p", { class: "sv-soft" }, view.text("machine", profile)));
  }
  const top = h("div", { class: "preset" }, h("label", { for: menuId }, view.text("preset")), menu);
  return {
    element: h("div", { class: "controls" }, top, ...rows.map((row) => row.element), ...extra),
    draw(state) {
      for (const { trait, draw } of rows) draw(view.get(trait));
      const value = state.preset ? String(presets.indexOf(state.preset)) : "";
      if (menu.value !== value) menu.value = value;
    },
  };
}

// --- the curve over γ --------------------------------------------------------------------------------------------

function curvePart(view) {
  const { profile, max_gamma: maxGamma, presets } = view.data;
  const svg = s("svg", { role: "img", class: "curve" });
  const measured = profile?.measured ?? [];
  const paperKey = keyOf(view.text("key_paper"), s("path", { d: diamond(14, 8), class: "point" }));
  const keys = [
    keyOf(view.text("key_curve"), s("path", { d: "M2 8H26", class: "line" })),
    keyOf(view.text("key_now"), s("circle", { cx: 14, cy: 8, r: 5.5, class: "ring" })),
  ];
  if (profile) {
    keys.push(keyOf(view.text("key_profile"), s("path", { d: "M2 8H26", class: "dashed" })));
    const runs = measured[0]?.runs ?? 0;
    keys.push(keyOf(view.text("key_measured", { runs }), ...whisker(14, 8, 1, 15)));
  }
  if (presets.some((preset) => preset.measured)) keys.push(paperKey);

  let scale = null; // of the last drawing, for the pointer
  const pick = (event) => {
    const x = event.clientX - svg.getBoundingClientRect().left;
    const gamma = clamp(Math.round((x - scale.left) / scale.pitch) + 1, 1, maxGamma);
    if (gamma !== view.get("gamma")) view.set({ gamma });
  };
  view.listen(svg, "pointerdown", (event) => {
    if (event.button !== 0) return;
    svg.setPointerCapture(event.pointerId);
    pick(event);
  });
  view.listen(svg, "pointermove", (event) => svg.hasPointerCapture(event.pointerId) && pick(event));

  return {
    element: h("div", {}, svg, h("ul", { class: "keys" }, ...keys)),
    draw(state, width) {
      const across = width > 760 ? width - 300 - 24 : width || 640; // beside the sliders, or above them
      const narrow = across < 480;
      const [left, right, top, low] = [38, 14, 26, narrow ? 232 : 276];
      const predicted = profile && (view.get("overhead") ? profile.with_overhead : profile.predicted);
      const paper = state.preset?.measured;
      const highest = Math.max(...state.factors, ...measured.map((m) => m.high), ...(predicted ?? []), paper ?? 0);
      const end = firstAbove(TOPS, 1.12 * highest);
      const pitch = (across - left - right - 16) / (maxGamma - 1);
      scale = { left: left + 8, pitch };
      const X = (gamma) => left + 8 + (gamma - 1) * pitch;
      const Y = (factor) => low - (factor / end) * (low - top);
      const path = (values) => values.map((value, i) => `${i ? "L" : "M"}${X(i + 1)} ${Y(value)}`).join("");
      const end_ = across - right;
      const parts = [];
      const add = (...elements) => parts.push(...elements);
      const word = (x, y, text, attributes = {}) => add(s("text", { x, y, ...attributes }, text));

      add(s("rect", { x: left, y: Y(1), width: end_ - left, height: low - Y(1), class: "slow" }));
      const step = end <= 2 ? 0.5 : end <= 6 ? 1 : end <= 12 ? 2 : 3;
      for (let value = 0; value <= end; value += step) {
        add(s("path", { d: `M${left} ${Y(value)}H${end_}`, class: "grid" }));
        word(left - 6, Y(value) + 4, `${value}×`, { class: "sv-soft", "text-anchor": "end" });
      }
      if (step > 1) word(left - 6, Y(1) + 4, "1×", { class: "sv-soft", "text-anchor": "end" });
      add(s("path", { d: `M${left} ${Y(1)}H${end_}`, class: "break-even" }));
      word(left, 14, view.text("axis_speedup"), { class: "sv-soft" });
      word(end_, low + 38, view.text("axis_gamma"), { class: "sv-soft", "text-anchor": "end" });

      const { gamma, best, rising, factors } = state;
      add(s("path", { d: `M${X(gamma)} ${Y(factors[gamma - 1])}V${low}`, class: "guide" }));
      if (low - Y(1) > 20) {
        // At the end where the curve is further away.
        const atLeft = Math.abs(factors[0] - 0.5) > Math.abs(factors.at(-1) - 0.5);
        const [x, anchor] = atLeft ? [left + 8, "start"] : [end_ - 8, "end"];
        word(x, (Y(1) + low) / 2 + 4, view.text("region_slow"), { class: "sv-soft slow-word", "text-anchor": anchor });
      }
      if (predicted) add(s("path", { d: path(predicted), class: "dashed" }));
      add(s("path", { d: path(factors), class: "line" }));
      for (let i = 1; i <= maxGamma; i++) add(s("circle", { cx: X(i), cy: Y(factors[i - 1]), r: 2.6, class: "dot" }));
      for (const m of measured) add(...whisker(X(m.gamma), Y(m.median), Y(m.high), Y(m.low)));
      if (paper) add(s("path", { d: diamond(X(state.preset.gamma), Y(paper)), class: "point" }));
      add(s("circle", { cx: X(gamma), cy: Y(factors[gamma - 1]), r: 8.5, class: "ring" }));

      for (let i = 1; i <= maxGamma; i++) {
        const here = i === gamma;
        if (pitch < 22 && Math.abs(i - gamma) === 1) continue; // the frame around γ needs the room
        if (here) add(s("rect", { x: X(i) - 10, y: low + 5, width: 20, height: 18, rx: 5, class: "pill" }));
        word(X(i), low + 18, i, { "text-anchor": "middle", class: here ? "here" : "sv-soft" });
      }
      const text = view.text(rising ? "label_rising" : best ? "label_best" : "label_none", { best });
      const over = (at) => Math.max(factors[at - 1], measured.find((m) => m.gamma === at)?.high ?? 0);
      const at = best || Math.ceil(maxGamma / 2);
      const half = 4 * text.length;
      const centre = clamp(X(at), left + half, end_ - half);
      const above = best ? Math.min(Y(over(best)), Y(factors[best - 1])) - 16 : Y(1) - 8;
      word(centre, Math.max(top + 2, above), text, { class: "halo strong", "text-anchor": "middle" });

      svg.setAttribute("viewBox", `0 0 ${across} ${low + 44}`);
      const most = rising ? view.text("beyond", { best }) : best;
      svg.setAttribute("aria-label", view.text("curve_says", { gamma, factor: times(state.factor), best: most }));
      svg.replaceChildren(...parts);
      setAttribute(paperKey, "data-absent", !paper);
    },
  };
}

const diamond = (x, y) => `M${x} ${y - 6}l6 6l-6 6l-6 -6z`;

const spreadOf = (found) => (found ? `${times(found.median)} (${digits(found.low)}–${digits(found.high)})` : "–");

function whisker(x, y, high, low) {
  const line = `M${x} ${high}V${low}M${x - 4} ${high}h8M${x - 4} ${low}h8`;
  return [s("path", { d: line, class: "spread" }), s("circle", { cx: x, cy: y, r: 4, class: "point" })];
}

// --- the numbers -------------------------------------------------------------------------------------------------

function numbersPart(view) {
  const { profile } = view.data;
  const names = ["speedup", "tokens", "cost", "wasted", "operations", "best_gamma", "oracle", "least_alpha"];
  const { element, put } = numbersOf(view, profile ? [...names, "measured"] : names);
  return {
    element,
    draw({ gamma, alpha, c, slope, cHat, tokens, factor, factors, best, rising }) {
      put("speedup", times(factor));
      put("tokens", digits(tokens));
      put("cost", view.text("steps", { steps: digits(roundCost(gamma, c, slope)) }));
      put("wasted", view.text("wasted_of", { wasted: digits(wastedDrafts(alpha, gamma)), gamma }));
      const operationsFactor = times(operations(alpha, gamma, cHat));
      put("operations", view.text("at_c_hat", { factor: operationsFactor, c_hat: rounded(cHat, 3) }));
      const most = rising ? view.text("beyond", { best }) : best;
      put("best_gamma", best ? `${most} (${times(factors[best - 1])})` : view.text("no_gamma"));
      put("oracle", times(oracleSpeedup(alpha, c, slope)));
      const least = leastAlpha(c, slope);
      const holds = alpha > least ? GLYPHS.accepted : GLYPHS.rejected;
      put("least_alpha", `${rounded(alpha, 3)} ${alpha > least ? ">" : "≤"} ${rounded(least, 3)} ${holds}`);
      if (!profile) return;
      const found = profile.measured.find((m) => m.gamma === gamma);
      put("measured", spreadOf(found));
    },
  };
}

// --- one round, to scale, above the plain steps that it replaces -------------------------------------------------

function timelinePart(view) {
  const [round, plain] = [h("p", { class: "row" }), h("p", { class: "row" })];
  const [above, below] = [s("svg", { "aria-hidden": "true" }), s("svg", { "aria-hidden": "true" })];
  const fill = hatch(above);
  const kept = above.firstChild; // the pattern stays when the rest is drawn anew
  const title = [h("h2", {}, view.text("timeline")), h("p", { class: "sv-soft" }, view.text("timeline_how"))];
  return {
    element: h("div", { class: "timeline" }, ...title, round, above, plain, below),
    draw({ gamma, c, slope, tokens }, width) {
      const across = width > 760 ? (width - 24) / 2 : width || 640;
      const verify = verifyCost(slope, gamma + 1);
      const whole = roundCost(gamma, c, slope);
      const end = firstAbove(SPANS, Math.max(whole, tokens));
      const X = (steps) => 1 + (steps / end) * (across - 2);
      const grid = (high) => {
        const every = end > 12 ? 4 : 1;
        const marks = Array.from({ length: Math.floor(end / every) + 1 }, (_, i) => i * every);
        return { marks, line: s("path", { d: marks.map((m) => `M${X(m)} 0V${high}`).join(""), class: "grid" }) };
      };
      const box = (from, to, name, more = {}) => {
        const wide = Math.max(0.5, X(to) - X(from) - 1); // a pixel between neighbours
        return s("rect", { x: X(from), y: 3, width: wide, height: 26, rx: 3, class: name, ...more });
      };

      const parts = [grid(32).line];
      const apart = X(c) - X(0) >= 5; // else the steps would be thinner than their edges
      for (let i = 0; c > 0 && i < (apart ? gamma : 1); i++) {
        const to = apart ? (i + 1) * c : gamma * c;
        parts.push(box(i * c, to, "draft-back"), box(i * c, to, "draft-step", { fill }));
      }
      parts.push(box(gamma * c, whole, "verify-step"));
      const label = view.text("verify", { n: gamma + 1 });
      if (X(verify) - X(0) > 8 * label.length) parts.push(s("text", { x: X(gamma * c) + 8, y: 21 }, label));
      above.replaceChildren(kept, ...parts);
      above.setAttribute("viewBox", `0 0 ${across} 32`);

      const { marks, line } = grid(34);
      const steps = [];
      for (let i = 0; i < tokens; i++) steps.push(box(i, Math.min(i + 1, tokens), "plain-step"));
      const anchor = (m) => (m === 0 ? "start" : m === end ? "end" : "middle");
      const words = marks.map((m) => s("text", { x: X(m), y: 48, class: "sv-soft", "text-anchor": anchor(m) }, m));
      below.replaceChildren(line, ...steps, ...words);
      below.setAttribute("viewBox", `0 0 ${across} 54`);

      setText(round, view.text("round_says", { gamma, steps: digits(whole) }));
      setText(plain, view.text("plain_says", { steps: digits(tokens) }));
    },
  };
}

// --- the yield of a round: draft i with probability α^i, and one token more --------------------------------------

function yieldPart(view) {
  const svg = s("svg", { role: "img" });
  const fill = hatch(svg);
  const kept = svg.firstChild;
  const title = [h("h2", {}, view.text("yield")), h("p", { class: "sv-soft" }, view.text("yield_how"))];
  const says = h("p", { class: "row" });
  return {
    element: h("div", { class: "yield" }, ...title, says, svg),
    draw({ gamma, alpha, tokens }, width) {
      const across = width > 760 ? (width - 24) / 2 : width || 640;
      const [top, low] = [18, 100];
      const pitch = Math.min(56, across / (gamma + 1));
      const parts = [];
      const bar = (i, from, to, name, more = {}) => {
        if (to <= from) return;
        const y = low - to * (low - top);
        const box = { x: i * pitch + 1, y, width: pitch - 3, height: (to - from) * (low - top), class: name, ...more };
        parts.push(s("rect", box));
      };
      const word = (i, y, text, name = "") => {
        const where = { x: (i + 0.5) * pitch - 0.5, y, "text-anchor": "middle", class: name };
        parts.push(s("text", where, ...[text].flat()));
      };
      let enters = 1;
      for (let i = 0; i < gamma; i++) {
        enters *= alpha;
        bar(i, 0, enters, "enters");
        bar(i, enters, 1, "lost", { fill });
        if (pitch >= 34) word(i, top - 5, share(enters), "sv-soft");
        const name = pitch < 30 ? [i + 1] : ["x", s("tspan", { dy: 3, "font-size": 10 }, i + 1)];
        word(i, low + 16, name, "sv-soft");
      }
      bar(gamma, 0, enters, "bonus");
      bar(gamma, enters, 1, "resampled");
      if (pitch >= 34) word(gamma, top - 5, "1", "sv-soft");
      word(gamma, low + 16, enters === 1 ? GLYPHS.bonus : enters === 0 ? GLYPHS.resampled : "↻★");
      svg.replaceChildren(kept, ...parts);
      svg.setAttribute("viewBox", `0 0 ${across} ${low + 22}`);
      const text = view.text("yield_says", { tokens: digits(tokens), wasted: digits(wastedDrafts(alpha, gamma)) });
      setText(says, text);
      setAttribute(svg, "aria-label", text);
    },
  };
}

// --- the same as a table -----------------------------------------------------------------------------------------

function tablePart(view) {
  const { profile, max_gamma: maxGamma } = view.data;
  const columns = ["gamma", "tokens", "wasted", "cost", "speedup", ...(profile ? ["predicted", "measured"] : [])];
  const { body, element } = foldedTable(view, columns);
  const rows = Array.from({ length: maxGamma }, () => columns.map((name) => h(name === "gamma" ? "th" : "td")));
  for (const row of rows) row[0].setAttribute("scope", "row");
  body.append(...rows.map((cells) => h("tr", {}, ...cells)));
  let last = null;
  const draw = (state) => {
    last = state;
    if (!element.open) return;
    rows.forEach((cells, i) => {
      const gamma = i + 1;
      const found = profile?.measured.find((m) => m.gamma === gamma);
      const texts = [
        gamma,
        digits(expectedTokens(state.alpha, gamma)),
        digits(wastedDrafts(state.alpha, gamma)),
        digits(roundCost(gamma, state.c, state.slope)),
        times(state.factors[i]),
        profile && times((view.get("overhead") ? profile.with_overhead : profile.predicted)[i]),
        spreadOf(found),
      ];
      cells.forEach((cell, column) => setText(cell, String(texts[column])));
      setAttribute(cells[0].parentNode, "class", gamma === state.gamma ? "here" : null);
    });
  };
  view.listen(element, "toggle", () => draw(last));
  return { element, draw };
}

export const render = framed("speedup", build);
