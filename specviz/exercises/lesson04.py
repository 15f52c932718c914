"""The checks of 04-resample."""

import torch

from specviz.exercises import exercise
from specviz.exercises.answers import Hint, array, judge, number, parts, whole
from specviz.exercises.examples import random_pair
from specviz.randomness import Scripted, inverse_cdf
from specviz.verification import accept_probability, residual, verify


@exercise("04-resample", "residual", todo="Keep what p has more than q, and make it sum to 1.")
def _(my_residual):
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        p, q = random_pair(generator)
        answer = array(my_residual(p, q), p.shape, f"a probability for each of the {len(p)} tokens")
        left, both_ways = (p - q).clamp(min=0), (p - q).abs()
        judge(answer, left / left.sum(), {
            "that is max(0, p - q) itself, which sums to Z. Divide by the sum.": left,
            "negative entries are left: where q has more than p, nothing is missing.": (p - q) / left.sum(),
            "that is a softmax: exp() gives mass also where nothing is missing. Divide by the sum.": left.softmax(-1),
            "that is p: it gives mass to tokens that were accepted often enough already.": p,
            "p and q have changed places: what does the *target* have more of?": residual(q, p),
            "|p - q| gives back exactly the tokens that the draft proposes too often.": both_ways / both_ways.sum(),
        }, f"your answer sums to {answer.sum():.3f}; expected max(0, p - q) divided by its own sum.")  # fmt: skip
    answer = array(my_residual(p, p), p.shape)
    if answer.isnan().any():
        raise Hint("p = q: nothing is left, Z = 0, and 0 / 0 is NaN. Answer p then; it is hardly ever asked for.")
    judge(answer, p, otherwise="p = q: nothing is left to hand out (Z = 0). Answer p then.")
    return "and p where Z = 0"


@exercise("04-resample", "emitted-law", todo="Two ways lead to a token: accepted, or rejected and then drawn from r.")
def _(emitted):
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        (p, q), (r, _) = random_pair(generator), random_pair(generator)
        answer = array(emitted(p, q, r), p.shape, f"a probability for each of the {len(p)} tokens")
        accepted, a = torch.minimum(p, q), accept_probability(p, q)
        z = 1 - accepted.sum()
        judge(answer, accepted + z * r, {
            "the accepted way is missing: q(x) A(x).": z * r,
            "the resampled way is missing: Z r(x).": accepted,
            "the second way is taken only after a rejection: weigh r with Z.": accepted + r,
            "Z is the probability that *some* draft is rejected, one number: the rejections of all tokens added up. "
            "You weighed r(x) with the rejection of x itself.": accepted + (q - accepted) * r,
            "A(x) is how often x is accepted once it was drafted; it is drafted with probability q(x).": a + z * r,
        }, f"P(x) = q(x) A(x) + Z r(x) should sum to 1 over the tokens; yours sums to {answer.sum():.3f}.")  # fmt: skip
    return "P(x) = q(x) A(x) + Z r(x)"


@exercise("04-resample", "round-rejection", todo="When does a round go by without a rejection?")
def _(rejection):
    for betas in ([0.8], [0.8, 0.8, 0.8, 0.8], [0.9, 0.5, 0.7], [1.0, 1.0], [1.0, 0.0]):
        answer, beta = number(rejection(betas)), torch.tensor(betas, dtype=torch.float64)
        right, z = 1 - beta.prod(), 1 - beta
        judge(answer, right, {
            "that is the probability of *no* rejection in the round.": beta.prod(),
            "adding the Z counts rounds with several rejections several times, and can exceed 1.": z.sum(),
            "that is Z at an average position; a round has several chances to fail.": z.mean(),
            "that is the probability that *every* draft would be rejected.": z.prod(),
        }, f"for β = {betas} the probability of a rejection is {right:.3f}; you returned {answer:.3f}.")  # fmt: skip
    return "1 - Π β_i"


@exercise("04-resample", "whole-round", todo="Test the drafts from left to right, then draw one token with u_next.")
def _(my_round):
    generator = torch.Generator().manual_seed(2)
    for trial in range(300):
        gamma, tokens, q, p, u = _a_round(trial, generator)
        script = {(0, 0, "coin", i): u[i].item() for i in range(gamma)} | {(0, 0, "next", 0): u[-1].item()}
        verdict = verify(tokens[None], q[None], p[None], Scripted(script))
        accepted, token = int(verdict.accepted), int(verdict.next_token)
        answer = parts(my_round(tokens.tolist(), q, p, u[:gamma].tolist(), u[-1].item()), "accepted", "next_token")
        mine = [whole(part) for part in answer]
        if mine == [accepted, token]:
            continue
        if mine[0] != accepted:
            a = accept_probability(p[:gamma], q)[range(gamma), tokens]
            raise Hint(
                f"accepted: expected {accepted}, got {mine[0]} (A = {[round(x, 2) for x in a.tolist()]}, coins = "
                f"{[round(x, 2) for x in u[:gamma].tolist()]}). Stop at the first coin not below A."
            )
        if accepted == gamma:
            raise Hint(f"all {gamma} drafts were accepted: the bonus comes from p[{gamma}], the last row.")
        raise Hint(
            f"draft {accepted + 1} of {gamma} was rejected: the next token comes from the residual of p[{accepted}], "
            f"q[{accepted}], drawn with u_next; expected {token}, got {mine[1]}."
        )
    return "the same as verify() in 300 rounds, rejections at every position and bonuses among them"


def _a_round(trial, generator):
    """γ, tokens [γ], q [γ, V], p [γ+1, V], u [γ+1]; at times p = q nearly, p(x) = 0 at a draft, or u = 0."""
    gamma, size = 1 + trial % 4, 5
    p = torch.rand(gamma + 1, size, generator=generator, dtype=torch.float64) ** 2
    q = torch.rand(gamma, size, generator=generator, dtype=torch.float64) ** 2 + 1e-3
    if trial % 5 == 0:
        q = p[:gamma] + (1e-3 if trial % 2 else 0.0)
    if trial % 7 == 0:
        p[:, 0] = 0
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    tokens = inverse_cdf(q, torch.rand(gamma, generator=generator, dtype=torch.float64))
    if trial % 77 == 0:
        tokens[0] = 0
    u = torch.rand(gamma + 1, generator=generator, dtype=torch.float64)
    return gamma, tokens, q, p, torch.zeros_like(u) if trial % 11 == 0 else u
