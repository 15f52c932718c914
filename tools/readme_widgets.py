"""Photograph the widgets for the README: docs/player.png and docs/speedup.png.

python tools/readme_widgets.py
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from specviz import SamplingParams, autoregress, load_pair, speculate
from specviz.speedup import Profile
from specviz.widgets import RoundPlayer, SpeedupExplorer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from browser import FLAGS, find_browser  # noqa: E402

PROMPT = "Once upon a time there lived a king who had"
ROUND, STEP = 9, 8  # the round of docs/round.png, once its first rejection has shown


def player():
    target, draft = load_pair("tales", device="cpu")
    settings = dict(max_new_tokens=40, sampling=SamplingParams(temperature=0.8), seed=4)
    player = RoundPlayer(speculate(target, draft, PROMPT, **settings), baseline=autoregress(target, PROMPT, **settings))
    player.show_round(ROUND, STEP)
    return player


def main():
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(playwright), args=FLAGS)
        for name, widget in (("player", player()), ("speedup", SpeedupExplorer(Profile.bundled()))):
            page = browser.new_page(viewport=dict(width=1000, height=900), device_scale_factor=1.5)
            page.goto(widget.to_html(Path(folder) / f"{name}.html").as_uri())
            page.wait_for_timeout(1500)  # until every movement has ended
            page.locator(".sv").screenshot(path=ROOT / "docs" / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
