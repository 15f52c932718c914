// The replay of a trace: its rounds and steps, other coins, and the text that follows. No page is needed.

import { clamp } from "./format.js";

// --- rounds and coins --------------------------------------------------------------------------------------------

// One step for each draft, one for the target's forward, one for each coin that is compared, one for the round's end.
export const stepsOf = (round) => round.draft.length + 1 + round.tested + 1;

export function tokensOf({ draft, accepted, next }) {
  return [...draft.slice(0, accepted), ...(next === null ? [] : [next])];
}

// A round, given by its number, with other coins: Algorithm 1 once more. No model is needed, since the recording has
// the token that follows a rejection at each position, and the one that follows a full acceptance.
function replay(data, number, coins) {
  const round = data.rounds[number];
  const u = round.coins.map((recorded, i) => coins[i] ?? recorded);
  let accepted = 0;
  while (accepted < round.draft.length && u[accepted] !== null && u[accepted] < round.a[accepted]) accepted += 1;
  const end = endOf(data, data.rounds.slice(0, number).flatMap(tokensOf), round.draft.slice(0, accepted));
  if (end >= 0) {
    return { ...round, coins: u, accepted: end + 1, tested: end + 1, next: null, outcome: "ended" };
  }
  const all = accepted === round.draft.length;
  const unknown = !all && u[accepted] === null; // the recording may have no coin here
  return {
    ...round,
    coins: u,
    accepted,
    tested: all ? accepted : accepted + 1,
    next: unknown ? null : all ? round.if_all : round.if_rejected[accepted],
    outcome: unknown ? "unknown" : all ? "bonus" : "resampled",
  };
}

// All rounds that can be shown, each token's share of the text, and the totals before each round. A round with a
// changed coin is the last one: the recorded rounds after it no longer follow.
export function planOf(data, whatIf) {
  let { rounds, parts } = data;
  const altered = whatIf.coins && whatIf.round < rounds.length ? whatIf.round : null;
  if (altered !== null) {
    rounds = [...rounds.slice(0, altered), replay(data, altered, whatIf.coins)];
    parts = partsOf(data, rounds.flatMap(tokensOf));
    const end = stopIn(data, parts.join(""));
    if (end >= 0) parts = cutParts(parts, end);
  }
  let token = 0;
  parts = rounds.map((round) => parts.slice(token, (token += tokensOf(round).length)));
  const before = [{ steps: 0, tokens: 0, forwards: 0, accepted: 0, tested: 0, seconds: 0 }];
  for (const round of rounds) {
    const sum = before.at(-1);
    before.push({
      steps: sum.steps + stepsOf(round),
      tokens: sum.tokens + tokensOf(round).length,
      forwards: sum.forwards + round.forwards,
      accepted: sum.accepted + round.accepted,
      tested: sum.tested + round.tested,
      seconds: sum.seconds + round.seconds.reduce((a, b) => a + b),
    });
  }
  return { rounds, parts, before, altered, finish: data.finish, total: before.at(-1).steps };
}

// The stage at a position: its round, and how many of the round's drafts, forwards and coins are done.
export function stageAt(plan, position) {
  const at = clamp(position, 0, plan.total);
  let low = 0; // becomes the last round that begins before this position
  let high = plan.rounds.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (plan.before[middle].steps < at) low = middle;
    else high = middle - 1;
  }
  const round = plan.rounds[low];
  const step = at - plan.before[low].steps;
  const drafts = round.draft.length;
  return {
    number: low,
    round,
    step,
    drafted: Math.min(step, drafts),
    swept: step > drafts,
    tossed: clamp(step - drafts - 1, 0, round.tested),
    done: step === stepsOf(round),
    phase: step === 0 ? "start" : step <= drafts ? "draft" : step === drafts + 1 ? "target"
      : step < stepsOf(round) ? "coins" : "end",
  };
}

// Measured seconds and counts at a stage; within a phase, time passes evenly.
export function countsAt(plan, stage) {
  const { round, drafted, swept, tossed, done } = stage;
  const sum = plan.before[stage.number];
  const [draft, target, verify, commit] = round.seconds;
  const share = (part, whole) => (whole ? part / whole : done ? 1 : 0);
  const drafts = round.draft.length ? share(drafted, round.draft.length) : swept ? 1 : 0;
  return {
    seconds: sum.seconds + draft * drafts + (swept ? target : 0) + verify * share(tossed, round.tested)
      + (done ? commit : 0),
    target: stage.number + (swept ? 1 : 0),
    draft: sum.forwards + Math.round(round.forwards * drafts),
    tokens: done ? plan.before[stage.number + 1].tokens : sum.tokens,
    accepted: sum.accepted + Math.min(tossed, round.accepted),
    tested: sum.tested + tossed,
  };
}

// The first step that is reached after so many measured seconds.
export function positionAfter(plan, seconds) {
  let low = 0;
  let high = plan.total;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (countsAt(plan, stageAt(plan, middle)).seconds <= seconds) low = middle;
    else high = middle - 1;
  }
  return low;
}

// The position where the next phase ends, or the previous one (step 0 of a round is the end of the round before).
export function phaseFrom(plan, position, direction) {
  const ends = (round) => {
    const drafts = round.draft.length;
    return [...new Set([drafts, drafts + 1, drafts + 1 + round.tested, stepsOf(round)])].filter((end) => end > 0);
  };
  const { number, round, step } = stageAt(plan, position);
  const start = plan.before[number].steps;
  if (direction < 0) return start + (ends(round).findLast((end) => end < step) ?? 0);
  const ahead = ends(round).find((end) => end > step);
  if (ahead !== undefined) return start + ahead;
  const following = plan.rounds[number + 1];
  return following ? start + step + ends(following)[0] : plan.total;
}

export function roundFrom(plan, position, direction) {
  const { number, step, done } = stageAt(plan, position);
  if (direction > 0) return plan.before[Math.min(number + (done ? 2 : 1), plan.rounds.length)].steps;
  return plan.before[step > 0 ? number : Math.max(0, number - 1)].steps;
}

// The column that a stage is about.
export function focusOf({ round, phase, drafted, tossed }) {
  if (phase === "draft") return drafted - 1;
  if (phase === "coins") return tossed - 1;
  if (phase !== "end") return 0;
  return round.outcome === "ended" ? round.accepted - 1 : round.accepted;
}

// The state of draft i at a stage: waiting, drafted, open (its A is known), accepted, rejected or unreached.
export function fateOf({ round, drafted, swept, tossed, done }, i) {
  if (i >= drafted) return "waiting";
  if (!swept) return "drafted";
  if (i < tossed) return i < round.accepted ? "accepted" : "rejected";
  return tossed === round.tested || done ? "unreached" : "open";
}

// --- tokens as text ----------------------------------------------------------------------------------------------

const SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉";
export const sub = (n) => String(n).replace(/\d/g, (digit) => SUBSCRIPTS[digit]);
const hex = (byte) => `‹${byte.toString(16).padStart(2, "0")}›`;

// A token as a label: a space as ␣, a line break as ↵, invisible characters and parts of characters in hex.
export function labelOf(data, id) {
  const piece = data.pieces[id];
  if (!data.spoken) return String(id);
  if (Array.isArray(piece)) return piece.map(hex).join("");
  if (!piece) return `#${id}`;
  const named = piece.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥");
  return named.replace(/[\p{C}\p{Z}]/gu, (character) => hex(character.codePointAt(0)));
}

// The share of each id in the text. A character belongs to the id that completes it; an end token has none.
export function partsOf(data, ids) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const encoder = new TextEncoder();
  return ids.map((id, i) => {
    const piece = (data.spoken && data.eos.includes(id) ? null : data.pieces[id]) ?? "";
    const bytes = typeof piece === "string" ? encoder.encode(piece) : Uint8Array.from(piece);
    return decoder.decode(bytes, { stream: i < ids.length - 1 });
  });
}

function cutParts(parts, room) {
  return parts.map((part) => {
    const kept = part.slice(0, Math.max(0, room));
    room -= part.length;
    return kept;
  });
}

// Where the first stop string begins in a text, or -1.
function stopIn(data, text) {
  const found = data.stop.map((stop) => text.indexOf(stop)).filter((at) => at >= 0);
  return found.length ? Math.min(...found) : -1;
}

// The first draft, behind the tokens before, that ends the text: an end token or the end of a stop string; or -1.
function endOf(data, before, drafts) {
  const stops = (i) => stopIn(data, partsOf(data, [...before, ...drafts.slice(0, i + 1)]).join("")) >= 0;
  return drafts.findIndex((token, i) => data.eos.includes(token) || (data.stop.length > 0 && stops(i)));
}
