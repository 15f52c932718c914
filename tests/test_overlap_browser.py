"""OverlapExplorer in a browser: its arithmetic and its samples against Python's, its bars, its rules, its speed."""

import re

import numpy as np
import pytest
import torch
from browser import violations
from playwright.sync_api import expect
from scipy import stats

from specviz import Seeded
from specviz.equivalence import mutants
from specviz.equivalence.goodness_of_fit import chi_square, pool
from specviz.randomness import splitmix64
from specviz.verification import accept_probability, residual, verify
from specviz.widgets import OverlapExplorer
from specviz.widgets.overlap import RULES

pytestmark = pytest.mark.browser

FAR = OverlapExplorer.presets["far"]
MANY = np.random.default_rng(1).dirichlet(np.full(24, 0.6), 2).tolist()


# --- the rules, in Python -----------------------------------------------------------------------

HALVES = {
    "right": dict(),
    "resample_from_p": dict(resample_from=mutants.resample_from_p),
    "softmax_the_residual": dict(resample_from=mutants.softmax_the_residual),
    "swap_p_and_q": dict(accept=mutants.swap_p_and_q),
    "accept_everything": dict(accept=mutants.accept_everything),
    "compare_coarse_coins": dict(accept=mutants.compare_coarse_coins),
}


def tensors(*lists):
    return [torch.tensor(values, dtype=torch.float64) for values in lists]


def outcome_of(rule, p, q):
    """(accepted [K], corrected [K]) exactly: each draft times its outcome."""
    p, q = tensors(p, q)
    accepted, corrected = torch.zeros_like(p), torch.zeros_like(p)
    for x in range(len(p)):
        if q[x] == 0:
            continue
        of = torch.nn.functional.one_hot(torch.tensor(x), len(p)).double() if rule == "sample_and_match" else q
        a = HALVES.get(rule, {}).get("accept", accept_probability)(p, of)[x]
        accepted[x] = q[x] * a
        corrected += q[x] * (1 - a) * HALVES.get(rule, {}).get("resample_from", residual)(p, of)
    return accepted.numpy(), corrected.numpy()


def sample(rule, p, q, n, seed):
    """(counts [K], accepted [K]) of n rows of one round each, by the shipped verify() and Seeded."""
    p, q = (probs.expand(n, -1) for probs in tensors(p, q))
    randomness = Seeded(seed)
    randomness.begin_round(0)
    drafts, _ = randomness.draw(q, "draft", 0)
    tokens, p_rows = drafts[:, None], torch.stack([p, p], 1)
    everyone, lengths = torch.ones(n, dtype=torch.bool), torch.ones(n, dtype=torch.int64)
    if rule == "sample_and_match":
        verdict = mutants.sample_and_match(tokens, q[:, None], p_rows, randomness, lengths, everyone)
    else:
        verdict = verify(tokens, q[:, None], p_rows, randomness, lengths, everyone, **HALVES[rule])
    kept = verdict.accepted == 1
    emitted = torch.where(kept, drafts, verdict.next_token)
    return [torch.bincount(tokens, minlength=p.shape[1]).tolist() for tokens in (emitted, drafts[kept])]


def overlap(p, q):
    return float(np.minimum(p, q).sum())


# --- the arithmetic -----------------------------------------------------------------------------


def test_the_tail_of_chi_square_is_scipys(modules):
    dof = np.arange(1, 41)
    tails = np.concatenate([1 - np.logspace(-6, -0.1, 20), np.logspace(-0.1, -12, 60), [1e-30, 1e-100, 1e-250]])
    x = stats.chi2.isf(tails[None], dof[:, None])
    rows = [[int(d), row.tolist()] for d, row in zip(dof, x)]
    found = modules("x.map(([dof, at]) => at.map((t) => chi_square.chiSquareTail(t, dof)))", rows)
    np.testing.assert_allclose(found, stats.chi2.sf(x, dof[:, None]), rtol=1e-9)
    assert modules("[chi_square.chiSquareTail(0, 3), chi_square.chiSquareTail(1e9, 3)]", None) == [1, 0]


def test_the_test_is_goodness_of_fits(modules):
    rng = np.random.default_rng(0)
    rows = []
    for n in (1, 3, 20, 100, 1000, 100_000):
        for size in (2, 3, 5, 12, 24):
            p = rng.dirichlet(np.full(size, 0.5))
            p[rng.random(size) < 0.2] = 0
            p = (p + (p.sum() == 0)) / (p + (p.sum() == 0)).sum()
            rows.append((rng.multinomial(n, p).tolist(), p.tolist()))
            rows.append((rng.multinomial(n, np.full(size, 1 / size)).tolist(), p.tolist()))
    cells = "chi_square.pool(counts, p.map((prob) => prob * 50))"
    found = modules(f"x.map(([counts, p]) => ({{ ...chi_square.chiSquare(counts, p), cells: {cells} }}))", rows)
    for (counts, p), fit in zip(rows, found):
        expected = chi_square(counts, p)
        assert (fit["dof"], fit["impossible"]) == (expected.dof, expected.impossible)
        assert fit["pValue"] == pytest.approx(expected.p_value, rel=1e-9)
        if not expected.impossible:
            assert fit["statistic"] == pytest.approx(expected.statistic, rel=1e-9, abs=1e-12)
        observed, promised = pool(np.array(counts), 50 * np.array(p))
        assert [cell["observed"] for cell in fit["cells"]] == observed.tolist()
        assert [cell["expected"] for cell in fit["cells"]] == pytest.approx(promised.tolist())


def test_the_generator_is_pythons(modules):
    seeds, numbers = [0, 1, 0x9E3779B97F4A7C15, 2**64 - 1, 2**63 + 12345], [0, 1, 2, 9999, 2**32 - 1, 2**40 + 3]
    rows = [[s >> 32, s & 0xFFFFFFFF, n] for s in seeds for n in numbers]
    words = "seeded.splitmix64(new seeded.Word().set(h, l), n)"
    found = modules(f"x.map(([h, l, n]) => {words}).map(({{ high, low }}) => [high, low])", rows)
    for (high, low, n), (h, w) in zip(rows, found):
        assert (h << 32) + w == int(splitmix64((high << 32) + low, n))

    for seed in (0, 1, 77, 2**32, 2**53 - 1):
        of_rows = "Array.from({ length: 1000 }, (_, n) => seeded.uniforms(x, n))"
        u = modules(f"{of_rows}.map((u) => [u.draft, u.coin, u.next])", seed)
        streams = [Seeded(seed)._uniforms(stream, 1, 1000)[:, 0].tolist() for stream in ("draft", "coin", "next")]
        assert np.array(u).T.tolist() == streams


PAIRS = [*((s.p, s.q) for s in OverlapExplorer.presets.values()), MANY, ([0.0, 0.6, 0.4], [0.8, 0.1, 0.1])]


@pytest.mark.parametrize("rule", RULES)
def test_the_outcome_of_each_rule_is_pythons(modules, rule):
    found = modules("x[1].map(([p, q]) => rules.outcomeOf(x[0], p, q))", [rule, PAIRS])
    for (p, q), outcome in zip(PAIRS, found):
        accepted, corrected = outcome_of(rule, p, q)
        np.testing.assert_allclose(outcome["accepted"], accepted, atol=1e-14)
        np.testing.assert_allclose(outcome["corrected"], corrected, atol=1e-14)
        emitted = accepted + corrected
        assert outcome["wrong"] == pytest.approx(np.abs(emitted - p).sum() / 2, abs=1e-14)
        if corrected.sum() > 1e-12:
            np.testing.assert_allclose(outcome["replaced"], corrected / corrected.sum(), atol=1e-13)
        if rule in ("right", "sample_and_match"):
            np.testing.assert_allclose(outcome["emitted"], p, atol=1e-14)
        if rule == "right":
            assert outcome["rate"] == pytest.approx(overlap(p, q), abs=1e-14)
            expected = residual(*tensors(p, q)).numpy()
            if outcome["replaced"] is not None:
                np.testing.assert_allclose(outcome["replaced"], expected, atol=1e-13)


@pytest.mark.parametrize("rule", RULES)
def test_the_samples_of_each_rule_are_pythons(modules, rule):
    code = """(() => {
        const next = rules.sampler(x.rule, x.p, x.q, x.seed);
        const [counts, accepted] = [x.p.map(() => 0), x.p.map(() => 0)];
        for (let n = 0; n < 5000; n++) {
            const one = next(n);
            counts[one.y] += 1;
            if (one.accepted) accepted[one.y] += 1;
        }
        return [counts, accepted];
    })()"""
    for p, q in PAIRS:
        found = modules(code, {"rule": rule, "p": p, "q": q, "seed": 5})
        assert found == sample(rule, p, q, 5000, 5)


def test_a_bar_that_moves_takes_the_others_along_in_proportion(modules):
    p = [0.5, 0.3, 0.2]
    assert modules("rules.withBar(x, 0, 0.75)", p) == pytest.approx([0.75, 0.15, 0.1])
    assert modules("rules.withBar(x, 2, 1)", p) == [0, 0, 1]
    assert modules("rules.withBar([0, 0, 1], 2, 0.4)", p) == pytest.approx([0.3, 0.3, 0.4])  # no proportions: evenly
    assert modules("rules.withBar([0, 0, 1], 0, 0.4)", p) == pytest.approx([0.4, 0, 0.6])


# --- the bars -----------------------------------------------------------------------------------


def bar(page, name):
    return page.locator(f'[data-bar="{name}"]')


def bars(page):
    """(p, q) as the sliders have them, in full."""
    values = page.eval_on_selector_all("[data-bar]", "bars => bars.map((bar) => Number(bar.ariaValueNow))")
    return values[::2], values[1::2]


def number(page, name):
    return page.locator(f'[data-number="{name}"]').inner_text()


def probability(x):
    """As format.js writes one, for x up to 0.99 and for 1."""
    return "1" if x == 1 else f"{x:.2f}" if x >= 0.1 else f"{float(f'{x:.2g}'):g}"


def heights(page, chart, name):
    return np.array(page.eval_on_selector_all(f"svg.{chart} .{name}", "boxes => boxes.map((b) => b.getBBox().height)"))


def check_shown(page, rule="right"):
    """Numbers, residual and stacks against Python, for the bars as they stand."""
    p, q = bars(page)
    assert sum(p) == pytest.approx(1, abs=1e-12) and sum(q) == pytest.approx(1, abs=1e-12)
    accepted, corrected = outcome_of(rule, p, q)
    beta = overlap(p, q)
    assert number(page, "beta") == probability(beta)
    assert number(page, "too_often") == number(page, "missing") == probability(1 - beta)
    assert number(page, "rate") == probability(accepted.sum())

    per_unit = heights(page, "paths", "fill-accepted").sum() / accepted.sum()  # pixels
    np.testing.assert_allclose(heights(page, "paths", "fill-accepted") / per_unit, accepted, atol=1e-5)
    np.testing.assert_allclose(heights(page, "paths", "fill-re") / per_unit, corrected, atol=1e-5)
    shown = heights(page, "replaced", "fill-re")
    np.testing.assert_allclose(shown / shown.sum(), corrected / corrected.sum(), atol=1e-5)
    if rule == "right":
        np.testing.assert_allclose(shown / shown.sum(), residual(*tensors(p, q)), atol=1e-5)
        line = page.eval_on_selector_all("svg.paths .line-p", "lines => lines.map((line) => line.getBBox().y)")
        tops = page.eval_on_selector_all("svg.paths .fill-re", "boxes => boxes.map((box) => box.getBBox().y)")
        np.testing.assert_allclose(line, tops, atol=1e-3)  # the stacks end at p


def pull(page, name, by, steps=5):
    """Drag a bar's handle so many pixels up."""
    box = bar(page, name).locator(".grip").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - by, steps=steps)
    page.mouse.up()


def test_what_is_shown_at_first(open_page):
    page = open_page(OverlapExplorer(*FAR))
    assert bars(page) == (FAR.p, FAR.q)
    check_shown(page)


def test_a_bar_is_dragged(open_page):
    page = open_page(OverlapExplorer(*FAR))
    pull(page, "q2", -80)
    p, q = bars(page)
    assert p == FAR.p and q[2] < 0.45
    np.testing.assert_allclose(np.delete(q, 2) / (1 - q[2]), np.delete(FAR.q, 2) / 0.4)  # in proportion
    check_shown(page)
    moved = page.locator(".moved").inner_text()
    assert moved == f"q(c): 0.6 → {q[2]:g}. All other bars of q × {(1 - q[2]) / 0.4:.3g}, so that q sums to 1; p stays."
    pull(page, "p0", 400)  # far beyond the top: 1 is the end
    assert bars(page)[0][0] == 1
    page.mouse.move(300, 300)
    assert bars(page)[0][0] == 1  # let go


def test_a_bar_dragged_to_the_end_and_back_leaves_the_others_as_they_were(open_page):
    page = open_page(OverlapExplorer(*FAR))
    box = bar(page, "p1").locator(".grip").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - 900, steps=3)
    assert bars(page)[0][1] == 1
    page.mouse.move(x, y + 5, steps=3)
    page.mouse.move(x, y - 3, steps=3)
    page.mouse.up()
    np.testing.assert_allclose(bars(page)[0], FAR.p, atol=0.011)


def test_a_touch_alone_changes_nothing(open_page):
    page = open_page(OverlapExplorer(*FAR), has_touch=True)
    bar(page, "q2").tap()
    bar(page, "p0").click()
    assert bars(page) == (FAR.p, FAR.q)


def test_a_bar_is_dragged_by_touch(open_page):
    page = open_page(OverlapExplorer(*FAR), has_touch=True, width=400)
    bar(page, "q2").scroll_into_view_if_needed()
    box = bar(page, "q2").locator(".grip").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    devtools = page.context.new_cdp_session(page)
    for kind, points in (
        ("touchStart", [{"x": x, "y": y}]),
        ("touchMove", [{"x": x, "y": y + 30}]),
        ("touchMove", [{"x": x, "y": y + 60}]),
        ("touchEnd", []),
    ):
        devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    assert 0.2 < bars(page)[1][2] < 0.5
    check_shown(page)


def test_bars_by_keyboard(open_page):
    page = open_page(OverlapExplorer(*FAR))
    bar(page, "p0").focus()
    for key, value in (
        ("ArrowUp", 0.31),
        ("ArrowDown", 0.3),
        ("Shift+ArrowUp", 0.4),
        ("PageDown", 0.3),
        ("End", 1),
        ("Home", 0),
    ):
        page.keyboard.press(key)
        assert bars(page)[0][0] == value, key
        if 0 < value < 1:
            check_shown(page)
    page.keyboard.press("PageUp")
    page.keyboard.press("PageUp")
    page.keyboard.press("PageUp")
    np.testing.assert_allclose(bars(page)[0], FAR.p, atol=1e-12)  # as before the excursion to 1 and 0

    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.bar") == "p1"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    assert bars(page)[1][0] == 0.07
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    expect(page.locator("[aria-live=polite]")).to_have_text(
        re.compile(r"^q\(a\): 0\.06 → 0\.07\. All other bars of q ×")
    )
    assert bar(page, "q0").get_attribute("aria-valuetext") == "0.07"
    assert bar(page, "q0").get_attribute("aria-label") == "draft q of a"
    assert page.locator("[data-bar][tabindex='0']").count() == 1  # one stop of the tab key, arrows from there


def test_a_number_may_be_typed(open_page):
    page = open_page(OverlapExplorer(*FAR))
    page.get_by_text("All values as a table").click()
    field = page.get_by_label("draft q of c, as a number")
    for typed, value in (("0.2", 0.2), ("7", 1.0), ("-3", 0.0), ("0.333", 0.333)):
        field.fill(typed)
        field.press("Enter")
        assert bars(page)[1][2] == value and float(field.input_value()) == value
    check_shown(page)
    field.fill("")
    field.press("Tab")
    assert field.input_value() == "0.333"
    row = page.locator("tbody tr").nth(0).locator("td").all_inner_texts()
    p, q = bars(page)
    accepted, corrected = outcome_of("right", p, q)
    least = min(p[0], q[0])
    values = [
        accept_probability(*tensors(p, q))[0],
        least,
        q[0] - least,
        p[0] - least,
        corrected[0] / corrected.sum(),
        p[0],
    ]
    assert [float(cell) for cell in row[2:8]] == pytest.approx([float(v) for v in values], abs=1e-4)


def test_situations_and_rules_are_chosen(open_page):
    page = open_page(OverlapExplorer([0.5, 0.5], [0.4, 0.6], ["yes", "no"]))
    menu, rules = page.get_by_label("Situation"), page.get_by_label("Rule")
    assert menu.locator("option:checked").inner_text() == "as given"
    for i, (name, preset) in enumerate(OverlapExplorer.presets.items(), start=1):
        menu.select_option(str(i))
        assert bars(page) == (preset.p, preset.q) and menu.input_value() == str(i)
        if name == "far":
            for rule in RULES:
                rules.select_option(rule)
                if rule != "accept_everything":
                    check_shown(page, rule)
                expect(page.locator(".verdict").first).to_have_text(
                    re.compile(
                        "^This rule emits exactly p" if rule in ("right", "sample_and_match") else "does not emit p"
                    )
                )
            rules.select_option("right")
    assert "over all tokens: 0.38" in page.locator(".numbers").first.inner_text()
    bar(page, "p0").press("ArrowDown")
    assert menu.locator("option:checked").inner_text() == "your own bars"
    assert "over all tokens" not in page.locator(".numbers").first.inner_text()


def test_a_wrong_rule_may_be_lucky(open_page):
    page = open_page(OverlapExplorer(*OverlapExplorer.presets["equal"], rule="accept_everything"))
    assert "emits p all the same" in page.locator(".verdict").first.inner_text()
    assert page.get_by_text("nothing is rejected", exact=True).count() == 1


# --- samples ------------------------------------------------------------------------------------


def take(page, times):
    page.locator(f'[data-sample="{times}"]').click()


def sampled(page):
    page.locator("details:not([open]) summary").click() if page.locator("details:not([open])").count() else None
    cells = page.locator("tbody tr td:last-child").all_inner_texts()
    return [int(cell.split(" ")[0].replace(",", "")) for cell in cells]


@pytest.mark.parametrize("rule", RULES)
def test_ten_thousand_samples_convict_the_wrong_rules_and_no_other(open_page, rule):
    page = open_page(OverlapExplorer(*FAR, rule=rule, seed=3))
    take(page, 10000)
    counts, accepted = sample(rule, FAR.p, FAR.q, 10_000, 3)
    assert sampled(page) == counts
    fit = chi_square(counts, FAR.p)
    shown = number(page, "p_value")
    assert float(shown.removeprefix("<")) == pytest.approx(fit.p_value, rel=0.5, abs=1e-299)
    assert number(page, "chi_square") == f"{fit.statistic:.1f}"
    assert number(page, "samples") == "10,000" and number(page, "accepted") == probability(sum(accepted) / 10_000)
    verdict = page.locator(".verdict.fit")
    if rule in ("right", "sample_and_match", "compare_coarse_coins"):  # the last is wrong by too little to see here
        assert fit.p_value > 0.01 and verdict.get_attribute("data-kind") == "accepted"
    else:
        assert fit.p_value < 1e-6 and verdict.get_attribute("data-kind") == "rejected"
        assert page.locator("svg.histogram .no-ink").count() > 0


def test_coarse_coins_are_convicted_by_one_impossible_token(open_page):
    page = open_page(OverlapExplorer([0.0, 0.6, 0.4], [0.8, 0.1, 0.1], rule="compare_coarse_coins"))
    take(page, 10000)
    assert number(page, "p_value") == "0" and number(page, "chi_square") == "∞"
    assert "that p never emits" in page.locator(".verdict.fit").inner_text()


def test_samples_do_not_depend_on_how_they_were_asked_for(open_page):
    page = open_page(OverlapExplorer(*FAR, seed=11))
    for _ in range(3):
        take(page, 1)
    take(page, 100)
    assert sampled(page) == sample("right", FAR.p, FAR.q, 103, 11)[0]
    page.get_by_role("button", name="start anew").click()
    assert number(page, "samples") == "0" and sampled_none(page)
    for _ in range(2):
        take(page, 100)
    assert sampled(page) == sample("right", FAR.p, FAR.q, 200, 11)[0]
    page.get_by_label("seed").fill("12")
    page.get_by_label("seed").press("Enter")
    assert number(page, "samples") == "0"
    take(page, 100)
    assert sampled(page) == sample("right", FAR.p, FAR.q, 100, 12)[0]
    page.get_by_label("seed").fill("-4")
    page.get_by_label("seed").press("Enter")
    assert page.get_by_label("seed").input_value() == "12" and number(page, "samples") == "100"


def sampled_none(page):
    return set(page.locator("tbody tr td:last-child").all_inner_texts()) == {"–"}


def test_samples_of_other_bars_or_rules_are_forgotten(open_page):
    page = open_page(OverlapExplorer(*FAR))
    for change in (
        lambda: bar(page, "q0").press("ArrowUp"),
        lambda: page.get_by_label("Rule").select_option("swap_p_and_q"),
        lambda: page.get_by_label("Situation").select_option("0"),
    ):
        take(page, 100)
        assert number(page, "samples") == "100"
        change()
        assert number(page, "samples") == "0"


@pytest.mark.parametrize("rule", RULES)
def test_a_sample_is_told_as_it_happened(open_page, rule):
    page = open_page(OverlapExplorer(*FAR, rule=rule), reduced_motion="reduce")
    seen = set()
    for n in range(1, 15):
        take(page, 1)
        u = [float(Seeded(0, rows=[n - 1])._uniforms(s, 1, 1)[0, 0]) for s in ("draft", "coin", "next")]
        x = int(np.searchsorted(np.cumsum(FAR.q), u[0], side="right"))
        scenes = page.locator(".scene .main").all_inner_texts()
        assert scenes[0] == "abcde"[x]
        assert scenes[2].startswith("u = ") and float(scenes[2][4:]) == pytest.approx(u[1], abs=0.0051)
        counts, accepted = sample(rule, FAR.p, FAR.q, n, 0)
        before = sample(rule, FAR.p, FAR.q, n - 1, 0)[0] if n > 1 else [0] * 5
        y = "abcde"[int(np.argmax(np.array(counts) - before))]
        kept = page.locator(".story").get_attribute("data-fate") == "accepted"
        assert scenes[3] == f"{'✓' if kept else '↻'} {y}"
        assert page.get_by_text(f"Sample {n}, as it happened").count() == 1
        seen.add(kept)
    assert sum(accepted) and (seen == {True, False} or rule == "accept_everything")
    expect(page.locator("[aria-live=polite]")).to_have_text(
        re.compile(r"^Sample 14: draft \w, A = .*, coin .*: (accepted|rejected)")
    )


# --- how it is shown ----------------------------------------------------------------------------

SITUATIONS = {
    "far": FAR,
    "real": OverlapExplorer.presets["real"],
    "many": (*MANY, [f"token{i}" for i in range(24)]),
    "two": ([1.0, 0.0], [0.001, 0.999], ["a very long name of a token", "b"]),
}


@pytest.mark.parametrize("width", [360, 600, 800, 1280])
@pytest.mark.parametrize("name", SITUATIONS)
def test_nothing_is_cut_and_nothing_overlaps(open_page, width, name):
    page = open_page(OverlapExplorer(*SITUATIONS[name], rule="swap_p_and_q"), width=width)
    take(page, 10000)
    take(page, 1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    outside = page.evaluate("""() => [...document.querySelectorAll('.sv svg:not(.icon)')].flatMap((svg) => {
        const frame = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].filter((text) => {
            const box = text.getBoundingClientRect();
            return box.left < frame.left - 2 || box.right > frame.right + 2 || box.bottom > frame.bottom + 3;
        }).map((text) => text.textContent);
    })""")
    assert outside == []
    cut = page.evaluate("""() => [...document.querySelectorAll('.sv :is(dd, dt, .note, .scene, .verdict)')]
        .filter((e) => e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1)
        .map((e) => e.textContent)""")
    assert cut == []
    overlapping = page.evaluate("""() => [...document.querySelectorAll('.sv svg:not(.icon)')].flatMap((svg) => {
        const texts = [...svg.querySelectorAll('text.value, text.sv-soft, text.glyph, text.name:not([transform])')];
        const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
        return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).flatMap(([b, q]) => {
            const dx = Math.min(p.right, q.right) - Math.max(p.left, q.left);
            const dy = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
            return dx > 1 && dy > 5 ? [`${a} | ${b}`] : [];  // line boxes are taller than their digits
        }));
    })""")
    assert overlapping == []


def test_no_layout_jump(open_page):
    """Whatever is chosen, dragged or sampled, everything stays where it was."""
    where = """() => [...document.querySelectorAll(
        '.sv :is(p:not([hidden]), dl, dl > div, h2, svg, ul, li, button, select, summary)'
    )].map((e) => {
        const box = e.getBoundingClientRect();
        return [box.top + scrollY, box.height].map((x) => Math.round(4 * x) / 4);
    })"""
    for width in (400, 1000):
        page = open_page(OverlapExplorer(), width=width, reduced_motion="reduce")
        before = page.evaluate(where)
        for i in range(5):
            page.get_by_label("Situation").select_option(str(i))
            for rule in RULES:
                page.get_by_label("Rule").select_option(rule)
                bar(page, "q1").press("ArrowUp")
                for times in (1, 100, 10000):
                    take(page, times)
                    assert page.evaluate(where) == before, (width, i, rule, times)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_page(open_page, scheme):
    page = open_page(OverlapExplorer(), color_scheme=scheme)
    assert page.locator(".sv").get_attribute("data-theme") == scheme


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_page, scheme):
    for name, width in (("far", 1000), ("real", 400)):
        page = open_page(OverlapExplorer(*SITUATIONS[name]), color_scheme=scheme, width=width)
        assert violations(page) == []
        page.get_by_text("All values as a table").click()
        page.get_by_label("Rule").select_option("resample_from_p")
        bar(page, "q1").press("ArrowUp")
        take(page, 10000)
        take(page, 1)
        assert violations(page) == []


def test_a_name_is_text_and_nothing_else(open_page):
    page = open_page(OverlapExplorer([0.5, 0.5], [0.1, 0.9], ["</script><img src=x onerror=alert(1)>", "\u2028"]))
    take(page, 100)
    assert page.locator("img").count() == 0
    assert bar(page, "p0").get_attribute("aria-label") == "target p of </script><img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ('"p":[0.5,0.6]', "p sums to 1.1: must sum to 1."),
        ('"p":[-0.5,1.5]', "p[0] = -0.5: must be a number, 0 or more."),
        ('"p":[null,1.0]', "p[0] = null: must be a number"),
        ('"p":[0.2,0.3,0.5]', "p has 3 entries, q 2 and labels 2"),
        ('"p":[]', "p must be a list of 2 to 24 probabilities"),
        ('"p":"none"', "p must be a list of 2 to 24 probabilities"),
    ],
)
def test_bad_data_in_the_page_is_said_in_the_widgets_place(open_page, tmp_path, bad, says):
    good = '"p":[0.5,0.5]'
    path = OverlapExplorer([0.5, 0.5], [0.25, 0.75]).to_html(tmp_path / "bad.html")
    text = path.read_text(encoding="utf-8")
    at = text.rindex(good)  # the trait; the preset of the same numbers comes before it
    path.write_text(text[:at] + bad + text[at + len(good) :], encoding="utf-8")
    page = open_page(path)
    assert page.get_by_role("alert").inner_text().startswith(f"Nothing to show: {says}")
    assert not page.locator("svg.bars").is_visible()


# --- with a kernel ------------------------------------------------------------------------------

NOTEBOOK = """\
from specviz.equivalence.goodness_of_fit import chi_square
from specviz.widgets import OverlapExplorer
explorer = OverlapExplorer(*OverlapExplorer.presets["far"], seed=2)
explorer"""


@pytest.mark.slow
def test_in_jupyterlab_both_ways(lab):
    page = lab.open(NOTEBOOK)
    bar(page, "q2").press("ArrowDown")
    take(page, 10000)
    page.wait_for_timeout(500)
    counts = sample("right", FAR.p, bars(page)[1], 10_000, 2)[0]
    said = lab.run_cell(
        page, "print(explorer.q[2], explorer.counts, chi_square(explorer.counts, explorer.p).p_value > 0.01)"
    )
    assert said == f"0.59 {counts} True"

    page.get_by_label("seed").fill("5")  # JupyterLab has uses of its own for Enter, and for definition lists
    page.get_by_label("seed").press("Enter")
    page.wait_for_timeout(500)
    assert lab.run_cell(page, "print(explorer.seed)") == "5"
    floats = "() => [...document.querySelectorAll('.sv :is(dt, dd)')].map((e) => getComputedStyle(e).float)"
    assert set(page.evaluate(floats)) == {"none"}

    lab.run_cell(page, "explorer.rule = 'accept_everything'")
    expect(page.locator("[data-number=samples]")).to_have_text("0")
    take(page, 10000)
    expect(page.locator(".verdict.fit")).to_have_attribute("data-kind", "rejected")
    lab.run_cell(page, "explorer.show([0.5, 0.5], [0.9, 0.1], ['heads', 'tails'])")
    expect(bar(page, "q1")).to_have_attribute("aria-label", "draft q of tails")
    assert bars(page) == ([0.5, 0.5], [0.9, 0.1])
    lab.run_cell(page, "explorer.p = [0.2, 0.3, 0.5]")  # q has two
    expect(page.get_by_role("alert").filter(has_text="p has 3 entries, q 2")).to_be_visible()
    lab.run_cell(page, "explorer.p = [0.2, 0.8]")
    expect(bar(page, "p1")).to_have_attribute("aria-valuenow", "0.8")
