"""The checks of lesson 02-verify."""

import torch

from specviz.exercises import Hint, exercise
from specviz.models.table import TableModel
from specviz.randomness import Scripted
from specviz.sampling import SamplingParams
from specviz.steps import begin, commit, draft, target_forward
from specviz.verification import verify

LESSON = "02-verify"


@exercise(LESSON, "judges", todo="Row i of p (from 0) was computed before draft i, so it judges draft i.")
def _(judges):
    generator = torch.Generator().manual_seed(2)
    for gamma, vocabulary in ((1, 4), (4, 9)):
        p = torch.rand(gamma + 1, vocabulary, dtype=torch.float64, generator=generator).softmax(-1)
        x = torch.randint(vocabulary, (gamma,), generator=generator).tolist()
        answer = judges(p, x)
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise Hint("return two things: the γ probabilities p_i(x_i), and the whole distribution for the bonus")
        of_drafts, bonus = (torch.as_tensor(part, dtype=torch.float64) for part in answer)
        right = p[torch.arange(gamma), x]
        if tuple(of_drafts.shape) != (gamma,):
            raise Hint(f"one probability for each of the {gamma} drafts; yours has shape {tuple(of_drafts.shape)}")
        if torch.allclose(of_drafts, p[torch.arange(1, gamma + 1), x]):
            raise Hint("one row too late: p_i judges x_i, so it must not have seen x_i; the first row judges x_1")
        if not torch.allclose(of_drafts, right):
            raise Hint("p_i(x_i) is the entry of row i in the column of draft i, for each i by itself")
        if tuple(bonus.shape) != (vocabulary,):
            raise Hint(f"the bonus is drawn from a whole row of p, {vocabulary} probabilities")
        if not torch.equal(bonus, p[-1]):
            raise Hint("the bonus follows after all drafts, so its row is the last one, which has seen them all")
    return "γ rows judge, the last one is left for the bonus"


@exercise(LESSON, "mask", todo="Compare positions of keys, 0 to capacity-1, with the positions of the queries.")
def _(mask):
    for lengths, n, capacity in (([0], 3, 5), ([4], 3, 10), ([6, 2], 4, 12), ([3, 0, 1], 1, 4)):
        length = torch.tensor(lengths)
        got = torch.as_tensor(mask(length, n, capacity))
        shape = (len(lengths), n, capacity)
        if tuple(got.shape) != shape:
            raise Hint(f"the mask has shape [B, n, capacity] = {shape}; yours is {tuple(got.shape)}")
        if got.dtype != torch.bool:
            raise Hint(f"the mask must be boolean, True where a query may look; yours is {got.dtype}")
        queries, keys = length[:, None] + torch.arange(n), torch.arange(capacity)
        right = keys <= queries[..., None]
        if torch.equal(got, right):
            continue
        if torch.equal(got, ~right):
            raise Hint("the other way round: True is a key that the query sees")
        if torch.equal(got, keys < queries[..., None]):
            raise Hint("a query also sees its own position: its key is written before anyone looks")
        if torch.equal(got, (keys <= torch.arange(n)[:, None]).expand(shape)):
            raise Hint("the queries are not at positions 0 to n-1, but behind what the cache holds: start at length")
        if torch.equal(got, (keys < length[:, None, None] + n).expand(shape)):
            raise Hint("all n queries see the same keys here: then a draft would see the drafts that follow it")
        raise Hint(f"not yet: with lengths {lengths} and n = {n}, query j of row r may see keys up to length[r] + j")
    return "prefix and own draft are seen, later drafts and stale entries are not"


@exercise(LESSON, "verify-forward", todo="Feed the last committed token and the drafts, then process the logits.")
def _(verify_forward):
    model = TableModel.random(4, order=2, seed=5, scale=1.5)
    sampling, committed = SamplingParams(temperature=0.7), [0, 2, 1, 3, 0]
    for drafts in ([1], [3, 3, 1], [2, 0, 1, 2]):
        fresh = model.new_cache([[0]], 16).feed(torch.tensor([committed + drafts]))[0, len(committed) - 1 :]
        cache = model.new_cache([committed], capacity=16)
        cache.feed(torch.tensor([committed[:-1]]))
        try:
            p = torch.as_tensor(verify_forward(cache, list(committed), list(drafts), sampling))
        except ValueError as error:
            if "do not fit" in str(error):
                raise Hint("the tape is full: the memory already holds the committed text but its last token") from None
            raise
        fed = int(cache.length) - (len(committed) - 1)
        if fed == len(drafts):
            raise Hint("the drafts alone give γ rows, and no p_1: the last committed token is not in the memory yet")
        if fed > len(drafts) + 1:
            raise Hint(f"{fed} tokens were fed, only γ+1 = {len(drafts) + 1} are missing; the rest is in the memory")
        if tuple(p.shape) == (1, len(drafts) + 1, 4):
            p = p[0]
        if tuple(p.shape) != (len(drafts) + 1, 4):
            raise Hint(f"p should have γ+1 = {len(drafts) + 1} rows; yours has shape {tuple(p.shape)}")
        if torch.allclose(p, fresh):
            raise Hint("these are logits: sampling.probabilities makes them the p that the decoder samples from")
        if torch.allclose(p, fresh.softmax(-1)):
            raise Hint("the plain softmax ignores the temperature: p must be processed as q was")
        if not torch.allclose(p, sampling.probabilities(fresh)):
            raise Hint("these are not the distributions after the committed text and the first drafts: what was fed?")
    return "γ+1 distributions from one forward over γ+1 tokens"


@exercise(LESSON, "cache-lengths", todo="What was fed, what was committed, and a rewind never makes a cache longer.")
def _(lengths_after):
    for length, gamma, k in ((5, 3, 0), (5, 3, 1), (7, 4, 3), (5, 3, 3), (6, 1, 0), (6, 1, 1)):
        right = _lengths(length, gamma, k)
        got = tuple(int(number) for number in lengths_after(length, gamma, k))
        case = f"L = {length}, γ = {gamma}, {k} accepted"
        if len(got) != 3:
            raise Hint("return three numbers: committed length, length of the target cache, length of the draft cache")
        if got[0] != right[0]:
            raise Hint(
                f"{case}: {k} drafts and one more token are committed, so the text is {right[0]} long, not {got[0]}"
            )
        if got[1] != right[1]:
            late = "; the token drawn last has not been fed" if got[1] == right[1] + 1 else ""
            raise Hint(f"{case}: the target's memory holds the committed text but its last token, {right[1]}{late}")
        if got[2] != right[2] and k == gamma:
            raise Hint(
                f"{case}: the drafter never fed x_γ, and a rewind never makes a cache longer: its length is {right[2]}"
            )
        if got[2] != right[2]:
            raise Hint(f"{case}: the drafter's memory is rewound like the target's, to {right[2]}, not {got[2]}")
    return "checked against real rounds of the package"


def _lengths(length, gamma, k):
    """Play the round: target and draft differ, so that the coins can accept exactly k of gamma drafts."""
    target = TableModel.from_probabilities([0.2, 0.8])
    drafter = TableModel.from_probabilities([0.8, 0.2])  # drafts 0, which A(0) = 1/4 accepts
    uniforms = {(0, 0, "draft", i): 0.0 for i in range(gamma)} | {(0, 0, "next", 0): 0.5}
    uniforms |= {(0, 0, "coin", i): 0.1 if i < k else 0.9 for i in range(gamma)}
    state = begin(target, drafter, [0] * length, gamma=gamma, max_new_tokens=12, randomness=Scripted(uniforms))
    proposal = draft(state)
    p = target_forward(state, proposal)
    verdict = verify(proposal.tokens, proposal.q, p, state.randomness, proposal.lengths, state.active)
    commit(state, proposal, p, verdict)
    return int(state.length), int(state.cache.length), int(state.session.cache.length)
