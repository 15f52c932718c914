"""The yield of a round, its cost, and the speedup that follows: the paper's section 3 and appendix A.

Arguments are numbers or arrays, which broadcast against each other; results are float64 (best_gamma: integers).
Times are in target steps: 1 is the target's time for one token. The formulas hold at alpha = 0 and 1 too.

    alpha        acceptance rate, in [0, 1]
    gamma        drafts a round, a whole number >= 0 (0 is plain decoding)
    c            time of a draft step, in target steps, >= 0
    verify_cost  V(gamma+1), the time of the target's forward over gamma+1 tokens, in target steps, > 0: numbers,
                 or a function of n = gamma+1. The paper has V = 1 throughout; linear_cost() gives one that grows

Arguments outside of these ranges raise a ValueError that names them.
"""

from __future__ import annotations

import numpy as np

_TINY = np.finfo(np.float64).tiny  # "above 0" begins here


def expected_tokens(alpha, gamma):
    """E[N], tokens a round: (1 - α^(γ+1)) / (1 - α), acceptances being independent with rate α (Eq. 1).

    The number of tokens is a geometric variable capped at γ + 1. At α = 1 it is γ + 1.
    """
    alpha, gamma = _alpha(alpha), _gamma(gamma)
    with np.errstate(divide="ignore", invalid="ignore"):  # log 0, and 0/0 where alpha is 1
        # expm1 keeps the digits that 1 - alpha**(gamma+1) loses near alpha = 1.
        tokens = -np.expm1((gamma + 1) * np.log(alpha)) / (1 - alpha)
    return np.where(alpha == 1, gamma + 1, tokens)[()]


def expected_tokens_by_position(alphas):
    """E[N] where acceptance differs by draft position: 1 + Σ_k Π_{i<=k} α_i.

    alphas [..., γ]: the rate at each position, given that all before it were accepted -> [...]. With equal rates
    this is expected_tokens(). A rate that falls with the position makes long windows pay less than their mean says.
    """
    alphas = np.atleast_1d(_alpha(alphas, "alphas"))
    return (1 + np.cumprod(alphas, axis=-1).sum(-1))[()]


def wasted_drafts(alpha, gamma):
    """Drafts of a round that do not enter the text, on average: γ - (E[N] - 1)."""
    return _gamma(gamma) + 1 - expected_tokens(alpha, gamma)


def round_cost(gamma, c, verify_cost=1.0):
    """Time of a round in target steps: γ·c + V(γ+1)."""
    gamma, c = _gamma(gamma), _number(c, "c", 0, "a time ratio, >= 0")
    return (gamma * c + _verify_cost(verify_cost, gamma + 1))[()]


def speedup(alpha, gamma, c, verify_cost=1.0):
    """Times faster than plain decoding: E[N] / (γ·c + V(γ+1)); with V = 1 this is Theorem 3.8.

    Below 1 speculation is slower. For rates by position divide expected_tokens_by_position() by round_cost().
    """
    return expected_tokens(alpha, gamma) / round_cost(gamma, c, verify_cost)


def operations(alpha, gamma, c_hat=0.0):
    """Factor by which arithmetic operations grow: (γ·ĉ + γ + 1) / E[N] (Theorem 3.11).

    c_hat: operations of a draft step over those of a target step, >= 0.
    """
    gamma, c_hat = _gamma(gamma), _number(c_hat, "c_hat", 0, "a ratio of operations, >= 0")
    return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def best_gamma(alpha, c, verify_cost=1.0, *, max_gamma=100):
    """The window with the greatest speedup among 0 .. max_gamma (section 3.5); 0 means: do not speculate.

    verify_cost: a constant, or a function of n = γ+1. Of equally good windows the shortest. The result is
    max_gamma where the speedup still grows there, as it does for a draft that costs nothing.
    """
    limit = _gamma(max_gamma, "max_gamma")
    if limit.ndim:
        raise ValueError(f"max_gamma={max_gamma!r}: must be one whole number >= 0.")
    gamma = np.arange(int(limit) + 1)
    if not callable(verify_cost):
        verify_cost = np.asarray(verify_cost)[..., None]
    # gamma runs along an axis of its own, the last
    factors = speedup(_alpha(alpha)[..., None], gamma, np.asarray(c)[..., None], verify_cost)
    factors[..., 0] = 1.0  # without drafts it is plain decoding, whatever verify_cost says of one token
    return np.argmax(factors, axis=-1)


def oracle_tokens(alpha):
    """Tokens a target step when the number of acceptances is known in advance: 1 / (1 - α); inf at α = 1."""
    with np.errstate(divide="ignore"):
        return (1 / (1 - _alpha(alpha)))[()]


def oracle_speedup(alpha, c, slope=0.0):
    """The same for time: 1 / (1 - α + (c + slope)·α), which no choice of γ > 0 can exceed (section 3.5).

    The oracle drafts all that will be accepted and nothing else; where c + slope > 1 even that is slower than plain
    decoding. slope is the growth of V, see linear_cost(); the paper has 0. inf at alpha = 1 with free drafts.
    """
    alpha = _alpha(alpha)
    c, slope = (_number(x, name, 0, "a time ratio, >= 0") for x, name in ((c, "c"), (slope, "slope")))
    with np.errstate(divide="ignore"):
        return (1 / (1 - alpha + (c + slope) * alpha))[()]


def least_alpha(c, verify_two=1.0):
    """The α above which γ = 1 is faster than plain decoding: c + V(2) - 1.

    With V = 1 that is α > c; then the gain is at least (1 + α)/(1 + c), and for α <= c no γ gains (Corollary 3.9).
    Where V grows by equal steps the same holds; where V jumps at two tokens and stays flat, a longer window may gain
    although γ = 1 does not. A result above 1 means that no draft is good enough for γ = 1.
    """
    verify_two = _number(verify_two, "verify_two", _TINY, "the time of two tokens in target steps, > 0")
    return (_number(c, "c", 0, "a time ratio, >= 0") + (verify_two - 1))[()]


def linear_cost(slope):
    """A verification cost V(n) = 1 + slope·(n - 1), as a function of n; slope in target steps a token, >= 0."""
    slope = _number(slope, "slope", 0, "the growth of V in target steps a token, >= 0")
    return lambda n: 1 + slope * (np.asarray(n) - 1)


def non_iterative_acceptance(p, q):
    """Acceptance of plain rejection sampling, which proposes from q until one is accepted (A.2).

    p, q [..., V] -> [...]: Σ_x p(x)·min_x' q(x')/p(x'), never more than the overlap Σ min(p, q).
    """
    p, q = _distribution(p, "p"), _distribution(q, "q")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(p > 0, q / p, np.inf)
    return ratio.min(-1)[()]


def lenient_acceptance(p, q, lenience):
    """Acceptance when the test is against lenience·q, lenience in (0, 1]: Σ min(p/l, q) (A.5).

    p, q [..., V] -> [...]. Below 1 the output does not follow p; only P(x) <= p(x)/l holds.
    """
    lenience = _number(lenience, "lenience", _TINY, "in (0, 1]; 1 is exact", most=1)
    return np.minimum(_distribution(p, "p") / lenience[..., None], _distribution(q, "q")).sum(-1)[()]


# --- arguments ----------------------------------------------------------------------------------


def _number(value, name, least, says, most=np.inf):
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r}: must be a number or an array of numbers, {says}.") from None
    sound = np.isfinite(numbers) & (numbers >= least) & (numbers <= most)
    if not sound.all():
        shown = value if numbers.ndim == 0 else float(numbers[~sound][0])
        raise ValueError(f"{name}={shown!r}: must be {says}.")
    return numbers


def _alpha(value, name="alpha"):
    return _number(value, name, 0, "an acceptance rate in [0, 1]", most=1)


def _gamma(value, name="gamma"):
    gamma = _number(value, name, 0, "a whole number >= 0 (0 is plain decoding)")
    if (gamma % 1 != 0).any():
        raise ValueError(f"{name}={value!r}: must be a whole number >= 0 (0 is plain decoding).")
    return gamma


def _verify_cost(value, n):
    called = value(n) if callable(value) else value
    return _number(called, "verify_cost", _TINY, "V(gamma+1) in target steps, > 0, or a function that gives it")


def _distribution(value, name):
    probs = _number(value, name, 0, "probabilities, >= 0")
    if probs.ndim == 0 or not np.allclose(probs.sum(-1), 1, atol=1e-6):
        raise ValueError(f"{name} sums to {probs.sum(-1)}: must be probabilities that sum to 1 along the last axis.")
    return probs
