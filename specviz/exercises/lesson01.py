"""The checks of lesson 01-draft."""

import torch

from specviz.exercises import Hint, exercise
from specviz.models.table import TableModel
from specviz.randomness import Scripted
from specviz.sampling import SamplingParams
from specviz.steps import begin, draft

LESSON = "01-draft"


@exercise(LESSON, "free-tokens", todo="Set the two times of the table equal and solve for n.")
def _(free_tokens):
    for bytes_each, bandwidth, flops in ((4, 1e10, 1e11), (2, 2e10, 3e12), (1, 5e9, 8e10)):
        right, got = bytes_each * flops / (2 * bandwidth), float(free_tokens(bytes_each, bandwidth, flops))
        if _near(got, right):
            continue
        if _near(got, 2 * right):
            raise Hint("twice too large: every weight takes part in two operations a token, a product and a sum")
        if _near(got, flops / (2 * bandwidth)):
            raise Hint("a weight is more than one byte: bytes_each belongs into the time for moving the weights")
        if _near(got, flops / bandwidth):
            raise Hint("that is operations a byte; now count the bytes of a weight, and its two operations a token")
        if _near(got * right, 1):
            raise Hint("upside down: a faster processor leaves more tokens free, a faster memory fewer")
        raise Hint(
            f"for {bytes_each} bytes a weight, {bandwidth:.0e} bytes and {flops:.0e} operations a second n is "
            f"{right:g}, not {got:g}: solve parameters * bytes_each / bandwidth = 2 * parameters * n / flops for n"
        )
    return "up to there a token more costs nothing, whatever the number of parameters"


@exercise(LESSON, "inverse-cdf", todo="Add up probabilities from the left until the sum is larger than u.")
def _(draw):
    probs = torch.tensor([0.5, 0.25, 0.0, 0.25], dtype=torch.float64)
    cases = [(0.0, 0), (0.3, 0), (0.6, 1), (0.9, 3), (0.4999, 0), (0.9999, 3)]
    for u, right in cases:
        got = int(draw(probs, u))
        if got == right:
            continue
        if [int(draw(probs, v)) for v, _ in cases] == [0] * len(cases):
            raise Hint("always the same token: let u decide")
        if got == right + 1:
            raise Hint(f"one slice too far: u = {u} of {probs.tolist()} lies in the slice of token {right}")
        raise Hint(f"u = {u} of {probs.tolist()} lies in the slice of token {right}, not {got}")
    if int(draw(probs, 0.5)) != 1:
        raise Hint("u = 0.5 is where the slice of token 1 begins: a slice holds its left end, not its right one")
    if int(draw(probs, 0.75)) != 3:
        raise Hint("at u = 0.75 token 2 came out, whose probability is 0: its slice is empty, so compare strictly")
    zero_first = torch.tensor([0.0, 1.0], dtype=torch.float64)
    if int(draw(zero_first, 0.0)) != 1:
        raise Hint("at u = 0 a token of probability 0 came out: compare strictly, so that an empty slice holds nothing")
    return "u decides, and a token of probability 0 never comes out"


@exercise(LESSON, "process", todo="Divide by the temperature, drop all but the top_k largest, take the softmax.")
def _(process):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(12, dtype=torch.float64, generator=generator) * 2
    for temperature, top_k in ((1.0, 12), (1.0, 3), (0.5, 12), (1.5, 4)):
        wanted = SamplingParams(temperature=temperature, top_k=top_k).probabilities(logits)
        got = torch.as_tensor(process(logits.clone(), temperature, top_k), dtype=torch.float64)
        case = f"temperature {temperature}, top_k {top_k}"
        if got.shape != logits.shape:
            raise Hint(
                f"return a probability for every one of the {len(logits)} tokens; yours has shape {tuple(got.shape)}"
            )
        if torch.allclose(got, wanted, atol=1e-6):
            continue
        if abs(float(got.sum()) - 1) > 1e-6:
            raise Hint(
                f"{case}: your probabilities sum to {float(got.sum()):.3f}: whatever you drop, make the rest sum to 1"
            )
        if int((got > 0).sum()) != top_k:
            raise Hint(
                f"{case}: {int((got > 0).sum())} tokens keep a probability, not {top_k}; a logit of -inf gives 0"
            )
        if torch.allclose(got, SamplingParams(1 / temperature, top_k).probabilities(logits), atol=1e-6):
            raise Hint(f"{case}: divide by the temperature; a small one makes the distribution sharper, not flatter")
        raise Hint(f"{case}: the largest probability should be {float(wanted.max()):.3f}, not {float(got.max()):.3f}")
    return "this q, after all processing, is what a draft is drawn from"


@exercise(LESSON, "draft-loop", todo="Per draft: a q from the last logits, a token from q, and a feed of that token.")
def _(draft_tokens):
    table = TableModel.random(5, order=2, seed=3, scale=1.5, name="draft")
    sampling, prompt = SamplingParams(temperature=0.6, top_k=4), [0, 3, 1]
    for gamma in (1, 3, 5):
        u = torch.tensor([0.31, 0.87, 0.52, 0.12, 0.66], dtype=torch.float64)[:gamma]
        model = _Counted(table)
        tokens, q = draft_tokens(model, list(prompt), gamma, u, sampling)
        tokens, q = torch.as_tensor(tokens).flatten().tolist(), torch.as_tensor(q).double()
        right, right_q = _drafts(table, prompt, gamma, u, sampling)
        if len(tokens) != gamma:
            raise Hint(f"γ = {gamma}: you return {len(tokens)} tokens")
        if tuple(q.shape) != (gamma, 5):
            raise Hint(f"q should have shape [γ, V] = {(gamma, 5)}, one row for each draft; yours is {tuple(q.shape)}")
        raw_q = _q_along(table, prompt, tokens, SamplingParams())
        if torch.allclose(q, raw_q):
            raise Hint("q is the plain softmax: keep the distribution after sampling.probabilities, the one drawn from")
        if tokens != right and tokens == _drafts(table, prompt, gamma, u, SamplingParams(temperature=0))[0]:
            raise Hint("these are the likeliest tokens: draw x_i from q_i, with inverse_cdf and u[i]")
        along = _q_along(table, prompt, tokens, sampling)
        if torch.allclose(q, along) and tokens != right:
            raise Hint(f"q belongs to your tokens, but u draws {right} and you have {tokens}: x_i is drawn by u[i]")
        if gamma > 1 and torch.allclose(q[:-1], along[1:]):
            raise Hint("each q is one step late: q_i is what x_i was drawn from, before x_i is fed")
        if tokens != right or not torch.allclose(q, right_q):
            raise Hint(f"γ = {gamma}: expected the tokens {right} and their q; is every draft fed before the next one?")
        if model.forwards > gamma:
            raise Hint(
                f"right, but with {model.forwards} forwards for γ = {gamma}: the one over the prompt gives q_1, and "
                "nothing is drawn after x_γ, so it need not be fed"
            )
        if model.tokens > len(prompt) + gamma - 1:
            raise Hint("right, but the memory already holds the prompt: feed only the token that was drafted last")
    return "γ drafts, γ forwards, and the q_i that verification will ask for"


def _near(a, b):
    return abs(a - b) <= 1e-6 * abs(b)


def _drafts(model, prompt, gamma, u, sampling):
    """What the package drafts from the same uniforms."""
    uniforms = {(0, 0, "draft", i): float(u_i) for i, u_i in enumerate(u)}
    state = begin(
        model, model, prompt, gamma=gamma, max_new_tokens=gamma + 1, sampling=sampling, randomness=Scripted(uniforms)
    )
    proposal = draft(state)
    return proposal.tokens[0].tolist(), proposal.q[0]


def _q_along(model, prompt, tokens, sampling):
    text = [*prompt, *tokens[:-1]]
    logits = model.new_cache([text], len(text)).feed(torch.tensor([text]))[0]
    return sampling.probabilities(logits[len(prompt) - 1 :])


class _Counted:
    """A model whose memories count what is fed."""

    def __init__(self, model):
        self._model, self.forwards, self.tokens = model, 0, 0

    def __getattr__(self, name):
        return getattr(self._model, name)

    def new_cache(self, prompts, capacity, needs=frozenset()):
        cache = self._model.new_cache(prompts, capacity, needs)
        feed = cache.feed

        def counted(tokens, count=None):
            self.forwards += 1
            self.tokens += tokens.shape[1]
            return feed(tokens, count)

        cache.feed = counted
        return cache
