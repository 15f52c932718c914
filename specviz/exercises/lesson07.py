"""The checks of 07-decoder, and stored answers of SmolLM2."""

import json
from pathlib import Path

import numpy as np
import torch

from specviz.decoding import autoregress
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.exercises import exercise
from specviz.exercises.answers import AnswerError, Hint, ids, judge, number, parts
from specviz.exercises.examples import RecordingModel, random_pair
from specviz.models.table import TableModel
from specviz.randomness import Seeded
from specviz.sampling import SamplingParams


def stored_chats() -> list[dict]:
    """Two chats with SmolLM2, as the lesson's chat() once returned them, for a machine without the model."""
    return json.loads(Path(__file__).with_name("lesson07_chats.json").read_text(encoding="utf-8"))["chats"]


@exercise("07-decoder", "plain-decoder", todo="One loop: feed what the cache lacks, draw one token, append it.")
def _(plain_decoder):
    settings = [
        (TableModel.random(5, 2, seed=1), [0, 3, 1], 9, SamplingParams()),
        (TableModel.random(5, 2, seed=2), [2], 7, SamplingParams(temperature=0.6, top_k=3)),
        (TableModel.random(5, 1, seed=3), [4, 0], 8, SamplingParams(temperature=0)),
        (TableModel.random(4, 1, seed=4, eos=1), [0, 2], 30, SamplingParams()),
    ]
    for seed in range(3):
        for setting in settings:
            _judge_text(plain_decoder, seed, *setting)
    return "draft nothing, and the decoder is this loop"


def _judge_text(plain_decoder, seed, model, prompt, n, sampling):
    recording, given = RecordingModel(model), list(prompt)
    answer = ids(plain_decoder(recording, given, n, sampling, Seeded(seed)), "the list of the new ids")
    fed = [token for forward in recording.fed for token in forward]
    expected = autoregress(model, prompt, max_new_tokens=n, sampling=sampling, seed=seed).tokens
    plain = autoregress(model, prompt, max_new_tokens=n, seed=seed).tokens
    if given != prompt:
        raise Hint("the caller's prompt was changed: begin with text = list(prompt).")
    if answer == expected:
        if fed != (prompt + expected)[:-1]:
            raise Hint("the text is right, but the cache was fed other tokens than the text's, once each: the prompt "
                       "first, then one new token a step, and never the last.")  # fmt: skip
        return
    for wrong, hint in (
        (answer == prompt + expected, "return the new ids alone, without the prompt."),
        (model.eos and answer[: len(expected)] == expected,
         "the text goes on behind an EOS (target.eos is a set of ids)."),
        (answer == expected[:-1], "the token that ends the text, EOS say, belongs to it."),
        (len(answer) != len(expected) and not model.eos, f"asked for {n} new tokens, you returned {len(answer)}."),
        (fed[: len(prompt)] != prompt, "the cache must be fed all of the prompt before the first token is drawn."),
        (answer == plain, "the logits were not processed as asked: use sampling.probabilities(logits)."),
        (any(len(forward) > 1 for forward in recording.fed[1:2]),
         "the cache keeps what it was fed. Feed only what it lacks: text[int(cache.length):]."),
        (True, "other ids than autoregress() draws from the same uniforms. Step t (from 0) begins with "
               'randomness.begin_round(t) and draws from stream "next".'),
    ):  # fmt: skip
        if wrong:
            raise Hint(hint)


def _softmax(logits, temperature=1):
    if temperature == 0:
        return np.eye(len(logits))[int(np.argmax(logits))]
    x = np.exp((logits - logits.max()) / temperature)
    return x / x.sum()


@exercise("07-decoder", "alpha-at", todo="Process both, p and q, at the temperature; then Σ min(p, q).")
def _(alpha_at):
    generator = np.random.default_rng(0)
    for T in (1.0, 0.5, 2.5, 0, 0.005):
        for _ in range(6):
            logits = 2 * generator.standard_normal((2, 6))
            if T == 0 and generator.random() < 0.5:
                logits[1] = logits[0] + 0.01
            _judge_alpha(alpha_at, *logits, T)
    return "one at both ends for models that agree on the order, lowest in between"


def _judge_alpha(alpha_at, p_logits, q_logits, T):
    try:
        with np.errstate(all="ignore"):
            answer = number(alpha_at(p_logits, q_logits, T))
    except AnswerError as error:
        if not isinstance(error.__cause__, ZeroDivisionError):
            raise
        answer = np.nan
    p, q = _softmax(p_logits, T), _softmax(q_logits, T)
    right = np.minimum(p, q).sum()
    if T == 0:
        judge(answer, right, otherwise="T = 0 is greedy, not a division: all mass on the largest logit, so the overlap "
              f"is 1 if both models prefer the same token and 0 if not. You returned {answer:.3g}.")  # fmt: skip
        return
    if np.isnan(answer):
        raise Hint(f"at T = {T:g} your code returns nan: take the largest logit off before exp().")
    p1, q1 = _softmax(p_logits), _softmax(q_logits)
    multiplied = np.minimum(_softmax(p_logits, 1 / T), _softmax(q_logits, 1 / T)).sum()
    judge(answer, right, {
        "the temperature is missing: that is the overlap at T = 1.": np.minimum(p1, q1).sum(),
        "only p was processed. Draft and target get the same temperature.": np.minimum(p, q1).sum(),
        "only q was processed. Draft and target get the same temperature.": np.minimum(p1, q).sum(),
        "divide the *logits* by T, not the probabilities.": np.minimum(p1, q1).sum() / T,
        "logits are divided by T, not multiplied.": multiplied,
        "Σ p·q is how often two independent samples agree (lesson 05). Take the smaller of both.": p @ q,
        "that is the rejected share Z = 1 - β.": 1 - right,
    }, f"at T = {T:g} an example has overlap {right:.4f}; you returned {answer:.4f}.")  # fmt: skip


@exercise("07-decoder", "look-up", todo="Try endings of longest, longest - 1, … 1 tokens; look for each from the back.")
def _(look_up):
    generator = np.random.default_rng(0)
    texts = [[1, 2, 3, 4, 1, 2, 3], [1, 2, 9, 3, 2, 8, 1, 2], [5, 1, 5, 2, 5], [4, 4, 4], [7], [], [1, 2, 3, 4]]
    texts += [generator.integers(0, k, n).tolist() for k, n in [(2, 8), (3, 12), (4, 20), (2, 15)] * 5]
    for text in texts:
        for longest in (1, 2, 3):
            given = list(text)
            answer = ids(look_up(given, longest), "a list of ids, [] where nothing repeats,")
            if given != text:
                raise Hint("the text that was given was changed; work on a copy.")
            _judge_continuation(answer, text, longest)
    return "no model, no training: the text itself is the draft"


def _judge_continuation(answer, text, longest):
    right, where = PromptLookup(longest).continuation(list(text)), f"({text}, longest={longest}) "
    if answer == right:
        return
    found = {n: _continuations(text, n) for n in range(1, longest + 1)}
    best = max((n for n in found if found[n]), default=0)
    for wrong, hint in (
        (not answer, f"an ending occurs earlier, followed by {right}. Occurrences may overlap the ending."),
        (not right, "nothing there occurs earlier. The ending itself does not count."),
        (best and answer in found[best],
         f"of several occurrences take the *latest* (it may overlap the ending): {right} follows it."),
        (any(answer in found[n] for n in range(1, best)),
         f"a longer ending occurs as well: try {best} tokens before fewer."),
        (best and answer == text[-len(right) - best :],
         "what *follows* the occurrence is proposed, without the ending itself."),
        (True, f"expected {right}, you returned {answer}."),
    ):  # fmt: skip
        if wrong:
            raise Hint(where + hint)


def _continuations(text, n):
    """The rest of the text after each earlier occurrence of its last n tokens, in order."""
    return [text[i + n :] for i in range(len(text) - n) if text[i : i + n] == text[len(text) - n :]]


@exercise("07-decoder", "guess-or-draw", todo="Σ min(p, q) twice: once with q itself, once with a one-hot q.")
def _(guess_or_draw):
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        p, q = random_pair(generator)
        least, favourite = torch.minimum(p, q), q.argmax()
        answer = parts(guess_or_draw(p, q), "the acceptance of a draw from q", "the acceptance of q's favourite")
        draw, guess = map(number, answer)
        judge(draw, least.sum(), {
            "Σ p·q would be sample-and-match. The paper's coin accepts Σ min(p, q).": p @ q,
        }, f"the overlap Σ min(p, q) is {least.sum():.4f} in an example; you returned {draw:.4f}.", "draw: ")
        judge(guess, p[favourite], {
            "the favourite is q's, not p's: the drafter does not know p.": p.max(),
            "min(p, q) at the favourite would hold if q were still what it was. Now the favourite is certain: "
            "q(x) = 1 there.": least[favourite],
            "A(x) = p/q with the *old* q is the leaky decoder of lesson 05. The q in the test must be that of the "
            "draw: 1 at the favourite.": (p / q)[favourite].clamp(max=1),
            "that is how sure q is, not how often p agrees.": q.max(),
        }, f"in an example it is {p[favourite]:.4f}; you returned {guess:.4f}.", "guess: ")  # fmt: skip
    return "a certain draft is accepted with probability p(x); neither way is better everywhere"
