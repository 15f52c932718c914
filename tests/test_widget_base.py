"""What all widgets share: their modules, joined or as they are, their texts, the exported page."""

import json
import re
import shutil
import subprocess

import pytest
from playwright.sync_api import expect

from specviz.widgets import OverlapExplorer, RoundPlayer, SpeedupExplorer, export
from specviz.widgets.base import Widget, texts
from specviz.widgets.modules import EXPORT, FOLDER, IMPORT, joined, styles

WIDGETS = {widget.part: widget for widget in (RoundPlayer, OverlapExplorer, SpeedupExplorer)}
FILES = sorted(file.name for file in FOLDER.glob("*.js"))


class Plain(Widget):
    """Any widget will do."""

    part = "player"


# --- modules and texts --------------------------------------------------------------------------


@pytest.mark.parametrize("part", WIDGETS)
def test_a_widget_is_one_module_that_imports_nothing(part):
    module = WIDGETS[part]._esm
    assert re.findall(r"^(?:export|import)\b.*", module, re.MULTILINE) == [
        f'export default {{ render: modules["{part}.js"].render }};'
    ]
    assert styles(part).startswith("/* Shared by all widgets.")


def test_each_module_is_joined_once_behind_its_imports():
    loaded = []
    for name, imported in re.findall(r'^modules\["(.*)"\] =|= modules\["(.*)"\];$', joined(*FILES), re.MULTILINE):
        loaded += [name] if name else []
        assert not imported or imported in loaded[:-1]
    assert sorted(loaded) == FILES


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('import * as all from "./b.js";', r"a\.js: 'import \* as all"),
        ('import { b } from "https://b.js";', r"a\.js: 'import \{ b \} from"),
        ('import { b } from "./b.js"', r"a\.js: 'import"),
        ('const b = await import("./b.js");', r"a\.js: 'const b = await import"),
        ("export default { b };", r"a\.js: 'export default"),
        ("export { b };", r"a\.js: 'export \{ b"),
        ("  export const b = 1;", r"a\.js: 'export const"),
        ("export let b = 1;", r"a\.js: 'export let"),
        ('import { b } from "./a.js";', r"a\.js: imports itself"),
    ],
)
def test_a_statement_that_cannot_be_joined_is_an_error(tmp_path, text, says):
    (tmp_path / "a.js").write_text(text)
    (tmp_path / "b.js").write_text("export const b = 1;")
    with pytest.raises(ValueError, match=says):
        joined("a.js", folder=tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_every_import_is_there_and_used(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    for names, imported in IMPORT.findall(text):
        for each in re.findall(r"\w+", names):
            assert len(re.findall(rf"(?<![\w.]){each}\b", text)) > 1, each
            assert each in EXPORT.findall((FOLDER / imported).read_text(encoding="utf-8")), each


def load_in_node(text):
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    subprocess.run([node, "--input-type=module"], input=text, text=True, check=True, timeout=60)


@pytest.mark.parametrize("name", FILES)
def test_node_loads_each_file_as_it_is(name, tmp_path):
    (tmp_path / "package.json").write_text('{"type": "module"}')  # older node asks for it
    shutil.copytree(FOLDER, tmp_path / "js", ignore=shutil.ignore_patterns("*.py*", "*.css"))
    address = (tmp_path / "js" / name).as_uri()
    load_in_node(f"if (!Object.keys(await import({json.dumps(address)})).length) throw new Error('no exports');")


@pytest.mark.parametrize("part", WIDGETS)
def test_node_loads_the_joined_modules(part):
    load_in_node(WIDGETS[part]._esm)


@pytest.mark.browser
@pytest.mark.parametrize("name", FILES)
def test_a_browser_loads_each_file_as_it_is(modules, name):
    assert modules(f"Object.keys({name.removesuffix('.js')}).length") > 0


@pytest.mark.parametrize("part", WIDGETS)
def test_every_text_that_is_asked_for_by_name_is_there(part):
    asked = set(re.findall(r'\b(?:say|text)\(\s*"(\w+)"', joined(f"{part}.js")))
    assert asked - set(texts(part)) == set()
    assert all(isinstance(text, str) and text.strip() for text in texts(part).values())


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_fetched_and_no_text_becomes_markup(name):
    code = (FOLDER / name).read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\"' )]+", code)) <= {"http://www.w3.org/2000/svg"}
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch("):
        assert word not in code, word
    assert "</script" not in code.lower() and "<!--" not in code  # either would end the script of an exported page


@pytest.mark.parametrize("part", ["common", *WIDGETS])
def test_no_style_sheet_fetches_anything(part):
    assert not re.search(r"@import|url\(\s*[\"']?h|https?://", styles(part))


# --- traits -------------------------------------------------------------------------------------


def test_bad_data_becomes_a_message_and_good_data_takes_it_away():
    def bad(number):
        raise ValueError(f"{number} is no good.")

    widget = Plain()
    widget.fill(bad, 3)
    assert (widget.data, widget.error) == ({}, "3 is no good.")
    assert "3 is no good." in repr(widget)
    widget.fill(lambda number: {"n": number}, 4)
    assert (widget.data, widget.error) == ({"n": 4}, "")


def test_state_is_what_the_widget_adds_to_anywidget():
    state = Plain().state()
    assert sorted(state) == ["data", "error", "kernel", "texts"]
    json.dumps(state, allow_nan=False)


# --- the exported page --------------------------------------------------------------------------


def test_json_in_a_page_cannot_end_its_script():
    nasty = {"</script><!--": "a & b \u2028 \u2029 <b> ' \" γ"}
    text = export.script_json(nasty)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == nasty
    with pytest.raises(ValueError):
        export.script_json({"u": float("nan")})


def test_a_page_holds_all_it_needs(tmp_path):
    path = Plain().to_html(tmp_path / "page.html", title="A <b> & c")
    text = path.read_text(encoding="utf-8")
    assert "<title>A &lt;b&gt; &amp; c</title>" in text
    assert "default-src 'none'" in text
    assert not re.search(r"<(?:script|link|img|iframe)[^>]*\b(?:src|href)=", text)
    assert text.count("</script>") == 2  # the state's and the module's
    assert '"kernel":false' in text


def test_widgets_share_their_modules():
    page = export.page([Plain(), Plain(), SpeedupExplorer()], "three")
    assert page.count("function framed(") == 1
    assert all(f'data-number="{n}"' in page and f'id="state-{n}"' in page for n in range(3))


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere"):
        Plain().to_html(tmp_path / "nowhere" / "page.html")
    with pytest.raises(ValueError, match="path=None"):
        Plain().to_html(None)


@pytest.mark.browser
def test_a_link_leads_to_the_same_situation(open_page, tmp_path):
    """For several widgets of a page at once; a link that is none, or of other types, changes nothing."""
    path = export.write(tmp_path / "page.html", [SpeedupExplorer(gamma=4), SpeedupExplorer(), OverlapExplorer()])
    page = open_page(path)
    page.get_by_label("γ: drafts a round", exact=True).nth(1).press("End")
    page.get_by_label("Rule").select_option("swap_p_and_q")
    expect(page).to_have_url(re.compile("#"))
    values = "() => [...document.querySelectorAll('input, select, [data-bar]')].map((e) => e.value ?? e.ariaValueNow)"
    before = page.evaluate(values)
    assert before != open_page(path).evaluate(values)
    link = page.url
    assert open_page(link).evaluate(values) == before
    page.goto(path.as_uri())
    first = page.evaluate(values)
    page.evaluate("(link) => { location.href = link; }", link)  # the address changes, the page is the same
    expect(page.get_by_label("Rule")).to_have_value("swap_p_and_q")
    assert page.evaluate(values) == before
    for wrong in ("#%", "#null", "#7", '#[{"gamma": "x", "alpha": [1], "data": {}, "error": "!"}]'):
        assert open_page(path.as_uri() + wrong).evaluate(values) == first
