// The formulas of specviz/speedup/theory.py, whose equations stand there. Times are in target steps: 1 is the target's
// time for one token. No page is needed; a test compares both files over a grid.

// E[N] = 1 + α + … + α^γ, summed from the inside: no 0/0 at α = 1.
export function expectedTokens(alpha, gamma) {
  let tokens = 1;
  for (let i = 0; i < gamma; i++) tokens = 1 + alpha * tokens;
  return tokens;
}

export const wastedDrafts = (alpha, gamma) => gamma + 1 - expectedTokens(alpha, gamma);
export const verifyCost = (slope, n) => 1 + slope * (n - 1);
export const roundCost = (gamma, c, slope) => gamma * c + verifyCost(slope, gamma + 1);
export const speedup = (alpha, gamma, c, slope) => expectedTokens(alpha, gamma) / roundCost(gamma, c, slope);
export const operations = (alpha, gamma, cHat) => (gamma * cHat + gamma + 1) / expectedTokens(alpha, gamma);
export const oracleSpeedup = (alpha, c, slope) => 1 / (1 - alpha + (c + slope) * alpha);
export const leastAlpha = (c, slope) => c + (verifyCost(slope, 2) - 1);

// The γ of the highest speedup, the smallest of equals; 0 where no γ is faster than plain decoding.
export function bestGamma(alpha, c, slope, maxGamma) {
  let best = 0;
  for (let gamma = 1; gamma <= maxGamma; gamma++) {
    if (speedup(alpha, gamma, c, slope) > (best ? speedup(alpha, best, c, slope) : 1)) best = gamma;
  }
  return best;
}
