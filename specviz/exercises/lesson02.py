"""The checks of 02-verify."""

import torch

from specviz.exercises import exercise
from specviz.exercises.answers import Hint, array, judge, parts, whole
from specviz.models.table import TableModel
from specviz.randomness import Scripted
from specviz.sampling import SamplingParams
from specviz.steps import begin, commit, draft, target_forward
from specviz.verification import verify


@exercise("02-verify", "judges", todo="Row i of p (from 0) was computed before draft i, so it judges draft i.")
def _(judges):
    generator = torch.Generator().manual_seed(2)
    for gamma, vocabulary in ((1, 4), (4, 9)):
        p = torch.rand(gamma + 1, vocabulary, dtype=torch.float64, generator=generator).softmax(-1)
        x = torch.randint(vocabulary, (gamma,), generator=generator).tolist()
        of_drafts, bonus = parts(judges(p, x), "the γ probabilities p_i(x_i)", "the whole distribution for the bonus")
        judge(array(of_drafts, (gamma,), f"one probability for each of the {gamma} drafts"), p[range(gamma), x], {
            "one row too late: p_i judges x_i and has not seen it; the first row judges x_1": p[range(1, gamma + 1), x],
        }, "p_i(x_i) is the entry of row i in the column of draft i, for each i by itself")  # fmt: skip
        bonus = array(bonus, (vocabulary,), f"for the bonus a whole row of p, {vocabulary} probabilities,")
        last = "the bonus follows after all drafts, so its row is the last one, which has seen them all"
        judge(bonus, p[-1], otherwise=last)
    return "γ rows judge, the last one is left for the bonus"


@exercise("02-verify", "mask", todo="Compare positions of keys, 0 to capacity-1, with the positions of the queries.")
def _(mask):
    for lengths, n, capacity in (([0], 3, 5), ([4], 3, 10), ([6, 2], 4, 12), ([3, 0, 1], 1, 4)):
        length, shape = torch.tensor(lengths), (len(lengths), n, capacity)
        got = array(mask(length, n, capacity), shape, f"a mask of shape [B, n, capacity] = {list(shape)}", dtype=None)
        if got.dtype != torch.bool:
            raise Hint(f"the mask must be boolean, True where a query may look; yours is {got.dtype}")
        queries, keys = (length[:, None] + torch.arange(n))[..., None], torch.arange(capacity)
        from_0 = (keys <= torch.arange(n)[:, None]).expand(shape)
        all_alike = (keys < length[:, None, None] + n).expand(shape)
        judge(got, keys <= queries, {
            "the other way round: True is a key that the query sees": keys > queries,
            "a query also sees its own position: its key is written before any query looks": keys < queries,
            "the queries are not at positions 0 to n-1, but behind what the cache holds: start at length": from_0,
            "all n queries see the same keys here: then a draft would see the drafts that follow it": all_alike,
        }, f"not yet: with lengths {lengths} and n = {n}, query j of row r sees keys up to length[r] + j")  # fmt: skip
    return "prefix and own draft are seen, later drafts and stale entries are not"


@exercise("02-verify", "verify-forward", todo="Feed the last committed token and the drafts, then process the logits.")
def _(verify_forward):
    model = TableModel.random(4, order=2, seed=5, scale=1.5)
    sampling, committed = SamplingParams(temperature=0.7), [0, 2, 1, 3, 0]
    for drafts in ([1], [3, 3, 1], [2, 0, 1, 2]):
        fresh = model.new_cache([[0]], 16).feed(torch.tensor([committed + drafts]))[0, len(committed) - 1 :]
        cache, rows = model.new_cache([committed], capacity=64), len(drafts) + 1
        cache.feed(torch.tensor([committed[:-1]]))
        p = array(verify_forward(cache, list(committed), list(drafts), sampling), None)
        fed = int(cache.length) - (len(committed) - 1)
        if fed == len(drafts):
            raise Hint("the drafts alone give γ rows, and no p_1: the last committed token is not in the cache yet")
        if fed > rows:
            raise Hint(f"{fed} tokens were fed, only γ+1 = {rows} are missing: the cache already holds the committed "
                       "text but its last token")  # fmt: skip
        p = array(p[0] if p.shape == (1, rows, 4) else p, (rows, 4), f"p with γ+1 = {rows} rows")
        judge(p, sampling.probabilities(fresh), {
            "these are logits: sampling.probabilities makes them the p that the decoder samples from": fresh,
            "the plain softmax ignores the temperature: p must be processed as q was": fresh.softmax(-1),
        }, "these are not the distributions after the committed text and first drafts: what was fed?")  # fmt: skip
    return "γ+1 distributions from one forward over γ+1 tokens"


@exercise("02-verify", "cache-lengths", todo="What was fed and committed? A rewind never makes a cache longer.")
def _(lengths_after):
    names = "committed length", "length of the target's cache", "length of the draft's cache"
    for length, gamma, k in ((5, 3, 0), (5, 3, 1), (7, 4, 3), (5, 3, 3), (6, 1, 0), (6, 1, 1)):
        text, target, drafter = _lengths(length, gamma, k)
        got = [whole(number) for number in parts(lengths_after(length, gamma, k), *names)]
        where = f"L = {length}, γ = {gamma}, {k} accepted: "
        one_more = f"{k} drafts and one more token are committed, so the text is {text} long, not {got[0]}"
        judge(got[0], text, otherwise=one_more, where=where)
        but_one = f"the target's cache holds the committed text but its last token, {target}"
        judge(got[1], target, {f"{but_one}; the token drawn last has not been fed": target + 1}, but_one, where)
        rewound = f"the drafter's cache is rewound like the target's, to {drafter}, not {got[2]}"
        never_fed = f"the drafter never fed x_γ, and a rewind never makes a cache longer: its length is {drafter}"
        judge(got[2], drafter, otherwise=never_fed if k == gamma else rewound, where=where)
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
