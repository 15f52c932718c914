"""Auditing any decoder: the stated rates, what is convicted and why, files to go on from, adapters."""

import json
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from scipy import stats
from tiny import hub_model, language_model

from specviz import CausalLM, SamplingParams, TableModel
from specviz.equivalence import CASES, MUTANTS, audit, from_specviz, from_transformers

quiet = partial(audit, progress=False)
GREEDY = SamplingParams(temperature=0)
_IS_5_0 = transformers.__version__.startswith("5.0.")


def table_sampler(probs, rows, wrong=None, eos=()):
    """generate() in plain numpy: probs [V+1, V] after each last token (V: at the start, which no prompt here uses).

    wrong(position, probs [rows, V]) -> probs changes the distribution; position counts from 1.
    """

    def generate(prompt_ids, max_new_tokens, seed):
        generator = np.random.default_rng(seed)
        last = np.full(rows, prompt_ids[-1])
        drawn = []
        for position in range(1, max_new_tokens + 1):
            p = probs[last]
            p = p if wrong is None else wrong(position, p)
            below = np.cumsum(p, axis=1)
            last = (generator.random((rows, 1)) * below[:, -1:] >= below).sum(1)
            drawn.append(last)
        texts = np.stack(drawn, axis=1).tolist()
        ends = [next((i + 1 for i, token in enumerate(text) if token in eos), max_new_tokens) for text in texts]
        return [text[:end] for text, end in zip(texts, ends)]

    return generate


def table(vocab_size, seed=0, scale=1.0, eos=()):
    """A first-order table and its probabilities [V+1, V]."""
    model = TableModel.random(vocab_size, 1, seed=seed, scale=scale, eos=eos)
    return model, model.logits.softmax(-1).numpy()


# --- rates and power of the verdict -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "vocab_size, with_drafter, eos",
    [(3, False, ()), (60, False, ()), (60, True, ()), (60, False, (7, 8, 9))],
    ids=["counted", "ranked by p", "ranked by p/q", "ranked, with EOS"],
)
def test_a_correct_sampler_is_convicted_as_often_as_stated(vocab_size, with_drafter, eos):
    target, probs = table(vocab_size, eos=eos)
    drafter = table(vocab_size, seed=1)[0] if with_drafter else None
    audits, level = 200, 0.05
    reports = [
        quiet(
            table_sampler(probs, 400, eos=eos), target, [0], samples=400, max_new_tokens=3, drafter=drafter,
            false_alarm=level, seed=seed,
        )
        for seed in range(audits)
    ]  # fmt: skip
    convicted = sum(report.convicted for report in reports)
    assert convicted <= stats.binom.isf(1e-3, audits, level)
    assert convicted >= 1  # nor is it a formality
    for i, name in enumerate(h.what for h in reports[0].histograms):
        p_values = [report.tests.tests[i].p_value for report in reports]
        assert stats.kstest(p_values, "uniform").pvalue > 1e-3, name


@pytest.mark.slow
def test_the_power_that_is_promised_is_reached():
    """Mass moved between two halves of the ranks: the shape that is hardest to see for its total variation."""
    target, probs = table(400, scale=0.5)
    n = 600
    honest = quiet(table_sampler(probs, n), target, [0], samples=n, max_new_tokens=3)
    at = [h.what for h in honest.histograms].index("position 2: ranks")
    error = honest.tests.detectable[at]

    def move(position, p):
        if position != 2:
            return p
        order = np.argsort(p, axis=1, kind="stable")
        low = np.take_along_axis(np.cumsum(np.take_along_axis(p, order, 1), axis=1), np.argsort(order, 1), 1) < 0.5
        return np.where(low, 1 + 2 * error, 1 - 2 * error) * p

    reports = [
        quiet(table_sampler(probs, n, move), target, [0], samples=n, max_new_tokens=3, seed=s) for s in range(60)
    ]
    assert sum(report.convicted for report in reports) >= 57  # 99 % promised
    named = [report.first_position for report in reports if report.convicted]
    assert named.count(2) >= len(named) - 2


@pytest.mark.parametrize("vocab_size, samples", [(3, 2000), (300, 2000)], ids=["counted", "ranked"])
def test_the_first_position_that_is_off_is_named(vocab_size, samples):
    target, probs = table(vocab_size)

    def sharpen_later(position, p):
        return p if position == 1 else p**2 / (p**2).sum(1, keepdims=True)

    report = quiet(table_sampler(probs, samples, sharpen_later), target, [0], samples=samples, max_new_tokens=3)
    assert report.convicted
    assert report.first_position == 2
    assert report.histogram.position == 2
    assert "CONVICTED" in str(report) and "first off: position 2" in str(report)


def test_dependence_between_positions_alone_convicts():
    """Each position has the right law, and the second token copies the first one's luck."""
    target = TableModel([0.0] * 50)

    def generate(prompt_ids, max_new_tokens, seed):
        first = np.random.default_rng(seed).integers(50, size=1000)
        return np.stack([first, first], axis=1)

    report = quiet(generate, target, [0], max_new_tokens=2)
    assert report.convicted
    assert report.first_position is None
    assert "joint ranks, 10 bins" in [h.what for h in report.off]
    assert "first off: all ranks" in str(report)  # too uneven: each value comes twice


def test_p_over_q_sees_what_p_does_not():
    """Resampling from p after a rejection makes tokens that q likes come too often, whatever their p."""
    target, drafter = (table(200, seed=seed)[0] for seed in (0, 1))
    (resample,) = (mutant for mutant in MUTANTS if mutant.name == "resample from p")
    generate = from_specviz(target, drafter, gamma=2, decode_round=resample.decode_round)
    by_p = quiet(generate, target, [0], max_new_tokens=3)
    by_ratio = quiet(generate, target, [0], max_new_tokens=3, drafter=drafter)
    ranks = [h.what for h in by_p.histograms].index("all ranks")
    assert by_ratio.tests.tests[ranks].p_value < 1e-20
    assert by_ratio.tests.tests[ranks].p_value < by_p.tests.tests[ranks].p_value


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.lossy], ids=lambda mutant: mutant.name)
def test_wrong_decoders_are_convicted(mutant):
    case = mutant.case
    settings = {k: v for k, v in case.settings.items() if k != "max_new_tokens"}
    about = {k: v for k, v in settings.items() if k in ("sampling", "eos")}
    generate = from_specviz(case.target, case.drafter, rows=10_000, decode_round=mutant.decode_round, **settings)
    tokens = case.settings["max_new_tokens"]
    report = quiet(generate, case.target, list(case.prompt), samples=10_000, max_new_tokens=tokens, **about)
    assert report.convicted, str(report)


@pytest.mark.parametrize("name", CASES)
def test_the_right_decoder_is_not(name):
    case = CASES[name]
    settings = {k: v for k, v in case.settings.items() if k != "max_new_tokens"}
    about = {k: v for k, v in settings.items() if k in ("sampling", "eos")}
    generate = from_specviz(case.target, case.drafter, rows=10_000, **settings)
    tokens = case.settings["max_new_tokens"]
    report = quiet(
        generate, case.target, list(case.prompt), samples=10_000, max_new_tokens=tokens, false_alarm=1e-3, **about
    )
    assert not report.convicted, str(report)


# --- texts that cannot be -----------------------------------------------------------------------


def spoiled(spoil, eos=(0,)):
    """A correct sampler of 5 symbols whose texts are spoiled."""
    target, probs = table(5, eos=eos)
    right = table_sampler(probs, 500, eos=eos)
    return target, lambda *asked: [spoil(text) for text in right(*asked)]


@pytest.mark.parametrize(
    "spoil, what, remedy",
    [
        (lambda text: text + [1] if text[-1] == 0 and len(text) < 3 else text, "go on behind EOS", "cut them after"),
        (lambda text: (text + [0, 0])[:3], "go on behind EOS", "padding"),
        (lambda text: text + [1] if len(text) == 3 and text[-1] != 0 else text, "are longer than max", "length"),
        (lambda text: text[:-1] if text[-1] == 0 else text, "end early without EOS", "append it"),
    ],
    ids=["behind EOS", "padded", "too long", "EOS dropped"],
)
def test_impossible_texts_convict_by_themselves(spoil, what, remedy):
    target, generate = spoiled(spoil)
    report = quiet(generate, target, [1, 2, 3, 4, 1, 2], samples=1000, max_new_tokens=3)
    found = next(found for found in report.impossible if found.what.startswith(what))
    assert report.convicted and found.count > 0
    assert remedy in found.remedy
    assert "this alone convicts" in str(report) and found.remedy in str(report)


def test_text_that_is_only_too_long_leaves_the_tests_alone():
    """Setting such texts aside would bias the others: which are too long depends on their tokens."""
    target, generate = spoiled(lambda text: [*text, 1] if text[0] == 1 and len(text) == 3 and text[-1] else text)
    report = quiet(generate, target, [1], samples=4000, max_new_tokens=3)
    assert report.convicted and report.tests.acquitted
    assert report.first_position == 4


def test_a_token_of_probability_zero_convicts():
    sampling = SamplingParams(top_k=20)
    target, probs = table(200)
    report = quiet(table_sampler(probs, 500), target, [0], samples=500, max_new_tokens=2, sampling=sampling)
    assert report.convicted and report.first_position == 1
    assert report.impossible[0].what == "hold a token of probability zero"
    assert "impossible)" in str(report)


def test_a_border_of_top_p_that_rounding_decides_does_not_convict():
    """0.5 + 0.3 against top_p = 0.8: one program keeps the third token, another does not."""
    p = np.array([0.5, 0.3, 0.1, 0.06, 0.04])
    sampling = SamplingParams(top_p=0.8)
    target = TableModel.from_probabilities(p)
    kept = sampling.probabilities(target.logits).numpy() > 0
    if kept.sum() == 2:  # the sampler decides the other way
        law, excess = p * (np.arange(5) < 3), 2
    else:
        law, excess = p * (np.arange(5) < 2), None
    generate = table_sampler(np.tile(law / law.sum(), (6, 1)), 400)
    report = quiet(generate, target, [0], samples=400, max_new_tokens=1, sampling=sampling)
    if excess is not None:
        assert not report.convicted and not report.impossible
        assert "within rounding of the cut" in str(report)
        assert sum(report.histograms[0].observed) < 400


def test_all_texts_alike_ask_for_the_seed():
    target, _ = table(3)
    report = quiet(lambda prompt, n, seed: [0] * n, target, [0], samples=100, max_new_tokens=2)
    assert report.convicted
    assert "does generate use its seed?" in str(report)


# --- malformed results and arguments ------------------------------------------------------------


@pytest.mark.parametrize(
    "returned, message",
    [
        (None, "generate returned a NoneType: must be the token ids"),
        ("text", "generate returned a str: must be the token ids"),
        (7, "generate returned a int: must be the token ids"),
        ([0, 1.5], r"generate returned=\[0, 1.5\]: must be token ids"),
        ([0, True], "must be token ids"),
        ([0, -1], r"ids \[-1\] are outside the vocabulary .* Padding must be cut off"),
        ([[0, 1], [0, 3]], r"ids \[3\] are outside the vocabulary"),
        (
            [1, 2, 0, 1],
            "4 tokens that begin with the prompt, where max_new_tokens=2 were asked for: return the continuation",
        ),
        (torch.tensor([[1, 2, 0, 1]]), "begin with the prompt"),
    ],
)
def test_malformed_results_are_errors_with_a_remedy(returned, message):
    target, _ = table(3)
    with pytest.raises(ValueError, match=message):
        quiet(lambda *_: returned, target, [1, 2], max_new_tokens=2)


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_any_kind_of_list_is_taken(kind):
    target, _ = table(3)
    for texts in ([0, 1], [[0, 1], [1, 2]]):
        report = quiet(lambda *_: kind(texts), target, [1], samples=2, max_new_tokens=2)  # noqa: B023
        assert report.texts == ([[0, 1]] * 2 if texts == [0, 1] else texts)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(generate=3), "generate=3: must be a function"),
        (dict(target="gpt2"), "must be a language model, such as CausalLM"),
        (dict(samples=0), "samples=0"),
        (dict(max_new_tokens=0), "max_new_tokens=0"),
        (dict(max_new_tokens=64), "exceed the context"),
        (dict(sampling=0.7), "must be a SamplingParams"),
        (dict(prompt=[[0], [1]]), "samples are drawn at a single prompt"),
        (dict(drafter="ngram"), "over the vocabulary of"),
        (dict(false_alarm=1.0), "false_alarm=1.0"),
        (dict(false_alarm="x"), "false_alarm='x': must be a probability between 0 and 1, such as 0.01"),
        (dict(samples="x"), "samples='x': must be an integer >= 1"),
        (dict(seed="x"), "seed='x'"),
        (dict(seed=-1), "seed=-1"),
        (dict(seed=2**64), "seed="),
        (dict(eos=[9]), "outside the vocabulary"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_drawn(change, message):
    def never(*_):
        raise AssertionError("was called")

    asked = dict(generate=never, target=table(3)[0], prompt=[0]) | change
    with pytest.raises(ValueError, match=message):
        quiet(**asked)


def test_seeds_are_hashed_and_fit_any_library():
    seeds = []

    def generate(prompt_ids, max_new_tokens, seed):
        seeds.append(seed)
        return [0] * max_new_tokens

    for seed in (0, 0, 1):
        quiet(generate, table(3)[0], [0], samples=5, max_new_tokens=1, seed=seed)
    first, again, other = seeds[:5], seeds[5:10], seeds[10:]
    assert first == again and len(set(first + other)) == 10
    assert all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds)


def _no_repeats(ids, scores):
    """A logits processor: tokens of the text so far are four times less likely."""
    said = torch.zeros_like(scores, dtype=torch.bool).scatter(1, ids, True)
    return scores - 1.4 * said


@pytest.mark.parametrize("vocab_size, prompt", [(3, [0]), (40, [*range(20)])], ids=["counted", "ranked"])
def test_logits_processors_belong_to_the_promise(vocab_size, prompt):
    target, drafter = (table(vocab_size, seed=seed)[0] for seed in (0, 1))
    sampling = SamplingParams(processors=[_no_repeats])
    generate = from_specviz(target, drafter, sampling=sampling)
    asked = dict(max_new_tokens=3, drafter=drafter)
    report = quiet(generate, target, prompt, sampling=sampling, **asked)
    assert not report.convicted, str(report)
    assert "processors ['_no_repeats']" in str(report)
    assert quiet(generate, target, prompt, **asked).convicted


# --- files to go on from ------------------------------------------------------------------------


def seven_at_a_time(fail_after=None):
    probs = table(3)[1]
    calls = []

    def generate(*asked):
        if len(calls) == fail_after:
            raise KeyboardInterrupt
        calls.append(asked)
        return table_sampler(probs, 7)(*asked)

    return generate


def test_going_on_equals_never_having_stopped(tmp_path):
    target, file = table(3)[0], tmp_path / "audit.jsonl"
    whole = quiet(seven_at_a_time(), target, [0], samples=100, max_new_tokens=3)
    part = quiet(seven_at_a_time(fail_after=5), target, [0], samples=100, max_new_tokens=3, resume=file)
    assert part.interrupted and len(part.texts) == 35
    assert "INTERRUPTED" in str(part)
    with open(file, "a") as torn:  # as if the machine had stopped while a line was being written
        torn.write("[[0, 1, 2], [0, 2")
    resumed = quiet(seven_at_a_time(), target, [0], samples=100, max_new_tokens=3, resume=file)
    assert not resumed.interrupted
    assert resumed.texts == whole.texts
    assert str(resumed) == str(whole)
    lines = file.read_text().splitlines()
    assert len(lines) == 1 + 15 and all(map(json.loads, lines))
    assert (
        quiet(seven_at_a_time(fail_after=0), target, [0], samples=100, max_new_tokens=3, resume=file).texts
        == whole.texts
    )
    longer = quiet(seven_at_a_time(), target, [0], samples=150, max_new_tokens=3, resume=file)
    assert longer.texts == quiet(seven_at_a_time(), target, [0], samples=150, max_new_tokens=3).texts


def test_an_interruption_before_the_first_text_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        quiet(seven_at_a_time(fail_after=0), table(3)[0], [0], max_new_tokens=3)


def test_another_audits_file_is_refused_naming_what_differs(tmp_path):
    target, file = table(3)[0], tmp_path / "audit.jsonl"
    quiet(seven_at_a_time(), target, [0], samples=20, max_new_tokens=3, resume=file)
    before = file.read_bytes()
    for change, message in (
        (dict(seed=1), "seed was 0 and is 1"),
        (dict(max_new_tokens=4), "max_new_tokens was 3 and is 4"),
        (dict(sampling=SamplingParams(top_k=2)), "sampling was .*'top_k': None.* and is .*'top_k': 2"),
        (dict(prompt=[1]), r"prompts was \[\[0\]\] and is \[\[1\]\]"),
        (dict(eos=1), r"eos was \[\] and is \[1\]"),
        (dict(target=TableModel([0.0] * 3, name="other")), "target was 'table' and is 'other'"),
        (dict(generate=from_specviz(target, None)), "generate was 'generate' and is 'specviz: plain'"),
    ):
        asked = dict(generate=seven_at_a_time(), target=target, prompt=[0], samples=20, max_new_tokens=3) | change
        with pytest.raises(ValueError, match=message):
            quiet(**asked, resume=file)
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", ["", '{"specviz_au'])
def test_a_file_that_was_hardly_begun_is_begun_again(tmp_path, content):
    file = tmp_path / "audit.jsonl"
    file.write_text(content)
    quiet(seven_at_a_time(), table(3)[0], [0], samples=7, max_new_tokens=3, resume=file)
    assert len(file.read_text().splitlines()) == 2


def test_any_other_file_is_left_alone(tmp_path):
    file = tmp_path / "thesis.txt"
    file.write_text("Chapter 1")
    with pytest.raises(ValueError, match="no file of an audit"):
        quiet(seven_at_a_time(), table(3)[0], [0], max_new_tokens=3, resume=file)
    assert file.read_text() == "Chapter 1"


def test_a_place_where_no_file_can_be_is_refused_before_anything_is_drawn(tmp_path):
    def never(prompt_ids, max_new_tokens, seed):
        raise AssertionError("nothing may be drawn")

    for place, message in (
        (tmp_path, "must be the path of a file .* not a folder"),
        (7, "resume=7: must be the path of a file"),
        (tmp_path / "missing" / "audit.jsonl", "the folder .*missing' does not exist; make it first"),
    ):
        with pytest.raises(ValueError, match=message):
            quiet(never, table(3)[0], [0], samples=7, max_new_tokens=3, resume=place)


# --- greedy -------------------------------------------------------------------------------------


def test_greedy_text_is_compared_token_by_token():
    target, drafter = (table(6, seed=seed)[0] for seed in (0, 1))
    prompts = [[i] for i in range(6)]
    report = quiet(from_specviz(target, drafter, sampling=GREEDY, rows=1), target, prompts, sampling=GREEDY)
    assert not report.convicted and len(report.texts) == 6
    assert "Equal to the target's greedy text in all 6" in str(report)

    report = quiet(from_specviz(drafter, None, sampling=GREEDY, rows=1), target, prompts, sampling=GREEDY)
    first = report.differences[0]
    row = target.logits[report.audited.prompts[first.prompt][-1]]  # only if the first token differs, as it does here
    assert report.convicted and first.position == report.first_position == 1
    assert first.expected == int(row.argmax()) and first.token == int(drafter.logits[first.prompt].argmax())
    assert first.gap == pytest.approx(float(row.max() - row[first.token]))
    assert "a real difference" in str(report)


def test_a_near_tie_is_reported_and_forgiven():
    near = torch.tensor([1.0, 1.0 - 1e-5, -3.0])
    target = TableModel(near, dtype=torch.float32)
    report = quiet(lambda prompt, n, seed: [1, 0, 0, 0], target, [0], sampling=GREEDY)
    assert not report.convicted
    (found,) = report.differences
    assert (found.position, found.token, found.expected, found.near_tie) == (1, 1, 0, True)
    assert "near tie" in str(report)
    assert quiet(lambda prompt, n, seed: [1, 0, 2, 0], target, [0], sampling=GREEDY).first_position == 3


def test_greedy_text_of_impossible_length_convicts():
    target = TableModel([1.0, 0.0])
    report = quiet(lambda prompt, n, seed: [0] * (n + 1), target, [[1], [1, 1]], sampling=GREEDY)
    assert report.convicted and report.impossible[0].count == 2
    found = report.to_dict()
    assert found == json.loads(json.dumps(found)) and found["tests"] == [] and found["impossible"][0]["count"] == 2


# --- adapters -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models():
    return tuple(language_model("llama", seed, dtype=torch.float32) for seed in (1, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        dict(gamma=4),
        dict(gamma=1, sampling=SamplingParams(temperature=0.7, top_k=2), eos=[2]),
        dict(gamma=2, sampling=SamplingParams(top_p=0.8)),
    ],
    ids=["T=1", "T=0.7, top-k, EOS", "top-p"],
)
def test_transformers_assisted_generation(models, settings):
    target, draft = models
    about = {k: v for k, v in settings.items() if k != "gamma"}
    samples = 500  # as many as convict a fault in test_a_fault_put_into_transformers_is_found
    generate = from_transformers(target, draft, **settings)
    report = quiet(generate, target, [0, 1, 2], samples=samples, false_alarm=1e-3, **about)
    assert len(report.texts) == samples
    assert not report.convicted, str(report)


@pytest.mark.slow
def test_transformers_on_a_vocabulary_too_large_to_count():
    target, draft = (language_model("llama", seed, vocab_size=500, dtype=torch.float32) for seed in (1, 2))
    generate = from_transformers(target, draft, gamma=3, sampling=SamplingParams(temperature=0.5))
    texts = [generate([0, 1, 2], 4, seed) for seed in range(400)]
    about = dict(sampling=SamplingParams(temperature=0.5), drafter=draft, false_alarm=1e-3)
    report = quiet(lambda *_: texts, target, [0, 1, 2], samples=400, **about)
    assert not report.convicted, str(report)
    report = quiet(lambda *_: texts, target, [0, 1, 2], samples=400, drafter=draft)  # at the wrong temperature
    assert report.convicted, str(report)


def test_transformers_greedy_and_plain(models):
    target, draft = models
    prompts = [[a, b] for a in range(3) for b in range(3)]
    for generate in (from_transformers(target, sampling=GREEDY), from_transformers(target, draft, sampling=GREEDY)):
        report = quiet(generate, target, prompts, max_new_tokens=8, sampling=GREEDY)
        assert not report.convicted, str(report)
    generate = from_transformers(draft, sampling=GREEDY)
    assert quiet(generate, target, prompts, max_new_tokens=8, sampling=GREEDY).convicted


@pytest.mark.slow
def test_a_fault_put_into_transformers_is_found(models, monkeypatch):
    """Drafts drawn from q are tested as if q had been flat: a kind of fault that has been reported more than once."""
    from transformers.generation import utils

    right = utils._speculative_sampling

    def wrong(candidate_input_ids, candidate_logits, *others, **named):
        return right(candidate_input_ids, 0 * candidate_logits, *others, **named)

    monkeypatch.setattr(utils, "_speculative_sampling", wrong)
    report = quiet(from_transformers(*models), models[0], [0, 1, 2], samples=500)
    assert report.convicted, str(report)


def test_transformers_with_a_logits_processor(models):
    target, draft = models
    sampling = SamplingParams(temperature=0, processors=[_no_repeats])
    prompts = [[a, b] for a in range(3) for b in range(3)]
    generate = from_transformers(target, draft, sampling=sampling)
    assert not quiet(generate, target, prompts, max_new_tokens=6, sampling=sampling).convicted
    assert quiet(generate, target, prompts, max_new_tokens=6, sampling=GREEDY).convicted


def test_a_model_may_assist_itself(models):
    target, _ = models
    assert len(from_transformers(target, target)([0, 1, 2], 7, 0)) == 7


def test_what_generation_configs_supply_does_not_get_through(models):
    target, draft = models
    expected = [from_transformers(*models)([0, 1, 2], 6, seed) for seed in range(10)]
    plain = [model.model.generation_config for model in models]
    try:
        for model in models:
            config = type(plain[0])(
                top_k=1, temperature=0.1, top_p=0.1, min_p=0.5, repetition_penalty=3.0, num_beams=1, do_sample=False,
                eos_token_id=1, num_assistant_tokens=1, num_assistant_tokens_schedule="heuristic", min_length=3,
                assistant_confidence_threshold=0.9, suppress_tokens=[0], no_repeat_ngram_size=2,
            )  # fmt: skip
            model.model.generation_config = config
        supplied = [model.model.generation_config for model in models]
        before = [config.to_dict() for config in supplied]
        state = torch.get_rng_state()
        assert [from_transformers(*models)([0, 1, 2], 6, seed) for seed in range(10)] == expected
        assert torch.equal(torch.get_rng_state(), state)
        assert all(model.model.generation_config is config for model, config in zip(models, supplied))
        assert [config.to_dict() for config in supplied] == before
    finally:
        for model, config in zip(models, plain):
            model.model.generation_config = config


@pytest.mark.parametrize("gamma", [1, 4])
def test_the_asked_number_of_drafts_is_verified(models, gamma):
    target, draft = models
    fed = []
    hook = target.model.register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        from_transformers(target, draft, gamma=gamma)([0, 1, 2], 12, 0)
    finally:
        hook.remove()
    assert fed[0] == 3 + gamma  # the prompt and the drafts
    assert max(fed[1:]) == gamma + 1


@pytest.mark.skipif(_IS_5_0, reason="its prompt lookup can exceed max_new_tokens")
def test_prompt_lookup(models):
    target, _ = models
    about = dict(sampling=GREEDY, eos=[2])
    report = quiet(
        from_transformers(target, prompt_lookup=True, **about), target, [0, 1, 0, 1], max_new_tokens=6, **about
    )
    assert not report.impossible and not report.convicted, report


def test_prompt_lookup_takes_no_draft_model(models):
    with pytest.raises(ValueError, match="one of the two"):
        from_transformers(*models, prompt_lookup=True)


def test_a_bare_model_will_do():
    model = hub_model("gpt2", 3, dtype=torch.float32)
    generate = from_transformers(model, model)
    assert len(generate([0, 1], 5, 0)) == 5
    assert generate([0, 1], 5, 0) == generate([0, 1], 5, 0)
    assert len({tuple(generate([0, 1], 8, seed)) for seed in range(8)}) > 1
    report = quiet(generate, CausalLM(model), [0, 1], samples=60, max_new_tokens=2, false_alarm=1e-3)
    assert not report.convicted, str(report)
    assert generate.__name__.startswith("transformers")


@pytest.mark.parametrize("wrong", [None, torch.nn.Linear(1, 1), TableModel([0.0])])
def test_what_is_no_model_is_refused(wrong):
    with pytest.raises(ValueError, match="must be a transformers decoder"):
        from_transformers(wrong)


# --- the report ---------------------------------------------------------------------------------


def test_a_report_can_be_plotted_and_read():
    target = TableModel.random(3, 1, seed=0, symbols="ABC")
    probs = target.logits.softmax(-1).numpy()
    report = quiet(table_sampler(probs, 500), target, "A", samples=1000, max_new_tokens=2)
    assert [h.what for h in report.histograms] == ["position 1: tokens", "position 2: tokens", "whole texts"]
    for histogram, test in zip(report.histograms, report.tests.tests):
        assert histogram.observed.sum() == test.n == 1000
        assert histogram.expected.sum() == pytest.approx(1000)
        assert (histogram.residuals**2).sum() == pytest.approx(test.statistic)
        assert len(histogram.labels) == len(histogram.observed)
    text = str(report)
    assert "AUDIT of generate against table: NOT CONVICTED" in text
    assert "1000 texts of up to 2 tokens after a prompt of 1 tokens; temperature 1" in text
    assert "0 'A'" in text and "expected" in text
    found = report.to_dict()
    assert found == json.loads(json.dumps(found)) and found["convicted"] is False and found["texts"] == 1000
    assert [test["p_value"] for test in found["tests"]] == [test.p_value for test in report.tests.tests]


def test_too_few_samples_say_so():
    report = quiet(lambda prompt, n, seed: [0] * n, table(50)[0], [0], samples=3)
    assert not report.convicted
    assert "too few samples" in str(report)


def test_many_joint_cells_have_labels():
    """Two tokens and 30,000 samples leave room for 38 bins a position: more than there are digits and letters."""
    target = TableModel.random(300, 0, seed=1)
    report = audit(
        from_specviz(target, None, rows=10_000), target, [0], samples=30_000, max_new_tokens=2, progress=False
    )
    assert report.histograms[-1].labels[:2] == ["0 0", "0 1"] and report.histograms[-1].labels[-1] == "37 37"
    assert not report.convicted


def test_greedy_power_counts_prompts_not_copies():
    greedy = SamplingParams(temperature=0)
    target = TableModel.random(3, 1, seed=1)
    report = audit(from_specviz(target, None, sampling=greedy), target, [0], sampling=greedy, progress=False)
    assert len(report.texts) > 1 and "errs on 99.0% of prompts" in str(report)
