"""The checks of 03-accept."""

import torch

from specviz.exercises import exercise
from specviz.exercises.answers import array, judge, number, whole
from specviz.exercises.examples import random_pair
from specviz.trace import Round
from specviz.verification import accept_probability


@exercise("03-accept", "accept-coin", todo="Compare the coin u with p_x / q_x and return True or False.")
def _(accepts):
    cases = [
        (0.30, 0.10, 0.99, True, "p(x) > q(x), so A(x) = 1 and every coin accepts."),
        (0.14, 0.45, 0.30, True, "p/q = 0.31 and the coin shows 0.30, which is below."),
        (0.14, 0.45, 0.67, False, "p/q = 0.31 and the coin shows 0.67. Did you divide q by p?"),
        (0.20, 0.80, 0.22, True, "p/q = 0.25 and the coin shows 0.22. Compare with the ratio, not with p alone."),
        (0.25, 0.50, 0.50, False, "here u equals p/q exactly. Accept only when u is strictly below."),
        (0.00, 0.40, 0.00, False, "p(x) = 0 and u = 0: the target never says x, so no coin may accept it."),
    ]
    for p_x, q_x, u, expected, hint in cases:
        answer = bool(number(accepts(p_x, q_x, u), "True or False"))
        judge(answer, expected, otherwise=f"for p(x) = {p_x}, q(x) = {q_x}, u = {u}: {hint}")
    return "strict, and never a token with p(x) = 0"


@exercise("03-accept", "wrong-q", todo="Return one True or False for each token: is more of it accepted than p allows?")
def _(too_much):
    generator = torch.Generator().manual_seed(0)
    for trial in range(20):
        p, q = random_pair(generator)
        tested_with = q if trial == 0 else q**2 / (q**2).sum()
        answer = array(too_much(p, q, tested_with), p.shape, f"True or False for each of the {len(p)} tokens").bool()
        a = accept_probability(p, tested_with)
        right = q * a > p + 1e-12
        if trial == 0:
            judge(answer, right, otherwise="when the test uses the very q that drafted, no token is accepted too "
                  "often: q(x) A(x) = min(p, q). Allow for rounding: ask for more than p + 1e-12.")  # fmt: skip
        judge(answer, right, {
            "drafts come from q, not from the q of the test: weigh the acceptance with q.": tested_with * a > p + 1e-12,
            "q(x) > p(x) alone is harmless: the coin thins it out. Compare q(x) times the acceptance.": q > p,
        }, "accepted share of a token = how often it is drafted, times how often its coin accepts.")  # fmt: skip
    return "once more than p(x) is accepted, no resampling can take it back"


def _round(drafts, accepted, tested, tokens):
    outcome = "ended" if tokens == accepted else "bonus" if accepted == drafts else "resampled"
    return Round(
        draft_tokens=[1] * drafts, accepted=accepted, tested=tested, next_token=None if outcome == "ended" else 2,
        outcome=outcome, gamma_asked=4, gamma_used=drafts, seconds={},
    )  # fmt: skip


@exercise("03-accept", "acceptance-rate", todo="Add up over the rounds what was accepted and what was tested.")
def _(rate):
    rounds = [_round(4, 4, 4, 5), _round(4, 0, 1, 1), _round(4, 2, 3, 3), _round(4, 1, 2, 2), _round(2, 1, 1, 1)]
    answer, accepted, tested, drafted = number(rate(rounds)), 8, 11, 18
    mean_ratio = sum(r.accepted / r.tested for r in rounds) / len(rounds)
    judge(answer, accepted / tested, {
        "that counts the target's own token as accepted, and drafts that no coin ever met. It measures how full a "
        "round is, not how often a coin accepts.": sum(len(r.tokens) for r in rounds) / (5 * len(rounds)),
        "drafts behind the first rejection were never tested: divide by tested, not by drafted.": accepted / drafted,
        "γ times the number of rounds counts drafts that were never made or tested.": accepted / (4 * len(rounds)),
        "that is the mean of the rounds' ratios, in which short rounds weigh too much. Add up first.": mean_ratio,
    }, f"these rounds have {accepted} accepted among {tested} tested drafts; you returned {answer:.3f}.")  # fmt: skip
    return "accepted / tested"


@exercise("03-accept", "first-rejection", todo="Walk along the coins and stop at the first that rejects.")
def _(count_accepted):
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        p_x, q_x, u = torch.rand(3, 5, generator=generator, dtype=torch.float64).tolist()
        accepts = [coin * q < p for coin, q, p in zip(u, q_x, p_x)]
        expected = [*accepts, False].index(False)
        answer = whole(count_accepted(p_x, q_x, u), "the number of accepted drafts")
        coins = f"coins {['✓' if accept else '✗' for accept in accepts]}: "
        judge(answer, expected, {
            f"{coins}you counted {answer}, every ✓. Drafts behind the first ✗ continue a lost text.": sum(accepts),
            "one too many: the rejected draft itself is not accepted.": expected + 1,
        }, f"{coins}{expected} accepted, you returned {answer}.")  # fmt: skip
    zero = whole(count_accepted([0.0, 0.5], [0.5, 0.5], [0.0, 0.0]), "the number of accepted drafts")
    judge(zero, 0, otherwise="a draft with p(x) = 0 was accepted at u = 0: compare strictly, u < p/q.")
    return "the longest run of ✓ from the left"
