// Rules of acceptance at one position: the distribution of the emitted token, exactly and by sampling. No page is
// needed. As in specviz/verification.py and specviz/equivalence/mutants.py; a test compares them.

import { sumOf } from "./format.js";
import { uniforms } from "./seeded.js";

export const acceptProbability = (p, q) => (p === 0 ? 0 : Math.min(1, p / q));

// p' = max(0, p - q) / Z; where p and q are equal, p.
export function residual(p, q) {
  const missing = p.map((prob, x) => Math.max(0, prob - q[x]));
  const z = sumOf(missing);
  return z === 0 ? [...p] : missing.map((part) => part / z);
}

function softmax(values) {
  const most = Math.max(...values);
  const powers = values.map((value) => Math.exp(value - most));
  const total = sumOf(powers);
  return powers.map((power) => power / total);
}

// accept: the probability that a draft x is kept. replace: the distribution of the token in its place otherwise.
// exact: whether the emitted token has distribution p for every q. how, from: keys of texts.json.
export const RULES = {
  right: { exact: true, accept: acceptProbability, replace: residual, how: "ratio", from: "residual" },
  sample_and_match: {
    exact: true,
    accept: (p) => p, // one draw from p; the draft is kept if it is the same token
    replace: (p, q, x) => residual(p, p.map((_, y) => (y === x ? 1 : 0))),
    byDraft: true, // replace depends on x
    how: "match",
    from: "others",
  },
  resample_from_p: { accept: acceptProbability, replace: (p) => p, how: "ratio", from: "target" },
  softmax_the_residual: {
    accept: acceptProbability,
    replace: (p, q) => softmax(p.map((prob, x) => Math.max(0, prob - q[x]))),
    how: "ratio",
    from: "softmax",
  },
  swap_p_and_q: { accept: (p, q) => acceptProbability(q, p), replace: residual, how: "swapped", from: "residual" },
  accept_everything: { accept: () => 1, replace: residual, how: "always", from: "residual" },
  compare_coarse_coins: {
    accept: (p, q) => Math.min(1, (Math.floor((p / q) * 256) + 1) / 256), // u <= p/q, and u has 8 bits
    replace: residual,
    how: "coarse",
    from: "residual",
  },
};

// The exact distribution of the emitted token, by path. replaced: that of the token after a rejection, null if every
// draft is accepted. rate: of acceptance. wrong: the total variation distance between emitted and p.
export function outcomeOf(rule, p, q) {
  const { accept, replace, byDraft } = RULES[rule];
  const forAll = byDraft ? null : replace(p, q);
  const a = p.map((prob, x) => (q[x] === 0 ? null : accept(prob, q[x]))); // never drafted: never tested
  const accepted = q.map((prob, x) => prob * a[x]);
  const corrected = p.map(() => 0);
  q.forEach((prob, x) => {
    const rejected = prob - accepted[x];
    if (rejected > 0) (forAll ?? replace(p, q, x)).forEach((part, y) => (corrected[y] += rejected * part));
  });
  const z = sumOf(corrected);
  const emitted = accepted.map((prob, x) => prob + corrected[x]);
  return {
    a,
    accepted,
    corrected,
    emitted,
    rate: sumOf(accepted),
    replaced: z < 1e-12 ? null : corrected.map((prob) => prob / z), // less is rounding
    wrong: sumOf(emitted.map((prob, x) => Math.abs(prob - p[x]))) / 2,
  };
}

// The distribution base with entry i set to value; the others keep their proportions, or are equal where all were 0.
export function withBar(base, i, value) {
  const others = sumOf(base) - base[i];
  const even = !base.some((prob, j) => j !== i && prob > 0);
  const factor = even ? 0 : (1 - value) / others;
  return base.map((prob, j) => (j === i ? value : even ? (1 - value) / (base.length - 1) : prob * factor));
}

// u in [0, 1) -> the token by the inverse of the cumulative distribution; never one of probability 0.
function picker(probs) {
  let total = 0;
  const cumulative = probs.map((prob) => (total += prob));
  const last = cumulative.findIndex((sum) => sum >= total);
  return (u) => {
    let token = 0;
    while (token < last && cumulative[token] <= u * total) token += 1;
    return token;
  };
}

// n -> sample n, one round at one position: draft x, its coin u against a, the emitted token y.
export function sampler(rule, p, q, seed) {
  const { accept, replace } = RULES[rule];
  const pickDraft = picker(q);
  const [replacements, pickers] = [[], []]; // for a rejected x
  return (n) => {
    const { draft, coin, next } = uniforms(seed, n);
    const x = pickDraft(draft);
    const a = accept(p[x], q[x]);
    if (coin < a) return { n, x, u: coin, a, accepted: true, y: x };
    replacements[x] ??= replace(p, q, x);
    pickers[x] ??= picker(replacements[x]);
    const y = pickers[x](next);
    return { n, x, u: coin, a, accepted: false, y, prob: replacements[x][y] };
  };
}
