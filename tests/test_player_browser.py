"""RoundPlayer in a browser: what it shows against the trace, its coins against Python's, its keys, its manners."""

import re

import pytest
from browser import violations
from playwright.sync_api import expect
from test_player import awkward, table

from specviz import Scripted, TableModel, autoregress, speculate
from specviz.widgets import OverlapExplorer, RoundPlayer, SpeedupExplorer
from specviz.widgets.export import write
from specviz.widgets.player import player_data

pytestmark = pytest.mark.browser


def steps(round):
    return len(round.draft_tokens) + 1 + round.tested + 1


def set_range(locator, value):
    """What a drag does to a slider."""
    locator.evaluate("(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })); }", str(value))


def go(page, position, number=0):
    set_range(page.locator(".sv-player").nth(number).locator(".sv-scrub"), position)


def pin(page, i):
    """Select a column for good; a second click would let it go."""
    column = page.locator(".sv-column").nth(i)
    if column.get_attribute("aria-pressed") == "false":
        column.click()


def shown_text(page, number=0):
    return page.locator(".sv-player").nth(number).locator(".sv-continuation").evaluate("e => e.textContent")


def shown_round(page):
    """(accepted, tested, the next token's label, outcome) as the columns say them."""
    fates = page.locator(".sv-column").evaluate_all("all => all.map((e) => e.dataset.fate)")
    accepted, rejected = fates.count("accepted"), fates.count("rejected")
    following = page.locator(".sv-column.sv-last .sv-out .sv-tok").inner_text()
    outcome = fates[-1] if fates[-1] != "waiting" else "ended"
    return accepted, accepted + rejected, following, outcome


def label(data, token):
    """A token's label, as the widget writes it."""
    piece = data["pieces"][str(token)]
    if isinstance(piece, list):
        return "".join(f"‹{byte:02x}›" for byte in piece)
    return piece.replace(" ", "␣").replace("\n", "↵")


@pytest.fixture(scope="module")
def trace():
    return awkward()


@pytest.fixture(scope="module")
def baseline():
    return autoregress(table(1), "a", max_new_tokens=40, seed=0, eos=[])


# --- replaying ----------------------------------------------------------------------------------


def test_played_to_its_end_the_text_is_the_traces(open_page, trace, baseline):
    page = open_page(RoundPlayer(trace, baseline, speed="16"))
    page.locator(".sv-play").click()
    total = sum(map(steps, trace.rounds))
    expect(page.locator(".sv-scrub")).to_have_value(str(total), timeout=60_000)
    assert shown_text(page) == trace.text
    expect(page.locator(".sv-play")).to_contain_text("play")
    expect(page.locator(".sv-heading")).to_contain_text(f"Round {len(trace.rounds)} of {len(trace.rounds)}")
    words = page.locator(".sv-lane").first.inner_text()
    forwards = trace.forwards
    assert f"tokens: {len(trace.tokens)} · forwards: {forwards['target']} target, {forwards['draft']} draft" in words
    accepted, tested = sum(r.accepted for r in trace.rounds), sum(r.tested for r in trace.rounds)
    expect(page.locator(".sv-counts")).to_contain_text(f"accepted {accepted} of {tested} tested drafts")
    expect(page.locator(".sv-counts")).to_contain_text(f"{trace.alpha:.2f}")


def test_by_the_clock_of_the_recording(open_page, trace):
    for round in trace.rounds:
        round.seconds = dict.fromkeys(round.seconds, 0.01)
    page = open_page(RoundPlayer(trace, speed="measured"))
    page.locator(".sv-play").click()
    expect(page.locator(".sv-scrub")).to_have_value(str(sum(map(steps, trace.rounds))), timeout=30_000)
    assert shown_text(page) == trace.text


def test_the_text_is_right_after_every_step(open_page, trace):
    page = open_page(RoundPlayer(trace))
    parts, position, tokens = trace.parts, 0, 0
    for round in trace.rounds:
        before, tokens = tokens, tokens + len(round.tokens)
        for step in range(steps(round)):
            go(page, position + step)
            assert shown_text(page) == "".join(parts[:before])
        position += steps(round)
        go(page, position)
        assert shown_text(page) == "".join(parts[:tokens])
        assert shown_round(page)[:2] == (round.accepted, round.tested)
    go(page, 1)  # and back
    assert shown_text(page) == ""


def test_the_side_shows_the_rounds_numbers(open_page, trace):
    page = open_page(RoundPlayer(trace))
    data, position = RoundPlayer(trace).data, 0
    for round in trace.rounds[:5]:
        position += steps(round)
        go(page, position)
        for i, token in enumerate(round.draft_tokens):
            page.locator(".sv-column").nth(i).click()
            side = page.locator(".sv-side")
            expect(side.locator("h3")).to_contain_text(f"Position {i + 1}: {label(data, token)}")
            expect(side).to_contain_text(f"{round.overlap[i]:.3f}, Z".removeprefix("0"))
            cells = side.locator("tr", has_text="▸").locator("td.sv-number").all_inner_texts()
            exact = [top[i][token] for top in (round.p, round.q, round.residual)]
            assert [float(cell) for cell in cells] == pytest.approx(exact, abs=6e-4)
            if i < round.tested:
                word = "accepted" if i < round.accepted else "rejected"
                expect(side.locator(".sv-verdict")).to_contain_text(word)
            page.locator(".sv-column").nth(i).click()


def test_hover_and_focus_show_the_same(open_page, trace):
    page = open_page(RoundPlayer(trace))
    go(page, steps(trace.rounds[0]))
    columns, side = page.locator(".sv-column"), page.locator(".sv-side")
    before = side.inner_text()
    columns.nth(1).hover()
    hovered = side.inner_text()
    page.locator(".sv-heading").hover()
    assert side.inner_text() == before
    columns.nth(0).focus()
    page.keyboard.press("Tab")
    expect(columns.nth(1)).to_be_focused()
    assert side.inner_text() == hovered


# --- keys ---------------------------------------------------------------------------------------


def test_every_key(open_page, trace):
    page = open_page(RoundPlayer(trace))
    first, second = trace.rounds[:2]
    total = sum(map(steps, trace.rounds))
    page.locator(".sv-text").focus()
    drafts = len(first.draft_tokens)
    presses = [
        ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("Shift+ArrowRight", drafts),
        ("Shift+ArrowRight", drafts + 1), ("Shift+ArrowRight", drafts + 1 + first.tested),
        ("Shift+ArrowRight", steps(first)), ("Shift+ArrowRight", steps(first) + len(second.draft_tokens)),
        ("Shift+ArrowLeft", steps(first)), ("PageDown", steps(first) + steps(second)), ("PageUp", steps(first)),
        ("PageUp", 0), ("ArrowLeft", 0), ("End", total), ("ArrowRight", total), ("PageDown", total), ("Home", 0),
    ]  # fmt: skip
    for key, position in presses:
        page.keyboard.press(key)
        assert page.locator(".sv-scrub").input_value() == str(position), key
    page.keyboard.press("p")
    expect(page.locator(".sv-play")).to_contain_text("pause")
    page.keyboard.press("Space")
    expect(page.locator(".sv-play")).to_contain_text("play")
    names = ["round_back", "phase_back", "step_back", "play", "step", "phase", "round"]
    for name in names:  # and every button is reached by Tab and works by Enter
        page.locator(f"[data-key={name}]").focus()
        page.keyboard.press("Enter")
    page.locator("[data-key=play]").press("Enter")


# --- the coin -----------------------------------------------------------------------------------


def test_a_chosen_coin_gives_pythons_round(open_page):
    eos = [9]
    trace = speculate(table(1), table(2), "a", gamma=3, max_new_tokens=40, seed=11, eos=eos)
    player = RoundPlayer(trace)
    page, position = open_page(player), 0
    seen = set()
    for number, round in enumerate(trace.rounds[:8]):
        position += steps(round)
        for i, a in enumerate(round.accept_probability):
            for u in sorted({0.0, round_down(a), min(0.999, round_down(a) + 0.002), 0.999}):
                go(page, position)
                pin(page, i)
                set_range(page.locator(".sv-coin-slider"), u)
                coins = Scripted({(0, number, "coin", i): u}, base=Scripted.from_trace(trace))
                other = speculate(
                    table(1), table(2), "a", gamma=3, max_new_tokens=40, randomness=coins, eos=eos
                ).rounds[number]
                following = "" if other.next_token is None else label(player.data, other.next_token)
                assert shown_round(page) == (other.accepted, other.tested, following, other.outcome)
                seen.add(other.outcome)
                page.locator(".sv-reset").click()
                assert shown_round(page)[:2] == (round.accepted, round.tested)
    assert {"resampled", "bonus"} <= seen


# The rounds and the text that the widget shows, without its drawing, for a list of what-ifs.
PLANS = "x[1].map((whatIf) => replay.planOf(x[0], whatIf))"
# Of the awkward pieces in test_player: some that a later token completes, of halves of characters, inside of tokens.
STOPS = ["a bee", "é", "e😀", "\nγ", "script>a", "\ufffd", "a", "γγ"]


def test_replayed_coins_end_where_pythons_do(modules):
    """Every round of a text with every coin changed, the coin as it was among them: rounds, and text, are Python's."""
    outcomes, reasons = set(), set()
    for seed in range(8):
        pair, stop = (table(seed + 1), table(seed + 50)), ([], STOPS[:3], STOPS[3:6], STOPS[6:])[seed % 4]
        settings = dict(gamma=3, max_new_tokens=24, eos=[9] if seed % 3 else [], stop=stop)
        trace = speculate(*pair, "a", seed=seed, **settings)
        data = player_data(trace)
        cases = [
            (number, i, u)
            for number, round in enumerate(trace.rounds)
            for i, a in enumerate(round.accept_probability)
            for u in {0.0, round.coins[i], round_down(a), 0.999}
        ]
        what_ifs = [{"round": number, "coins": {str(i): u}} for number, i, u in cases]
        for (number, i, u), plan in zip(cases, modules(PLANS, [data, what_ifs]), strict=True):
            other = with_coin(trace, pair, number, i, u)
            mine, theirs = plan["rounds"][number], other.rounds[number]
            assert len(plan["rounds"]) == number + 1 == len(other.rounds)
            assert [mine[name] for name in ("accepted", "tested", "next", "outcome")] == [
                theirs.accepted, theirs.tested, theirs.next_token, theirs.outcome
            ]  # fmt: skip
            assert "".join(sum(plan["parts"], [])) == other.text, (number, i, u, stop)
            assert [len(parts) for parts in plan["parts"]] == [len(round.tokens) for round in other.rounds]
            outcomes.add(theirs.outcome)
            reasons.add(other.finish_reason)
        [plan] = modules(PLANS, [data, [{}]])
        assert sum(plan["parts"], []) == trace.parts
    assert outcomes >= {"resampled", "bonus", "ended"} and reasons >= {"stop", "eos", "interrupted"}


def with_coin(trace, pair, number, i, u):
    """Python's replay of a trace with another coin, up to the end of that round."""
    coins, done = Scripted({(0, number, "coin", i): u}, base=Scripted.from_trace(trace)), []

    def enough(round):
        done.append(round)
        return len(done) > number

    return speculate(*pair, trace.prompt_tokens, randomness=coins, on_round=enough, **trace.settings)


def test_nothing_behind_a_stop_string_is_shown_as_text(open_page):
    """Neither when the text is played to its end, nor when a changed coin lets it go on or end elsewhere."""
    pair, stop = (table(1), table(2)), ["e</scr", "a b", "<eos>γ"]
    for seed in range(99):
        trace = speculate(*pair, "a", gamma=3, max_new_tokens=40, seed=seed, eos=[], stop=stop)
        last, number = trace.rounds[-1], len(trace.rounds) - 1
        others = [with_coin(trace, pair, number, i, 0.999) for i in range(last.tested)]
        free = [i for i, other in enumerate(others) if other.finish_reason == "interrupted"]
        begun = any(trace.parts[i] == "" for i in range(len(trace.tokens) - len(last.tokens)))
        if trace.finish_reason == "stop" and number > 1 and free and begun:  # the stop string begins a round before
            break
    else:
        pytest.fail("no such trace")
    page = open_page(RoundPlayer(trace))
    go(page, sum(map(steps, trace.rounds)))
    assert shown_text(page) == trace.text
    for i, other in enumerate(others):
        pin(page, i)
        set_range(page.locator(".sv-coin-slider"), 0.999)
        assert shown_text(page) == other.text
        page.locator(".sv-reset").click()
        assert shown_text(page) == trace.text and shown_round(page)[0] == last.accepted
    assert others[free[0]].text != trace.text


def round_down(a):
    return int(min(a, 0.999) * 1000) / 1000


def test_after_a_chosen_coin_the_recording_does_not_go_on(open_page, trace):
    page = open_page(RoundPlayer(trace))
    end = steps(trace.rounds[0]) + steps(trace.rounds[1])
    go(page, end)
    page.locator(".sv-column").first.click()
    slider = page.locator(".sv-coin-slider")
    slider.focus()
    page.keyboard.press("End")  # u = 0.999: by keyboard too
    expect(page.locator(".sv-heading")).to_contain_text("what if")
    expect(page.locator(".sv-reason")).to_contain_text("no longer follow")
    total = page.locator(".sv-scrub").get_attribute("max")
    page.locator("[data-key=round]").click()
    page.locator("[data-key=step]").click()
    assert page.locator(".sv-scrub").input_value() == total
    expect(page.locator(".sv-heading")).to_contain_text("Round 2 of")
    page.locator("[data-key=play]").click()  # plays the replayed round, from its beginning
    expect(page.locator("[data-key=play]")).to_contain_text("pause")
    page.locator(".sv-text").focus()
    page.keyboard.press("Escape")
    expect(page.locator(".sv-heading")).not_to_contain_text("what if")
    assert page.locator(".sv-scrub").get_attribute("max") == str(sum(map(steps, trace.rounds)))


# --- exported pages -----------------------------------------------------------------------------


def test_two_players_on_one_page(open_page, trace, tmp_path):
    other = awkward(seed=4)
    page = open_page(write(tmp_path / "two.html", [RoundPlayer(trace), RoundPlayer(other)], "two"))
    for number, each in enumerate((trace, other)):
        go(page, sum(map(steps, each.rounds)), number)
    assert shown_text(page, 0) == trace.text and shown_text(page, 1) == other.text
    page.locator(".sv-text").nth(1).focus()
    page.keyboard.press("Home")
    assert shown_text(page, 0) == trace.text and shown_text(page, 1) == ""
    ids = page.locator("[id]").evaluate_all("all => all.map((e) => e.id)")
    assert len(ids) == len(set(ids))


def test_axe_finds_nothing_where_there_are_two_of_a_kind(open_page, trace, tmp_path):
    kinds = [RoundPlayer(trace), OverlapExplorer(), SpeedupExplorer()]
    again = [RoundPlayer(awkward(seed=4)), OverlapExplorer(), SpeedupExplorer()]
    assert violations(open_page(write(tmp_path / "six.html", kinds + again, "six"))) == []


def test_markup_in_a_token_stays_text(open_page, trace):
    assert "</script>" in trace.text
    page = open_page(RoundPlayer(trace))
    go(page, sum(map(steps, trace.rounds)))
    assert "</script>" in shown_text(page)
    assert page.locator(".sv-continuation script").count() == 0


@pytest.mark.parametrize("settings", [dict(record="none"), dict(max_new_tokens=0)])
def test_a_bad_trace_is_answered_by_a_message(open_page, settings):
    player = RoundPlayer(awkward(**settings))
    page = open_page(player)
    expect(page.get_by_role("alert")).to_contain_text(player.error)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (dict(max_new_tokens=6), "The requested length is reached."),
        (dict(max_new_tokens=60, on_round=lambda round: True), "Decoding was interrupted here."),
        (dict(max_new_tokens=60, eos=[1, 2]), "That was the end token: the text is complete."),
        (dict(max_new_tokens=60, stop=["b", "c"]), "A stop string ended the text"),
        (dict(max_new_tokens=90), "The model's context is full."),
    ],
    ids=["length", "interrupted", "eos", "stop", "context"],
)
def test_the_end_says_why_it_is_the_end(open_page, settings, says):
    target, drafter = (TableModel.random(3, 1, seed=seed, symbols="abc") for seed in (1, 2))
    page = open_page(RoundPlayer(speculate(target, drafter, "a", gamma=2, seed=0, **settings)))
    page.locator(".sv-text").press("End")
    expect(page.locator(".sv").get_by_text(says).first).to_be_visible()


def test_live_controls_are_disabled_and_say_why(open_page):
    page = open_page(RoundPlayer.live(table(1), table(2), "a", max_new_tokens=10))
    for control in page.locator(".sv-live :is(input, select, textarea, button)").all():
        expect(control).to_be_disabled()
    expect(page.locator(".sv-live-words")).to_contain_text("needs a running Python kernel")
    page.locator("[data-key=round]").click()  # the rest works
    expect(page.locator(".sv-scrub")).not_to_have_value("0")


def test_plain_decoding_plays(open_page, baseline):
    page = open_page(RoundPlayer(baseline))
    page.locator(".sv-text").focus()
    page.keyboard.press("End")
    assert shown_text(page) == baseline.text
    expect(page.locator(".sv-coin-slider")).to_be_disabled()


# --- manners ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1000, 400])
def test_nothing_jumps_and_nothing_sticks_out(open_page, trace, baseline, width):
    page = open_page(RoundPlayer(trace, baseline), width=width)
    heights = set()
    for position in range(0, sum(map(steps, trace.rounds[:6]))):
        go(page, position)
        heights.add(page.locator(".sv-player").evaluate("e => e.offsetHeight"))
    page.locator(".sv-column").first.click()
    set_range(page.locator(".sv-coin-slider"), 0.999)
    heights.add(page.locator(".sv-player").evaluate("e => e.offsetHeight"))
    assert len(heights) == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_reduced_motion_is_respected(open_page, trace):
    for wish, moves in (("reduce", False), ("no-preference", True)):
        page = open_page(RoundPlayer(trace), reduced_motion=wish)
        # Counted where they begin: on a busy machine they may have ended before the test looks.
        page.evaluate(
            """() => {
                const { animate } = Element.prototype;
                window.begun = 0;
                Element.prototype.animate = function (...given) {
                    window.begun += 1;
                    return animate.apply(this, given);
                };
            }"""
        )
        page.locator("[data-key=step]").click()
        assert (page.evaluate("window.begun") > 0) == moves


def test_themes_follow_the_page(open_page, trace):
    page = open_page(RoundPlayer(trace), color_scheme="dark")
    frame = page.locator(".sv-player")
    expect(frame).to_have_attribute("data-theme", "dark")
    page.evaluate("document.body.dataset.jpThemeLight = 'true'")  # as JupyterLab says it
    expect(frame).to_have_attribute("data-theme", "light")
    page.evaluate("delete document.body.dataset.jpThemeLight; document.body.className = 'vscode-light'")
    expect(frame).to_have_attribute("data-theme", "light")


def test_steps_are_announced(open_page, trace):
    page = open_page(RoundPlayer(trace))
    page.locator("[data-key=step]").click()
    expect(page.locator(".sv-unseen")).to_have_text(re.compile("proposes .* with q₁"))
    assert page.locator(".sv-unseen").get_attribute("aria-live") == "polite"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_page, trace, baseline, scheme):
    page = open_page(RoundPlayer(trace, baseline), color_scheme=scheme)
    assert violations(page) == []
    for position in (2, 4, 5, sum(map(steps, trace.rounds[:3])), sum(map(steps, trace.rounds))):
        go(page, position)
        assert violations(page) == [], position
    pin(page, 0)
    set_range(page.locator(".sv-coin-slider"), 0.999)
    assert violations(page) == []
    assert violations(open_page(RoundPlayer(trace, baseline), color_scheme=scheme, width=400)) == []
    live = RoundPlayer.live(table(1), table(2), "a", max_new_tokens=10)
    assert violations(open_page(live, color_scheme=scheme)) == []
    assert violations(open_page(RoundPlayer(awkward(record="none")), color_scheme=scheme)) == []


# --- JupyterLab ---------------------------------------------------------------------------------

SETUP = """
from specviz.widgets import RoundPlayer
from test_player import awkward, table
trace = awkward()
player = RoundPlayer(trace, speed="16")
player
"""


def test_in_jupyterlab(lab, trace):
    page = lab.open(SETUP, "again = RoundPlayer(awkward(seed=4))\nagain")
    total = sum(map(steps, trace.rounds))
    first, second = page.locator(".sv-player").nth(0), page.locator(".sv-player").nth(1)

    first.locator(".sv-play").click()
    expect(first.locator(".sv-scrub")).to_have_value(str(total), timeout=60_000)
    assert shown_text(page, 0) == trace.text
    expect(second.locator(".sv-scrub")).to_have_value("0")

    second.locator(".sv-text").focus()  # keys reach the widget, and JupyterLab leaves them alone
    for key in ("PageDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    page.wait_for_timeout(500)  # the browser tells Python a little later
    here = int(second.locator(".sv-scrub").input_value())
    assert here == steps(awkward(seed=4).rounds[0]) + 2
    told = lab.run_cell(page, "print(player.position, again.position); player.show_round(0)")
    assert told == f"{total} {here}"
    expect(first.locator(".sv-heading")).to_contain_text("Round 1 of")  # and Python tells the browser

    first.locator(".sv-column").first.click()
    set_range(first.locator(".sv-coin-slider"), 0.999)
    page.wait_for_timeout(500)
    assert lab.run_cell(page, "print(player.what_if)") == "{'round': 0, 'coins': {'0': 0.999}}"


def test_live_in_jupyterlab(lab):
    page = lab.open(SETUP, "live = RoundPlayer.live(table(1), table(2), 'a', seed=0, max_new_tokens=20)\nlive")
    form = page.locator(".sv-live")
    before = shown_text(page, 1)
    form.get_by_label("seed").fill("7")
    form.get_by_label("γ").fill("2")
    form.get_by_role("button", name="decode").click()
    expected = speculate(table(1), table(2), "a", gamma=2, seed=7, max_new_tokens=20)
    heading = page.locator(".sv-player").nth(1).locator(".sv-heading")
    expect(heading).to_contain_text(f"of {len(expected.rounds)} ", timeout=60_000)
    page.locator(".sv-player").nth(1).locator(".sv-text").press("End")
    assert shown_text(page, 1) == expected.text != before

    form.get_by_label("prompt").fill("")
    form.get_by_role("button", name="decode").click()
    expect(form.get_by_role("status")).to_contain_text("prompt=", timeout=60_000)
    assert shown_text(page, 1) == expected.text  # what was there stays


def test_live_is_stopped_in_jupyterlab(lab):
    endless = "table(1, eos=[]), table(2, eos=[]), 'a', seed=0, max_new_tokens=10, race=False"
    page = lab.open(f"{SETUP}\nlive = RoundPlayer.live({endless})\nlive")
    form = page.locator(".sv-live")
    form.get_by_label("new tokens").fill("1900")
    form.get_by_role("button", name="decode").click()
    expect(form.get_by_role("status")).to_contain_text("decoding")
    form.get_by_role("button", name="stop").click()
    expect(form.get_by_role("status")).to_contain_text("stopped", timeout=60_000)
    assert lab.run_cell(page, "print(live.data['finish'], 10 < len(live.data['parts']) < 1900)") == "interrupted True"
