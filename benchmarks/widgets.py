"""How fast the widgets answer in a browser: from an input event to the end of its drawing, layout forced.

    python benchmarks/widgets.py [name …]

Each widget is exported and opened from disk, offline. An event is dispatched, its handlers run, the page is asked for
its layout: that is the time "drawn". "shown" is the time until the frame with the change has been handed on. Goals: the
median drawn within 8 ms, the 95th percentile within 25 ms; shown within two frames (33 ms); first paint within 1 s.

A widget joins by a function in CASES that returns it and its events, {what: JavaScript}: each is the body of a
function of (root, i), called with the widget's element for i = 0, 1, 2, …
"""

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from browser import FLAGS, find_browser  # noqa: E402

EVENTS = 100
GOALS = {"median": 8.0, "95 %": 25.0, "shown": 33.4, "first": 1000.0}


def long_trace(tokens=1000):
    """A trace of so many tokens from the bundled pair, whose context is shorter: several runs, one behind the other."""
    from specviz import load_pair, speculate

    pair, parts, seed = load_pair("tales"), [], 0
    while sum(len(part.tokens) for part in parts) < tokens:
        new = min(400, tokens - sum(len(part.tokens) for part in parts))
        parts.append(speculate(*pair, "Once upon a time", gamma=4, max_new_tokens=new, seed=seed, eos=()))
        seed += 1
    pieces = {i: piece for part in parts for i, piece in part.pieces.items()}
    whole = {name: [x for part in parts for x in getattr(part, name)] for name in ("tokens", "rounds", "parts")}
    return replace(parts[0], **whole, text="".join(part.text for part in parts), pieces=pieces)


# --- the widgets and their events ---------------------------------------------------------------


def player():
    from specviz import autoregress, load_pair
    from specviz.widgets import RoundPlayer

    trace = long_trace()
    baseline = autoregress(load_pair("tales")[0], "Once upon a time", max_new_tokens=400, seed=0, record="none", eos=())
    press = "root.querySelector('.sv-text').dispatchEvent(new KeyboardEvent('keydown', {key: '%s', bubbles: true}));"
    drag = "e.dispatchEvent(new Event('input', {bubbles: true}));"
    return RoundPlayer(trace, baseline), {
        "step": press % "ArrowRight",
        "round": press % "PageDown",
        "scrub to and fro": f"const e = root.querySelector('.sv-scrub'); e.value = (i * 7919) % e.max; {drag}",
        "hover": "root.querySelectorAll('.sv-column')[i % 4].dispatchEvent(new PointerEvent('pointerenter'));",
        "coin": "const all = root.querySelectorAll('.sv-column'); if (i === 0) all[0].click();"
        f" const e = root.querySelector('.sv-coin-slider'); e.value = (i * 37 % 100) / 100; {drag}",
    }


def overlap():
    from specviz.widgets import OverlapExplorer

    key = "const bars = root.querySelectorAll('[data-bar]'); bars[i % bars.length].dispatchEvent(new KeyboardEvent("
    sample = "root.querySelectorAll('[data-sample]')[%d].click();"
    return OverlapExplorer(*OverlapExplorer.presets["far"]), {
        "key": f"{key}'keydown', {{key: i % 3 ? 'ArrowUp' : 'ArrowDown', cancelable: true}}));",
        "sample 1": sample % 0,
        "sample 100": sample % 1,
        "sample 10,000": sample % 2,
    }


def speedup():
    from specviz.speedup import Profile
    from specviz.widgets import SpeedupExplorer

    slide = "const e = root.querySelectorAll('input[type=range]')[%d]; e.value = %s;"
    slide += " e.dispatchEvent(new Event('input', {bubbles: true}));"
    return SpeedupExplorer(Profile.bundled()), {
        "gamma": slide % (0, "1 + (i % 16)"),
        "alpha": slide % (1, "(i * 7 % 100) / 100"),
    }


CASES = {"player": player, "overlap": overlap, "speedup": speedup}

# --- measuring ----------------------------------------------------------------------------------

FIRST_PAINT = """
    const look = () => {
        if (!document.querySelector('.sv-root > *')) return requestAnimationFrame(look);
        requestAnimationFrame(() => setTimeout(() => { window.firstPaint = performance.now(); }));
    };
    look();
"""
MEASURE = """async ([body, count]) => {
    const root = document.querySelector('.sv');
    const act = new Function('root', 'i', body);
    const drawn = [], shown = [];
    for (let i = 0; i < count; i++) {
        const begun = performance.now();
        act(root, i);
        document.body.getBoundingClientRect();
        root.getBoundingClientRect();
        drawn.push(performance.now() - begun);
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        shown.push(performance.now() - begun);
    }
    return [drawn, shown];
}"""


def measure(browser, name, folder):
    widget, events = CASES[name]()
    path = widget.to_html(folder / f"{name}.html")
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    page.add_init_script(FIRST_PAINT)
    page.goto(path.as_uri())
    page.wait_for_function("window.firstPaint")
    print(
        f"{name}: page of {path.stat().st_size / 1024:.0f} KiB, first paint after {page.evaluate('firstPaint'):.0f} ms"
    )
    print(f"  {'event':<20}{'drawn: median':>14}{'95 %':>8}{'shown: median':>15}{'95 %':>8}   (ms, {EVENTS} events)")
    for what, body in events.items():
        drawn, shown = page.evaluate(MEASURE, [body, EVENTS])
        figures = [statistics.median(drawn), late(drawn), statistics.median(shown), late(shown)]
        met = figures[0] <= GOALS["median"] and figures[1] <= GOALS["95 %"] and figures[3] <= GOALS["shown"]
        print("  {:<20}{:>14.1f}{:>8.1f}{:>15.1f}{:>8.1f}   {}".format(what, *figures, "" if met else "over the goal"))
    page.close()


def late(values):
    return statistics.quantiles(values, n=20)[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"which widgets: {', '.join(CASES)} (default: all)")
    names = parser.parse_args().names or list(CASES)
    if unknown := set(names) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        path = find_browser(playwright)
        if path is None:
            sys.exit("no browser: install chromium, or name one in SPECVIZ_BROWSER")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        print(f"chromium {browser.version}")
        for name in names:
            measure(browser, name, Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
