"""A real browser for tests, and a JupyterLab to open in it: the fixtures browser, modules, open_page and lab.

The browser is the one named in SPECVIZ_BROWSER, else chromium, google-chrome or playwright's own. Without any, tests
skip; with CI=true they fail. No test reaches the network: exported pages are opened offline, and from JupyterLab only
127.0.0.1 is reached.
"""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest

from specviz.widgets.modules import FOLDER

ROOT = Path(__file__).parent.parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE = 120_000  # milliseconds: a kernel that imports torch on a busy machine takes its time
ERROR = '[data-mime-type="application/vnd.jupyter.error"]'  # an output of JupyterLab's that is a traceback


def find_browser(playwright) -> str | None:
    named = os.environ.get("SPECVIZ_BROWSER")
    if named:
        return named
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


@pytest.fixture(scope="module")
def browser():
    """A Chromium or Chrome. One a module: playwright's loop must have ended when notebooks are tested."""
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        path = find_browser(playwright)
        try:
            if path is None:
                raise FileNotFoundError("neither SPECVIZ_BROWSER nor chromium, google-chrome or playwright's own")
            browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        except (Error, FileNotFoundError) as problem:
            if os.environ.get("CI") == "true":
                pytest.fail(f"CI=true, but no browser starts: {problem}")
            pytest.skip(f"no browser: {problem}")
        yield browser
        browser.close()


@pytest.fixture
def modules(browser):
    """modules(code, argument) -> the value of a JavaScript expression of x and of the widgets' modules by name.

    The files are loaded as they are, each as a module of its own: `theory.speedup(...x)`, say.
    """
    files = sorted(FOLDER.glob("*.js"))
    page = browser.new_page()
    page.route("http://widgets.test/**", _serve)
    page.goto("http://widgets.test/")
    load = "\n".join(f"const {file.stem} = await import('/{file.name}');" for file in files)
    yield lambda code, argument=None: page.evaluate(f"async (x) => {{ {load}\nreturn {code}; }}", argument)
    page.close()


def _serve(route):
    """The widgets' folder as a web site, without a server."""
    name = urlsplit(route.request.url).path.removeprefix("/")
    if name:
        route.fulfill(path=FOLDER / name, content_type="text/javascript")
    else:
        route.fulfill(body="<!doctype html>", content_type="text/html")


def _listen(page, errors):
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))


@pytest.fixture
def open_page(browser, tmp_path):
    """open_page(widget, path or address, width=…, color_scheme=…, reduced_motion=…) -> a page from disk, offline.

    Any error in the console, from any of the pages, fails the test at its end.
    """
    contexts, errors = [], []

    def open_page(what, width=1000, height=900, **settings):
        if hasattr(what, "to_html"):
            what = what.to_html(tmp_path / f"page-{len(contexts)}.html")
        context = browser.new_context(viewport={"width": width, "height": height}, offline=True, **settings)
        contexts.append(context)
        page = context.new_page()
        _listen(page, errors)
        page.goto(what if isinstance(what, str) else what.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


class Lab:
    """A JupyterLab that serves one folder on this machine alone."""

    def __init__(self, folder: Path, url: str, browser):
        self.folder, self.url, self.browser = folder, url, browser
        self.contexts, self.errors = [], []

    def open(self, *sources, width=1280, height=1000):
        """A page with a new notebook of these code cells, all run. Raises AssertionError when a cell fails."""
        name = f"test-{len(self.contexts)}.ipynb"
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), self.folder / name)
        context = self.browser.new_context(viewport={"width": width, "height": height})
        self.contexts.append(context)
        own = urlsplit(self.url).netloc
        context.route(lambda url: urlsplit(url).netloc not in (own, ""), lambda route: route.abort())
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        _listen(page, self.errors)
        page.goto(f"{self.url}/lab/tree/{name}?reset")
        # Asked to run before it has its kernel, JupyterLab would open a dialog.
        page.wait_for_function(
            "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
        )
        self.run_all(page)
        return page

    def run_all(self, page):
        """Run every cell and wait until the last has its number."""
        # "void": a promise that never settles would be waited for without end
        page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_function(
            """(error) => {
                const prompts = [...document.querySelectorAll('.jp-Notebook .jp-InputPrompt')];
                const ran = (prompt) => /\\[\\d+\\]/.test(prompt.textContent);
                return document.querySelector(error) || (prompts.length && prompts.every(ran));
            }""",
            arg=ERROR,
        )
        failed = page.query_selector(ERROR)
        assert failed is None, failed.inner_text()

    def run_cell(self, page, source):
        """Run one more cell at the end of the notebook and return the text that it printed."""
        before = page.locator(".jp-Notebook .jp-CodeCell").count()
        page.evaluate(
            """async (source) => {
                const { commands, shell } = window.jupyterapp;
                const { content } = shell.currentWidget;
                content.activeCellIndex = content.widgets.length - 1;
                await commands.execute('notebook:insert-cell-below');
                content.activeCell.model.sharedModel.setSource(source);
                void commands.execute('notebook:run-cell');
            }""",
            source,
        )
        cell = page.locator(".jp-Notebook .jp-CodeCell").nth(before)
        prompt = cell.locator(".jp-InputPrompt").element_handle()
        page.wait_for_function("prompt => /\\[\\d+\\]/.test(prompt.textContent)", arg=prompt)
        return "\n".join(cell.locator(".jp-OutputArea-output").all_inner_texts()).strip()


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """JupyterLab on a free port, with settings of its own; see Lab.

    Any error in a page's console fails the last test that used it.
    """
    folder, private = tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("jupyter")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (private / "labconfig").mkdir()
    quiet = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}  # asks for news otherwise
    (private / "labconfig" / "page_config.json").write_text(json.dumps(quiet))
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(private),
        "JUPYTER_DATA_DIR": str(private / "data"),
        "JUPYTER_RUNTIME_DIR": str(private / "runtime"),
        "IPYTHONDIR": str(private / "ipython"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "HF_HUB_OFFLINE": "1",
    }
    settings = ["--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"]
    settings += ["--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--ServerApp.root_dir={folder}"]
    settings += ["--LabApp.expose_app_in_browser=True"]
    log = (private / "log.txt").open("w")
    command = [sys.executable, "-m", "jupyterlab", *settings]
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    lab = Lab(folder, f"http://127.0.0.1:{port}", browser)
    try:
        deadline = time.monotonic() + PATIENCE / 1000
        while True:
            try:
                urllib.request.urlopen(f"{lab.url}/api/status", timeout=5).close()
                break
            except OSError:
                said = (private / "log.txt").read_text()[-2000:]
                assert server.poll() is None, f"JupyterLab ended:\n{said}"
                assert time.monotonic() < deadline, f"JupyterLab does not answer:\n{said}"
                time.sleep(0.3)
        yield lab
    finally:
        for context in lab.contexts:
            context.close()
        server.terminate()  # takes its kernels along
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
        log.close()
    assert lab.errors == []


def violations(page) -> list[str]:
    """What axe-core finds wrong with the page as it is now: "rule: what, at which elements".

    The axe.min.js is the one in the package axe-playwright-python. Without it: a skip, with CI=true a failure.
    """
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None:
        reason = "axe-playwright-python is not installed"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    # Colours are judged where they end up, not on the way there.
    page.evaluate("Promise.allSettled(document.getAnimations().map((animation) => animation.finished))")
    page.evaluate((Path(spec.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    return [f"{v['id']}: {v['help']}, at {[node['target'] for node in v['nodes']]}" for v in found]
