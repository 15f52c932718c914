// The round player. Its state is its traits: position (steps taken), selected, playing, speed, what_if. Keys, sliders,
// a timer and Python set them, and draw() shows them.

import {
  GLYPHS, framed, furnish, h, reducedMotion, setAttribute, setText, uniqueId,
} from "./common.js";
import { clamp, duration, short, sumOf, thousandths } from "./format.js";
import {
  countsAt, fateOf, focusOf, labelOf, phaseFrom, planOf, positionAfter, roundFrom, stageAt, sub, tokensOf,
} from "./replay.js";

// --- the widget --------------------------------------------------------------------------------------------------

const PACE = { start: 300, draft: 330, target: 700, coins: 560, end: 950 }; // milliseconds a step at speed 1
const SPEEDS = ["0.25", "0.5", "1", "2", "4", "16", "slowed", "measured"];

function build(view) {
  const { root, data } = view;
  if (!data.rounds) return null;
  const say = (key, values) => view.text(key, values);
  let [plan, planned] = [null, null]; // and the what_if that it was made for
  let hovered = null; // a column under the pointer or with the focus
  let shown = null; // the stage that is drawn
  const context = { view, data, say, label: (id) => labelOf(data, id), go, select, toss, recorded };

  const heading = h("h2", { class: "sv-heading" });
  const story = h("p", { class: "sv-story" });
  const text = textPanel(context);
  const score = scorePanel(context);
  const side = sidePanel(context);
  const controls = controlBar(context, { go, toggle });
  const race = racePanel(context);
  const live = view.get("settings").pairs ? livePanel(context) : null;
  root.append(
    ...(live ? [live.element] : []),
    heading,
    text.element,
    h(
      "div", { class: `sv-body${score.cells.length > 6 ? " sv-many" : ""}` },
      score.element, story, side.element, controls.element, race.element,
    ),
  );

  function planFor(whatIf) {
    if (planned !== whatIf) [plan, planned] = [planOf(data, whatIf), whatIf];
    return plan;
  }

  // --- actions of the learner

  function go(position) {
    view.set({ playing: false, position: clamp(position, 0, plan.total) });
  }

  function select(column, pin) {
    hovered = pin ? null : column;
    if (pin) view.set({ selected: view.get("selected") === column ? -1 : column });
    draw();
  }

  // Replay the round on the stage with another coin, and show its end.
  function toss(i, u) {
    const { number } = shown;
    const held = plan.altered === number ? view.get("what_if").coins : {};
    const whatIf = { round: number, coins: { ...held, [i]: u } };
    view.set({ playing: false, selected: i, what_if: whatIf, position: planFor(whatIf).total });
  }

  // Back to the recorded coins, at the same round's end.
  function recorded() {
    const { altered } = plan;
    if (altered === null) return;
    const whatIf = {};
    view.set({ playing: false, what_if: whatIf, position: planFor(whatIf).before[altered + 1].steps });
  }

  function toggle() {
    const start = !view.get("playing");
    if (start && view.get("position") >= plan.total) {
      go(plan.altered === null ? 0 : plan.before[plan.altered].steps); // a replayed round plays alone
    }
    view.set({ playing: start });
  }

  view.listen(root, "keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { target, key } = event;
    if (target.matches("select, textarea, input:not([type=range])")) return;
    const range = target.matches("input[type=range]") && !target.matches(".sv-scrub");
    if (range && key !== "p" && key !== "Escape") return; // a slider's own keys
    const at = view.get("position");
    const moves = {
      ArrowRight: () => go(event.shiftKey ? phaseFrom(plan, at, 1) : at + 1),
      ArrowLeft: () => go(event.shiftKey ? phaseFrom(plan, at, -1) : at - 1),
      PageDown: () => go(roundFrom(plan, at, 1)),
      PageUp: () => go(roundFrom(plan, at, -1)),
      Home: () => go(0),
      End: () => go(plan.total),
      p: toggle,
      Escape: recorded,
    };
    if (key === " " && !target.matches("button")) moves[" "] = toggle;
    if (!moves[key]) return;
    event.preventDefault();
    event.stopPropagation();
    moves[key]();
  });

  // --- playing

  let timer = null;
  function play() {
    clearTimeout(timer);
    cancelAnimationFrame(timer);
    controls.playing();
    if (!view.get("playing")) return;
    const speed = view.get("speed");
    if (speed === "measured" || speed === "slowed") playMeasured(speed === "slowed" ? 0.1 : 1);
    else playSteps(Number(speed) || 1);
  }

  function playSteps(speed) {
    const at = view.get("position");
    if (at >= plan.total) return view.set({ playing: false });
    timer = setTimeout(() => {
      view.set({ position: at + 1 });
      if (view.get("playing")) playSteps(speed);
    }, PACE[shown.phase] / speed);
  }

  // By the clock of the recording: the position that the decoder had reached after so many seconds.
  function playMeasured(rate) {
    const begun = performance.now();
    const from = countsAt(plan, shown).seconds;
    const frame = (now) => {
      const position = positionAfter(plan, from + (rate * (now - begun)) / 1000);
      if (position > view.get("position")) view.set({ position });
      if (position >= plan.total) return view.set({ playing: false });
      timer = requestAnimationFrame(frame);
    };
    timer = requestAnimationFrame(frame);
  }

  // --- drawing

  function draw() {
    const stage = stageAt(planFor(view.get("what_if")), view.get("position"));
    const before = shown;
    shown = stage;
    if (before && (before.number !== stage.number) && view.get("selected") >= 0) view.set({ selected: -1 });
    const pinned = view.get("selected");
    const column = hovered ?? (pinned >= 0 ? pinned : focusOf(stage));
    const sentence = storyOf(context, stage, plan);
    const where = { n: stage.number + 1, of: data.rounds.length, phase: say(`phase_${stage.phase}`) };
    setText(heading, say(plan.altered === null ? "heading" : "heading_what_if", where));
    setText(story, sentence);
    text.draw(stage, plan);
    score.draw(stage, column, pinned);
    side.draw(stage, column, plan);
    controls.draw(stage, plan, view.get("position"));
    race.draw(countsAt(plan, stage), plan, stage);
    // Reads of the layout come after all changes, so that it is computed once.
    text.follow();
    score.follow(stage);
    root.classList.toggle("sv-what-if", plan.altered !== null);

    const one = before && before.number === stage.number && stage.step === before.step + 1;
    const first = before && stage.number === before.number + 1 && before.done && stage.step === 1;
    const quick = view.get("playing") && !(Number(view.get("speed")) <= 4);
    if ((one || first) && !quick && !reducedMotion()) animate(stage, score, text);
    if (!view.get("playing") || stage.done) view.announce(sentence);
  }

  view.watch(["what_if", "position", "selected"], draw);
  view.watch(["playing", "speed"], play);
  draw();
  play();
  return () => {
    clearTimeout(timer);
    cancelAnimationFrame(timer);
  };
}

// One sentence for the step that was just taken.
function storyOf({ say, label }, stage, plan) {
  const { round, phase, drafted, tossed } = stage;
  const drafts = round.draft.length;
  if (phase === "start") return say("story_start");
  if (phase === "draft") {
    const i = drafted - 1;
    const q = short(probOf(round, i, "q"));
    return say("story_draft", { i: drafted, sub: sub(drafted), token: label(round.draft[i]), q });
  }
  if (phase === "target") return say(drafts ? "story_target" : "story_plain", { n: drafts + 1, last: sub(drafts + 1) });
  if (phase === "coins") {
    const i = tossed - 1;
    const known = { sub: sub(tossed), u: short(round.coins[i]), a: short(round.a[i]) };
    const key = i < round.accepted ? "story_accept" : round.coins[i] === null ? "story_unknown" : "story_reject";
    return say(key, { ...known, token: label(round.draft[i]) });
  }
  const names = round.draft.slice(0, round.accepted).map(label);
  const kept = (names.length > 4 ? [...names.slice(0, 2), "…", names.at(-1)] : names).join(" ");
  const given = { next: round.next === null ? "" : label(round.next), sub: sub(round.accepted + 1), n: round.accepted };
  const key = kept && round.outcome === "resampled" ? "story_resampled_kept" : `story_${round.outcome}`;
  const ending = stage.number === plan.rounds.length - 1 && plan.altered === null;
  const sentence = say(key === "story_plain" ? "story_plain_end" : key, { ...given, kept });
  return ending ? `${sentence} ${say(`story_over_${plan.finish}`)}` : sentence;
}

// The recorded p or q of the drafted token at position i.
function probOf(round, i, name) {
  const { ids, [name]: probs } = round.probs[i];
  return probs[ids.indexOf(round.draft[i])];
}

// --- the text so far ---------------------------------------------------------------------------------------------

// One span a round, made once; those of earlier rounds are in the page. The round on the stage shows its tokens as
// chips, which hold the exact text (glyphs and codes are drawn by CSS). So the element's text is the text so far.
function textPanel({ view, data, say, label, go }) {
  const spans = data.rounds.map(() => h("span", { class: "sv-settled" }));
  const continuation = h("span", { class: "sv-continuation" });
  const chips = h("span", { class: "sv-chips" });
  const caret = h("span", { class: "sv-caret", "aria-hidden": "true" });
  continuation.append(chips);
  const prompt = h("span", { class: "sv-prompt" }, data.prompt);
  const box = { class: "sv-text", tabindex: "0", role: "group", "aria-label": say("text_label") };
  const element = h("div", box, prompt, continuation, caret);
  // A click on the text goes to its round.
  view.listen(continuation, "click", ({ target }) => {
    const number = spans.indexOf(target);
    if (number >= 0) go(starts[number + 1]);
  });

  let starts = [];
  let visible = 0; // rounds that are settled
  let drawn = {}; // what the chips show
  function draw(stage, plan) {
    starts = plan.before.map((so) => so.steps);
    if (drawn.plan !== plan) plan.parts.forEach((own, i) => setText(spans[i], own.join("")));
    const settled = stage.number; // the round on the stage is chips, once it is done
    if (visible < settled) chips.before(...spans.slice(visible, settled));
    for (const span of spans.slice(settled, visible)) span.remove();
    visible = settled;
    if (drawn.plan !== plan || drawn.round !== stage.round || drawn.done !== stage.done) {
      drawn = { plan, round: stage.round, done: stage.done };
      chips.replaceChildren(...(stage.done ? chipsOf(stage, plan) : []));
    }
  }

  function follow() {
    element.scrollTop = Math.max(0, caret.offsetTop - element.clientHeight + 44);
  }

  function chipsOf({ number, round }, plan) {
    return tokensOf(round).map((id, i) => {
      const own = plan.parts[number][i];
      const kind = i < round.accepted ? "accepted" : round.outcome;
      // A token without a visible shape (a line break, part of a character, EOS) is shown as its label.
      const coded = !/^ ?[^\s\p{C}]+$/u.test(own);
      const attributes = { class: `sv-chip sv-is-${kind}${coded ? " sv-coded" : ""}`, "data-glyph": GLYPHS[kind] };
      return h("span", { ...attributes, "data-label": label(id) }, h("span", {}, own));
    });
  }

  return { element, draw, follow, chips };
}

// --- the score: a column for each draft, and one for the token after them ----------------------------------------

function scorePanel({ data, say, label, select }) {
  const columns = Math.max(...data.rounds.map((round) => round.draft.length)) + 1;
  const rows = ["draft", "target", "coin", "out"];
  const names = rows.map((row) => h("span", { class: `sv-row-name sv-soft sv-name-${row}` }, say(`row_${row}`)));
  const cells = [];
  for (let j = 0; j < columns; j++) {
    const last = j === columns - 1;
    const tok = h("span", { class: "sv-tok sv-mono" });
    const q = level("q");
    const p = level("p");
    const fill = h("span", { class: "sv-fill" });
    const line = h("span", { class: "sv-line" });
    const coin = h("span", { class: "sv-coin" });
    const a = h("span", { class: "sv-a sv-number" });
    const u = h("span", { class: "sv-u sv-number" });
    const gauge = h("span", { class: "sv-gauge" }, fill, line, coin, a, u);
    const note = h("span", { class: "sv-note" });
    const glyph = h("span", { class: "sv-glyph" });
    const out = h("span", { class: "sv-tok sv-mono" });
    const button = h(
      "button",
      { class: `sv-column${last ? " sv-last" : ""}`, type: "button", "aria-pressed": "false" },
      h("span", { class: "sv-cell sv-draft" }, tok, q.element),
      h("span", { class: "sv-cell sv-target" }, p.element),
      h("span", { class: "sv-cell sv-toss" }, gauge, note),
      h("span", { class: "sv-cell sv-out" }, glyph, out),
    );
    button.addEventListener("pointerenter", () => select(j));
    button.addEventListener("pointerleave", () => select(null));
    button.addEventListener("focus", () => button.matches(":focus-visible") && select(j));
    button.addEventListener("blur", () => select(null));
    button.addEventListener("click", () => select(j, true));
    cells.push({ button, tok, q, p, fill, line, coin, a, u, gauge, note, glyph, out });
  }
  const grid = h("div", { class: "sv-grid" }, h("div", { class: "sv-names" }, ...names), ...cells.map((c) => c.button));
  grid.style.setProperty("--columns", columns);
  const element = h("div", { class: "sv-score", role: "group", "aria-label": say("score_label") }, grid);

  function draw(stage, selected, pinned) {
    cells.forEach((cell, j) => {
      if (j === columns - 1) drawLast(cell, stage, j);
      else if (j >= stage.round.draft.length) drawUnused(cell);
      else drawDraft(cell, stage, j);
      const drafts = stage.round.draft.length;
      const shown = j < drafts ? j === selected : j === columns - 1 && selected >= drafts;
      cell.button.classList.toggle("sv-selected", shown);
      setAttribute(cell.button, "aria-pressed", String(j === pinned));
    });
  }

  // With many columns on a narrow page: keep the stage's column in sight.
  function follow(stage) {
    if (element.scrollWidth <= element.clientWidth) return;
    element.scrollLeft = cells[Math.min(focusOf(stage), columns - 1)].button.offsetLeft - element.clientWidth / 2;
  }

  function drawUnused(cell) {
    setAttribute(cell.button, "data-fate", "unused"); // its contents are hidden
    setAttribute(cell.button, "data-lit", null);
    cell.button.disabled = true;
    setAttribute(cell.button, "aria-label", say("column_unused"));
  }

  function drawDraft(cell, stage, i) {
    const { round } = stage;
    const fate = fateOf(stage, i);
    const known = stage.swept;
    const token = fate === "waiting" ? "" : label(round.draft[i]);
    cell.button.disabled = false;
    setAttribute(cell.button, "data-fate", fate);
    setText(cell.tok, token);
    cell.q.draw(`q${sub(i + 1)}`, fate === "waiting" ? null : probOf(round, i, "q"));
    cell.p.draw(`p${sub(i + 1)}`, known ? probOf(round, i, "p") : null);
    setAttribute(cell.button, "data-lit", known);
    const a = round.a[i];
    cell.fill.style.height = `${known ? 100 * a : 0}%`;
    cell.line.style.bottom = `${100 * a}%`;
    const tossed = (fate === "accepted" || fate === "rejected") && round.coins[i] !== null;
    const u = tossed ? round.coins[i] : 0;
    cell.coin.style.bottom = `${100 * u}%`;
    setText(cell.coin, tossed ? GLYPHS[fate] : "");
    // The labels stand at their heights, and step aside where they would meet.
    const apart = 16;
    let [ya, yu] = [100 * a, 100 * u];
    if (Math.abs(ya - yu) < apart) yu = u < a ? ya - apart : ya + apart;
    if (yu > 100) [ya, yu] = [100 - apart, 100];
    if (yu < 0) [ya, yu] = [apart, 0];
    cell.a.style.bottom = `${ya}%`;
    cell.u.style.bottom = `${yu}%`;
    setText(cell.a, known && fate !== "unreached" ? `A ${short(a)}` : "");
    setText(cell.u, tossed ? `u ${short(u)}` : "");
    setText(cell.note, fate === "unreached" ? say("unreached") : "");
    const judged = ["accepted", "rejected", "unreached"].includes(fate);
    setText(cell.glyph, judged ? GLYPHS[fate] : "");
    setText(cell.out, judged ? token : "");
    const spoken = { i: i + 1, token: token || say("column_waiting"), fate: say(`fate_${fate}`) };
    setAttribute(cell.button, "aria-label", say("column", spoken));
  }

  function drawLast(cell, stage, j) {
    const { round, swept, done } = stage;
    const given = done && round.next !== null;
    const fate = given ? round.outcome : "waiting";
    const drafts = round.draft.length;
    setAttribute(cell.button, "data-fate", fate);
    setAttribute(cell.button, "data-lit", swept);
    const bonus = given && round.outcome !== "resampled";
    const { ids, p } = round.probs[drafts];
    cell.p.draw(`p${sub(drafts + 1)}`, bonus ? (p[ids.indexOf(round.next)] ?? null) : null);
    setText(cell.note, given ? say(`from_${round.outcome}`, { sub: sub(round.accepted + 1) }) : "");
    setText(cell.glyph, given ? GLYPHS[fate] : "");
    setText(cell.out, given ? label(round.next) : "");
    const word = given ? say(fate) : done ? say("column_none") : say("column_waiting");
    setAttribute(cell.button, "aria-label", say("column_last", { fate: word, token: given ? label(round.next) : "" }));
  }

  return { element, draw, follow, cells };
}

// A probability as a short bar on a track of length 1, with its name and value above.
function level(kind) {
  const value = h("span", { class: "sv-value sv-number" });
  const bar = h("span", { class: `sv-bar sv-bar-${kind}` });
  const element = h("span", { class: "sv-level" }, value, h("span", { class: "sv-track" }, bar));
  const draw = (name, prob) => {
    setText(value, prob === null ? name : `${name} ${short(prob)}`);
    bar.style.width = `${100 * (prob ?? 0)}%`;
  };
  return { element, draw };
}

// --- beside it: one position's distributions, and its coin -------------------------------------------------------

const ROWS = 6; // tokens shown, and one line for the rest

function sidePanel({ data, say, label, toss, recorded }) {
  const title = h("h3", { class: "sv-side-title" });
  const keys = ["p", "q", "r"].map((name) => h("span", { class: "sv-key" }, h("i", { class: `sv-bar sv-bar-${name}` }),
    say(`key_${name}`)));
  const rows = Array.from({ length: ROWS + 1 }, () => {
    const name = h("th", { scope: "row", class: "sv-mono" });
    const bars = ["p", "q", "r"].map((kind) => h("i", { class: `sv-bar sv-bar-${kind}` }));
    const numbers = ["p", "q", "r"].map(() => h("td", { class: "sv-number" }));
    const drawn = h("td", { class: "sv-bars", "aria-hidden": "true" }, ...bars);
    return { name, bars, numbers, element: h("tr", {}, name, drawn, ...numbers) };
  });
  const headings = ["p", "q", "p′"].map((name) => h("th", { scope: "col" }, name));
  const head = h("tr", {}, h("th", { scope: "col" }, say("token")), h("td"), ...headings);
  const body = h("tbody", {}, ...rows.map((row) => row.element));
  const table = h("table", { class: "sv-probs" }, h("thead", {}, head), body);
  const ratio = h("p", { class: "sv-soft sv-number" });
  const overlap = h("p", { class: "sv-soft sv-number" });
  const verdict = h("p", { class: "sv-number sv-verdict" });
  const id = uniqueId("coin");
  const name = h("label", { for: id });
  const slider = h("input", { id, type: "range", min: 0, max: 0.999, step: 0.001, class: "sv-coin-slider" });
  const value = h("output", { for: id });
  const reset = h("button", { type: "button", class: "sv-reset" }, say("reset"));
  const reason = h("p", { class: "sv-soft sv-reason" });
  let at = 0;
  slider.addEventListener("input", () => toss(at, Number(slider.value)));
  reset.addEventListener("click", recorded);
  const element = h(
    "div", { class: "sv-side" }, title, h("div", { class: "sv-keys sv-soft" }, ...keys), table, ratio, overlap, verdict,
    h("div", { class: "sv-coin-row" }, name, slider, value), h("div", { class: "sv-coin-row sv-top" }, reason, reset),
  );

  function draw(stage, column, plan) {
    const { round, swept } = stage;
    const drafts = round.draft.length;
    const i = Math.min(column, drafts);
    const fate = i < drafts ? fateOf(stage, i) : null;
    const drafted = fate !== null && fate !== "waiting";
    at = i;
    const known = { i: i + 1, token: drafted ? label(round.draft[i]) : "" };
    const which = drafted ? "position" : i < drafts ? "position_waiting" : drafts ? "position_last" : "position_plain";
    setText(title, say(which, known));
    drawRows(round.probs[i], { p: swept, q: drafted, r: swept && drafted }, drafted ? round.draft[i] : null,
      stage.done && i === round.accepted ? round.next : null);

    const a = i < drafts ? round.a[i] : null;
    const numbers = { sub: sub(i + 1), a: short(a), token: known.token };
    const judged = fate === "accepted" || fate === "rejected";
    if (swept && drafted) {
      setText(ratio, say("ratio", { ...numbers, p: short(probOf(round, i, "p")), q: short(probOf(round, i, "q")) }));
      const beta = round.overlap[i];
      setText(overlap, say("overlap", { beta: thousandths(beta), z: thousandths(Math.max(0, 1 - beta)) }));
    } else {
      setText(ratio, i < drafts ? say("ratio_waiting", numbers) : say("ratio_last"));
      setText(overlap, i < drafts ? say("overlap_waiting") : "\u00a0");
    }
    const key = !judged ? (fate === "unreached" ? "verdict_unreached" : "verdict_waiting")
      : round.coins[i] === null ? "verdict_unknown" : `verdict_${fate}`;
    const after = drafts ? "verdict_last" : "verdict_plain";
    setText(verdict, i < drafts ? say(key, { ...numbers, u: short(round.coins[i]) }) : say(after));
    setAttribute(verdict, "data-fate", judged ? fate : null);

    // The learner may choose any coin whose consequences were recorded.
    const free = i < drafts && round.if_rejected !== null;
    const u = free ? round.coins[i] : null;
    const changed = plan.altered === stage.number;
    setText(name, say("coin", { sub: i < drafts ? sub(i + 1) : "" }));
    slider.disabled = !free;
    if (document.activeElement !== slider || Number(slider.value).toFixed(3) !== (u ?? 0).toFixed(3)) {
      slider.value = String(u ?? 0);
    }
    setText(value, u === null ? "–" : u.toFixed(3));
    setAttribute(slider, "aria-valuetext", u === null ? say("no_coin") : `${u.toFixed(3)}, A ${short(a)}`);
    reset.disabled = !changed;
    const why = i < drafts ? "coin_none" : drafts ? "coin_last" : "coin_plain";
    setText(reason, say(changed ? "what_if" : free ? "coin_hint" : why));
  }

  function drawRows({ ids, p, q, r }, visible, drafted, next) {
    const none = ids.map(() => 0);
    const kinds = { p, q: q ?? none, r: r ?? none };
    const seen = (k) => Math.max(visible.p ? kinds.p[k] : 0, visible.q ? kinds.q[k] : 0);
    const must = (k) => (ids[k] === drafted ? 2 : ids[k] === next ? 1 : 0);
    const anything = visible.p || visible.q;
    const order = ids.map((_, k) => k).sort((k, l) => must(l) - must(k) || seen(l) - seen(k)).slice(0, ROWS);
    order.sort((k, l) => seen(l) - seen(k));
    const rest = (kind) => sumOf(kind) - sumOf(order.map((k) => kind[k]));
    rows.forEach((row, at) => {
      const isRest = at === order.length;
      const used = anything && (at < order.length || isRest);
      row.element.classList.toggle("sv-off", !used);
      if (!used) {
        setText(row.name, "");
        row.numbers.forEach((number) => setText(number, ""));
        return;
      }
      const k = order[at];
      const mark = isRest ? "" : ids[k] === drafted ? "▸" : ids[k] === next ? "→" : "";
      setText(row.name, isRest ? say("rest") : mark + label(ids[k]));
      setAttribute(row.name, "title", isRest ? null : say("token_title", { token: label(ids[k]), id: ids[k] }));
      ["p", "q", "r"].forEach((kind, b) => {
        const prob = visible[kind] ? Math.max(0, isRest ? rest(kinds[kind]) : kinds[kind][k]) : null;
        row.bars[b].style.width = `${100 * Math.min(1, prob ?? 0)}%`;
        setText(row.numbers[b], prob === null ? "" : prob < 0.0005 ? "0" : thousandths(prob));
      });
    });
  }

  return { element, draw };
}

// --- controls ----------------------------------------------------------------------------------------------------

function controlBar({ view, data, say }, { go, toggle }) {
    let plan = null;
  const at = () => view.get("position");
  const button = (key, glyph, act) =>
    h("button", { type: "button", "aria-label": say(key), title: say(key), onclick: act, "data-key": key }, glyph);
  const back = [
    button("round_back", "|◀◀", () => go(roundFrom(plan, at(), -1))),
    button("phase_back", "|◀", () => go(phaseFrom(plan, at(), -1))),
    button("step_back", "◀", () => go(at() - 1)),
  ];
  const playButton = button("play", "", toggle);
  playButton.classList.add("sv-play");
  playButton.removeAttribute("aria-label");
  const ahead = [
    button("step", "▶", () => go(at() + 1)),
    button("phase", "▶|", () => go(phaseFrom(plan, at(), 1))),
    button("round", "▶▶|", () => go(roundFrom(plan, at(), 1))),
  ];
  const scrub = h("input", { type: "range", class: "sv-scrub", min: 0, step: 1, "aria-label": say("scrub") });
  scrub.addEventListener("input", () => go(Number(scrub.value)));
  const where = h("output", { class: "sv-where sv-soft" });
  const options = SPEEDS.map((speed) =>
    h("option", { value: speed }, speed in SPEED_TEXTS ? say(SPEED_TEXTS[speed]) : say("times", { speed })));
  const pace = h("select", { "aria-label": say("speed"), title: say("speed") }, ...options);
  pace.addEventListener("change", () => view.set({ speed: pace.value }));
  const element = h(
    "div", { class: "sv-controls" },
    h("div", { class: "sv-buttons" }, ...back, playButton, ...ahead), scrub, where, pace,
    h("p", { class: "sv-soft sv-keys-help" }, say("keys")),
  );

  return {
    element,
    playing: () => {
      const playing = view.get("playing");
      pace.value = view.get("speed");
      setText(playButton, `${playing ? "❚❚" : "▶"} ${say(playing ? "pause" : "play")}`);
      setAttribute(playButton, "data-playing", playing);
    },
    draw: (stage, next, position) => {
      plan = next;
      const here = clamp(position, 0, plan.total);
      setAttribute(scrub, "max", plan.total);
      scrub.value = String(here);
      setAttribute(scrub, "aria-valuetext", say("scrub_value", { n: stage.number + 1, of: data.rounds.length }));
      setText(where, `${stage.number + 1} / ${data.rounds.length}`);
      for (const each of back) setAttribute(each, "aria-disabled", here === 0 || null);
      for (const each of ahead) setAttribute(each, "aria-disabled", here === plan.total || null);
    },
  };
}

const SPEED_TEXTS = { slowed: "speed_slowed", measured: "speed_measured" };

// --- the race ----------------------------------------------------------------------------------------------------

function racePanel({ data, say }) {
  const rival = data.baseline;
  const finish = Math.max(data.parts.length, rival?.tokens.at(-1) ?? 0);
  const lane = (name, kind) => {
    const bar = h("i", { class: `sv-lane-bar sv-lane-${kind}` });
    const words = h("span", { class: "sv-soft sv-number" });
    return { bar, words, element: h("div", { class: "sv-lane" }, h("span", { class: "sv-soft" }, name),
      h("span", { class: "sv-lane-track", "aria-hidden": "true" }, bar), words) };
  };
  const own = lane(data.drafter ? say("speculative") : say("plain_decoding"), "own");
  const other = rival && lane(rival.name ? say("rival", { name: rival.name }) : say("plain_decoding"), "rival");
  const alpha = h("p", { class: "sv-soft sv-number sv-counts" });
  const element = h("div", { class: "sv-race", role: "group", "aria-label": say("race_label") }, own.element,
    other?.element, alpha);

  function draw(counts, plan, stage) {
    const { seconds, target, draft, tokens, accepted, tested } = counts;
    own.bar.style.width = `${(100 * tokens) / finish}%`;
    setText(own.words, say("lane", { tokens, target, draft, time: duration(seconds) }));
    const rate = { accepted, tested, alpha: (accepted / tested).toFixed(2) };
    setText(alpha, say(tested ? "alpha" : "alpha_none", rate));
    if (!other) return;
    let done = 0; // rounds that the other had finished by now
    let high = rival.seconds.length;
    while (done < high) {
      const middle = (done + high) >> 1;
      if (rival.seconds[middle] <= seconds) done = middle + 1;
      else high = middle;
    }
    const reached = done ? rival.tokens[done - 1] : 0;
    other.bar.style.width = `${(100 * reached) / finish}%`;
    const over = stage.done && stage.number === data.rounds.length - 1 && plan.altered === null;
    const end = { time: duration(seconds), tokens: reached, all: rival.tokens.at(-1) ?? 0, forwards: done,
      end: duration(rival.seconds.at(-1) ?? 0) };
    setText(other.words, say(over ? "lane_rival_end" : "lane_rival", end));
  }

  return { element, draw };
}

// --- decoding afresh ---------------------------------------------------------------------------------------------

function livePanel({ view, say }) {
    const settings = () => view.get("settings");
  const able = view.get("kernel");
  const fields = {};
  const field = (key, input) => {
    const id = uniqueId(key);
    furnish(input, { id, "data-key": `live-${key}`, disabled: !able }, []);
    if (input.type === "checkbox") input.checked = settings()[key];
    else input.value = settings()[key];
    input.addEventListener("change", () => view.set({ settings: { ...settings(), ...values() } }));
    fields[key] = input;
    const words = h("span", { class: "sv-soft" }, say(`live_${key}`));
    return h("label", { for: id, class: `sv-field sv-field-${key}` }, words, input);
  };
  const values = () => ({
    prompt: fields.prompt.value,
    gamma: Number(fields.gamma.value),
    temperature: Number(fields.temperature.value),
    seed: fields.seed.value,
    max_new_tokens: Number(fields.max_new_tokens.value),
    race: fields.race.checked,
    pair: fields.pair.value,
  });
  const number = (attributes) => h("input", { type: "number", ...attributes });
  const pairs = settings().pairs.map((name) => h("option", { value: name }, name));
  const decode = h("button", { type: "submit", "data-key": "live-decode", disabled: !able }, say("live_decode"));
  const stop = h("button", { type: "button", "data-key": "live-stop", disabled: true }, say("live_stop"));
  const bar = h("progress", { max: 1, value: 0, "aria-label": say("live_progress") });
  const words = h("span", { class: "sv-soft sv-live-words", role: "status" });
  const element = h(
    "form", { class: "sv-live", "aria-label": say("live_label"), novalidate: true }, // Python checks the values
    field("prompt", h("textarea", { rows: 2, spellcheck: "false" })),
    field("pair", h("select", {}, ...pairs)),
    field("gamma", number({ min: 1, step: 1 })),
    field("temperature", number({ min: 0, step: 0.1 })),
    field("seed", h("input", { type: "text", inputmode: "numeric" })),
    field("max_new_tokens", number({ min: 1, max: 4096, step: 1 })),
    field("race", h("input", { type: "checkbox" })),
    h("div", { class: "sv-live-run" }, decode, stop, bar, words),
  );
  view.listen(element, "submit", (event) => {
    event.preventDefault();
    view.set({ settings: { ...settings(), ...values() } });
    view.save();
    view.model.send({ type: "decode", settings: values() });
  });
  view.listen(stop, "click", () => view.model.send({ type: "stop" }));

  const report = () => {
    const { state = "idle", done = 0, of = 0, message = "" } = view.get("progress");
    const running = able && state === "running";
    decode.disabled = !able || running;
    stop.disabled = !running;
    bar.value = running && of ? done / of : 0;
    setText(words, able ? say(`live_${state}`, { done, of, message }) : say("needs_kernel"));
    words.classList.toggle("sv-failed", state === "failed");
  };
  view.watch(["progress"], report);
  report();
  return { element };
}

// --- movement ----------------------------------------------------------------------------------------------------

// The movement of the last step. Everything is already in its place, and only its way there is played, so that nothing
// is lost by a scrub, on a slow machine or with reduced motion.
function animate({ phase, drafted, tossed, round }, score, text) {
  const ease = "cubic-bezier(.2, .8, .3, 1)";
  if (phase === "draft") {
    const [cell] = score.cells[drafted - 1].button.children;
    cell.animate([{ opacity: 0, transform: "translateX(-14px)" }, {}], { duration: 240, easing: ease });
  }
  if (phase === "target") {
    score.cells.forEach(({ button }, j) => {
      const reveal = [{ clipPath: "inset(0 100% 0 0)" }, { clipPath: "inset(0 0 0 0)" }];
      button.children[1].animate(reveal, { duration: 140, delay: 90 * j, fill: "backwards" });
    });
  }
  if (phase === "coins") {
    const { coin, gauge, button } = score.cells[tossed - 1];
    const fall = gauge.clientHeight * (1 - (round.coins[tossed - 1] ?? 0)) + 26;
    coin.animate([{ transform: `translate(-50%, calc(50% - ${fall}px))` }, { transform: "translate(-50%, 50%)" }],
      { duration: 330, easing: "cubic-bezier(.5, 0, .9, 1)" });
    button.children[3].animate([{ opacity: 0 }, { opacity: 0, offset: 0.6 }, { opacity: 1 }], { duration: 420 });
  }
  if (phase === "end") {
    const chips = [...text.chips.children];
    const ways = chips.map((chip, i) => { // read all places before the first moves
      const out = score.cells[i === round.accepted ? score.cells.length - 1 : i].button.children[3];
      const [from, to] = [out.getBoundingClientRect(), chip.getBoundingClientRect()];
      return `translate(${from.left - to.left}px, ${from.top - to.top}px)`;
    });
    chips.forEach((chip, i) => {
      const last = i === round.accepted;
      const dropped = last && round.outcome !== "resampled"; // a bonus falls from above, since it replaces nothing
      const from = { transform: dropped ? "translateY(-26px)" : ways[i], opacity: 0.3 };
      const timing = { duration: 420, delay: last ? 240 : 0, easing: ease, fill: "backwards" };
      chip.animate([from, { transform: "none", opacity: 1 }], timing);
    });
    const out = score.cells.at(-1).button.children[3];
    out.animate([{ opacity: 0, transform: "translateY(-22px)" }, {}], { duration: 300, easing: ease });
  }
}

export const render = framed("player", build);
