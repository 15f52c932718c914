// Numbers as text, alike in all widgets. No page is needed.

export const clamp = (x, least, most) => Math.min(most, Math.max(least, x));
export const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);

// A probability: two decimals, or two significant digits when it is small. A value below 1 never reads as 1.
export function probability(x) {
  if (x == null || Number.isNaN(x)) return "–";
  if (x === 0 || x === 1) return String(x);
  if (x > 0.99) return x >= 0.9999 ? ">.9999" : x.toFixed(4);
  if (x >= 0.1) return x.toFixed(2);
  return x < 0.0001 ? x.toExponential(0) : String(Number(x.toPrecision(2)));
}

// As in the figures: a number between 0 and 1 without its leading zero.
export const dotted = (text) => text.replace(/^0\./, ".");

export function short(x) {
  if (x > 0 && x < 0.0001) return "<.0001";
  return dotted(x > 0 && x < 0.001 ? x.toFixed(4) : probability(x));
}

// A probability above a bar: two decimals. A value between 0 and 1 never reads as 0 or 1.
export function share(x) {
  if (x === 0 || x === 1) return String(x);
  return x < 0.005 ? "<.01" : x >= 0.995 ? ">.99" : dotted(x.toFixed(2));
}

export const thousandths = (x) => dotted(x.toFixed(3));
export const rounded = (x, decimals) => String(Number(x.toFixed(decimals)));
export const whole = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");

// A time in seconds, as text.
export function duration(seconds) {
  if (seconds < 0.01) return `${(1000 * seconds).toFixed(1)} ms`;
  return seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(2)} s`;
}

// The first of these axis ends that leaves room for x: axes stand still while x moves a little.
export const firstAbove = (ends, x) => ends.find((end) => end >= x) ?? ends.at(-1);
