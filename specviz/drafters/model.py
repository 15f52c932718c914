"""The draft model: proposes tokens one by one, each from its own distribution q."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import pad

from specviz.drafters.protocol import Proposal
from specviz.models.tokenizers import same_tokenizer

LONG = 16  # tokens that a memory lacks: more are a prompt


class ModelDrafter:
    """Any LanguageModel as a drafter.

    Two vocabularies of one tokenizer may be padded to different sizes (151,936 and 152,064 ids, say): ids that the
    target lacks are never drafted, and ids that the draft lacks have q = 0.
    """

    def __init__(self, model):
        self.model = model
        self.name = model.name

    def fit(self, target):
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
        begins = getattr(target, "start_tokens", None)
        if hasattr(model, "start_tokens") and model.start_tokens != begins:
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

    def start(self, target, prompts, capacity, eos, target_memory):
        return ModelSession(self.model, self.model.start(prompts, capacity), eos, target.vocab_size)


class ModelSession:
    """Drafts one token after the other, each from logits that memory.feed() gives over the model's ids."""

    def __init__(self, model, memory, eos, vocab_size):
        self.model, self.memory, self.vocab_size = model, memory, vocab_size
        self.device = model.device  # asked for once: in a round it costs as much as a product
        self.eos = eos
        self.ends = torch.zeros(vocab_size, dtype=torch.bool, device=self.device)
        self.ends[list(eos)] = True

    def propose(self, committed, length, gamma, sampling, randomness):
        rows, device = committed.shape[0], self.device
        ends = length.tolist()
        # The draft's own context may be the shorter one; drafting x_1 .. x_n feeds length + n - 1 tokens.
        room = self.model.context + 1
        counts = [max(0, min(g, room - n)) for g, n in zip(gamma.tolist(), ends, strict=True)]
        least, most = min(counts), max(counts)
        gamma = torch.tensor(counts)
        lengths = gamma.to(device)  # rows draft at position i as long as i < lengths
        on_cpu = device.type == "cpu"  # elsewhere, asking would cost more than the forwards and masks that it saves
        everyone = least > 0  # then nothing has to be masked
        tokens, q, u = [], [], []
        for i in range(most):
            if i == 0:  # all that the memory lacks: the prompt at first, later one token or two
                logits = self._catch_up(committed, ends, counts)
            else:
                logits = self.memory.feed(tokens[-1][:, None], None if i < least else (gamma > i).long())[:, -1]
            drafting = None if everyone else i < lengths
            texts = _texts(committed, ends, tokens, i < lengths) if sampling.processors else None
            q_i = sampling.probabilities(self._over_the_targets_ids(logits), texts)  # [B, V]
            if not everyone:
                q_i = q_i.masked_fill(~drafting[:, None], 0)
            token, u_i = randomness.draw(q_i, "draft", i, active=drafting)
            tokens.append(token), q.append(q_i), u.append(u_i)
            if on_cpu and (i + 1 < least or i + 1 == most) and self.eos.isdisjoint(token.tolist()):
                continue  # nobody ends here
            lengths = lengths.where(~((i < lengths) & self.ends[token]), i + 1)
            remaining = int((i + 1 < lengths).sum()) if on_cpu else None
            everyone = remaining == rows
            if remaining == 0:
                break
        return Proposal(
            torch.stack(tokens, 1) if tokens else torch.zeros(rows, 0, dtype=torch.long, device=device),
            torch.stack(q, 1) if q else torch.zeros(rows, 0, self.vocab_size, dtype=torch.float32, device=device),
            lengths.cpu(),
            torch.stack(u, 1) if u else torch.zeros(rows, 0, dtype=torch.float64),
            forwards=len(tokens),
        )

    def propose_row(self, committed, end, gamma, sampling, randomness):
        """propose() for one row on the CPU, in numbers: the drafts and the q [V] of each. sampling has no processors.

        A subclass with a propose() of its own is asked for that alone, unless it has this too.
        """
        gamma = min(gamma, self.model.context + 1 - end)
        drafts, q = [], []
        while len(drafts) < gamma and self.eos.isdisjoint(drafts[-1:]):
            if drafts:
                logits = self.memory.feed(torch.from_numpy(np.array([drafts[-1:]])))[:, -1]
            else:
                logits = self._catch_up(committed, [end], [gamma])
            q_i = sampling.probabilities_array(self._over_the_targets_ids(logits))[0]
            drafts.append(randomness.draw_row(q_i, "draft", len(drafts)))
            q.append(q_i)
        return drafts, q

    def _catch_up(self, committed, ends, drafts):
        """Feed what the memory lacks of the committed text, up to ends; logits [B, V] after its last token.

        ends, drafts [B]: lists; rows that draft nothing are fed nothing.
        """
        rows = zip(ends, self.memory.length.tolist(), drafts, strict=True)
        lacking = [end - head if n else 0 for end, head, n in rows]
        if max(lacking) > LONG:  # nobody looks at a prompt's logits
            but_last = [max(0, n - 1) for n in lacking]
            getattr(self.memory, "fill", self.memory.feed)(*self._next(committed, but_last))
            lacking = [min(1, n) for n in lacking]
        tokens, count = self._next(committed, lacking)
        logits = self.memory.feed(tokens, count)
        if count is None:
            return logits[:, -1]
        return logits[torch.arange(len(count)), (count - 1).clamp(min=0)]

    def _next(self, committed, lacking):
        """The next lacking tokens of each row: tokens [B, n] and count [B], which is None for one row."""
        heads = self.memory.length
        if len(lacking) == 1:
            count, begin = None, heads.item()
            tokens = committed[:, begin : begin + lacking[0]]
        else:
            count = torch.tensor(lacking)
            at = heads[:, None] + torch.arange(max(lacking))
            tokens = committed.gather(1, at.clamp(max=committed.shape[1] - 1))
        if self.model.vocab_size < self.vocab_size:
            tokens = tokens.clamp(max=self.model.vocab_size - 1)  # the target may have emitted an id that only it has
        return tokens.to(self.device), count

    def _over_the_targets_ids(self, logits):
        lacking = self.vocab_size - logits.shape[-1]
        return pad(logits, (0, lacking), value=-torch.inf) if lacking else logits  # a negative pad cuts

    def rewind(self, length):
        self.memory.rewind(length)


def _texts(committed, ends, drafts, drafting):
    """For logits processors: the ids before the token that is drafted next, None for rows that draft none."""
    rows = zip(committed.tolist(), ends, drafting.tolist(), strict=True)
    drafted = [[int(tokens[row]) for tokens in drafts] for row in range(len(ends))]
    return [text[:end] + drafted[row] if more else None for row, (text, end, more) in enumerate(rows)]


def as_drafter(drafter):
    """A LanguageModel is wrapped in ModelDrafter; drafters (and None) pass. ValueError for anything else."""
    if isinstance(drafter, type):
        raise ValueError(f"drafter={drafter.__name__}: is a class; give an instance of it, {drafter.__name__}(…).")
    if drafter is None or (hasattr(drafter, "fit") and hasattr(drafter, "start")):
        return drafter
    if hasattr(drafter, "vocab_size") and hasattr(drafter, "context"):
        return ModelDrafter(drafter)
    raise ValueError(
        f"drafter is a {type(drafter).__name__}: must be a drafter (with name, fit and start) or a language model, "
        "such as CausalLM(model, tokenizer); load_pair gives one by name."
    )
