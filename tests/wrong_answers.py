"""Typical wrong answers to each exercise: code that takes the stub's place, and that its check must not pass.

WRONG[notebook][exercise] is a list; test_exercises.py asks for at least one. Take answers that learners really write:
p and q swapped, a step that is off by one, a normalisation forgotten.
"""

# 01-draft: a draft loop with a blank for q and one for the draw.
_LOOP = """\
def draft_tokens(model, prompt_ids, gamma, u, sampling):
    cache = model.new_cache([prompt_ids], capacity=len(prompt_ids) + gamma)
    logits, tokens, q = cache.feed(torch.tensor([prompt_ids])), [], []
    for i in range(gamma):
        q_i = {q}
        x_i = {x}
        q.append(q_i[0])
        tokens.append(int(x_i))
        if i < gamma - 1:
            logits = cache.feed(x_i[:, None])
    return tokens, torch.stack(q)"""

# 08-hardware: the larger of two times, the rows beside the weights, a window by batch, a server's counters.
_ROOFLINE = """\
def roofline_V(n, B, W, K, P, bandwidth, flops):
    def t(n, B):
        return {t}
    return {answer}"""
_ROWS = """\
def rows_that_fit(memory, weights, kv, text, gamma):
    m = 2 if gamma else 1
    return {rows}"""
_GAMMAS = """\
def gamma_by_batch(alpha, c, V, batches, max_gamma=8):
    best = []
    for B in batches:
        speedups = [theory.speedup(alpha, g, c, {cost}) if g else 1.0 for g in range({first}, {last})]
        best.append({first} + int(np.argmax(speedups)))
    return best"""
_METRICS = """\
def read_metrics(drafts, draft_tokens, accepted, per_position):
    tested = [drafts, *per_position[:-1]]
    rates = [passed / tests for passed, tests in zip(per_position, tested)]
    return {alpha}, {rates}, {tokens}"""

WRONG = {
    "01-draft": {
        "free-tokens": [
            "def free_tokens(bytes_each, bandwidth, flops):\n    return bytes_each * flops / bandwidth",  # no 2
            "def free_tokens(bytes_each, bandwidth, flops):\n    return flops / bandwidth",  # a weight is one byte
            "def free_tokens(bytes_each, bandwidth, flops):\n    return 2 * bandwidth / (bytes_each * flops)",
            "def free_tokens(bytes_each, bandwidth, flops):\n    return P * bytes_each / bandwidth",  # a time
        ],
        "inverse-cdf": [
            "def draw(probs, u):\n    return int(probs.argmax())",
            "def draw(probs, u):\n    return int((probs.cumsum(0) < u).sum())",  # the wrong end of each slice
            "def draw(probs, u):\n    return int((probs.cumsum(0) <= u).sum()) + 1",  # counts from 1
            "def draw(probs, u):\n    return int(torch.multinomial(probs, 1))",  # ignores u
        ],
        "process": [
            # keeps the mass that was cut off
            "def process(logits, temperature, top_k):\n    probs = (logits / temperature).softmax(-1)\n"
            "    return probs.where(probs >= probs.sort(descending=True).values[top_k - 1], 0)",
            "def process(logits, temperature, top_k):\n    return (logits / temperature).softmax(-1)",  # no top_k
            "def process(logits, temperature, top_k):\n    return logits.topk(top_k).values.softmax(-1)",
            "def process(logits, temperature, top_k):\n    probs = logits.softmax(-1) / temperature\n"
            "    probs = probs.where(probs >= probs.sort(descending=True).values[top_k - 1], 0)\n"
            "    return probs / probs.sum()",  # temperature after the softmax
        ],
        "draft-loop": [
            # q without temperature and top-k
            _LOOP.format(
                q="logits[:, -1].softmax(-1)", x="inverse_cdf(sampling.probabilities(logits[:, -1]), u[i : i + 1])"
            ),
            _LOOP.format(q="sampling.probabilities(logits[:, -1])", x="q_i.argmax(-1)"),  # greedy draft
            _LOOP.format(q="sampling.probabilities(logits[:, -1])", x="inverse_cdf(q_i, u[:1])"),  # one u for all
            _LOOP.format(q="sampling.probabilities(logits[:, 0])", x="inverse_cdf(q_i, u[i : i + 1])"),  # the first row
            # feeds x_γ too
            "def draft_tokens(model, prompt_ids, gamma, u, sampling):\n"
            "    cache = model.new_cache([prompt_ids], capacity=len(prompt_ids) + gamma)\n"
            "    logits, tokens, q = cache.feed(torch.tensor([prompt_ids])), [], []\n"
            "    for i in range(gamma):\n"
            "        q.append(sampling.probabilities(logits[:, -1])[0])\n"
            "        tokens.append(int(inverse_cdf(q[-1][None], u[i : i + 1])))\n"
            "        logits = cache.feed(torch.tensor([tokens[-1:]]))\n"
            "    return tokens, torch.stack(q)",
        ],
    },
    "02-verify": {
        "judges": [
            "def judges(p, draft_tokens):\n"  # one row late
            "    return p[torch.arange(len(draft_tokens)) + 1, torch.tensor(draft_tokens)], p[-1]",
            "def judges(p, draft_tokens):\n"  # the bonus row has not seen x_γ
            "    return p[torch.arange(len(draft_tokens)), torch.tensor(draft_tokens)], p[-2]",
            "def judges(p, draft_tokens):\n    return p[:-1].amax(-1), p[-1]",  # the favourites' probabilities
            "def judges(p, draft_tokens):\n    return p[:-1, draft_tokens], p[-1]",  # every row with every draft
        ],
        "mask": [
            "def mask(length, n, capacity):\n"  # does not see itself
            "    return torch.arange(capacity) < (length[:, None] + torch.arange(n))[:, :, None]",
            "def mask(length, n, capacity):\n"  # starts at position 0
            "    return torch.ones(len(length), n, capacity).tril().bool()",
            "def mask(length, n, capacity):\n"  # drafts see the drafts after them
            "    return (torch.arange(capacity) < length[:, None, None] + n).expand(-1, n, -1)",
            "def mask(length, n, capacity):\n"  # inverted
            "    return torch.arange(capacity) > (length[:, None] + torch.arange(n))[:, :, None]",
        ],
        "verify-forward": [
            "def verify_forward(cache, committed, drafts, sampling):\n"  # p_1 is missing
            "    return sampling.probabilities(cache.feed(torch.tensor([drafts])))[0]",
            "def verify_forward(cache, committed, drafts, sampling):\n"  # feeds everything again
            "    return sampling.probabilities(cache.feed(torch.tensor([committed + drafts])))[0]",
            "def verify_forward(cache, committed, drafts, sampling):\n"  # logits
            "    return cache.feed(torch.tensor([[committed[-1], *drafts]]))[0]",
            "def verify_forward(cache, committed, drafts, sampling):\n"  # unprocessed
            "    return cache.feed(torch.tensor([[committed[-1], *drafts]]))[0].softmax(-1)",
        ],
        "cache-lengths": [
            "def lengths_after(L, gamma, k):\n    return L + k + 1, L + k + 1, L + k + 1",  # y has not been fed
            "def lengths_after(L, gamma, k):\n    return L + k + 1, L + k, L + k",  # the drafter never saw x_γ
            "def lengths_after(L, gamma, k):\n    return L + k, L + k - 1, L + k - 1",  # forgets y
            "def lengths_after(L, gamma, k):\n    return L + k + 1, L + gamma, L + gamma - 1",  # no rewind
        ],
    },
    "03-accept": {
        "accept-coin": [
            "def accepts(p_x, q_x, u):\n    return u <= p_x / q_x",  # not strict
            "def accepts(p_x, q_x, u):\n    return u < q_x / p_x if p_x else False",  # p and q swapped
            "def accepts(p_x, q_x, u):\n    return u < p_x",  # forgets q
            "def accepts(p_x, q_x, u):\n    return p_x >= q_x",  # no coin
            "def accepts(p_x, q_x, u):\n    return u > p_x / q_x",
        ],
        "wrong-q": [
            "def too_much(p, q, q_test):\n    return q_test * accept_probability(p, q_test) > p + 1e-12",
            "def too_much(p, q, q_test):\n    return q > p",
            "def too_much(p, q, q_test):\n    return q * accept_probability(p, q) > p + 1e-12",  # never
            "def too_much(p, q, q_test):\n    return accept_probability(p, q_test) > p",  # forgets that x is drafted
        ],
        "acceptance-rate": [
            "def rate(rounds):\n    return sum(len(r.tokens) for r in rounds) / (5 * len(rounds))",
            "def rate(rounds):\n    return sum(r.accepted for r in rounds) / sum(len(r.draft_tokens) for r in rounds)",
            "def rate(rounds):\n    return sum(r.accepted / r.tested for r in rounds) / len(rounds)",
            "def rate(rounds):\n    return sum(r.accepted for r in rounds) / (4 * len(rounds))",
        ],
        "first-rejection": [
            "def count_accepted(p_x, q_x, u):\n    return sum(c * q < p for c, q, p in zip(u, q_x, p_x))",  # skips a ✗
            "def count_accepted(p_x, q_x, u):\n"
            "    return next((i + 1 for i in range(len(u)) if u[i] * q_x[i] >= p_x[i]), len(u))",  # keeps the ✗
            "def count_accepted(p_x, q_x, u):\n"
            "    return next((i for i in range(len(u)) if u[i] * q_x[i] > p_x[i]), len(u))",  # not strict
        ],
    },
    "04-resample": {
        "residual": [
            "def my_residual(p, q):\n    left = (p - q).clamp(min=0)\n    return left / left.sum()",  # NaN at Z = 0
            "def my_residual(p, q):\n    return (p - q).clamp(min=0)",  # not normalised
            "def my_residual(p, q):\n    return (p - q).clamp(min=0).softmax(-1)",
            "def my_residual(p, q):\n    return (p - q).abs() / (p - q).abs().sum() if (p != q).any() else p",
            "def my_residual(p, q):\n    left = (q - p).clamp(min=0)\n"
            "    return p if left.sum() == 0 else left / left.sum()",
        ],
        "emitted-law": [
            "def emitted(p, q, r):\n    return q * accept_probability(p, q) + (1 - accept_probability(p, q)) * q * r",
            "def emitted(p, q, r):\n    return accept_probability(p, q) + (1 - torch.minimum(p, q).sum()) * r",
            "def emitted(p, q, r):\n    return q * accept_probability(p, q)",
            "def emitted(p, q, r):\n    return torch.minimum(p, q) + r",
        ],
        "round-rejection": [
            "def rejection(betas):\n    return sum(1 - beta for beta in betas)",
            "def rejection(betas):\n    return float(np.prod(betas))",
            "def rejection(betas):\n    return float(np.prod([1 - beta for beta in betas]))",
            "def rejection(betas):\n    return 1 - sum(betas) / len(betas)",
        ],
        "whole-round": [
            # resamples from p
            "def my_round(draft_tokens, q, p, coins, u_next):\n    for i, x in enumerate(draft_tokens):\n"
            "        if not coins[i] < accept_probability(p[i, x], q[i, x]):\n"
            "            return i, pick(p[i], u_next)\n"
            "    return len(draft_tokens), pick(p[-1], u_next)",
            # the bonus from the row before the last draft
            "def my_round(draft_tokens, q, p, coins, u_next):\n    for i, x in enumerate(draft_tokens):\n"
            "        if not coins[i] < accept_probability(p[i, x], q[i, x]):\n"
            "            return i, pick(residual(p[i], q[i]), u_next)\n"
            "    return len(draft_tokens), pick(p[-2], u_next)",
            # a coin at 0 accepts what the target never says
            "def my_round(draft_tokens, q, p, coins, u_next):\n    for i, x in enumerate(draft_tokens):\n"
            "        if coins[i] > accept_probability(p[i, x], q[i, x]):\n"
            "            return i, pick(residual(p[i], q[i]), u_next)\n"
            "    return len(draft_tokens), pick(p[-1], u_next)",
            # p one row too late
            "def my_round(draft_tokens, q, p, coins, u_next):\n    for i, x in enumerate(draft_tokens):\n"
            "        if not coins[i] < accept_probability(p[i + 1, x], q[i, x]):\n"
            "            return i, pick(residual(p[i + 1], q[i]), u_next)\n"
            "    return len(draft_tokens), pick(p[-1], u_next)",
        ],
    },
    "05-equivalence": {
        "rule-law": [
            # how often the paper's coin rejects, not this one
            "def law_of(p, q, accept, resample_from):\n"
            "    return q * accept(p, q) + (1 - torch.minimum(p, q).sum()) * resample_from(p, q)",
            "def law_of(p, q, accept, resample_from):\n"
            "    z = 1 - torch.minimum(p, q).sum()\n    return torch.minimum(p, q) + z * resample_from(p, q)",
            "def law_of(p, q, accept, resample_from):\n    a = q * accept(p, q)\n"
            "    return a + (q - a) * resample_from(p, q)",
            "def law_of(p, q, accept, resample_from):\n    return q * accept(p, q)",
            "def law_of(p, q, accept, resample_from):\n    return p",  # what was promised, not what comes out
        ],
        "repair": [
            "my_resample_from = residual",
            "def my_resample_from(p, q):\n    return p",
            "def my_resample_from(p, q):\n    return residual(p, q / 2)",
            "def my_resample_from(p, q):\n    return (p - 2 * torch.minimum(p, q)).clamp(min=0)",
            "def my_resample_from(p, q):\n    return p - q / 2",  # negative
            # right for a single position only
            "def shy(p, q):\n    return accept_probability(p, q) / 2\n"
            "def my_resample_from(p, q):\n    left = p - q * shy(p, q)\n    return left[0] if left.dim() > 1 else left",
        ],
        "pearson": [
            "def pearson(counts, p):\n    e = counts.sum() * p\n    s = ((counts - e) ** 2 / e).sum()\n"
            "    return s, stats.chi2.sf(s, len(p))",
            "def pearson(counts, p):\n    e = counts.sum() * p\n    s = ((counts - e) ** 2 / e).sum()\n"
            "    return s, stats.chi2.cdf(s, len(p) - 1)",
            "def pearson(counts, p):\n    f = counts / counts.sum()\n    s = ((f - p) ** 2 / p).sum()\n"
            "    return s, stats.chi2.sf(s, len(p) - 1)",
            "def pearson(counts, p):\n    e = counts.sum() * p\n    s = ((counts - e) ** 2 / counts).sum()\n"
            "    return s, stats.chi2.sf(s, len(p) - 1)",
            "def pearson(counts, p):\n    e = counts.sum() * p\n    return ((counts - e) ** 2 / e).sum()",
        ],
        "how-many": [
            "def samples_for(law, p, false_alarm=0.01):\n"
            "    return stats.chi2.isf(false_alarm, len(p) - 1) / float(((law - p) ** 2 / p).sum())",
            "def samples_for(law, p, false_alarm=0.01):\n    dof = len(p) - 1\n"
            "    return (stats.chi2.isf(false_alarm, dof) - dof) / float((law - p).abs().sum() / 2)",
            "def samples_for(law, p, false_alarm=0.01):\n    dof = len(p) - 1\n"
            "    return (stats.chi2.isf(false_alarm, dof) - dof) / float(((law - p) ** 2 / law).sum())",
            "def samples_for(law, p, false_alarm=0.01):\n    dof = len(p) - 1\n"
            "    return (stats.chi2.isf(0.01, dof) - dof) / float(((law - p) ** 2 / p).sum())",
            "def samples_for(law, p, false_alarm=0.01):\n    dof = len(p)\n"
            "    return (stats.chi2.isf(false_alarm, dof) - dof) / float(((law - p) ** 2 / p).sum())",
        ],
        "find-the-liar": [
            # the first token alone
            "def honest(decode_round):\n"
            "    texts = sample_sequences(*ask, 5000, decode_round=decode_round, **case.settings)\n"
            "    return fit_sequences(texts, law).tests[0].p_value > 1e-4",
            # too few samples
            "def honest(decode_round):\n"
            "    texts = sample_sequences(*ask, 50, decode_round=decode_round, **case.settings)\n"
            "    return fit_sequences(texts, law).acquitted",
            # slow is not wrong
            "def honest(decode_round):\n"
            "    settings = dict(case.settings, seed=0, decode_round=decode_round)\n"
            "    traces = speculate(*ask[:2], [ask[2]] * 200, **settings)\n"
            "    return np.mean([t.tokens_per_round for t in traces]) > 1.5",
            "def honest(decode_round):\n    return True",
        ],
    },
    "06-speedup": {
        "round-yield": [
            # the token after the last accepted draft forgotten
            "def round_yield(alphas):\n    drafts = np.cumprod(alphas).sum()\n    return drafts, len(alphas) - drafts",
            "def round_yield(alphas):\n    tokens = 1 + sum(alphas)\n    return tokens, len(alphas) + 1 - tokens",
            "def round_yield(alphas):\n    tokens = theory.expected_tokens(np.mean(alphas), len(alphas))\n"
            "    return tokens, len(alphas) + 1 - tokens",
            "def round_yield(alphas):\n    n = 1 + np.cumprod(alphas).sum()\n    return n, len(alphas) - n",
            # the rejected draft alone, not those behind it
            "def round_yield(alphas):\n    return 1 + np.cumprod(alphas).sum(), 1 - np.prod(alphas)",
            "def round_yield(alphas):\n    return 1 + np.cumprod(alphas).sum()",
        ],
        "best-gamma": [
            "server, laptop, big_draft = 16, 16, 16",  # E[N] alone
            "server, laptop, big_draft = 9, 6, 2",  # V = 1 everywhere
            "server, laptop, big_draft = 9, 4, 1",  # at least one draft, α > c after all
            "server, laptop, big_draft = 9, 3, 0",
            "server, laptop, big_draft = 3.2, 1.87, 1.0",  # the speedups
        ],
        "break-even": [
            "def dearest_draft(alpha, V, max_gamma=16):\n    return alpha",
            "def dearest_draft(alpha, V, max_gamma=16):\n    return alpha - V(2) + 1",
            "def dearest_draft(alpha, V, max_gamma=16):\n"
            "    return max((theory.expected_tokens(alpha, g) - V(g)) / g for g in range(1, max_gamma + 1))",
            "def dearest_draft(alpha, V, max_gamma=16):\n"
            "    return max(theory.expected_tokens(alpha, g) - V(g + 1) for g in range(1, max_gamma + 1))",
            "def dearest_draft(alpha, V, max_gamma=16):\n    return max(0.0, max(\n"
            "        (theory.expected_tokens(alpha, g) - V(g + 1)) / g for g in range(1, max_gamma + 1)))",
            "def dearest_draft(alpha, V, max_gamma=16):\n"
            "    return max((theory.expected_tokens(alpha, g) - V(g + 1)) / g for g in range(1, 17))",
        ],
        "ninety-percent": [
            "least_gamma, greatest_speedup = 9, 9.0",
            "least_gamma, greatest_speedup = 22, 4.674",  # the tokens of a full round
            "least_gamma, greatest_speedup = 21, theory.speedup(0.9, 21, 0.05)",
            "least_gamma, greatest_speedup = 21, theory.oracle_speedup(0.9, 0.05)",
        ],
        "above-expected": [
            "above, beyond = [0, 3, 6, 7, 8, 9, 10, 11], [3, 6, 9, 10]",  # against the printed expectation
            "above, beyond = [1, 2, 5], []",
            "above, beyond = [0, 3, 4, 6, 7, 8, 9, 10, 11], [6, 9]",  # 1/(1-α): free drafts
            "above, beyond = [0, 3, 4, 6, 7, 8, 9, 10, 11], [0, 3, 4, 6, 7, 8, 9, 10, 11]",  # a better γ
            "above, beyond = 9, 4",  # how many
        ],
    },
    "07-decoder": {
        "plain-decoder": [
            # the whole text each time, behind what is there already
            "def plain_decoder(target, prompt, n, sampling, randomness):\n"
            "    text, cache = list(prompt), target.new_cache([prompt], len(prompt) + n)\n"
            "    for t in range(n):\n"
            "        randomness.begin_round(t)\n"
            "        p = sampling.probabilities(cache.feed(torch.tensor([text]))[:, -1])\n"
            "        text.append(int(randomness.draw(p, 'next').token))\n"
            "    return text[len(prompt):]",
            # EOS ignored
            "def plain_decoder(target, prompt, n, sampling, randomness):\n"
            "    text, cache = list(prompt), target.new_cache([prompt], len(prompt) + n)\n"
            "    for t in range(n):\n"
            "        randomness.begin_round(t)\n"
            "        p = sampling.probabilities(cache.feed(torch.tensor([text[int(cache.length):]]))[:, -1])\n"
            "        text.append(int(randomness.draw(p, 'next').token))\n"
            "    return text[len(prompt):]",
            # unprocessed, and with the prompt
            "def plain_decoder(target, prompt, n, sampling, randomness):\n"
            "    text, cache = list(prompt), target.new_cache([prompt], len(prompt) + n)\n"
            "    for t in range(n):\n"
            "        randomness.begin_round(t)\n"
            "        p = cache.feed(torch.tensor([text[int(cache.length):]]))[:, -1].softmax(-1)\n"
            "        text.append(int(randomness.draw(p, 'next').token))\n"
            "        if text[-1] in target.eos:\n"
            "            break\n"
            "    return text[len(prompt):]",
            "def plain_decoder(target, prompt, n, sampling, randomness):\n"
            "    return prompt + autoregress(target, prompt, max_new_tokens=n, sampling=sampling, "
            "randomness=randomness).tokens",
            # the rounds never begin, so that every step draws by the same uniform
            "def plain_decoder(target, prompt, n, sampling, randomness):\n"
            "    text, cache = list(prompt), target.new_cache([prompt], len(prompt) + n)\n"
            "    while len(text) < len(prompt) + n and not (len(text) > len(prompt) and text[-1] in target.eos):\n"
            "        p = sampling.probabilities(cache.feed(torch.tensor([text[int(cache.length):]]))[:, -1])\n"
            "        text.append(int(randomness.draw(p, 'next').token))\n"
            "    return text[len(prompt):]",
            # a new cache each step: right, but quadratic
            "def plain_decoder(target, prompt, n, sampling, randomness):\n"
            "    text = list(prompt)\n"
            "    for t in range(n):\n"
            "        randomness.begin_round(t)\n"
            "        logits = target.new_cache([text], len(text)).feed(torch.tensor([text]))\n"
            "        text.append(int(randomness.draw(sampling.probabilities(logits[:, -1]), 'next').token))\n"
            "        if text[-1] in target.eos:\n"
            "            break\n"
            "    return text[len(prompt):]",
        ],
        "alpha-at": [
            # no temperature; on one of them only; on probabilities; no T = 0; sample and match; overflow
            "def soft(x):\n    x = np.exp(x - x.max())\n    return x / x.sum()\n\n"
            "def alpha_at(p_logits, q_logits, T):\n    return np.minimum(soft(p_logits), soft(q_logits)).sum()",
            "def soft(x):\n    x = np.exp(x - x.max())\n    return x / x.sum()\n\n"
            "def alpha_at(p_logits, q_logits, T):\n    return np.minimum(soft(p_logits / T), soft(q_logits)).sum()",
            "def soft(x):\n    x = np.exp(x - x.max())\n    return x / x.sum()\n\n"
            "def alpha_at(p_logits, q_logits, T):\n    return np.minimum(soft(p_logits) / T, soft(q_logits) / T).sum()",
            "def soft(x):\n    x = np.exp(x - x.max())\n    return x / x.sum()\n\n"
            "def alpha_at(p_logits, q_logits, T):\n    return np.minimum(soft(p_logits / T), soft(q_logits / T)).sum()",
            "def soft(x):\n    x = np.exp(x - x.max())\n    return x / x.sum()\n\n"
            "def alpha_at(p_logits, q_logits, T):\n    return (soft(p_logits / T) * soft(q_logits / T)).sum()",
            "def soft(x, T):\n    if T == 0:\n        return np.eye(len(x))[np.argmax(x)]\n"
            "    x = np.exp(x / T)\n    return x / x.sum()\n\n"
            "def alpha_at(p_logits, q_logits, T):\n    return np.minimum(soft(p_logits, T), soft(q_logits, T)).sum()",
        ],
        "look-up": [
            # the earliest; the shortest; with the ending; no overlap; the ending itself; the last token alone
            "def look_up(text, longest):\n    for n in range(min(longest, len(text) - 1), 0, -1):\n"
            "        for at in range(len(text) - n):\n            if text[at : at + n] == text[-n:]:\n"
            "                return text[at + n :]\n    return []",
            "def look_up(text, longest):\n    for n in range(1, min(longest, len(text) - 1) + 1):\n"
            "        for at in range(len(text) - n - 1, -1, -1):\n            if text[at : at + n] == text[-n:]:\n"
            "                return text[at + n :]\n    return []",
            "def look_up(text, longest):\n    for n in range(min(longest, len(text) - 1), 0, -1):\n"
            "        for at in range(len(text) - n - 1, -1, -1):\n            if text[at : at + n] == text[-n:]:\n"
            "                return text[at:]\n    return []",
            "def look_up(text, longest):\n    for n in range(min(longest, len(text) - 1), 0, -1):\n"
            "        for at in range(len(text) - 2 * n, -1, -1):\n            if text[at : at + n] == text[-n:]:\n"
            "                return text[at + n :]\n    return []",
            "def look_up(text, longest):\n    for n in range(min(longest, len(text)), 0, -1):\n"
            "        for at in range(len(text) - n, -1, -1):\n            if text[at : at + n] == text[-n:]:\n"
            "                return text[at + n :]\n    return []",
        ],
        "guess-or-draw": [
            "def guess_or_draw(p, q):\n    return (p * q).sum(), p[q.argmax()]",
            "def guess_or_draw(p, q):\n    return torch.minimum(p, q).sum(), p.max()",
            "def guess_or_draw(p, q):\n    least = torch.minimum(p, q)\n    return least.sum(), least[q.argmax()]",
            # tested with the old q: the leaky decoder
            "def guess_or_draw(p, q):\n    x = q.argmax()\n"
            "    return torch.minimum(p, q).sum(), (p[x] / q[x]).clamp(max=1)",
            "def guess_or_draw(p, q):\n    return torch.minimum(p, q).sum()",
        ],
    },
    "08-hardware": {
        "roofline-v": [
            _ROOFLINE.format(t="max((W + B * K) / bandwidth, 2 * P * n * B / flops)", answer="t(n, B)"),  # a time
            _ROOFLINE.format(t="max((W + B * K) / bandwidth, 2 * P * n * B / flops)", answer="t(n, B) / t(1, 1)"),
            _ROOFLINE.format(t="(W + B * K) / bandwidth + 2 * P * n * B / flops", answer="t(n, B) / t(1, B)"),
            _ROOFLINE.format(t="max((W + B * K) / bandwidth, 2 * P * n / flops)", answer="t(n, B) / t(1, B)"),
            _ROOFLINE.format(t="max((W + K) / bandwidth, 2 * P * n * B / flops)", answer="t(n, B) / t(1, B)"),
            _ROOFLINE.format(t="max((W + n * B * K) / bandwidth, 2 * P * n * B / flops)", answer="t(n, B) / t(1, B)"),
            _ROOFLINE.format(t="max(W / bandwidth, 2 * P * n * B / flops)", answer="t(n, B) / t(1, B)"),
            _ROOFLINE.format(t="max((W + B * K) / bandwidth, P * n * B / flops)", answer="t(n, B) / t(1, B)"),
            _ROOFLINE.format(t="min((W + B * K) / bandwidth, 2 * P * n * B / flops)", answer="t(n, B) / t(1, B)"),
        ],
        "rows-that-fit": [
            # the draft always; a fraction; below 0; no weights; only the target's cache, or weights; the text alone
            _ROWS.format(rows="max(0, (memory - sum(weights)) // (sum(kv) * (text + gamma + 1)))"),
            _ROWS.format(rows="max(0, (memory - sum(weights[:m])) / (sum(kv[:m]) * (text + gamma + 1)))"),
            _ROWS.format(rows="(memory - sum(weights[:m])) // (sum(kv[:m]) * (text + gamma + 1))"),
            _ROWS.format(rows="memory // (sum(kv[:m]) * (text + gamma + 1))"),
            _ROWS.format(rows="max(0, (memory - sum(weights[:m])) // (kv[0] * (text + gamma + 1)))"),
            _ROWS.format(rows="max(0, (memory - weights[0]) // (sum(kv[:m]) * (text + gamma + 1)))"),
            _ROWS.format(rows="max(0, (memory - sum(weights[:m])) // (sum(kv[:m]) * text))"),
            _ROWS.format(rows="max(0, (memory - sum(weights[:m])) // (sum(kv[:m]) * (text + gamma)))"),
        ],
        "gamma-by-batch": [
            _GAMMAS.format(first=1, cost="V(g + 1, B)", last="max_gamma + 1"),  # never 0
            _GAMMAS.format(first=0, cost="V(g, B)", last="max_gamma + 1"),
            _GAMMAS.format(first=0, cost="V(g + 1, 1)", last="max_gamma + 1"),
            _GAMMAS.format(first=0, cost="1.0", last="max_gamma + 1"),
            _GAMMAS.format(first=0, cost="V(g + 1, B)", last="max_gamma // 2 + 1"),  # not all windows
        ],
        "read-metrics": [
            # the server's own rate; products for rates; the mean of the rates; no bonus; only the first test; none lost
            _METRICS.format(alpha="accepted / draft_tokens", rates="rates", tokens="1 + accepted / drafts"),
            _METRICS.format(
                alpha="accepted / sum(tested)",
                rates="[n / drafts for n in per_position]",
                tokens="1 + accepted / drafts",
            ),
            _METRICS.format(alpha="sum(rates) / len(rates)", rates="rates", tokens="1 + accepted / drafts"),
            _METRICS.format(alpha="accepted / sum(tested)", rates="rates", tokens="accepted / drafts"),
            _METRICS.format(alpha="accepted / drafts", rates="rates", tokens="1 + accepted / drafts"),
            _METRICS.format(alpha="accepted / sum(per_position)", rates="rates", tokens="1 + accepted / drafts"),
        ],
    },
}
