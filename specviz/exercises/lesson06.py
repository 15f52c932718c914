"""The checks of 06-speedup."""

import numpy as np

from specviz.exercises import Hint, exercise
from specviz.speedup.theory import best_gamma, expected_tokens, expected_tokens_by_position, linear_cost, speedup


def _close(a, b):
    return abs(a - b) < 1e-6


def _number(value, name):
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Hint(f"{name} should be one number, not {value!r}.") from None


@exercise("06-speedup", "round-yield", todo="Draft k enters the text if the first k drafts are all accepted.")
def _(round_yield):
    # The first tells all the usual slips apart.
    for alphas in ([0.9, 0.6, 0.3], [0.7], [0.5, 0.8, 0.4, 0.9, 0.6], [1.0, 1.0, 1.0], [0.0, 0.5]):
        answer = round_yield(alphas)
        if answer is None or np.size(answer) != 2:
            raise Hint("return two numbers: (expected tokens, expected wasted drafts).")
        tokens, wasted = (_number(x, name) for x, name in zip(answer, ("the first", "the second"), strict=True))
        a, gamma = np.array(alphas), len(alphas)
        right = float(expected_tokens_by_position(a))
        known_tokens = {
            "those are the drafts that enter the text. The round emits one token more, resampled or bonus.": right - 1,
            "adding up the rates counts draft k even if one before it was rejected. Multiply the rates up to k.": 1
            + a.sum(),
            "that is the formula for equal rates, with their mean. Here each position has its own.": float(
                expected_tokens(a.mean(), gamma)
            ),
            "Π α_i is the probability that *all* are accepted. Add up Π over i ≤ k for every k.": 1 + a.prod(),
        }
        if not _close(tokens, right):
            for hint, wrong in known_tokens.items():
                if _close(tokens, wrong):
                    raise Hint(f"expected tokens: {hint}")
            raise Hint(f"expected tokens: for rates {alphas} it is {right:.3f}; you returned {tokens:.3f}.")
        known_wasted = {
            "γ - E[N] forgets that one of the N tokens was no draft.": gamma - right,
            "that is γ - Σ α_i, as if drafts behind a rejection could still enter.": gamma - a.sum(),
            "that counts the rejected draft alone. Those behind it are lost as well.": 1 - a.prod(),
            "those are the drafts that *do* enter the text.": right - 1,
        }
        if not _close(wasted, gamma + 1 - right):
            for hint, wrong in known_wasted.items():
                if _close(wasted, wrong):
                    raise Hint(f"wasted drafts: {hint}")
            raise Hint(f"wasted drafts: for rates {alphas} it is {gamma + 1 - right:.3f}; you returned {wasted:.3f}.")
    return "1 + Σ_k Π_{i≤k} α_i tokens, and γ + 1 - E[N] drafts wasted"


# α, c, slope of V, as in the notebook
_PAIRS = {"server": (0.75, 0.02, 0.0), "laptop": (0.80, 0.10, 0.10), "big_draft": (0.85, 0.60, 0.30)}


@exercise("06-speedup", "best-gamma", todo="For each pair compute the speedup at every γ from 0 to 16.")
def _(*answers):
    for answer, (name, (alpha, c, slope)) in zip(answers, _PAIRS.items(), strict=True):
        gamma = _number(answer, name)
        right = int(best_gamma(alpha, c, linear_cost(slope), max_gamma=16))
        if gamma == right:
            continue
        if gamma % 1 or not 0 <= gamma <= 16:
            raise Hint(f"{name}: γ is a whole number from 0 to 16, not {answer!r}.")
        if right == 0:
            raise Hint(
                f"{name}: at γ = {gamma:.0f} the factor is {speedup(alpha, gamma, c, linear_cost(slope)):.2f}, slower "
                "than plain decoding. γ = 0 is allowed. (α > c is enough only where V = 1.)"
            )
        if gamma == 16:
            raise Hint(f"{name}: E[N] grows with every draft. Divide it by the round's cost before you compare.")
        if slope and gamma == best_gamma(alpha, c, max_gamma=16):
            raise Hint(f"{name}: that is best with V = 1. Here verification grows: V(γ+1) = 1 + {slope:g}·γ.")
        if gamma == right - 1 or gamma == right + 1:
            raise Hint(
                f"{name}: near, and the top is flat, but one window is better than γ = {gamma:.0f}. "
                "Is it γ + 1 tokens that V counts?"
            )
        raise Hint(
            f"{name}: γ = {gamma:.0f} gives {speedup(alpha, gamma, c, linear_cost(slope)):.2f}; another is better."
        )
    return "and the last pair had better not speculate, although α > c"


_COSTS = {
    "V = 1": lambda n: 1.0,
    "V(n) = 1 + 0.2·(n - 1)": lambda n: 1 + 0.2 * (n - 1),
    "V = 1, then 1.6 from two tokens on": lambda n: 1.0 if n == 1 else 1.6,
    "V = 1 + 0.4 for every four tokens more": lambda n: 1 + 0.4 * ((n - 1) // 4),
}


@exercise("06-speedup", "break-even", todo="Set E[N] = γ·c + V(γ+1), solve for c, and take the γ that allows most.")
def _(dearest_draft):
    gammas = np.arange(1, 17)
    for name, cost in _COSTS.items():
        for alpha in (0.9, 0.5, 0.05):
            answer = _number(dearest_draft(alpha, cost), "the answer")
            tokens, verify = expected_tokens(alpha, gammas), np.array([cost(int(gamma) + 1) for gamma in gammas])
            left = (tokens - verify) / gammas
            if _close(answer, left.max()):
                continue
            one_less = (tokens - np.array([cost(int(gamma)) for gamma in gammas])) / gammas
            known = {
                "that is α, the paper's condition for V = 1. Verification costs V(γ+1) here; not 1, not V(γ).": alpha,
                "that is γ = 1 alone. A longer window may earn the cost of verification back.": left[0],
                "the target reads γ + 1 tokens in a round: V(γ+1), not V(γ).": one_less.max(),
                "verification costs V(γ+1), not 1.": ((tokens - 1) / gammas).max(),
                "that is the time left for *all* drafts of a round; c is that of one.": (tokens - verify).max(),
                "that is the γ that allows least. One that pays is enough.": left.min(),
                "negative answers are allowed: they say that even a free draft would not pay.": max(0.0, left.max()),
            }
            for hint, wrong in known.items():
                if _close(answer, wrong):
                    raise Hint(f"{name}, α = {alpha}: {hint}")
            raise Hint(f"{name}, α = {alpha}: c may be at most {left.max():.3f}; you returned {answer:.3f}.")
    if not _close(_number(dearest_draft(0.9, _COSTS["V = 1, then 1.6 from two tokens on"], 2), "the answer"), 0.555):
        raise Hint("max_gamma = 2: only the windows 1 and 2 may be tried then.")
    return "the largest (E[N] - V(γ+1)) / γ"


@exercise(
    "06-speedup", "ninety-percent", todo="expected_tokens(0.9, γ) for the first, speedup(0.9, γ, 0.05) for the second."
)
def _(least_gamma, greatest_speedup):
    gamma, factor = _number(least_gamma, "least_gamma"), _number(greatest_speedup, "greatest_speedup")
    right = 21
    if gamma == 22:
        raise Hint("least_gamma: 22 is γ + 1, the tokens of a full round; γ counts the drafts.")
    if gamma != right:
        tokens = f"γ = {gamma:.0f} gives {expected_tokens(0.9, gamma):.2f}×" if gamma >= 0 and gamma % 1 == 0 else "no"
        raise Hint(f"least_gamma: {tokens}; wanted is the smallest γ with at least 9×.")
    best = float(speedup(0.9, int(best_gamma(0.9, 0.05)), 0.05))
    if abs(factor - best) > 0.01:
        known = {
            "that is with your γ from before. Drafts cost something now, and a shorter window is better.": speedup(
                0.9, right, 0.05
            ),
            "that is the oracle's factor, which knows what will be accepted. Try the γ one by one.": 1 / (0.1 + 0.045),
            "that is γ = 1, the gain that Corollary 3.9 guarantees. Longer windows do better.": 1.9 / 1.05,
            "that is the γ. Asked for is the speedup there.": float(best_gamma(0.9, 0.05)),
        }
        for hint, wrong in known.items():
            if abs(factor - wrong) < 0.01:
                raise Hint(f"greatest_speedup: {hint}")
        raise Hint("greatest_speedup: E[N] / (γ·0.05 + 1), the largest over γ = 1, 2, 3, …")
    return f"a window of {right} for 9×, and {best:.2f}× once drafts cost a twentieth of a step"


@exercise("06-speedup", "above-expected", todo="Two lists of row numbers, from TABLE_2.")
def _(above, beyond):
    # rows of TABLE_2; spelled out here so that the check needs no widget library
    right_above, right_beyond = {0, 3, 4, 6, 7, 8, 9, 10, 11}, {3, 6, 9, 10}
    try:
        above, beyond = set(above), set(beyond)
    except TypeError:
        raise Hint("give two lists of row numbers, such as [0, 5].") from None
    if above != right_above:
        if above == right_above - {4}:
            raise Hint(
                "above: row 4 was measured as printed, but the expectation *recomputed* from its α, γ, c is lower."
            )
        if above == set(range(12)) - right_above:
            raise Hint("above: those are the rows below expectation.")
        wrong = sorted(above ^ right_above, key=str)
        raise Hint(f"above: look again at row {wrong[0]}: compare measured with speedup(α, γ, c).")
    if beyond != right_beyond:
        if beyond == {6, 9}:
            raise Hint("beyond: those exceed 1/(1-α), where drafts cost nothing. With their cost it is 1/(1-α+cα).")
        if beyond == right_above:  # those above the best fixed γ are the same rows
            raise Hint("beyond: a better γ is not the oracle. Compare with 1/(1-α+cα).")
        wrong = sorted(beyond ^ right_beyond, key=str)
        raise Hint(f"beyond: look again at row {wrong[0]}: compare measured with 1/(1-α+cα).")
    return "nine rows above, four of them beyond what any pattern of acceptance could give"
