"""Wrong decoders: each is the shipped one with a single small change, named, and convicted.

    python -m specviz.equivalence.mutants

They run through the decoder itself: a mutant is a decode_round() with one of its four steps exchanged. Each
kind has been seen in public implementations. The lossy ones change the law of the text; the others leave it exact
and only waste target passes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from specviz.arrays import as_array, as_tensor
from specviz.equivalence.exact import Comparison, branches, compare, target_law
from specviz.equivalence.goodness_of_fit import Report, fit_sequences, samples_to_convict
from specviz.equivalence.samples import sample_sequences
from specviz.models.table import TableModel
from specviz.progress import progress_bar
from specviz.randomness import Branch, Drawn, Flipped, Seeded
from specviz.sampling import SamplingParams
from specviz.steps import commit, decode_round, draft, target_forward
from specviz.verification import Verdict, accept_probability, residual, verify


def with_step(*, draft=draft, target_forward=target_forward, verify=verify, commit=commit):
    """decode_round() with one of its steps exchanged (with none, it is decode_round itself, step for step)."""

    def decode_round(state):
        proposal = draft(state)
        p = target_forward(state, proposal)
        verdict = verify(proposal.tokens, proposal.q, p, state.randomness, proposal.lengths, state.active)
        return commit(state, proposal, p, verdict)

    return decode_round


# --- where they are tried -----------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A pair of tables and settings, small enough for every branch to be visited."""

    name: str
    target: TableModel
    drafter: TableModel
    prompt: tuple[int, ...]
    settings: dict

    def target_law(self):
        asked = {k: v for k, v in self.settings.items() if k in ("max_new_tokens", "sampling", "eos")}
        return target_law(self.target, list(self.prompt), **asked)


def _adversarial() -> Case:
    """A narrow vocabulary, and a draft that prefers exactly what the target does not."""
    target = TableModel.random(16, 0, seed=5, name="16 symbols")
    opposite = TableModel(-target.logits, name="its opposite")
    return Case("adversarial", target, opposite, (0,), dict(gamma=1, max_new_tokens=2))


def _pair(size, order, likeness=0.0) -> tuple[TableModel, TableModel]:
    """Two random tables; with a likeness up to 1 the draft's logits lean towards the target's."""
    target = TableModel.random(size, order, seed=11, name="target")
    other = TableModel.random(size, order, seed=12)
    return target, TableModel(likeness * target.logits + (1 - likeness) * other.logits, name="draft")


def _zeros() -> Case:
    """The draft likes a token that the target never says."""
    target = TableModel.from_probabilities([0.0, 0.6, 0.4], name="never says 0")
    drafter = TableModel.from_probabilities([0.8, 0.1, 0.1], name="loves 0")
    return Case("zeros", target, drafter, (1,), dict(gamma=2, max_new_tokens=3))


_COOL = SamplingParams(temperature=0.7, top_k=3)
CASES = {
    case.name: case
    for case in (
        _adversarial(),
        Case("context", *_pair(3, 2), (0, 1), dict(gamma=2, max_new_tokens=4)),
        Case("top-k", *_pair(5, 1, 0.6), (0,), dict(gamma=2, max_new_tokens=3, sampling=_COOL)),
        Case("eos", *_pair(3, 1), (0,), dict(gamma=2, max_new_tokens=4, eos=[1])),
        Case("long", *_pair(2, 3, 0.8), (0, 1), dict(gamma=2, max_new_tokens=7)),
        _zeros(),
    )
}


# --- drafts gone wrong --------------------------------------------------------------------------


def _with(state, **settings):
    return replace(state, settings=replace(state.settings, **settings))


class _OtherDraws:
    """Another randomness, but that the drafts are drawn by pick(randomness, probs, slot, active)."""

    def __init__(self, randomness, pick):
        self.randomness, self.pick = randomness, pick

    def __getattr__(self, name):
        return getattr(self.randomness, name)

    def draw(self, probs, stream="draft", slot=0, active=None):
        return self.pick(self.randomness, probs, slot, active)


def draft_the_argmax(state):
    def argmax(randomness, probs, slot, active):
        return Drawn(as_array(probs.argmax(-1)), np.full(len(probs), np.nan))

    return draft(_with(state, randomness=_OtherDraws(state.randomness, argmax)))


def report_q_unprocessed(state):
    def processed(randomness, probs, slot, active):
        return randomness.draw(state.sampling.probabilities(torch.as_tensor(probs).log()), "draft", slot, active)

    plain = _OtherDraws(state.randomness, processed)
    return draft(_with(state, randomness=plain, sampling=SamplingParams()))


def draft_hotter(state):
    return draft(_with(state, sampling=SamplingParams(temperature=2.0)))


def forget_the_last_draft(state):
    """After full acceptance the draft memory lacks two tokens; take it to lack one, so that x_γ is never fed."""
    cache = state.session.cache
    hole = (state.length - cache.length == 2) & (state.round > 0)
    cache.length = cache.length + hole.long()
    return draft(state)


# --- memories that only grow --------------------------------------------------------------------


class _NeverRewound:
    """A memory whose owner believes that it was rewound: new tokens are written behind the rejected ones."""

    def __init__(self, model, state, fed):
        rounds = state.settings.max_new_tokens * (state.gamma + 1)
        self.cache = model.new_cache(state.prompts, state.committed.shape[1] + rounds + state.gamma + 1)
        self.length = torch.zeros_like(state.length)
        self.count = None  # of a feed that says nothing of padding, which would not be taken back either
        if int(fed.max()) > 0:
            self.feed(state.committed[:, : int(fed.max())], fed)

    def feed(self, tokens, count=None):
        count = self.count if count is None else count
        self.length = self.length + (tokens.shape[1] if count is None else count)
        return self.cache.feed(tokens, count)

    prefill = feed

    def rewind(self, length):
        self.length = torch.minimum(self.length, torch.as_tensor(length))


def never_rewind_the_target(state, proposal):
    if state.round == 0:
        state.cache = _NeverRewound(state.target, state, state.length - 1)
    state.cache.count = (proposal.lengths + 1) * state.active
    return target_forward(state, proposal)


def never_rewind_the_draft(state):
    if state.round == 0:
        state.session.cache = _NeverRewound(state.session.model, state, torch.zeros_like(state.length))
    return draft(state)


# --- the target gone wrong ----------------------------------------------------------------------


def forget_to_process_p(state, proposal):
    return target_forward(_with(state, sampling=SamplingParams()), proposal)


def verify_greedily(state, proposal):
    return target_forward(_with(state, sampling=SamplingParams(temperature=0)), proposal)


def shift_the_rows(state, proposal):
    p = target_forward(state, proposal)
    following = (torch.arange(p.shape[1]) + 1).expand(len(p), -1).minimum(proposal.lengths[:, None])
    return p.gather(1, following[..., None].expand_as(p))


# --- the rule gone wrong ------------------------------------------------------------------------


def swap_p_and_q(p, q):
    return accept_probability(q, p)


def spare_the_first(p, q):
    a = accept_probability(p, q)
    a[:, :1] = 1
    return a


def accept_everything(p, q):
    return torch.ones_like(p)


def compare_coarse_coins(p, q):
    """u <= p/q with u rounded down to a multiple of 1/256: true for u below the next multiple after p/q."""
    return ((torch.floor(p / q * 256) + 1) / 256).clamp(max=1)


def resample_from_p(p, q):
    return p


def softmax_the_residual(p, q):
    bonus = q.sum(-1, keepdim=True) == 0
    return torch.where(bonus, p, (p - q).clamp(min=0).softmax(-1))


def overwrite_with_the_bonus(tokens, q, p, randomness, lengths, active):
    verdict = verify(tokens, q, p, randomness, lengths, active)
    return replace(verdict, accepted=verdict.accepted - _all_accepted(verdict, lengths).long())


def give_no_bonus(tokens, q, p, randomness, lengths, active):
    """The last accepted draft ends the round, in the place of the bonus token."""
    verdict = verify(tokens, q, p, randomness, lengths, active)
    full = _all_accepted(verdict, lengths)
    last = tokens.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0] if tokens.shape[1] else verdict.next_token
    return replace(verdict, accepted=verdict.accepted - full.long(), next_token=last.where(full, verdict.next_token))


def _all_accepted(verdict, lengths):
    return (verdict.accepted == lengths) & (lengths > 0)


def go_on_after_a_rejection(tokens, q, p, randomness, lengths, active):
    """Replace a rejected draft by a token from the residual, and test the next one against the same old rows."""
    rows, gamma = tokens.shape
    a = accept_probability(p[:, :gamma].gather(-1, tokens[..., None]), q.gather(-1, tokens[..., None]))[..., 0]
    for i in range(gamma):
        here = active & (lengths > i)
        sure_before = torch.cat([torch.ones(rows, i, dtype=a.dtype), a[:, i : i + 1]], dim=1)
        rejected = here & as_tensor(randomness.flip(sure_before, here).accepted == i)
        token = as_tensor(randomness.draw(residual(p[:, i], q[:, i]), "next", 1 + i, rejected).token)
        tokens[:, i] = token.where(rejected, tokens[:, i])
    next_token, u_next = map(as_tensor, randomness.draw(p[torch.arange(rows), lengths], "next", 0, active))
    return Verdict(lengths, next_token, a, torch.full_like(a, torch.nan), u_next)


def sample_and_match(tokens, q, p, randomness, lengths, active):
    """Draw from p; accept the draft if it is the same token. The paper's rule, with q forgotten (one-hot)."""
    one_hot = torch.nn.functional.one_hot(tokens, p.shape[-1]).to(p.dtype)
    return verify(tokens, one_hot, p, randomness, lengths, active)


# --- the end gone wrong -------------------------------------------------------------------------


def look_for_eos_at_the_end_only(state, proposal, p, verdict):
    settings, eos = state.settings, state.settings.eos
    state.settings = replace(settings, eos=frozenset())
    done = commit(state, proposal, p, verdict)
    state.settings = settings
    for row, round in enumerate(done):
        if round is not None and round.tokens[-1] in eos:
            state.finish[row] = "eos"
    return done


# --- one noise for everything -------------------------------------------------------------------


class _OneStream(Seeded):
    """Draft, coin and resample of one position read the same uniform."""

    def _uniforms(self, stream, slots, batch):
        return super()._uniforms("draft", slots, batch)


class _OneStreamExactly:
    """The same for every branch: each answer narrows the interval in which that one uniform can lie."""

    def __init__(self, branch: Branch):
        self.branch = branch
        self.known = {}  # slot -> (low [B], high [B])

    def begin(self, rows):
        """The branch was told already."""

    def begin_round(self, round, length):
        self.known = {}

    def _interval(self, slot):
        free = torch.zeros(self.branch.rows, dtype=torch.float64), torch.ones(self.branch.rows, dtype=torch.float64)
        return self.known.get(slot, free)

    def _narrow(self, slot, low, high, where):
        old_low, old_high = self._interval(slot)
        self.known[slot] = low.maximum(old_low).where(where, old_low), high.minimum(old_high).where(where, old_high)

    def draw(self, probs, stream="draft", slot=0, active=None):
        probs = torch.as_tensor(probs)
        active = torch.ones(len(probs), dtype=torch.bool) if active is None else torch.as_tensor(active)
        upper = probs.double().cumsum(-1) / probs.double().sum(-1, keepdim=True)
        lower = torch.cat([torch.zeros(len(probs), 1, dtype=torch.float64), upper[:, :-1]], dim=1)
        low, high = (bound[:, None] for bound in self._interval(slot))
        share = (upper.minimum(high) - lower.maximum(low)).clamp(min=0)
        share = share.masked_fill(share < 1e-15, 0)  # rounding's slivers are no branches
        drawn = self.branch.draw(share, stream, slot, active)
        at = as_tensor(drawn.token)[:, None]
        self._narrow(slot, lower.gather(1, at)[:, 0], upper.gather(1, at)[:, 0], active)
        return drawn

    def flip(self, prob, active=None):
        prob = torch.as_tensor(prob)
        rows, gamma = prob.shape
        active = torch.ones(rows, dtype=torch.bool) if active is None else torch.as_tensor(active)
        chances = torch.empty(rows, gamma, dtype=torch.float64)
        for i in range(gamma):
            low, high = self._interval(i)
            chances[:, i] = ((prob[:, i].double() - low) / (high - low)).clamp(0, 1)
        accepted, u = self.branch.flip(chances, active)
        places = as_tensor(accepted)
        for i in range(gamma):
            low, high = self._interval(i)
            self._narrow(i, low, prob[:, i].double(), active & (places > i))
            self._narrow(i, prob[:, i].double(), high, active & (places == i))
        return Flipped(accepted, u)


def share_the_noise(state):
    if isinstance(state.randomness, Branch):
        shared = _OneStreamExactly(state.randomness)
    elif isinstance(state.randomness, Seeded):
        shared = _OneStream(state.randomness.seed, state.randomness.rows)
    else:
        raise ValueError(
            f"randomness is a {type(state.randomness).__name__}: the mutant 'shared noise' takes its one uniform from "
            "Seeded(…) or a branch of Exhaustive; give one of these, or a seed."
        )
    proposal = draft(_with(state, randomness=shared))
    p = target_forward(state, proposal)
    verdict = verify(proposal.tokens, proposal.q, p, shared, proposal.lengths, state.active)
    return commit(state, proposal, p, verdict)


# --- the line-up --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """A decoder with one change, and the case on which it is tried."""

    name: str
    story: str
    decode_round: Callable = field(repr=False)
    case: Case = field(repr=False)
    lossy: bool = True


def _mutant(name, case, change, story, lossy=True) -> Mutant:
    return Mutant(name, story, change, CASES[case], lossy)


def _rule(**halves):
    return with_step(verify=partial(verify, **halves))


MUTANTS = [
    _mutant(
        "argmax draft", "adversarial", with_step(draft=draft_the_argmax),
        "drafts its likeliest token and tests it with the softmax's q, as if it had been drawn",
    ),
    _mutant(
        "q unprocessed", "top-k", with_step(draft=report_q_unprocessed),
        "draws the draft after temperature and top-k, but tests it with q from before",
    ),
    _mutant(
        "p unprocessed", "top-k", with_step(target_forward=forget_to_process_p),
        "applies temperature and top-k to the draft, but not to the target",
    ),
    _mutant(
        "resample from p", "adversarial", _rule(resample_from=resample_from_p),
        "draws from p after a rejection, so tokens that q likes come too often",
    ),
    _mutant(
        "softmax residual", "adversarial", _rule(resample_from=softmax_the_residual),
        "normalises max(p - q, 0) by a softmax, which gives every token something",
    ),
    _mutant(
        "p and q swapped", "adversarial", _rule(accept=swap_p_and_q),
        "accepts with min(1, q/p): Chen et al. call the target q",
    ),
    _mutant(
        "rows off by one", "context", with_step(target_forward=shift_the_rows),
        "judges each draft by the target's distribution after it, not before it",
    ),
    _mutant(
        "first draft spared", "context", _rule(accept=spare_the_first),
        "never tests the first draft of a round",
    ),
    _mutant(
        "nothing tested", "context", _rule(accept=accept_everything),
        "accepts every draft: fast, and the text is the draft model's",
    ),
    _mutant(
        "bonus overwrites", "context", with_step(verify=overwrite_with_the_bonus),
        "writes the bonus token over the last accepted draft",
    ),
    _mutant(
        "target not rewound", "context", with_step(target_forward=never_rewind_the_target),
        "leaves rejected drafts in the target's memory, so that later tokens see them",
    ),
    _mutant(
        "goes on", "context", with_step(verify=go_on_after_a_rejection),
        "replaces a rejected draft and keeps testing those behind it, which no longer follow",
    ),
    _mutant(
        "silently greedy", "context", with_step(target_forward=verify_greedily),
        "compares with the target's argmax although the temperature is 1",
    ),
    _mutant(
        "EOS missed", "eos", with_step(commit=look_for_eos_at_the_end_only),
        "looks for EOS at the end of a round only, so text goes on behind an accepted one",
    ),
    _mutant(
        "coarse coins", "zeros", _rule(accept=compare_coarse_coins),
        "accepts if u <= p/q with u of 8 bits: one coin in 256 is 0, and lets in what p never says",
    ),
    _mutant(
        "shared noise", "context", share_the_noise,
        "one uniform decides draft, coin and resample of a position",
    ),
    _mutant(
        "draft hole", "long", with_step(draft=forget_the_last_draft),
        "after full acceptance the draft model is never shown its own last token", lossy=False,
    ),
    _mutant(
        "draft not rewound", "long", with_step(draft=never_rewind_the_draft),
        "leaves rejected drafts in the draft model's memory", lossy=False,
    ),
    _mutant(
        "no bonus", "context", with_step(verify=give_no_bonus),
        "emits no further token when all drafts were accepted", lossy=False,
    ),
    _mutant(
        "hotter draft", "top-k", with_step(draft=draft_hotter),
        "drafts at temperature 2 without top-k, and says so honestly in q", lossy=False,
    ),
    _mutant(
        "sample and match", "context", with_step(verify=sample_and_match),
        "draws from p and accepts the draft if it is the same token", lossy=False,
    ),
]  # fmt: skip
RIGHT = [
    Mutant("right", "the shipped decoder", decode_round, case, lossy=False) for case in CASES.values()
]  # one on each table


@dataclass(frozen=True)
class Trial:
    """What came out against one decoder: the exact law of its text, and a test of samples from it."""

    mutant: Mutant
    exact: Comparison  # its law against the target's, over every branch
    samples_needed: int | None  # for Pearson's test of the joint law to convict it; None for an exact one
    report: Report  # the test of samples
    tokens_per_pass: float  # exactly expected tokens / expected target passes
    right_tokens_per_pass: float  # of the shipped decoder on the same case

    @property
    def as_expected(self) -> bool:
        """A lossy mutant is convicted both ways, any other decoder by neither."""
        return self.exact.exact == self.report.acquitted == (not self.mutant.lossy)

    def __str__(self):
        needed = "" if self.samples_needed is None else str(self.samples_needed)
        lost = 1 - self.tokens_per_pass / self.right_tokens_per_pass
        return (
            f"{self.mutant.name:<20}{self.mutant.case.name:<12}{self.exact.total_variation:>8.1e}{needed:>8}"
            f"{self.report.tests[-1].n:>9}{min(self.report.adjusted):>9.1e}  "
            f"{'CONVICTED' if self.report.convicted else 'acquitted':<11}"
            f"{self.tokens_per_pass:>6.2f}{'' if self.mutant.lossy or lost < 0.0005 else f'{-lost:>7.1%}':>7}"
        )


HEADER = (
    f"{'decoder':<20}{'table':<12}{'error':>8}{'needed':>8}{'samples':>9}{'p':>9}  {'verdict':<11}{'tokens/pass':>13}"
)


def line_up(mutants=None, *, false_alarm=1e-6, max_samples=200_000, seed=0, progress=None) -> list[Trial]:
    """Try decoders, by default the right one on every table and all mutants, exactly and by samples.

    A lossy mutant gets twice the samples that convict it with a power of 99 % at the rate false_alarm, max_samples
    at most. The others get a quarter of max_samples and must be hard to acquit: any innocent is accused with a
    probability of 1 % in all.

    Raises ValueError for anything but Mutants.
    """
    mutants = [*RIGHT, *MUTANTS] if mutants is None else list(mutants)
    for i, mutant in enumerate(mutants):
        if not isinstance(mutant, Mutant):
            raise ValueError(
                f"mutants[{i}]={mutant!r}: must be a Mutant, such as those of the lists MUTANTS and RIGHT (by name: "
                "[mutant for mutant in MUTANTS if mutant.name == …])."
            )
    innocent = 0.01 / max(1, sum(not mutant.lossy for mutant in mutants))
    right, trials = {}, []
    with progress_bar(len(mutants), "line-up", progress, unit=" decoders") as bar:
        for mutant in mutants:
            case = mutant.case
            if case.name not in right:
                right[case.name] = _exactly(case, decode_round)[1]
            law, tokens_per_pass = _exactly(case, mutant.decode_round)
            expected = case.target_law()
            exact = compare(law, expected)
            needed = None
            if not exact.exact:
                needed = samples_to_convict(*_aligned(law, expected), false_alarm)
            n = min(max_samples, max(1000, 2 * (needed or max_samples))) if mutant.lossy else max_samples // 4
            tokens = sample_sequences(
                case.target, case.drafter, list(case.prompt), n, seed=seed, progress=False,
                decode_round=mutant.decode_round, **case.settings,
            )  # fmt: skip
            report = fit_sequences(tokens, expected, false_alarm=false_alarm if mutant.lossy else innocent)
            trials.append(Trial(mutant, exact, needed, report, tokens_per_pass, right[case.name]))
            bar.update()
    return trials


def _exactly(case, decode_round):
    """The law of what is emitted, and the tokens that a target pass yields on average."""
    law, tokens, passes = {}, 0.0, 0.0
    ways = branches(
        case.target, case.drafter, list(case.prompt), decode_round=decode_round, progress=False, **case.settings
    )
    for trace, weight in ways:
        text = tuple(trace.tokens)
        law[text] = law.get(text, 0.0) + weight
        tokens += weight * len(text)
        passes += weight * len(trace.rounds)
    return law, tokens / passes


def _aligned(law, expected):
    texts = sorted({*law, *expected})
    return [law.get(text, 0.0) for text in texts], [expected.get(text, 0.0) for text in texts]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=200_000, help="at most, for each decoder")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # tables gain nothing from a second thread
    trials = line_up(max_samples=asked.samples, seed=asked.seed)
    print(HEADER)
    for kind, chosen in (
        ("the right one, on every table", [t for t in trials if t.mutant.decode_round is decode_round]),
        ("lossy: another law", [t for t in trials if t.mutant.lossy]),
        ("exact, but slower", [t for t in trials if not t.mutant.lossy and t.mutant.decode_round is not decode_round]),
    ):
        print(f"\n{kind}")
        for trial in chosen:
            print(f"{trial}  {trial.mutant.story}")
    wrong = [trial.mutant.name for trial in trials if not trial.as_expected]
    print(f"\nnot as expected: {', '.join(wrong)}" if wrong else "\nevery verdict as expected")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
