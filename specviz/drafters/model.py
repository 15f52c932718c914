"""The draft model: proposes tokens one by one, each from its own distribution q."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import pad

from specviz.arrays import as_array, as_tensor, beside, host, namespace
from specviz.drafters.protocol import Proposal, nothing_drafted
from specviz.models.tokenizers import same_tokenizer

LONG = 16  # tokens that a cache lacks: more are a prompt


class ModelDrafter:
    """Any LanguageModel as a drafter.

    Two vocabularies of one tokenizer may be padded to different sizes (151,936 and 152,064 ids, say): ids that the
    target lacks are never drafted, and ids that the draft lacks have q = 0.
    """

    def __init__(self, model):
        self.model = model
        self.name = model.name

    def check_target(self, target):
        """Raise ValueError unless this model can draft for target: ids of one meaning, and a way to its device."""
        model = self.model
        if not same_tokenizer(target.tokenizer, model.tokenizer):
            raise ValueError(
                f"drafter {model.name!r} and target {target.name!r} have different tokenizers: a draft id would mean "
                "another text to the target. Choose two models of one family."
            )
        tokenizers = target.tokenizer is not None and model.tokenizer is not None
        if model.vocab_size != target.vocab_size and not tokenizers:
            raise ValueError(
                f"drafter {model.name!r} has {model.vocab_size} ids, target {target.name!r} has {target.vocab_size}: "
                "p and q must be over the same vocabulary; give both models their tokenizer to show that it is padding."
            )
        if model.start_tokens != target.start_tokens:
            raise ValueError(
                f"drafter {model.name!r} and target {target.name!r} read their prompts differently: one of them is an "
                "encoder-decoder, whose text begins after its source. Choose two models of one family."
            )
        try:
            torch.zeros(1, dtype=model.dtype, device=model.device).to(target.device)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            raise ValueError(
                f"drafter {model.name!r} is on device {model.device}, and its results cannot be moved to the target's "
                f"device {target.device} ({error}); load it on {target.device}."
            ) from error

    def new_session(self, target, prompts, capacity, eos, target_cache):
        """A cache of the model's own, for these prompts."""
        return ModelSession(self.model, self.model.new_cache(prompts, capacity), eos, target.vocab_size)


class ModelSession:
    """Drafts one token after the other, each from the logits of cache.feed(), which are over the model's ids."""

    def __init__(self, model, cache, eos, vocab_size):
        self.model, self.cache, self.vocab_size = model, cache, vocab_size
        self.device = model.device  # asked for once: in a round it costs as much as a product
        self.eos = eos
        ends = torch.zeros(vocab_size, dtype=torch.bool, device=self.device)
        ends[list(eos)] = True
        self.ends = as_array(ends)

    def propose(self, committed, lengths, gamma, sampling, randomness):
        # The draft's own context may be the shorter one; drafting x_1 .. x_n feeds length + n - 1 tokens.
        room = self.model.context + 1
        counts = [max(0, min(g, room - n)) for g, n in zip(gamma, lengths, strict=True)]
        least, most, rows = min(counts), max(counts), len(counts)
        everyone_until = least  # before that position nothing has to be masked
        drafted = beside(np.array(counts), self.ends)  # rows draft at position i as long as i < drafted
        tokens, q, u = [], [], []
        for i in range(most):
            if i == 0:  # all that the cache lacks: the prompt at first, later one token or two
                logits = self._catch_up(committed, lengths, counts)
            else:
                count = None if i < least else torch.tensor([int(n > i) for n in counts])
                logits = self.cache.feed(as_tensor(tokens[-1]), count)[:, -1]
            drafting = None if i < everyone_until else i < drafted
            texts = _texts(committed, lengths, tokens, drafting) if sampling.processors else None
            q_i = as_array(sampling.probabilities(self._over_the_targets_ids(logits), texts))  # [B, V]
            token, u_i = randomness.draw(q_i, "draft", i, active=drafting)
            token = beside(token, self.ends)
            tokens.append(token[:, None]), q.append(q_i[:, None]), u.append(as_array(u_i)[:, None])
            # Where a text ends with its draft. Asking a GPU would cost more than the forwards that it saves.
            on_cpu = isinstance(token, np.ndarray)
            if on_cpu and self.eos.isdisjoint(token.tolist()):
                continue
            ended = self.ends[token] & (i < drafted)
            drafted = namespace(token).where(ended, i + 1, drafted)
            if on_cpu:
                everyone_until = int(drafted.min())
                if drafted.max() <= i + 1:
                    break
        if not tokens:
            return nothing_drafted(rows, self.vocab_size, self.device)
        (drafted,) = host(drafted)
        drafts, q, u = (as_tensor(namespace(parts[0]).concatenate(parts, 1)) for parts in (tokens, q, u))
        return Proposal(drafts, q, as_tensor(drafted), u, forwards=len(tokens))

    def _catch_up(self, committed, ends, drafts):
        """Feed the tokens of the committed text, up to ends, that the cache lacks; logits [B, V] after its last token.

        ends, drafts [B]: lists; rows that draft nothing are fed nothing.
        """
        rows = zip(ends, self.cache.length.tolist(), drafts, strict=True)
        lacking = [end - length if n else 0 for end, length, n in rows]
        if max(lacking) > LONG:  # a prompt's logits are not needed
            but_last = [max(0, n - 1) for n in lacking]
            self.cache.prefill(*self._next(committed, but_last))
            lacking = [min(1, n) for n in lacking]
        tokens, count = self._next(committed, lacking)
        logits = self.cache.feed(tokens, count)
        if count is None:
            return logits[:, -1]
        return logits[torch.arange(len(count)), (count - 1).clamp(min=0)]

    def _next(self, committed, lacking):
        """The next lacking tokens of each row: tokens [B, n] and count [B], which is None for one row."""
        lengths = self.cache.length
        if len(lacking) == 1:
            count, begin = None, lengths.item()
            tokens = as_tensor(committed.numpy()[:, begin : begin + lacking[0]])
        else:
            count = torch.tensor(lacking)
            at = lengths[:, None] + torch.arange(max(lacking))
            tokens = committed.gather(1, at.clamp(max=committed.shape[1] - 1))
        if self.model.vocab_size < self.vocab_size:
            tokens = tokens.clamp(max=self.model.vocab_size - 1)  # the target may have emitted an id that only it has
        return as_tensor(tokens, self.device), count

    def _over_the_targets_ids(self, logits):
        lacking = self.vocab_size - logits.shape[-1]
        return pad(logits, (0, lacking), value=-torch.inf) if lacking else logits  # a negative pad cuts

    def rewind(self, lengths):
        self.cache.rewind(lengths)


def _texts(committed, ends, drafts, drafting):
    """For logits processors: the ids before the token that is drafted next, None for rows that draft none."""
    drafted = zip(*(tokens[:, 0].tolist() for tokens in drafts)) if drafts else [()] * len(ends)
    drafting = [True] * len(ends) if drafting is None else drafting.tolist()
    rows = zip(committed.tolist(), ends, drafted, drafting, strict=True)
    return [[*text[:end], *tokens] if more else None for text, end, tokens, more in rows]


def as_drafter(drafter):
    """A LanguageModel is wrapped in ModelDrafter; drafters (and None) pass. ValueError for anything else."""
    if isinstance(drafter, type):
        raise ValueError(f"drafter={drafter.__name__}: is a class; give an instance of it, {drafter.__name__}(…).")
    lacking = [name for name in ("name", "check_target", "new_session") if not hasattr(drafter, name)]
    if drafter is None or not lacking:
        return drafter
    if hasattr(drafter, "vocab_size") and hasattr(drafter, "context"):
        return ModelDrafter(drafter)
    raise ValueError(
        f"drafter is a {type(drafter).__name__} without {', '.join(lacking)}: must be a drafter or a language model, "
        "such as CausalLM(model, tokenizer); load_pair gives one by name."
    )
