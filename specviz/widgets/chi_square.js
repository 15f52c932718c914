// Pearson's chi-square test, as in specviz/equivalence/goodness_of_fit.py. No page is needed; a test compares them.

import { sumOf } from "./format.js";

const MIN_EXPECTED = 5;

// The chance that a chi-square variable exceeds x: the regularised upper incomplete gamma function Q(dof/2, x/2).
export function chiSquareTail(x, dof) {
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

// Cells with an expectation below 5 become one cell; while that one's is below 5 too, the next smallest joins it.
export function pool(observed, expected) {
  const possible = expected.map((_, x) => x).filter((x) => expected[x] > 0);
  const order = [...possible].sort((x, y) => expected[x] - expected[y]); // stable
  const of = (values, cells) => sumOf(cells.map((x) => values[x]));
  let rare = order.filter((x) => expected[x] < MIN_EXPECTED).length;
  while (0 < rare && rare < order.length && of(expected, order.slice(0, rare)) < MIN_EXPECTED) rare += 1;
  const groups = order.slice(rare).sort((x, y) => x - y).map((x) => [x]);
  if (rare) groups.push(order.slice(0, rare));
  return groups.map((cells) => ({ observed: of(observed, cells), expected: of(expected, cells) }));
}

export function chiSquare(counts, p) {
  const n = sumOf(counts);
  const impossible = sumOf(counts.filter((_, x) => p[x] === 0));
  const cells = pool(counts, p.map((prob) => n * prob));
  const dof = Math.max(0, cells.length - 1);
  if (impossible) return { statistic: Infinity, dof, pValue: 0, impossible };
  const statistic = dof ? sumOf(cells.map((cell) => (cell.observed - cell.expected) ** 2 / cell.expected)) : 0;
  let pValue = dof ? chiSquareTail(statistic, dof) : 1;
  // Rare tokens whose sum is expected less than 5 times would hide in the pooled cell: test them alone too.
  const rare = p.map((_, x) => x).filter((x) => n * p[x] < MIN_EXPECTED);
  const ofRare = sumOf(rare.map((x) => p[x]));
  if (0 < ofRare && n * ofRare < MIN_EXPECTED) {
    pValue = Math.min(1, pValue / 0.99, binomialTail(sumOf(rare.map((x) => counts[x])), n, ofRare) / 0.01);
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
