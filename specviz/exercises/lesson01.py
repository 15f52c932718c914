"""The checks of 01-draft."""

import torch

from specviz.exercises import exercise
from specviz.exercises.answers import Hint, array, ids, judge, number, parts, same, whole
from specviz.exercises.examples import RecordingModel
from specviz.models.table import TableModel
from specviz.randomness import Scripted
from specviz.sampling import SamplingParams
from specviz.steps import begin, draft


@exercise("01-draft", "free-tokens", todo="Set the two times of the table equal and solve for n.")
def _(free_tokens):
    for bytes_each, bandwidth, flops in ((4, 1e10, 1e11), (2, 2e10, 3e12), (1, 5e9, 8e10)):
        right, got = bytes_each * flops / (2 * bandwidth), number(free_tokens(bytes_each, bandwidth, flops))
        judge(got, right, {
            "twice too large: every weight takes part in two operations a token, a product and a sum": 2 * right,
            "a weight has more than one byte: the time for moving it grows with bytes_each": flops / (2 * bandwidth),
            "that is operations a byte; a weight has bytes_each bytes and two operations a token": flops / bandwidth,
            "upside down: a faster processor leaves more tokens free, a faster memory fewer": 1 / right,
        }, f"for {bytes_each} bytes a weight, {bandwidth:.0e} bytes and {flops:.0e} operations a second n is "
           f"{right:g}, not {got:g}: solve P * bytes_each / bandwidth = 2 * P * n / flops for n")  # fmt: skip
    return "up to there a token more costs nothing, whatever the number of parameters"


@exercise("01-draft", "inverse-cdf", todo="Add up probabilities from the left until the sum is larger than u.")
def _(draw):
    probs = torch.tensor([0.5, 0.25, 0.0, 0.25], dtype=torch.float64)
    cases = {0.0: 0, 0.3: 0, 0.6: 1, 0.9: 3, 0.4999: 0, 0.9999: 3}
    got = {u: whole(draw(probs, u)) for u in cases}
    if set(got.values()) == {0}:
        raise Hint("always the same token: let u decide")
    for u, right in cases.items():
        where = f"u = {u} of {probs.tolist()} lies in the slice of token {right}"
        judge(got[u], right, {f"one slice too far: {where}": right + 1}, f"{where}, not {got[u]}")
    left_end = "u = 0.5 is where the slice of token 1 begins: a slice holds its left end, not its right one"
    judge(whole(draw(probs, 0.5)), 1, otherwise=left_end)
    empty = "at u = 0.75 token 2 came out, whose probability is 0: its slice is empty, so compare strictly"
    judge(whole(draw(probs, 0.75)), 3, otherwise=empty)
    first = "at u = 0 a token of probability 0 came out: compare strictly, so that an empty slice holds nothing"
    judge(whole(draw(torch.tensor([0.0, 1.0], dtype=torch.float64), 0.0)), 1, otherwise=first)
    return "u decides, and a token of probability 0 never comes out"


@exercise("01-draft", "process", todo="Divide by the temperature, drop all but the top_k largest, take the softmax.")
def _(process):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(12, dtype=torch.float64, generator=generator) * 2
    for temperature, top_k in ((1.0, 12), (1.0, 3), (0.5, 12), (1.5, 4)):
        where = f"temperature {temperature}, top_k {top_k}: "
        got = array(process(logits, temperature, top_k), (12,), "a probability for every one of the 12 tokens")
        if abs(float(got.sum()) - 1) > 1e-5:
            raise Hint(f"{where}your probabilities sum to {got.sum():.3f}: whatever you drop, make the rest sum to 1")
        kept = int((got > 0).sum())
        if kept != top_k:
            raise Hint(f"{where}{kept} tokens keep a probability, not {top_k}; a logit of -inf gives 0")
        wanted = SamplingParams(temperature=temperature, top_k=top_k).probabilities(logits)
        flatter = SamplingParams(1 / temperature, top_k).probabilities(logits)
        judge(got, wanted, {
            "divide by the temperature; a small one makes the distribution sharper, not flatter": flatter,
        }, f"the largest probability should be {wanted.max():.3f}, not {got.max():.3f}", where)  # fmt: skip
    return "this q, after all processing, is what a draft is drawn from"


@exercise("01-draft", "draft-loop", todo="For each draft: q from the last logits, a token from q, then feed the token.")
def _(draft_tokens):
    table = TableModel.random(5, order=2, seed=3, scale=1.5, name="draft")
    sampling, prompt = SamplingParams(temperature=0.6, top_k=4), [0, 3, 1]
    for gamma in (1, 3, 5):
        u = torch.tensor([0.31, 0.87, 0.52, 0.12, 0.66], dtype=torch.float64)[:gamma]
        model = RecordingModel(table)
        tokens, q = parts(draft_tokens(model, list(prompt), gamma, u, sampling), "the tokens", "q")
        tokens = ids(tokens)
        if len(tokens) != gamma:
            raise Hint(f"γ = {gamma}: you return {len(tokens)} tokens")
        q = array(q, (gamma, 5), f"q of shape [γ, V] = [{gamma}, 5], one row for each draft,")
        if same(q, _q_along(table, prompt, tokens, SamplingParams())):
            raise Hint("q is the plain softmax: keep the distribution after sampling.probabilities, the one drawn from")
        right, right_q = _drafts(table, prompt, gamma, u, sampling)
        if tokens != right and tokens == _drafts(table, prompt, gamma, u, SamplingParams(temperature=0))[0]:
            raise Hint("these are the likeliest tokens: draw x_i from q_i, with inverse_cdf and u[i]")
        along = _q_along(table, prompt, tokens, sampling)
        if same(q, along) and tokens != right:
            raise Hint(f"q belongs to your tokens, but u draws {right} and you have {tokens}: x_i is drawn by u[i]")
        if gamma > 1 and same(q[:-1], along[1:]):
            raise Hint("each q is one step late: q_i is what x_i was drawn from, before x_i is fed")
        if tokens != right or not same(q, right_q):
            raise Hint(f"γ = {gamma}: expected the tokens {right} and their q; is every draft fed before the next one?")
        if len(model.fed) > gamma:
            raise Hint(f"right, but with {len(model.fed)} forwards for γ = {gamma}: the one over the prompt gives q_1, "
                       "and nothing is drawn after x_γ, so it need not be fed")  # fmt: skip
        if sum(map(len, model.fed)) > len(prompt) + gamma - 1:
            raise Hint("right, but the cache already holds the prompt: feed only the token that was drafted last")
    return "γ drafts, γ forwards, and the q_i that verification will ask for"


def _drafts(model, prompt, gamma, u, sampling):
    """The package's drafts from the same uniforms, and their q [γ, V]."""
    randomness = Scripted({(0, 0, "draft", i): float(u_i) for i, u_i in enumerate(u)})
    settings = dict(gamma=gamma, max_new_tokens=gamma + 1, sampling=sampling, randomness=randomness)
    proposal = draft(begin(model, model, prompt, **settings))
    return proposal.tokens[0].tolist(), proposal.q[0]


def _q_along(model, prompt, tokens, sampling):
    """The distributions [γ, V] from which these tokens would be drawn, by one forward."""
    text = [*prompt, *tokens[:-1]]
    logits = model.new_cache([text], len(text)).feed(torch.tensor([text]))[0]
    return sampling.probabilities(logits[len(prompt) - 1 :])
