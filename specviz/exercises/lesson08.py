"""The checks of 08-hardware, and results that were stored because not every machine can repeat them."""

import json
from pathlib import Path

import numpy as np

from specviz.exercises import Hint, exercise
from specviz.speedup import theory

# {layout: {rows: microseconds}} of twelve products with a 256 x 1,376 matrix in float32, one reading, 2026-11-29
STORED_LAYOUTS = {
    "about": "a 2-core x86-64 with AVX2, both cores, torch 2.13",
    "stored, as in nn.Linear": {1: 1035, 2: 2125, 5: 1623, 9: 2203, 16: 2424},
    "transposed": {1: 509, 2: 997, 5: 1119, 9: 1923, 16: 1892},
    "packed by oneDNN": {1: 779, 2: 729, 5: 823, 9: 954, 16: 1593},
}


def stored_batches() -> dict:
    """What benchmarks/batch.py measured, and where: seconds by phase over the batch size."""
    return json.loads(Path(__file__).with_name("lesson08_batch.json").read_text(encoding="utf-8"))


# --- the roofline ---------------------------------------------------------------------------------


@exercise("08-hardware", "roofline-v", todo="Write t(n, B) as the larger of two times, then divide by t(1, B).")
def _(roofline_V):
    settings = [  # n, B, W, K, P, bandwidth, flops
        (5, 1, 14e9, 5e8, 7e9, 2e12, 3e14),
        (5, 64, 14e9, 5e8, 7e9, 2e12, 3e14),
        (4, 256, 14e9, 1e6, 7e9, 2e12, 3e14),
        (9, 16, 3e7, 1e5, 7.5e6, 1.5e10, 1.8e11),
        (2, 300, 14e9, 1e8, 7e9, 2e12, 3e14),
        (1, 512, 14e9, 1e7, 7e9, 2e12, 3e14),
    ]
    for setting in settings:
        _judge_v(roofline_V(*setting), *setting)
    return "flat while there is something to wait for, n times as long where there is not"


def _judge_v(answer, n, B, W, K, P, bandwidth, flops):
    if answer is None:
        raise Hint("return a number, t(n, B) / t(1, B).")

    def moving(rows, per_row=True):
        return (W + (rows * K if per_row else K)) / bandwidth

    def computing(rows):
        return 2 * P * rows / flops

    def t(n, rows):
        return max(moving(rows), computing(n * rows))

    right = t(n, B) / t(1, B)
    if np.isclose(float(answer), right, rtol=1e-6):
        return
    known = {
        "that is a time. V compares it with the same batch's forward over one token: divide by t(1, B).": t(n, B),
        "V compares with plain decoding of the *same batch*: divide by t(1, B), not by t(1, 1).": t(n, B) / t(1, 1),
        "the two go on at the same time: take the larger one, not the sum.": (
            (moving(B) + computing(n * B)) / (moving(B) + computing(B))
        ),
        "all B rows compute n tokens each: 2·P·n·B operations.": (
            max(moving(B), computing(n)) / max(moving(B), computing(1))
        ),
        "each of the B rows has a KV cache of its own to move: W + B·K.": (
            max(moving(B, False), computing(n * B)) / max(moving(B, False), computing(B))
        ),
        "the KV cache is read once for all n tokens of a row: W + B·K, without n.": (
            max(moving(n * B), computing(n * B)) / max(moving(B), computing(B))
        ),
        "the KV cache is missing among what is moved: W + B·K.": (
            max(W / bandwidth, computing(n * B)) / max(W / bandwidth, computing(B))
        ),
        "a token takes two operations a parameter, a product and a sum: 2·P·n·B.": (
            max(moving(B), computing(n * B) / 2) / max(moving(B), computing(B) / 2)
        ),
    }
    for hint, wrong in known.items():
        if np.isclose(float(answer), wrong, rtol=1e-6):
            raise Hint(hint)
    raise Hint(f"at n = {n} and B = {B} an example has V = {right:.4g}; you returned {float(answer):.4g}.")


# --- memory ---------------------------------------------------------------------------------------


@exercise("08-hardware", "rows-that-fit", todo="What is left beside the weights, over the bytes of one row.")
def _(rows_that_fit):
    GB = 10**9
    settings = [  # memory, weights (target, draft), KV bytes a token (target, draft), text, γ
        (10_000, (1000, 500), (10, 2), 3, 1),
        (80 * GB, (14 * GB, 2 * GB), (524_288, 32_768), 4096, 4),
        (80 * GB, (14 * GB, 2 * GB), (524_288, 32_768), 4096, 0),
        (24 * GB, (14 * GB, 1 * GB), (131_072, 16_384), 1000, 7),
        (141 * GB, (140 * GB, 2 * GB), (327_680, 32_768), 4096, 3),
        (141 * GB, (140 * GB, 2 * GB), (327_680, 32_768), 4096, 0),
    ]
    for setting in settings:
        _judge_rows(rows_that_fit(*setting), *setting)
    return "γ + 1 tokens cost a row next to nothing; a second model costs rows"


def _judge_rows(answer, memory, weights, kv, text, gamma):
    if answer is None:
        raise Hint("return a whole number of rows.")

    def rows(weights, a_token, tokens):
        return (memory - weights) / (a_token * tokens)

    both, tape = (sum(weights), sum(kv)), text + gamma + 1
    exact = rows(*both, tape) if gamma else rows(weights[0], kv[0], text + 1)
    right = max(0, int(exact // 1))
    where = f"memory {memory:,}, weights {weights}, KV {kv}, text {text}, γ = {gamma}"
    if float(answer) == right:
        return
    if float(answer) < 0:
        raise Hint(f"({where}) the weights alone do not fit: then 0 rows do.")
    if not gamma and float(answer) in (int(rows(*both, tape) // 1), max(0, int(rows(*both, tape) // 1))):
        raise Hint(f"({where}) γ = 0 is plain decoding: no draft is loaded, and it has no cache.")
    if float(answer) == exact or float(answer) == round(exact):
        raise Hint(f"({where}) a row fits whole or not at all: round down.")
    known = {
        "the weights take their place first: memory - weights.": memory / (sum(kv) * tape),
        "the draft remembers the text too: add its KV cache.": rows(sum(weights), kv[0], tape),
        "the draft's weights have to be loaded too.": rows(weights[0], sum(kv), tape),
        "a tape holds the text and what a round may add: text + γ + 1 tokens.": rows(*both, text),
        "all γ drafts and one more token are written behind the text: text + γ + 1.": rows(*both, text + gamma),
    }
    for hint, wrong in known.items():
        if gamma and float(answer) in (wrong, int(wrong // 1)):
            raise Hint(f"({where}) {hint}")
    raise Hint(f"({where}) {right} rows fit; you returned {answer}.")


# --- a γ for each batch size ----------------------------------------------------------------------


@exercise("08-hardware", "gamma-by-batch", todo="For each B the speedup at every γ from 0 on; keep the best γ.")
def _(gamma_by_batch):
    def flat_until(ridge):
        return lambda n, B: max(1.0, n * B / ridge) / max(1.0, B / ridge)

    settings = [
        (0.8, 0.05, lambda n, B: 1 + 0.03 * B * (n - 1), [1, 4, 16, 64]),
        (0.8, 0.05, flat_until(64), [1, 4, 16, 64]),
        (0.6, 0.1, flat_until(256), [1, 8, 32, 64, 128, 256]),
        (0.9, 0.02, flat_until(150), [2, 16, 50, 150]),
    ]
    for alpha, c, V, batches in settings:
        _judge_gammas(gamma_by_batch(alpha, c, V, list(batches)), alpha, c, V, batches)
    return "the larger the batch, the shorter the window, down to none"


def _judge_gammas(answer, alpha, c, V, batches):
    if answer is None:
        raise Hint("return a list: the best γ for each batch size.")
    if isinstance(answer, dict):
        answer = [answer.get(B) for B in batches]
    if not np.iterable(answer) or any(gamma is None or gamma != int(gamma) for gamma in answer):
        raise Hint(f"return a list of whole numbers, the best γ for each of {batches}; you returned {answer!r}.")
    answer = [int(gamma) for gamma in answer]

    def speedups(B, cost):
        return [1.0] + [theory.speedup(alpha, g, c, cost(g, B)) for g in range(1, 9)]

    def best(cost, first=0):
        return [first + int(np.argmax(speedups(B, cost)[first:])) for B in batches]

    right = best(lambda g, B: V(g + 1, B))
    if answer == right:
        return
    if len(answer) != len(batches):
        raise Hint(f"one γ for each of the {len(batches)} batch sizes, you returned {len(answer)}.")
    known = {
        "where every γ is slower than plain decoding, the best γ is 0.": best(lambda g, B: V(g + 1, B), 1),
        "γ drafts are verified by γ + 1 rows: V(γ+1, B).": best(lambda g, B: V(g, B)),
        "V must be that of the batch: V(γ+1, B), not V(γ+1, 1).": best(lambda g, B: V(g + 1, 1)),
        "verification costs V(γ+1, B), not 1: a batch is on the slope.": best(lambda g, B: 1.0),
    }
    for hint, wrong in known.items():
        if answer == wrong:
            raise Hint(hint)
    raise Hint(f"α = {alpha}, c = {c}, batches {batches}: expected {right}, you returned {answer}.")


# --- a server's counters --------------------------------------------------------------------------


@exercise("08-hardware", "read-metrics", todo="Position k was tested as often as position k - 1 was accepted.")
def _(read_metrics):
    generator = np.random.default_rng(0)
    for rates in ([0.8, 0.7, 0.6], [0.5], [0.9, 0.9, 0.8, 0.5, 0.4], [0.65, 0.7, 0.75, 0.7]):
        drafts, gamma = 1000, len(rates)
        passed = (generator.random((drafts, gamma)) < rates).cumprod(1)
        per_position, accepted = passed.sum(0).tolist(), int(passed.sum())
        answer = read_metrics(drafts, drafts * gamma, accepted, list(per_position))
        if not isinstance(answer, (tuple, list)) or len(answer) != 3:
            raise Hint("return three things: α, the list of α by position, and the tokens a round.")
        alpha, by_position, tokens = answer
        by_position = np.asarray(by_position, dtype=float)
        tests = np.array([drafts, *per_position[:-1]])
        right = accepted / tests.sum(), per_position / tests, 1 + accepted / drafts

        if by_position.shape != (gamma,):
            raise Hint(f"one rate for each of the {gamma} positions.")
        if not np.allclose(by_position, right[1], atol=1e-9):
            if gamma > 1 and np.allclose(by_position, np.array(per_position) / drafts):
                raise Hint(
                    "counts over drafts are the chance that a round gets *past* position k, the product of the rates "
                    "so far. α_k is the rate among the rounds that tested it: those that accepted position k - 1."
                )
            raise Hint(f"rates by position {np.round(right[1], 3)} in an example, you returned {by_position}.")
        if not np.isclose(alpha, right[0], atol=1e-9):
            known = {
                "accepted / drafted is what the server calls the acceptance rate. Behind a rejection nothing is "
                "tested, so it is lower than α = accepted / tested.": accepted / (drafts * gamma),
                "a mean of the rates counts a position tested ten times as much as one tested a thousand times. "
                "α = accepted / tested, over all positions.": right[1].mean(),
                "only the first position of every round is tested for certain. Add the tests of the others.": (
                    accepted / drafts
                ),
                "tested lacks the rejected drafts: each round tests its first position, and one more for each "
                "acceptance but the last position's.": 1.0,
            }
            for hint, wrong in known.items():
                if np.isclose(alpha, wrong, atol=1e-9):
                    raise Hint(hint)
            raise Hint(f"α = {right[0]:.4f} in an example, you returned {alpha:.4f}.")
        if not np.isclose(tokens, right[2], atol=1e-9):
            if np.isclose(tokens, accepted / drafts):
                raise Hint("a round emits one token more than it accepts: the resampled one or the bonus.")
            raise Hint(f"tokens a round: {right[2]:.4f} in an example, you returned {tokens:.4f}.")
    return "accepted / drafted falls with γ; α does not"
