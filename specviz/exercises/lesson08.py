"""The checks of 08-hardware, and results that were stored because not every machine can repeat them."""

import json
from pathlib import Path

import numpy as np

from specviz.exercises import exercise
from specviz.exercises.answers import Hint, array, ids, judge, number, parts
from specviz.speedup import theory

# {layout: {rows: microseconds}} of twelve products with a 256 x 1,376 matrix in float32, one reading, 2026-11-29
STORED_LAYOUTS = {
    "about": "a 2-core x86-64 with AVX2, both cores, torch 2.13",
    "stored, as in nn.Linear": {1: 1035, 2: 2125, 5: 1623, 9: 2203, 16: 2424},
    "transposed": {1: 509, 2: 997, 5: 1119, 9: 1923, 16: 1892},
    "packed by oneDNN": {1: 779, 2: 729, 5: 823, 9: 954, 16: 1593},
}


def stored_batches() -> dict:
    """The result of benchmarks/batch.py, with its machine: seconds by phase over the batch size."""
    return json.loads(Path(__file__).with_name("lesson08_batch.json").read_text(encoding="utf-8"))


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
        _judge_V(number(roofline_V(*setting)), *setting)
    return "flat while there is something to wait for, n times as long where there is not"


def _judge_V(answer, n, B, W, K, P, bandwidth, flops):
    def t(n, rows=B, cached=B, operations=2):
        return max((W + cached * K) / bandwidth, operations * P * n * rows / flops)

    right, moving, computing = t(n) / t(1), (W + B * K) / bandwidth, 2 * P * B / flops
    added = (moving + n * computing) / (moving + computing)
    judge(answer, right, {
        "that is a time. V compares it with the same batch's forward over one token: divide by t(1, B).": t(n),
        "V compares with plain decoding of the *same batch*: divide by t(1, B), not by t(1, 1).": t(n) / t(1, 1, 1),
        "the two go on at the same time: take the larger one, not the sum.": added,
        "all B rows compute n tokens each: 2·P·n·B operations.": t(n, rows=1) / t(1, rows=1),
        "each of the B rows has a KV cache of its own to move: W + B·K.": t(n, cached=1) / t(1, cached=1),
        "the KV cache is read once for all n tokens of a row: W + B·K, without n.": t(n, cached=n * B) / t(1),
        "the KV cache is missing among what is moved: W + B·K.": t(n, cached=0) / t(1, cached=0),
        "a parameter takes two operations a token: 2·P·n·B.": t(n, operations=1) / t(1, operations=1),
    }, f"at n = {n} and B = {B} an example has V = {right:.4g}; you returned {answer:.4g}.")  # fmt: skip


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
        _judge_rows(number(rows_that_fit(*setting)), *setting)
    return "γ + 1 tokens cost a row next to nothing; a second model costs rows"


def _judge_rows(answer, memory, weights, kv, text, gamma):
    def rows(weights, kv, tokens):
        return max(0, (memory - weights) // (kv * tokens))

    window = text + gamma + 1
    both = rows(sum(weights), sum(kv), window)
    right = both if gamma else rows(weights[0], kv[0], window)
    where = f"(memory {memory:,}, weights {weights}, KV {kv}, text {text}, γ = {gamma}) "
    if answer < 0:
        raise Hint(f"{where}the weights alone do not fit: then 0 rows do.")
    round_down = "a row fits whole or not at all: round down."
    if answer % 1:
        raise Hint(where + round_down)
    judge(answer, right, {
        "the weights take their place first: memory - weights.": rows(0, sum(kv), window),
        "the draft remembers the text too: add its KV cache.": rows(sum(weights), kv[0], window),
        "the draft's weights have to be loaded too.": rows(weights[0], sum(kv), window),
        "a cache holds the text and what a round may add: text + γ + 1 tokens.": rows(sum(weights), sum(kv), text),
        "γ drafts and one more token follow the text: text + γ + 1.": rows(sum(weights), sum(kv), text + gamma),
        round_down: right + 1,
    } if gamma else {
        "γ = 0 is plain decoding: no draft is loaded, and it has no cache.": both,
        round_down: right + 1,
    }, f"{right} rows fit; you returned {answer:g}.", where)  # fmt: skip


@exercise("08-hardware", "gamma-by-batch", todo="For each B the speedup at every γ from 0 on; keep the best γ.")
def _(gamma_by_batch):
    def flat_until(ridge):
        return lambda n, B: max(1.0, n * B / ridge) / max(1.0, B / ridge)

    settings = [  # α, c, V, batch sizes
        (0.8, 0.05, lambda n, B: 1 + 0.03 * B * (n - 1), [1, 4, 16, 64]),
        (0.8, 0.05, flat_until(64), [1, 4, 16, 64]),
        (0.6, 0.1, flat_until(256), [1, 8, 32, 64, 128, 256]),
        (0.9, 0.02, flat_until(150), [2, 16, 50, 150]),
    ]
    for alpha, c, V, batches in settings:
        _judge_gammas(gamma_by_batch(alpha, c, V, list(batches)), alpha, c, V, batches)
    return "the larger the batch, the shorter the window, down to none"


def _judge_gammas(answer, alpha, c, V, batches):
    def best(cost, first=0):
        speedups = [[1.0, *(theory.speedup(alpha, g, c, cost(g, B)) for g in range(1, 9))] for B in batches]
        return [first + int(np.argmax(of_batch[first:])) for of_batch in speedups]

    answer = [answer.get(B) for B in batches] if isinstance(answer, dict) else answer
    answer = ids(answer, f"a list of whole numbers, the best γ for each of {batches},")
    if len(answer) != len(batches):
        raise Hint(f"one γ for each of the {len(batches)} batch sizes, you returned {len(answer)}.")
    right = best(lambda g, B: V(g + 1, B))
    judge(answer, right, {
        "where every γ is slower than plain decoding, the best γ is 0.": best(lambda g, B: V(g + 1, B), 1),
        "γ drafts are verified by γ + 1 rows: V(γ+1, B).": best(V),
        "V must be that of the batch: V(γ+1, B), not V(γ+1, 1).": best(lambda g, B: V(g + 1, 1)),
        "verification costs V(γ+1, B), not 1: a batch is on the slope.": best(lambda g, B: 1.0),
    }, f"α = {alpha}, c = {c}, batches {batches}: expected {right}, you returned {answer}.")  # fmt: skip


@exercise("08-hardware", "read-metrics", todo="Position k was tested as often as position k - 1 was accepted.")
def _(read_metrics):
    generator = np.random.default_rng(0)
    for rates in ([0.8, 0.7, 0.6], [0.5], [0.9, 0.9, 0.8, 0.5, 0.4], [0.65, 0.7, 0.75, 0.7]):
        drafts, gamma = 1000, len(rates)
        passed = (generator.random((drafts, gamma)) < rates).cumprod(1).sum(0)
        accepted, tested = int(passed.sum()), np.array([drafts, *passed[:-1]])
        answer = read_metrics(drafts, drafts * gamma, accepted, passed.tolist())
        alpha, by_position, tokens = parts(answer, "α", "the list of α by position", "the tokens a round")
        by_position = array(by_position, (gamma,), f"one rate for each of the {gamma} positions")
        judge(by_position, passed / tested, {
            "counts over drafts are the chance that a round gets *past* position k, the product of the rates so far. "
            "α_k is the rate among the rounds that tested it: those that accepted position k - 1.": passed / drafts,
        }, f"rates by position {np.round(passed / tested, 3)} in an example, you returned {by_position}.")  # fmt: skip
        alpha, right = number(alpha), accepted / tested.sum()
        judge(alpha, right, {
            "accepted / drafted is what the server calls the acceptance rate. Behind a rejection nothing is tested, so "
            "it is lower than α = accepted / tested.": accepted / (drafts * gamma),
            "a mean of the rates counts a position tested ten times as much as one tested a thousand times. "
            "α = accepted / tested, over all positions.": (passed / tested).mean(),
            "rounds test more than their first position. Add the tests of the others.": accepted / drafts,
            "tested lacks the rejected drafts: each round tests its first position, and one more for each acceptance "
            "but the last position's.": 1.0,
        }, f"α = {right:.4f} in an example, you returned {alpha:.4f}.")  # fmt: skip
        tokens, per_round = number(tokens), 1 + accepted / drafts
        judge(tokens, per_round, {
            "a round emits one token more than it accepts: the resampled one or the bonus.": per_round - 1,
        }, f"tokens a round: {per_round:.4f} in an example, you returned {tokens:.4f}.")  # fmt: skip
    return "accepted / drafted falls with γ; α does not"
