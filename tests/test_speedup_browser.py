"""SpeedupExplorer in a browser: its formulas against Python's, its controls, its numbers, its speed."""

import json
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from specviz.speedup import Profile, theory
from specviz.widgets import SpeedupExplorer

pytestmark = pytest.mark.browser

# --- the formulas -------------------------------------------------------------------------------


@pytest.fixture
def compute(modules):
    """compute(name, rows of arguments) -> results of that function of theory.js."""

    def compute(name, rows):
        rows = [[float(x) for x in row] for row in rows]
        code = "x[1].map((row) => theory[x[0]](...row)).map((y) => y === Infinity ? 'inf' : y)"
        return np.array([float(x) for x in modules(code, [name, rows])])

    return compute


def grid(*axes):
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))


ALPHA = [0, 1e-9, 0.2, 0.5, 0.72, 0.9, 0.999, 1 - 1e-9, 1 - 2**-53, 1]
GAMMA, COST, SLOPE = [1, 2, 3, 5, 8, 16], [0, 0.02, 0.127, 0.5, 1], [0, 0.05, 0.3, 1]


def test_formulas_are_pythons(compute):
    def same(name, rows, expected):
        np.testing.assert_allclose(compute(name, rows), expected, rtol=1e-12, atol=1e-14, err_msg=name)

    alpha, gamma = (rows := grid(ALPHA, GAMMA)).T
    same("expectedTokens", rows, theory.expected_tokens(alpha, gamma))
    np.testing.assert_allclose(compute("wastedDrafts", rows), theory.wasted_drafts(alpha, gamma), rtol=0, atol=1e-13)
    alpha, gamma, c_hat = (rows := grid(ALPHA, GAMMA, COST)).T
    same("operations", rows, theory.operations(alpha, gamma, c_hat))
    alpha, gamma, c, slope = (rows := grid(ALPHA, GAMMA, COST, SLOPE)).T
    verify = 1 + slope * gamma
    same("speedup", rows, theory.speedup(alpha, gamma, c, verify))
    same("roundCost", rows[:, 1:], theory.round_cost(gamma, c, verify))
    same("verifyCost", np.stack([slope, gamma + 1], -1), verify)
    alpha, c, slope = (rows := grid(ALPHA, COST, SLOPE)).T
    same("oracleSpeedup", rows, theory.oracle_speedup(alpha, c, slope))
    same("leastAlpha", rows[:, 1:], theory.least_alpha(c, 1 + slope))


def test_best_gamma_is_pythons(compute):
    # No α of 1e-9 here: where γ = 1 and γ = 0 differ by rounding alone, either is right.
    rows = grid([0, 0.1, 0.33, 0.5, 0.72, 0.9, 0.97, 1], COST, SLOPE)
    expected = [theory.best_gamma(a, c, theory.linear_cost(s), max_gamma=16) for a, c, s in rows]
    found = compute("bestGamma", [[*row, 16] for row in rows])
    assert found.tolist() == expected


# --- what is shown ------------------------------------------------------------------------------


def number(page, name):
    return page.locator(f'[data-number="{name}"]').inner_text()


def shown(page):
    return {name: number(page, name) for name in ("speedup", "tokens", "cost", "wasted", "operations", "oracle")}


def digits(x):
    return "∞" if np.isinf(x) else f"{x:.2f}" if x < 10 else f"{x:.1f}"


def expected(gamma, alpha, c, slope, c_hat=0.0):
    verify = 1 + slope * gamma
    oracle = theory.oracle_speedup(alpha, c, slope)
    return {
        "speedup": digits(theory.speedup(alpha, gamma, c, verify)) + "×",
        "tokens": digits(theory.expected_tokens(alpha, gamma)),
        "cost": digits(theory.round_cost(gamma, c, verify)) + " steps",
        "wasted": f"{digits(theory.wasted_drafts(alpha, gamma))} of {gamma}",
        "operations": f"{digits(theory.operations(alpha, gamma, c_hat))}× (ĉ = {c_hat:g})",
        "oracle": digits(oracle) + ("" if np.isinf(oracle) else "×"),
    }


@pytest.mark.parametrize(
    "setting", [(3, 0.72, 0.08, 0.05), (7, 0.0, 0.0, 0.0), (16, 1.0, 0.0, 0.0), (16, 1.0, 1.0, 1.0), (9, 0.2, 0.3, 0.3)]
)
def test_numbers_are_pythons(open_page, setting):
    names = ("gamma", "alpha", "c", "verify_slope")
    page = open_page(SpeedupExplorer(**dict(zip(names, setting))))
    assert shown(page) == expected(*setting)


def test_sliders_by_keyboard(open_page):
    page = open_page(SpeedupExplorer(gamma=4, alpha=0.7, c=0.1, verify_slope=0.05))
    page.get_by_label("γ: drafts a round", exact=True).focus()
    page.keyboard.press("ArrowRight")
    assert shown(page) == expected(5, 0.7, 0.1, 0.05)
    page.keyboard.press("Tab")  # the number beside it
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    assert shown(page) == expected(5, 1.0, 0.1, 0.05)
    page.keyboard.press("Home")
    assert shown(page) == expected(5, 0.0, 0.1, 0.05)
    assert "✗" in number(page, "least_alpha")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_a_number_may_be_typed(open_page):
    page = open_page(SpeedupExplorer(gamma=4, alpha=0.7, c=0.1, verify_slope=0))
    field = page.get_by_label("c: a draft step, in target steps, as a number")
    for typed, c in (("0.015", 0.015), ("7", 1.0), ("-1", 0.0)):
        field.fill(typed)
        field.press("Enter")
        assert shown(page) == expected(4, 0.7, c, 0.0) and float(field.input_value()) == c
    field.fill("")
    field.press("Tab")
    assert field.input_value() == "0"
    gamma = page.get_by_label("γ: drafts a round, as a number")
    gamma.fill("2.6")
    gamma.press("Enter")
    assert gamma.input_value() == "3" and number(page, "wasted").endswith("of 3")


def test_the_curve_may_be_dragged(open_page):
    page = open_page(SpeedupExplorer(gamma=1))
    labels = page.locator("svg.curve text").filter(has_text=re.compile(r"^(6|11)$"))
    at = [labels.nth(i).bounding_box() for i in range(2)]
    x = [box["x"] + box["width"] / 2 for box in at]
    page.mouse.move(x[0], at[0]["y"] - 80)
    page.mouse.down()
    assert number(page, "wasted").endswith("of 6")
    page.mouse.move(x[1], at[0]["y"] - 60, steps=4)
    page.mouse.up()
    assert number(page, "wasted").endswith("of 11")
    page.mouse.move(x[0], at[0]["y"] - 60)
    assert number(page, "wasted").endswith("of 11")  # let go


def test_presets_show_the_papers_tables(open_page):
    explorer = SpeedupExplorer()
    page = open_page(explorer)
    menu = page.get_by_label("Setting")
    assert menu.locator("option:checked").inner_text() == "your own values"
    for i, preset in enumerate(explorer.data["presets"]):
        menu.select_option(str(i))
        gamma, alpha, c = preset["gamma"], preset["alpha"], preset["c"]
        assert number(page, "speedup") == digits(theory.speedup(alpha, gamma, c)) + "×"
        assert number(page, "operations").startswith(digits(theory.operations(alpha, gamma, preset["c_hat"])) + "×")
        assert page.locator("svg.curve path.point").count() == ("measured" in preset)
        assert menu.input_value() == str(i)
    page.get_by_label("α: acceptance rate", exact=True).press("ArrowRight")
    assert menu.locator("option:checked").inner_text() == "your own values"
    assert page.locator("svg.curve path.point").count() == 0


def test_the_profiles_points_lie_over_the_prediction(open_page):
    profile = Profile.bundled()
    page = open_page(SpeedupExplorer(profile))
    assert page.locator("svg.curve circle.point").count() == len(profile.speedups)
    speed = profile.speedups[4]
    page.get_by_label("γ: drafts a round, as a number").fill("4")
    page.keyboard.press("Enter")
    assert number(page, "measured") == f"{speed.median:.2f}× ({speed.low:.2f}–{speed.high:.2f})"

    page.get_by_text("All values as a table").click()
    row = page.locator("tr.here")
    with_models_only = row.locator("td").nth(4).inner_text()
    page.get_by_label(re.compile("count the time outside the models")).check()
    with_overhead = row.locator("td").nth(4).inner_text()
    assert with_models_only == f"{profile.predicted(4):.2f}×"
    assert with_overhead == f"{profile.predicted(4, overhead=True):.2f}×"


def test_one_round_is_drawn_to_scale(open_page):
    page = open_page(SpeedupExplorer(gamma=5, alpha=0.8, c=0.1, verify_slope=0.1))
    wide = "elements => elements.map((e) => e.getBBox()).map((b) => [b.x, b.width])"
    drafts = page.eval_on_selector_all(".draft-step", wide)
    verify = page.eval_on_selector_all(".verify-step", wide)
    plain = page.eval_on_selector_all(".plain-step", wide)
    step = plain[1][0] - plain[0][0]
    assert len(drafts) == 5 and len(verify) == 1 and len(plain) == np.ceil(theory.expected_tokens(0.8, 5))
    assert drafts[1][0] - drafts[0][0] == pytest.approx(0.1 * step, abs=0.02)
    assert verify[0][1] + 1 == pytest.approx(1.5 * step, abs=0.02)  # boxes end a pixel early
    ends = [side[-1][0] + side[-1][1] + 1 - plain[0][0] for side in (verify, plain)]
    assert ends[1] / ends[0] == pytest.approx(theory.speedup(0.8, 5, 0.1, 1.5), rel=1e-3)
    heights = page.eval_on_selector_all(".enters", "elements => elements.map((e) => e.getBBox().height)")
    assert np.array(heights) / 82 == pytest.approx(0.8 ** np.arange(1, 6), abs=1e-3)


# --- how it is shown ----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [360, 400, 600, 770, 1280])
@pytest.mark.parametrize("setting", [{}, {"gamma": 16, "alpha": 1.0, "c": 0.0, "verify_slope": 0.0}])
def test_nothing_is_cut_and_nothing_overlaps(open_page, width, setting):
    page = open_page(SpeedupExplorer(Profile.bundled(), **setting), width=width)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    outside = page.evaluate("""() => [...document.querySelectorAll('.sv svg:not(.icon)')].flatMap((svg) => {
        const frame = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].filter((text) => {
            const box = text.getBoundingClientRect();
            return box.left < frame.left - 1 || box.right > frame.right + 1;
        }).map((text) => text.textContent);
    })""")
    assert outside == []
    wrapped = page.evaluate("""() => [...document.querySelectorAll('.sv .row, .sv dd')]
        .filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent)""")
    assert wrapped == []
    overlapping = page.evaluate("""() => {
        const texts = [...document.querySelectorAll('svg.curve text')];
        const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
        const bad = [];
        boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
            const dx = Math.min(p.right, q.right) - Math.max(p.left, q.left);
            const dy = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
            if (dx > 1 && dy > 5) bad.push(`${a} | ${b}`);  // line boxes are taller than their digits
        }));
        return bad;
    }""")
    assert overlapping == []


def test_no_layout_jump(open_page):
    """Whatever the sliders say, everything stays where it was."""
    for width in (400, 1000):
        page = open_page(SpeedupExplorer(Profile.bundled()), width=width)
        where = """() => [...document.querySelectorAll('.sv :is(p, dl, dl > div, h2, svg, input)')].map((e) => {
            const box = e.getBoundingClientRect();
            return [box.top, box.height];
        })"""
        before = page.evaluate(where)
        for name in ("γ: drafts a round", "α: acceptance rate", "c: a draft step, in target steps"):
            slider = page.get_by_label(name, exact=True)
            for press in ("End", "Home", "PageUp"):
                slider.press(press)
                assert page.evaluate(where) == before, (width, name, press)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_page(open_page, scheme):
    page = open_page(SpeedupExplorer(), color_scheme=scheme)
    assert page.locator(".sv").get_attribute("data-theme") == scheme
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    page.wait_for_selector(".sv[data-theme=dark]")


def test_it_is_said_aloud_once_it_rests(open_page):
    page = open_page(SpeedupExplorer(gamma=4))
    live = page.locator("[aria-live=polite]")
    assert live.inner_text() == ""  # nothing happened yet
    page.get_by_label("γ: drafts a round", exact=True).press("ArrowRight")
    expect(live).to_have_text(re.compile("^γ = 5: .*plain decoding"))
    assert page.locator("svg.curve").get_attribute("aria-label").startswith("Speedup over γ. At γ = 5")


def test_bad_data_is_said_in_the_widgets_place(open_page):
    page = open_page(SpeedupExplorer('{"version": 1}'))
    assert "profile version 1" in page.get_by_role("alert").inner_text()


def test_a_name_from_a_profile_is_text_and_nothing_else(open_page):
    data = json.loads(Profile.bundled().to_json()) | {"machine": "</script><img src=x onerror=alert(1)>"}
    page = open_page(SpeedupExplorer(json.dumps(data)))
    assert page.get_by_text("</script><img").count() == 1 and page.locator("img").count() == 0


def test_where_the_speedup_rises_beyond_the_picture_no_gamma_is_called_the_best(open_page):
    """The paper's Table 1 has c = 0 and V = 1: there every longer window is faster."""
    page = open_page(SpeedupExplorer(alpha=0.9, c=0.0, verify_slope=0.0, gamma=16))
    assert theory.best_gamma(0.9, 0.0, max_gamma=100) == 100
    text = page.locator(".sv").inner_text()
    assert "A longer γ is faster still." in text and "still rising" in text and "> 16" in text
    assert "No other γ is faster" not in text
    page = open_page(SpeedupExplorer(alpha=0.9, c=0.2, verify_slope=0.0, gamma=4))
    assert "still rising" not in page.locator(".sv").inner_text()


# --- with a kernel ------------------------------------------------------------------------------

NOTEBOOK = """\
from specviz.speedup import Profile
from specviz.widgets import SpeedupExplorer
explorer = SpeedupExplorer(Profile.bundled(), gamma=3)
explorer"""


@pytest.mark.slow
def test_in_jupyterlab_both_ways(lab):
    page = lab.open(NOTEBOOK)
    slider = page.get_by_label("γ: drafts a round", exact=True)
    slider.press("ArrowRight")
    expect(page.locator("[data-number=wasted]")).to_have_text(re.compile("of 4$"))
    page.wait_for_timeout(500)
    assert lab.run_cell(page, "print(explorer.gamma)") == "4"
    lab.run_cell(page, "explorer.gamma, explorer.alpha, explorer.c, explorer.verify_slope = 9, 0.5, 0.0, 0.0")
    expect(page.locator("[data-number=wasted]")).to_have_text(re.compile("of 9$"))
    expect(page.locator("[data-number=speedup]")).to_have_text(digits(theory.speedup(0.5, 9, 0)) + "×")
