"""The checks of 06-speedup."""

import numpy as np

from specviz.exercises import exercise
from specviz.exercises.answers import Hint, ids, judge, number, parts, whole
from specviz.speedup.theory import best_gamma, expected_tokens, expected_tokens_by_position, linear_cost, speedup


@exercise("06-speedup", "round-yield", todo="Draft k enters the text if the first k drafts are all accepted.")
def _(round_yield):
    # The first tells all the usual slips apart.
    for alphas in ([0.9, 0.6, 0.3], [0.7], [0.5, 0.8, 0.4, 0.9, 0.6], [1.0, 1.0, 1.0], [0.0, 0.5]):
        tokens, wasted = map(number, parts(round_yield(alphas), "expected tokens", "expected wasted drafts"))
        a, gamma = np.array(alphas), len(alphas)
        right = expected_tokens_by_position(a)
        judge(tokens, right, {
            "those are the drafts that enter the text. The round emits one token more, resampled or bonus.": right - 1,
            "a sum of rates counts draft k even if one before was rejected. Multiply the rates up to k.": 1 + a.sum(),
            "that is the formula for equal rates. Here each position has its own.": expected_tokens(a.mean(), gamma),
            "Π α_i is the probability that *all* are accepted. Add up Π over i ≤ k for every k.": 1 + a.prod(),
        }, f"for rates {alphas} it is {right:.3f}; you returned {tokens:.3f}.", "expected tokens: ")  # fmt: skip
        lost = gamma + 1 - right
        judge(wasted, lost, {
            "γ - E[N] forgets that one of the N tokens was no draft.": gamma - right,
            "that is γ - Σ α_i, as if drafts behind a rejection could still enter.": gamma - a.sum(),
            "that counts the rejected draft alone. Those behind it are lost as well.": 1 - a.prod(),
            "those are the drafts that *do* enter the text.": right - 1,
        }, f"for rates {alphas} it is {lost:.3f}; you returned {wasted:.3f}.", "wasted drafts: ")  # fmt: skip
    return "1 + Σ_k Π_{i≤k} α_i tokens, and γ + 1 - E[N] drafts wasted"


# α, c, slope of V, as in the notebook
_PAIRS = {"server": (0.75, 0.02, 0.0), "laptop": (0.80, 0.10, 0.10), "big_draft": (0.85, 0.60, 0.30)}


@exercise("06-speedup", "best-gamma", todo="For each pair compute the speedup at every γ from 0 to 16.")
def _(*answers):
    for answer, (name, (alpha, c, slope)) in zip(answers, _PAIRS.items(), strict=True):
        gamma = whole(answer, "a whole number from 0 to 16", where=f"{name}: ")
        right = int(best_gamma(alpha, c, linear_cost(slope), max_gamma=16))
        if gamma == right:
            continue
        if not 0 <= gamma <= 16:
            raise Hint(f"{name}: γ is a whole number from 0 to 16, not {answer!r}.")
        factor = speedup(alpha, gamma, c, linear_cost(slope))
        if right == 0:
            raise Hint(f"{name}: at γ = {gamma} the factor is {factor:.2f}, slower than plain decoding. γ = 0 is "
                       "allowed. (α > c is enough only where V = 1.)")  # fmt: skip
        if gamma == 16:
            raise Hint(f"{name}: E[N] grows with every draft. Divide it by the round's cost before you compare.")
        if slope and gamma == best_gamma(alpha, c, max_gamma=16):
            raise Hint(f"{name}: that is best with V = 1. Here verification grows: V(γ+1) = 1 + {slope:g}·γ.")
        if abs(gamma - right) == 1:
            raise Hint(f"{name}: near, and the top is flat, but one window is better than γ = {gamma}. "
                       "Is it γ + 1 tokens that V counts?")  # fmt: skip
        raise Hint(f"{name}: γ = {gamma} gives {factor:.2f}; another is better.")
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
            answer, tokens = number(dearest_draft(alpha, cost)), expected_tokens(alpha, gammas)
            v, v_drafts = (np.array([cost(int(gamma) + more) for gamma in gammas]) for more in (1, 0))
            left = (tokens - v) / gammas
            judge(answer, left.max(), {
                "that is α, the paper's condition for V = 1. Verification costs V(γ+1) here; not 1, not V(γ).": alpha,
                "that is γ = 1 alone. A longer window may earn the cost of verification back.": left[0],
                "the target reads γ + 1 tokens in a round: V(γ+1), not V(γ).": ((tokens - v_drafts) / gammas).max(),
                "verification costs V(γ+1), not 1.": ((tokens - 1) / gammas).max(),
                "that is the time left for *all* drafts of a round; c is that of one.": (tokens - v).max(),
                "that is the γ that allows least. One that pays is enough.": left.min(),
                "negative answers are allowed: they say that even a free draft would not pay.": max(0.0, left.max()),
            }, f"c may be at most {left.max():.3f}; you returned {answer:.3f}.", f"{name}, α = {alpha}: ")  # fmt: skip
    two = number(dearest_draft(0.9, _COSTS["V = 1, then 1.6 from two tokens on"], 2))
    judge(two, 0.555, otherwise="max_gamma = 2: only the windows 1 and 2 may be tried then.")
    return "the largest (E[N] - V(γ+1)) / γ"


@exercise("06-speedup", "ninety-percent",
          todo="expected_tokens(0.9, γ) for the first, speedup(0.9, γ, 0.05) for the second.")  # fmt: skip
def _(least_gamma, greatest_speedup):
    gamma, factor = number(least_gamma, where="least_gamma: "), number(greatest_speedup, where="greatest_speedup: ")
    right, best = 21, best_gamma(0.9, 0.05)
    tokens = f"γ = {gamma:.0f} gives {expected_tokens(0.9, gamma):.2f}×" if gamma >= 0 and gamma % 1 == 0 else "no"
    judge(gamma, right, {
        "22 is γ + 1, the tokens of a full round; γ counts the drafts.": 22,
    }, f"{tokens}; wanted is the smallest γ with at least 9×.", "least_gamma: ")  # fmt: skip
    most = float(speedup(0.9, best, 0.05))
    judge(factor, most, {
        "that is with your γ from before. Now drafts cost: a shorter window is better.": speedup(0.9, right, 0.05),
        "that is the oracle's factor, which knows what will be accepted. Try the γ one by one.": 1 / (0.1 + 0.045),
        "that is γ = 1, the gain that Corollary 3.9 guarantees. Longer windows do better.": 1.9 / 1.05,
        "that is the γ. Asked for is the speedup there.": best,
    }, "E[N] / (γ·0.05 + 1), the largest over γ = 1, 2, 3, …", "greatest_speedup: ", atol=0.01)  # fmt: skip
    return f"a window of {right} for 9×, and {most:.2f}× once drafts cost a twentieth of a step"


@exercise("06-speedup", "above-expected", todo="Two lists of row numbers, from TABLE_2.")
def _(above, beyond):
    # rows of TABLE_2; spelled out here so that the check needs no widget library
    right_above, right_beyond = {0, 3, 4, 6, 7, 8, 9, 10, 11}, {3, 6, 9, 10}
    lists = "a list of row numbers, such as [0, 5],"
    above, beyond = set(ids(above, lists)), set(ids(beyond, lists))
    if above == right_above - {4}:
        raise Hint("above: row 4 was measured as printed, but the expectation *recomputed* from its α, γ, c is lower.")
    if above == set(range(12)) - right_above:
        raise Hint("above: those are the rows below expectation.")
    if wrong := sorted(above ^ right_above):
        raise Hint(f"above: look again at row {wrong[0]}: compare measured with speedup(α, γ, c).")
    if beyond == {6, 9}:
        raise Hint("beyond: those exceed 1/(1-α), where drafts cost nothing. With their cost it is 1/(1-α+cα).")
    if beyond == right_above:  # those above the best fixed γ are the same rows
        raise Hint("beyond: a better γ is not the oracle. Compare with 1/(1-α+cα).")
    if wrong := sorted(beyond ^ right_beyond):
        raise Hint(f"beyond: look again at row {wrong[0]}: compare measured with 1/(1-α+cα).")
    return "nine rows above, four of them beyond what any pattern of acceptance could give"
