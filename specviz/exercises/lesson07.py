"""The checks of 07-decoder, and what SmolLM2 answered where it was installed."""

import json
from pathlib import Path

import numpy as np
import torch

from specviz.decoding import autoregress
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.exercises import Hint, exercise
from specviz.models.table import TableModel
from specviz.randomness import Seeded
from specviz.sampling import SamplingParams


def stored_chats() -> list[dict]:
    """Two chats with SmolLM2, for those who have not installed it: what the lesson's chat() once returned."""
    return json.loads(Path(__file__).with_name("lesson07_chats.json").read_text(encoding="utf-8"))["chats"]


# --- plain decoding on the protocol ---------------------------------------------------------------


class _Counting:
    """A language model that keeps what was fed to its memories."""

    def __init__(self, model):
        self.model, self.fed = model, []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def new_cache(self, prompts, capacity, needs=frozenset()):
        cache = self.model.new_cache(prompts, capacity + 1000, needs)  # that it runs over is said below, in other words
        feed = cache.feed
        cache.feed = lambda tokens, count=None: self.fed.append(tokens.tolist()[0]) or feed(tokens, count)
        return cache


@exercise("07-decoder", "plain-decoder", todo="One loop: feed what the memory lacks, draw one token, append it.")
def _(plain_decoder):
    settings = [
        (TableModel.random(5, 2, seed=1), [0, 3, 1], 9, SamplingParams()),
        (TableModel.random(5, 2, seed=2), [2], 7, SamplingParams(temperature=0.6, top_k=3)),
        (TableModel.random(5, 1, seed=3), [4, 0], 8, SamplingParams(temperature=0)),
        (TableModel.random(4, 1, seed=4, eos=1), [0, 2], 30, SamplingParams()),
    ]
    for seed in range(3):
        for model, prompt, n, sampling in settings:
            counting, given = _Counting(model), list(prompt)
            answer = plain_decoder(counting, given, n, sampling, Seeded(seed))
            if answer is None:
                raise Hint("return the new ids as a list.")
            answer = [int(token) for token in answer]
            if given != prompt:
                raise Hint("the caller's prompt was changed: begin with text = list(prompt).")
            expected = autoregress(model, prompt, max_new_tokens=n, sampling=sampling, randomness=Seeded(seed)).tokens
            if answer == expected:
                if [token for part in counting.fed for token in part] != (prompt + expected)[:-1]:
                    raise Hint(
                        "the text is right, but the memory was fed other tokens than the text's, once each: "
                        "the prompt first, then one new token a step, and never the last."
                    )
                continue
            if answer == prompt + expected:
                raise Hint("return the new ids alone, without the prompt.")
            if model.eos and answer[: len(expected)] == expected:
                raise Hint("the text goes on behind an EOS (target.eos is a set of ids).")
            if answer == expected[:-1]:
                raise Hint("the token that ends the text, EOS say, belongs to it.")
            if len(answer) != len(expected) and not model.eos:
                raise Hint(f"asked for {n} new tokens, you returned {len(answer)}.")
            if [token for part in counting.fed for token in part][: len(prompt)] != prompt:
                raise Hint("the memory must have been fed all of the prompt before the first token is drawn.")
            once = autoregress(model, prompt, max_new_tokens=n, sampling=SamplingParams(), randomness=Seeded(seed))
            if answer == once.tokens:
                raise Hint("the logits were not processed as asked: use sampling.probabilities(logits).")
            if len(counting.fed) > 1 and len(counting.fed[1]) > 1:
                raise Hint("the memory keeps what it was fed. Feed only what it lacks: text[int(memory.length):].")
            raise Hint(
                "other ids than autoregress() draws from the same uniforms. Step t (from 0) begins with "
                'randomness.begin_round(t) and draws from stream "next".'
            )
    return "draft nothing, and the decoder is this loop"


# --- temperature ----------------------------------------------------------------------------------


def _softmax(logits, temperature):
    if temperature == 0:
        return np.eye(len(logits))[int(np.argmax(logits))]
    x = np.exp((logits - logits.max()) / temperature)
    return x / x.sum()


@exercise("07-decoder", "alpha-at", todo="Process both, p and q, at the temperature; then Σ min(p, q).")
def _(alpha_at):
    generator = np.random.default_rng(0)
    for temperature in (1.0, 0.5, 2.5, 0, 0.005):
        for _ in range(6):
            p_logits, q_logits = 2 * generator.standard_normal((2, 6))
            if temperature == 0 and generator.random() < 0.5:
                q_logits = p_logits + 0.01
            try:
                with np.errstate(all="ignore"):
                    answer = float(alpha_at(p_logits.copy(), q_logits.copy(), temperature))
            except ZeroDivisionError:
                answer = np.nan
            p, q = (_softmax(logits, temperature) for logits in (p_logits, q_logits))
            right = np.minimum(p, q).sum()
            if abs(answer - right) < 1e-9:
                continue
            if temperature == 0:
                raise Hint(
                    "T = 0 is greedy, not a division: all mass on the largest logit, so the overlap is 1 if both "
                    f"models prefer the same token and 0 if not. You returned {answer:.3g}."
                )
            if np.isnan(answer):
                raise Hint(f"at T = {temperature:g} your code returns nan: take the largest logit off before exp().")
            p1, q1 = _softmax(p_logits, 1), _softmax(q_logits, 1)
            warm = [x ** (1 / temperature) / (x ** (1 / temperature)).sum() for x in (p1, q1)]
            known = {
                "the temperature is missing: that is the overlap at T = 1.": np.minimum(p1, q1).sum(),
                "only p was processed. Draft and target get the same temperature.": np.minimum(p, q1).sum(),
                "only q was processed. Draft and target get the same temperature.": np.minimum(p1, q).sum(),
                "divide the *logits* by T, not the probabilities.": np.minimum(
                    p1 / temperature, q1 / temperature
                ).sum(),
                "logits are divided by T, not multiplied.": np.minimum(
                    _softmax(p_logits, 1 / temperature), _softmax(q_logits, 1 / temperature)
                ).sum(),
                "Σ p·q is how often two independent samples agree (lesson 05). Take the smaller of both.": sum(
                    warm[0] * warm[1]
                ),
                "that is the rejected mass Z = 1 - β.": 1 - right,
            }
            for hint, wrong in known.items():
                if abs(answer - wrong) < 1e-9:
                    raise Hint(hint)
            raise Hint(f"at T = {temperature:g} an example has overlap {right:.4f}; you returned {answer:.4f}.")
    return "one at both ends for models that agree on the order, lowest in between"


# --- drafters -------------------------------------------------------------------------------------


@exercise("07-decoder", "look-up", todo="Try endings of longest, longest - 1, … 1 tokens; look for each from the back.")
def _(look_up):
    generator = np.random.default_rng(0)
    texts = [[1, 2, 3, 4, 1, 2, 3], [1, 2, 9, 3, 2, 8, 1, 2], [5, 1, 5, 2, 5], [4, 4, 4], [7], [], [1, 2, 3, 4]]
    texts += [generator.integers(0, k, n).tolist() for k, n in [(2, 8), (3, 12), (4, 20), (2, 15)] * 5]
    for text in texts:
        for longest in (1, 2, 3):
            right = PromptLookup(longest).continuation(list(text))
            given = list(text)
            answer = look_up(given, longest)
            if answer is None:
                raise Hint(f"({text}, longest={longest}) return a list of ids, [] where nothing repeats.")
            if given != text:
                raise Hint("the text that was given was changed; work on a copy.")
            answer = [int(token) for token in answer]
            if answer == right:
                continue
            where = f"({text}, longest={longest})"
            if not answer and right:
                raise Hint(
                    f"{where} an ending occurs earlier, followed by {right}. Occurrences may overlap the ending."
                )
            if answer and not right:
                raise Hint(f"{where} nothing there occurs earlier. The ending itself does not count.")
            found = {n: _continuations(text, n) for n in range(1, longest + 1)}
            best = max((n for n in found if found[n]), default=0)
            if best and answer in found[best]:
                raise Hint(
                    f"{where} of several occurrences take the *latest* (it may overlap the ending): {right} follows it."
                )
            if any(answer in found[n] for n in found if n < best):
                raise Hint(f"{where} a longer ending occurs as well: try {best} tokens before fewer.")
            if best and answer == text[-len(right) - best :]:
                raise Hint(f"{where} what *follows* the occurrence is proposed, without the ending itself.")
            raise Hint(f"{where} expected {right}, you returned {answer}.")
    return "no model, no training: the text itself is the draft"


def _continuations(text, n):
    """What follows each earlier occurrence of the last n tokens, in order."""
    return [text[i + n :] for i in range(len(text) - n) if text[i : i + n] == text[len(text) - n :]]


@exercise("07-decoder", "guess-or-draw", todo="Σ min(p, q) twice: once with q itself, once with a one-hot q.")
def _(guess_or_draw):
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        p, q = torch.rand(2, 6, generator=generator, dtype=torch.float64) ** 2
        p, q = p / p.sum(), q / q.sum()
        answer = guess_or_draw(p.clone(), q.clone())
        if answer is None or np.size(answer) != 2:
            raise Hint("return two numbers: (acceptance of a draw from q, acceptance of q's favourite).")
        draw, guess = map(float, answer)
        right = torch.minimum(p, q).sum().item(), p[q.argmax()].item()
        if abs(draw - right[0]) > 1e-9:
            if abs(draw - (p * q).sum().item()) < 1e-9:
                raise Hint("draw: Σ p·q would be sample-and-match. The paper's coin accepts Σ min(p, q).")
            raise Hint(f"draw: the overlap Σ min(p, q) is {right[0]:.4f} in an example; you returned {draw:.4f}.")
        if abs(guess - right[1]) > 1e-9:
            known = {
                "the favourite is q's, not p's: the drafter does not know p.": p.max(),
                "min(p, q) at the favourite would hold if q were still what it was. Now the favourite is certain: "
                "q(x) = 1 there.": torch.minimum(p, q)[q.argmax()],
                "A(x) = p/q with the *old* q is the leaky decoder of lesson 05. The q in the test must be that of the "
                "draw: 1 at the favourite.": (p / q)[q.argmax()].clamp(max=1),
                "that is how sure q is, not how often p agrees.": q.max(),
            }
            for hint, wrong in known.items():
                if abs(guess - wrong.item()) < 1e-9:
                    raise Hint(f"guess: {hint}")
            raise Hint(f"guess: in an example it is {right[1]:.4f}; you returned {guess:.4f}.")
    return "a certain draft is accepted with probability p(x); neither way is better everywhere"
