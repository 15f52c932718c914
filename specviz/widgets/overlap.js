// The overlap explorer. Its state is the model's: p, q, labels, rule, seed, counts, accepted. Bars, keys, buttons and
// Python set these, and draw() shows whatever they say.

const sumOf = (masses) => masses.reduce((sum, mass) => sum + mass, 0);

// --- the rules ----------------------------------------------------------------------------------------------------
// As in specviz/verification.py and specviz/equivalence/mutants.py; a test compares the laws.

const acceptProbability = (p, q) => (p === 0 ? 0 : Math.min(1, p / q));

// p' = max(0, p - q) / Z; where nothing is left, p.
function residual(p, q) {
  const left = p.map((mass, x) => Math.max(0, mass - q[x]));
  const z = sumOf(left);
  return z === 0 ? [...p] : left.map((mass) => mass / z);
}

function softmax(values) {
  const most = Math.max(...values);
  const powers = values.map((value) => Math.exp(value - most));
  const total = sumOf(powers);
  return powers.map((power) => power / total);
}

// accept: the probability that a draft x is kept. left: the law of what replaces it otherwise.
// exact: whether p comes out whatever q is. how, from: keys of texts.json.
const RULES = {
  right: { exact: true, accept: acceptProbability, left: residual, how: "ratio", from: "residual" },
  sample_and_match: {
    exact: true,
    accept: (p) => p, // one draw from p; the draft is kept if it is the same token
    left: (p, q, x) => residual(p, p.map((_, y) => (y === x ? 1 : 0))),
    byDraft: true, // its left depends on x
    how: "match",
    from: "others",
  },
  resample_from_p: { accept: acceptProbability, left: (p) => p, how: "ratio", from: "target" },
  softmax_the_residual: {
    accept: acceptProbability,
    left: (p, q) => softmax(p.map((mass, x) => Math.max(0, mass - q[x]))),
    how: "ratio",
    from: "softmax",
  },
  swap_p_and_q: { accept: (p, q) => acceptProbability(q, p), left: residual, how: "swapped", from: "residual" },
  accept_everything: { accept: () => 1, left: residual, how: "always", from: "residual" },
  compare_coarse_coins: {
    accept: (p, q) => Math.min(1, (Math.floor((p / q) * 256) + 1) / 256), // u <= p/q, and u has 8 bits
    left: residual,
    how: "coarse",
    from: "residual",
  },
};

// The exact law of the emitted token, by path. replaced: the law of what comes after a rejection, null if none comes.
function lawOf(rule, p, q) {
  const { accept, left, byDraft } = RULES[rule];
  const ofAll = byDraft ? null : left(p, q);
  const a = p.map((mass, x) => (q[x] === 0 ? null : accept(mass, q[x]))); // never drafted: never tested
  const accepted = q.map((mass, x) => mass * a[x]);
  const corrected = p.map(() => 0);
  q.forEach((mass, x) => {
    const rejected = mass - accepted[x];
    if (rejected > 0) (ofAll ?? left(p, q, x)).forEach((share, y) => (corrected[y] += rejected * share));
  });
  const z = sumOf(corrected);
  const emitted = accepted.map((mass, x) => mass + corrected[x]);
  return {
    a,
    accepted,
    corrected,
    emitted,
    rate: sumOf(accepted),
    replaced: z < 1e-12 ? null : corrected.map((mass) => mass / z), // less is rounding
    wrong: sumOf(emitted.map((mass, x) => Math.abs(mass - p[x]))) / 2,
  };
}

// --- a bar moves ----------------------------------------------------------------------------------------------------

// base with entry i set to value; the others keep their proportions, or share evenly where they had none.
function withBar(base, i, value) {
  const others = sumOf(base) - base[i];
  const even = !base.some((mass, j) => j !== i && mass > 0);
  const factor = even ? 0 : (1 - value) / others;
  return base.map((mass, j) => (j === i ? value : even ? (1 - value) / (base.length - 1) : mass * factor));
}

// --- uniforms -------------------------------------------------------------------------------------------------------
// specviz.Seeded in the browser, bit for bit: u = hash(seed, row, round, stream, slot), nested SplitMix64 generators.
// Sample n is the first round of row n. 64 bits are two halves of 32: BigInt would take ten times as long.

// The high 32 bits of the product of two numbers of 32 bits.
function highProduct(a, b) {
  const [a0, a1, b0, b1] = [a & 0xffff, a >>> 16, b & 0xffff, b >>> 16];
  const middle = a1 * b0 + ((a0 * b0) >>> 16);
  const other = a0 * b1 + (middle & 0xffff);
  return (a1 * b1 + Math.floor(middle / 65536) + Math.floor(other / 65536)) >>> 0;
}

// A number of 64 bits that is worked on in place: no allocation in the inner loop.
class Word {
  set(high, low) {
    this.high = high >>> 0;
    this.low = low >>> 0;
    return this;
  }

  add(high, low) {
    const sum = this.low + low;
    return this.set(this.high + high + (sum > 0xffffffff ? 1 : 0), sum);
  }

  times(high, low) {
    const top = highProduct(this.low, low) + Math.imul(this.low, high) + Math.imul(this.high, low);
    return this.set(top, Math.imul(this.low, low));
  }

  // this ^= this >>> bits, for bits below 32
  fold(bits) {
    return this.set(this.high ^ (this.high >>> bits), this.low ^ ((this.high << (32 - bits)) | (this.low >>> bits)));
  }
}

const product = new Word();

// word := output number n of the SplitMix64 generator that is seeded with word.
function splitmix64(word, n) {
  product.set(Math.floor((n + 1) / 2 ** 32), n + 1).times(0x9e3779b9, 0x7f4a7c15);
  word.add(product.high, product.low);
  word.fold(30).times(0xbf58476d, 0x1ce4e5b9);
  return word.fold(27).times(0x94d049bb, 0x133111eb).fold(31);
}

const uniformOf = (word) => (word.high * 2 ** 21 + (word.low >>> 11)) * 2 ** -53;

const STREAMS = { draft: 0, coin: 1, next: 2 };
const sampled = new Word();
const drawn = new Word();

// The three uniforms of sample n, in [0, 1).
function uniforms(seed, n) {
  splitmix64(sampled.set(Math.floor(seed / 2 ** 32), seed), n); // the row
  splitmix64(sampled, 0); // its first round
  const of = (stream) => uniformOf(splitmix64(splitmix64(drawn.set(sampled.high, sampled.low), stream), 0));
  return { draft: of(STREAMS.draft), coin: of(STREAMS.coin), next: of(STREAMS.next) };
}

// --- sampling -------------------------------------------------------------------------------------------------------

// u in [0, 1) -> the token in whose slice of the cumulative distribution it falls; never one of probability 0.
function picker(masses) {
  let total = 0;
  const cumulative = masses.map((mass) => (total += mass));
  const last = cumulative.findIndex((sum) => sum >= total);
  return (u) => {
    let token = 0;
    while (token < last && cumulative[token] <= u * total) token += 1;
    return token;
  };
}

// n -> one round at one position: draft x, its coin u against a, what was emitted.
function sampler(rule, p, q, seed) {
  const { accept, left } = RULES[rule];
  const pickDraft = picker(q);
  const [lefts, pickers] = [[], []]; // of what replaces a rejected x
  return (n) => {
    const { draft, coin, next } = uniforms(seed, n);
    const x = pickDraft(draft);
    const a = accept(p[x], q[x]);
    if (coin < a) return { n, x, u: coin, a, accepted: true, y: x };
    lefts[x] ??= left(p, q, x);
    pickers[x] ??= picker(lefts[x]);
    const y = pickers[x](next);
    return { n, x, u: coin, a, accepted: false, y, share: lefts[x][y] };
  };
}

// --- Pearson's test -------------------------------------------------------------------------------------------------
// As in specviz/equivalence/goodness_of_fit.py.

const MIN_EXPECTED = 5;

// The chance that a chi-square variable exceeds x: the regularised upper incomplete gamma function Q(dof/2, x/2).
function chiSquareTail(x, dof) {
  if (x <= 0) return 1;
  const [a, t] = [dof / 2, x / 2];
  let gamma = dof % 2 ? Math.sqrt(Math.PI) : 1; // Γ(a), by Γ(z + 1) = z Γ(z) from Γ(1/2) or Γ(1)
  for (let z = dof % 2 ? 0.5 : 1; z < a; z++) gamma *= z;
  const front = Math.exp(a * Math.log(t) - t - Math.log(gamma)); // t^a e^-t / Γ(a)
  if (t < a + 1) {
    // Q = 1 - P, P = front · Σ t^k / (a (a+1) … (a+k)); here Q is not small, so nothing cancels
    let term = 1 / a;
    let sum = term;
    for (let k = 1; term > sum * 1e-17; k++) sum += term *= t / (a + k);
    return 1 - front * sum;
  }
  // Q = front / (b_0 - 1(1-a)/(b_1 - 2(2-a)/(b_2 - …))), b_k = t + 1 - a + 2k: Lentz's method, from the front
  let b = t + 1 - a;
  let [above, below] = [Infinity, 1 / b];
  let value = below;
  for (let k = 1; k < 1000; k++) {
    const step = -k * (k - a);
    b += 2;
    below = 1 / (b + step * below);
    above = b + step / above;
    const change = above * below;
    value *= change;
    if (Math.abs(change - 1) < 1e-16) break;
  }
  return front * value;
}

// Cells that expect fewer than 5 are put into one; where even that expects too little, the next smallest join it.
function pool(observed, expected) {
  const possible = expected.map((_, x) => x).filter((x) => expected[x] > 0);
  const order = [...possible].sort((x, y) => expected[x] - expected[y]); // stable
  const of = (values, cells) => sumOf(cells.map((x) => values[x]));
  let rare = order.filter((x) => expected[x] < MIN_EXPECTED).length;
  while (0 < rare && rare < order.length && of(expected, order.slice(0, rare)) < MIN_EXPECTED) rare += 1;
  const groups = order.slice(rare).sort((x, y) => x - y).map((x) => [x]);
  if (rare) groups.push(order.slice(0, rare));
  return groups.map((cells) => ({ observed: of(observed, cells), expected: of(expected, cells) }));
}

function chiSquare(counts, p) {
  const n = sumOf(counts);
  const impossible = sumOf(counts.filter((_, x) => p[x] === 0));
  const cells = pool(counts, p.map((mass) => n * mass));
  const dof = Math.max(0, cells.length - 1);
  if (impossible) return { statistic: Infinity, dof, pValue: 0, impossible };
  const statistic = dof ? sumOf(cells.map((cell) => (cell.observed - cell.expected) ** 2 / cell.expected)) : 0;
  let pValue = dof ? chiSquareTail(statistic, dof) : 1;
  // Rare tokens that even together expect too few would hide in the cell that joins them: count them by themselves.
  const rare = p.map((_, x) => x).filter((x) => n * p[x] < MIN_EXPECTED);
  const mass = sumOf(rare.map((x) => p[x]));
  if (0 < mass && n * mass < MIN_EXPECTED) {
    pValue = Math.min(1, pValue / 0.99, binomialTail(sumOf(rare.map((x) => counts[x])), n, mass) / 0.01);
  }
  return { statistic, dof, pValue, impossible };
}

// The chance of k or more successes in n trials of chance p, where few are expected.
function binomialTail(k, n, p) {
  if (k === 0 || p >= 1) return 1;
  let log = k * Math.log(p) + (n - k) * Math.log1p(-p); // of the term of exactly k
  for (let i = 1; i <= k; i++) log += Math.log((n - k + i) / i);
  let [term, sum] = [1, 1]; // relative to it
  for (let j = k; j < n && (j < n * p || term > sum * 1e-17); j++) sum += term *= ((n - j) / (j + 1)) * (p / (1 - p));
  return Math.exp(log) * sum;
}

// --- words and measures ---------------------------------------------------------------------------------------------

// A share on a bar: two decimals without the leading zero. What is not quite 0 or 1 never reads as such.
function share(x) {
  if (x > 0 && x < 0.005) return "<.01";
  if (x < 1 && x >= 0.995) return ">.99";
  return x === 0 || x === 1 ? String(x) : dotted(x.toFixed(2));
}

const tiny = (x) => (x < 1e-300 ? "<1e-300" : x < 0.001 ? x.toExponential(0) : x.toPrecision(2));
const whole = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
const number4 = (x) => String(Number(x.toFixed(4)));
const dotted = (text) => text.replace("0.", "."); // as in the figures, without its leading zero

function shorten(label, most = 10) {
  const letters = [...label];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : label;
}

const TOPS = [0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]; // where axes end, so that they mostly stand still
const topFor = (...masses) => TOPS.find((top) => top >= 1.04 * Math.max(...masses.flat())) ?? 1;

const EXACT = 1e-9; // a law this close is the same but for rounding
const CONVICTS = 1e-6;
const SUSPECT = 0.01;
const SAMPLES = [1, 100, 10000];
const LAW = ["p", "q", "rule", "seed"]; // samples belong to these

// What is wrong with data that reached the page, as a sentence; null if nothing is.
function problemOf(view) {
  const [p, q, labels] = ["p", "q", "labels"].map((trait) => view.model.get(trait));
  for (const [name, law] of [["p", p], ["q", q]]) {
    if (!Array.isArray(law) || law.length < 2 || law.length > view.data.max_bars) {
      return view.text("bad_size", { name, most: view.data.max_bars });
    }
    const bad = law.findIndex((mass) => !(Number.isFinite(mass) && mass >= 0));
    if (bad >= 0) return view.text("bad_number", { name, i: bad, value: law[bad] });
    if (Math.abs(sumOf(law) - 1) > 1e-6) return view.text("bad_sum", { name, sum: Number(sumOf(law).toPrecision(6)) });
  }
  if (p.length !== q.length || labels.length !== p.length) {
    return view.text("bad_lengths", { p: p.length, q: q.length, labels: labels.length });
  }
  if (!(view.model.get("rule") in RULES)) return view.text("bad_rule", { rule: view.model.get("rule") });
  return null;
}

// --- the widget -----------------------------------------------------------------------------------------------------

function build(view) {
  let width = 0;
  let several = false; // traits that are set together are drawn once
  let held = null; // the axis' end while a bar is dragged: it must not move under the pointer

  function now() {
    const [p, q, labels, rule, seed] = ["p", "q", "labels", "rule", "seed"].map((trait) => view.model.get(trait));
    const fresh = view.model.get("counts").length !== p.length || view.model.get("accepted").length !== p.length;
    const [counts, kept] = ["counts", "accepted"].map((trait) => (fresh ? p.map(() => 0) : view.model.get(trait)));
    const least = p.map((mass, x) => Math.min(mass, q[x]));
    const law = lawOf(rule, p, q);
    const n = sumOf(counts);
    const preset = view.data.presets.find(
      (each) =>
        each.labels.join("\n") === labels.join("\n") && [each.p, each.q].every((law, i) => same(law, i ? q : p)),
    );
    return {
      p, q, labels, rule, seed, counts, kept, least, law, n, preset,
      beta: sumOf(least),
      tooOften: sumOf(q.map((mass, x) => mass - least[x])),
      missing: sumOf(p.map((mass, x) => mass - least[x])),
      fit: n ? chiSquare(counts, p) : null,
      last: n ? sampler(rule, p, q, seed)(n - 1) : null,
      top: held ?? topFor(p, q, law.emitted),
    };
  }

  function set(values) {
    several = true;
    for (const [trait, value] of Object.entries(values)) view.set(trait, value);
    several = false;
    draw();
  }

  // Samples of another law say nothing about this one.
  function anew() {
    const before = several;
    several = true;
    for (const trait of ["counts", "accepted"]) if (view.model.get(trait).length) view.set(trait, []);
    several = before;
    draw();
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
    set({ counts, accepted });
    story.tell(now(), times);
  }

  const hold = (top) => {
    held = top;
    if (top === null) draw();
  };
  const verdict = h("p", { class: "verdict" });
  const controls = controlsPart(view, set);
  const numbers = numbersPart(view);
  const bars = barsPart(view, set, hold);
  const replaced = replacedPart(view);
  const paths = pathsPart(view);
  const histogram = histogramPart(view);
  const story = storyPart(view, set, sample, anew);
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
    if (several) return;
    const problem = problemOf(view);
    content.hidden = problem !== null;
    message.hidden = problem === null;
    setText(message, problem === null ? "" : `${view.text("cannot_show")} ${problem}`);
    if (problem !== null) return;
    const state = now();
    state.across = width > 760 ? (width - 24) / 2 : width || 500;
    state.slanted = slants(state);
    for (const part of parts) part.draw(state);
    const { law } = state;
    const exact = law.wrong < EXACT;
    const words = { rate: probability(law.rate), rest: probability(1 - law.rate), wrong: probability(law.wrong) };
    const luck = exact && !RULES[state.rule].exact;
    setText(verdict, view.text(luck ? "verdict_luck" : exact ? "verdict_exact" : "verdict_wrong", words));
    setAttribute(verdict, "data-kind", exact ? "accepted" : "rejected");
  }

  for (const trait of LAW) view.watch(trait, anew);
  for (const trait of ["labels", "counts", "accepted"]) view.watch(trait, draw);
  const sizes = new ResizeObserver(([entry]) => {
    const found = Math.round(entry.contentRect.width);
    if (found === width || found === 0) return;
    width = found;
    draw();
  });
  sizes.observe(view.root);
  draw();
  return () => sizes.disconnect();
}

const same = (a, b) => a.length === b.length && a.every((mass, x) => Math.abs(mass - b[x]) < 1e-9);

// --- situation and rule ---------------------------------------------------------------------------------------------

function controlsPart(view, set) {
  const { presets } = view.data;
  const presetText = (preset) => view.text(`preset_${preset.name}`, { after: preset.after });
  const situation = h(
    "select",
    { id: uniqueId("situation") },
    h("option", { value: "" }, view.text("preset_own")),
    ...presets.map((preset, i) => h("option", { value: i }, presetText(preset))),
  );
  view.listen(situation, "change", () => {
    const preset = presets[situation.value];
    if (preset) set({ p: preset.p, q: preset.q, labels: preset.labels });
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
  view.listen(rules, "change", () => set({ rule: rules.value }));
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

// --- the numbers ----------------------------------------------------------------------------------------------------

function numbersOf(view, names) {
  const values = new Map(names.map((name) => [name, h("dd", { "data-number": name })]));
  const notes = new Map(names.map((name) => [name, h("dd", { class: "note" })]));
  const pairs = names.map((name) =>
    h("div", {}, h("dt", {}, view.text(`number_${name}`)), values.get(name), notes.get(name)),
  );
  const put = (name, text, note = "") => {
    setText(values.get(name), text);
    setText(notes.get(name), note);
  };
  return { list: h("dl", { class: "numbers" }, ...pairs), put };
}

function numbersPart(view) {
  const { list, put } = numbersOf(view, ["beta", "too_often", "missing", "rate", "wrong"]);
  return {
    element: list,
    draw({ beta, tooOften, missing, law, preset }) {
      const whole = preset?.overlap; // lumping tokens into "rest" raises β
      put("beta", probability(beta), whole == null ? "" : view.text("true_overlap", { beta: probability(whole) }));
      put("too_often", probability(tooOften));
      put("missing", probability(missing));
      put("rate", probability(law.rate));
      put("wrong", law.wrong < EXACT ? "0" : probability(law.wrong));
    },
  };
}

// --- what all charts share ------------------------------------------------------------------------------------------

const [LEFT, RIGHT, TOP, HIGH] = [34, 4, 24, 228];

// Names are slanted where they are too long for their columns, and the plot above is then less high: nothing moves in
// the page when another situation is chosen.
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
  const Y = (mass) => low - (Math.min(mass, top) / top) * (low - TOP); // beyond the top is cut
  return { across, labels, slanted, top, low, pitch, X, Y, roomy: pitch >= 30 };
}

// Draws in svg: drawIn(svg)(chart, parts). Grid and names, which cost the most time, are kept as long as they hold.
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
  return [0, top / 2, top].flatMap((mass) => [
    s("path", { d: `M${LEFT} ${Y(mass)}H${across - RIGHT}`, class: mass ? "line" : "floor" }),
    s("text", { x: LEFT - 5, y: Y(mass) + 4, class: "sv-soft", "text-anchor": "end" }, dotted(number4(mass))),
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

// changed(values) says whether any differs from the last time.
function changes() {
  let last = [];
  return (values) => {
    const same = values.length === last.length && values.every((value, i) => Object.is(value, last[i]));
    last = values;
    return !same;
  };
}

const centred = (x, y, words, name) => s("text", { x, y, class: name, "text-anchor": "middle" }, words);

const box = (x, y, width, height, name, more = {}) =>
  s("rect", { x, y, width: Math.max(0, width), height: Math.max(0, height), class: name, ...more });

function keyOf(text, shape) {
  return h("li", {}, s("svg", { viewBox: "0 0 28 16", "aria-hidden": "true", class: "icon" }, shape), text);
}

const swatch = { x: 1, y: 2, width: 26, height: 12, rx: 2 };
const key = (text, name, fill) => keyOf(text, s("rect", { ...swatch, class: name, fill }));
const lineKey = (text) => keyOf(text, s("path", { d: "M2 8H26", class: "line-p" }));
const newestKey = (text, name) => keyOf(text, s("path", { d: "M9 13l5 -8l5 8z", class: name }));

// Dots for what is resampled, a cross-hatch for what is rejected: never colour alone.
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

// --- p and q, to drag -----------------------------------------------------------------------------------------------

function barsPart(view, set, hold) {
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
  let grabbed = null; // the bar that moves, and its law before: the others keep these proportions until it is let go
  let told = null; // the law that the last words were about

  const lastKey = newestKey(view.text("key_last_draft"), "drafted");
  const keys = [
    key(view.text("target"), "fill-p"),
    key(view.text("draft"), "fill-q", fill),
    key(view.text("key_least"), "fill-least"),
    key(view.text("key_too_often"), "too-often", cross),
    key(view.text("key_missing"), "missing", dots),
    lastKey,
  ];

  function grab(name, i) {
    const law = view.model.get(name);
    if (grabbed?.name === name && grabbed.i === i && grabbed.last === law) return;
    grabbed = { name, i, base: law, last: law };
  }

  // Move bar i of law name, and say what followed.
  function move(name, i, value) {
    grab(name, i);
    const { base } = grabbed;
    value = clamp(value, 0, 1);
    if (value === view.model.get(name)[i]) return;
    const law = withBar(base, i, value);
    grabbed.last = law;
    told = { name, law };
    set({ [name]: law });
    const others = sumOf(base) - base[i];
    const words = {
      name,
      other: name === "p" ? "q" : "p",
      token: view.model.get("labels")[i],
      from: number4(base[i]),
      to: number4(value),
      factor: Number(((1 - value) / others).toPrecision(3)),
    };
    const how = base.some((mass, j) => j !== i && mass > 0) ? "moved" : "moved_even";
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
    const value = view.model.get(name)[i];
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

  // The pointer moves the bar by as much as it moves itself: a touch alone changes nothing.
  function drag(event, at) {
    const { element, name, i } = grips[at];
    if (event.button !== 0) return;
    event.preventDefault();
    element.setPointerCapture(event.pointerId);
    focus(at);
    const value = view.model.get(name)[i];
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

  // Sliders stay in the page while they move: they have the focus and the pointer.
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
        const mass = (name === "p" ? p : q)[i];
        const x = X(i) + (name === "p" ? -wide - 0.5 : 0.5);
        const y = Y(mass);
        const place = (rect, ...sizes) =>
          ["x", "y", "width", "height"].forEach((side, k) => rect.setAttribute(side, sizes[k]));
        place(bar, x, y, wide, low - y);
        place(hit, x, y - 14, wide, low - y + 22);
        place(grip, x + 0.18 * wide, y - 4, 0.64 * wide, 8);
        grip.setAttribute("rx", Math.min(4, 0.3 * wide));
        element.setAttribute("aria-label", view.text(`bar_${name}`, { token: labels[i] }));
        element.setAttribute("aria-valuenow", mass);
        element.setAttribute("aria-valuetext", probability(mass));
        if (mass > least[i]) {
          const high = Y(least[i]) - y;
          const excess = name === "p" ? "missing" : "too-often";
          over.push(box(x + 1, y, wide - 2, high, excess, { fill: name === "p" ? dots : cross }));
          const glyph = name === "p" ? GLYPHS.resampled : GLYPHS.rejected;
          if (high > 26 && wide > 14) over.push(centred(x + wide / 2, y + high / 2 + 7, glyph, `glyph ${excess}-ink`));
        }
        const room = mass > 0 && mass < 0.005 ? 62 : 46; // "<.01" is wider
        if (pitch >= room) over.push(centred(x + wide / 2, y - 8, share(mass), `value ${name}-ink`));
      }
      labels.forEach((_, i) => {
        const y = Y(least[i]);
        over.push(box(X(i) - wide - 0.5, y, 2 * wide + 1, low - y, "fill-least"));
        over.push(s("path", { d: `M${X(i) - wide - 4} ${y}H${X(i) + wide + 4}`, class: "line-least" }));
      });
      if (last) over.push(newest(chart, X(last.x) + wide / 2, "drafted"));
      setAttribute(lastKey, "data-absent", !last);
      drawBars(chart, over);
      if (told && view.model.get(told.name) !== told.law) {
        told = null; // something else has moved the bars since
        setText(moved, view.text("bars_hint"));
      }
    },
  };
}

// --- what replaces a rejected draft ---------------------------------------------------------------------------------

function replacedPart(view) {
  const svg = s("svg", { role: "img", class: "replaced" });
  const { dots } = patterns(svg);
  const drawBars = drawIn(svg);
  const changed = changes();
  const how = h("p", { class: "sv-soft" });
  const keys = [key(view.text("key_replaced"), "fill-re", dots)];
  return {
    element: figure(view.text("title_replaced"), how, svg, keys),
    draw(state) {
      const { law, labels, rule } = state;
      if (!changed([state.p, state.q, labels, rule, state.across])) return; // samples change nothing here
      const top = law.replaced ? topFor(law.replaced) : 1;
      const chart = chartOf(state, top);
      const { pitch, X, Y } = chart;
      const wide = Math.min(64, 0.62 * pitch);
      const parts = [];
      if (law.replaced === null) {
        const middle = [(LEFT + state.across) / 2, (TOP + chart.low) / 2];
        parts.push(centred(...middle, view.text("nothing_rejected"), "halo"));
      } else {
        law.replaced.forEach((mass, x) => {
          parts.push(box(X(x) - wide / 2, Y(mass), wide, chart.low - Y(mass), "fill-re", { fill: dots }));
          if (chart.roomy) parts.push(centred(X(x), Y(mass) - 6, share(mass), "value re-ink"));
        });
      }
      drawBars(chart, parts);
      const said = law.replaced?.map((mass, x) => `${labels[x]} ${probability(mass)}`).join(", ");
      setText(how, view.text(`replaced_${rule}`, { z: probability(1 - law.rate) }));
      svg.setAttribute("aria-label", `${view.text("title_replaced")}: ${said ?? view.text("nothing_rejected")}`);
    },
  };
}

// --- two paths, stacked ---------------------------------------------------------------------------------------------

// A stack for each token: accepted below, corrected on top.
function stacks(chart, wide, lower, upper, dots) {
  const { X, Y, low: floor } = chart;
  return lower.flatMap((mass, x) => {
    const [low, high] = [Y(mass), Y(mass + upper[x])];
    return [
      box(X(x) - wide / 2, low, wide, floor - low, "fill-accepted"),
      box(X(x) - wide / 2, high, wide, low - high, "fill-re", { fill: dots }),
    ];
  });
}

const lineAt = (chart, wide, p) =>
  p.map((mass, x) => s("path", { d: `M${chart.X(x) - wide / 2 - 4} ${chart.Y(mass)}h${wide + 8}`, class: "line-p" }));

function pathsPart(view) {
  const svg = s("svg", { role: "img", class: "paths" });
  const { dots } = patterns(svg);
  const drawBars = drawIn(svg);
  const changed = changes();
  const how = h("p", { class: "sv-soft" });
  const keys = [
    key(view.text("key_accepted"), "fill-accepted"),
    key(view.text("key_corrected"), "fill-re", dots),
    lineKey(view.text("key_p")),
  ];
  return {
    element: figure(view.text("title_paths"), how, svg, keys),
    draw(state) {
      const { p, law, labels, top } = state;
      if (!changed([p, state.q, labels, state.rule, state.across, top])) return;
      const chart = chartOf(state, top);
      const wide = Math.min(64, 0.62 * chart.pitch);
      const stacked = stacks(chart, wide, law.accepted, law.corrected, dots);
      const parts = [...stacked, ...lineAt(chart, wide, p)];
      law.emitted.forEach((mass, x) => {
        const off = mass - p[x];
        if (!chart.roomy || Math.abs(off) < 0.005) return;
        const words = `${off > 0 ? "+" : "−"}${share(Math.abs(off))}`;
        parts.push(centred(chart.X(x), chart.Y(Math.max(mass, p[x])) - 6, words, "value no-ink"));
      });
      drawBars(chart, parts);
      const exact = law.wrong < EXACT;
      setText(how, view.text(exact ? "paths_exact" : "paths_wrong"));
      const each = law.emitted.map((mass, x) => `${labels[x]} ${probability(mass)} (p ${probability(p[x])})`);
      svg.setAttribute("aria-label", `${view.text("title_paths")}: ${how.textContent} ${each.join(", ")}`);
    },
  };
}

// --- what was sampled -----------------------------------------------------------------------------------------------

function histogramPart(view) {
  const svg = s("svg", { role: "img", class: "histogram" });
  const { dots } = patterns(svg);
  const drawBars = drawIn(svg);
  const how = h("p", { class: "sv-soft" });
  const lastKey = newestKey(view.text("key_last"), "newest");
  const keys = [
    key(view.text("key_sampled_accepted"), "fill-accepted"),
    key(view.text("key_sampled_corrected"), "fill-re", dots),
    lineKey(view.text("key_p")),
    key(view.text("key_band"), "band"),
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
      const error = p.map((mass) => (n ? Math.sqrt((mass * (1 - mass)) / n) : 0));
      const parts = stacks(chart, wide, accepted, shares.map((mass, x) => mass - accepted[x]), dots);
      p.forEach((mass, x) => {
        const [high, low] = [Y(mass + 2 * error[x]), Y(Math.max(0, mass - 2 * error[x]))];
        if (n) parts.push(box(X(x) - wide / 2 - 4, high, wide + 8, low - high, "band"));
      });
      parts.push(...lineAt(chart, wide, p));
      shares.forEach((mass, x) => {
        const off = n >= 100 && Math.abs(mass - p[x]) > 3 * error[x];
        const high = Math.max(mass, p[x] + 2 * error[x]);
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

// --- the samples: buttons, the last one as a story, the test --------------------------------------------------------

function storyPart(view, set, sample, anew) {
  const buttons = SAMPLES.map((times) => {
    const attributes = { type: "button", onclick: () => sample(times), "data-sample": times };
    return h("button", attributes, view.text("sample_n", { n: whole(times) }));
  });
  const forget = () => {
    anew();
    view.announce(view.text("not_sampled"));
  };
  const reset = h("button", { type: "button", onclick: forget }, view.text("reset"));
  const seed = h("input", { id: uniqueId("seed"), type: "number", min: 0, max: 2 ** 53 - 1, step: 1 });
  view.listen(seed, "change", () => {
    const value = Number(seed.value);
    if (seed.value.trim() !== "" && Number.isSafeInteger(value) && value >= 0) set({ seed: value });
    seed.value = view.model.get("seed");
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
  const { list, put } = numbersOf(view, ["samples", "accepted", "chi_square", "p_value"]);
  const verdict = h("p", { class: "verdict fit" });

  // The words of the last sample's story.
  function wordsOf({ last, labels, p, q, rule }) {
    const x = labels[last.x];
    return {
      n: whole(last.n + 1), x, y: labels[last.y], p: probability(p[last.x]), q: probability(q[last.x]),
      a: probability(last.a), u: probability(last.u), share: probability(last.share),
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

  function drawTest({ n, law, kept, fit }) {
    const tested = fit && (fit.dof || fit.impossible);
    const pValue = !tested ? "–" : fit.impossible ? "0" : tiny(fit.pValue);
    const statistic = !tested ? "–" : fit.impossible ? "∞" : fit.statistic.toFixed(1);
    put("samples", whole(n));
    put("accepted", n ? probability(sumOf(kept) / n) : "–", view.text("expected", { rate: probability(law.rate) }));
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
    // After a click, aloud; a single sample also scene by scene.
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

// --- the same as a table, p and q to type ---------------------------------------------------------------------------

function tablePart(view, move) {
  const columns = ["token", "p", "q", "a", "least", "too_often", "missing", "replaced", "emitted", "sampled"];
  const head = h("tr", {}, ...columns.map((name) => h("th", { scope: "col" }, view.text(`column_${name}`))));
  const body = h("tbody");
  const table = h("table", {}, h("thead", {}, head), body);
  const wide = h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": view.text("table") }, table);
  const below = h("p", { class: "sv-soft" }, view.text("table_hint"));
  const details = h("details", {}, h("summary", {}, view.text("table")), wide, below);
  let rows = [];
  let last = null;

  const field = (name, i) => {
    const input = h("input", { type: "number", min: 0, max: 1, step: "any", "data-field": `${name}${i}` });
    // A number counts once it is complete; what is no number goes back to what was.
    input.addEventListener("change", () => {
      const value = Number(input.value);
      if (input.value.trim() !== "" && Number.isFinite(value)) move(name, i, value);
      draw(last);
    });
    return input;
  };

  function draw(state) {
    last = state;
    if (!details.open) return;
    const { p, q, labels, least, law, counts, n } = state;
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
      [p, q].forEach((masses, k) => {
        const text = number4(masses[x]);
        if (inputs[k].value !== text) inputs[k].value = text;
        const name = view.text(`bar_${"pq"[k]}`, { token: labels[x] });
        inputs[k].setAttribute("aria-label", view.text("as_number", { name }));
      });
      const a = law.a[x] === null ? "–" : number4(law.a[x]);
      const values = [a, least[x], q[x] - least[x], p[x] - least[x], law.replaced?.[x] ?? "–", law.emitted[x]];
      [...values, n ? `${whole(counts[x])} (${number4(counts[x] / n)})` : "–"].forEach((value, k) => {
        setText(cells[k + 3], typeof value === "number" ? number4(value) : value);
      });
    });
  }
  view.listen(details, "toggle", () => last && draw(last));
  return { element: details, draw };
}

export default { render: framed("overlap", build) };
