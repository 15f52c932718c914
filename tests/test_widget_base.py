"""What all widgets share: the joined files, the texts, the exported page."""

import json
import re

import pytest

from specviz.widgets import export
from specviz.widgets.base import FOLDER, Widget, joined, texts

PARTS = sorted(file.stem for file in FOLDER.glob("*.js") if file.stem != "common")


class Plain(Widget):
    """Any widget will do."""

    part = "player"


# --- files and texts ----------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_one_module_behind_the_common_file(part):
    module = joined(part, "js")
    assert module.index("function framed(") < module.index("\nexport default ")
    assert len(re.findall(r"^(?:export|import)\b", module, re.MULTILINE)) == 1
    assert joined(part, "css").startswith("/* Shared by all widgets.")


@pytest.mark.parametrize("part", PARTS)
def test_every_text_that_is_asked_for_by_name_is_there(part):
    asked = set(re.findall(r'\b(?:say|text)\(\s*"(\w+)"', joined(part, "js")))
    assert asked - set(texts(part)) == set()
    assert all(isinstance(text, str) and text.strip() for text in texts(part).values())


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_fetched_and_no_text_becomes_markup(part):
    code = joined(part, "js") + joined(part, "css")
    assert set(re.findall(r"https?://[^\"' )]+", code)) <= {"http://www.w3.org/2000/svg"}
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
        "@import",
        "url(h",
    ):
        assert word not in code, word


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


def test_widgets_of_one_kind_share_their_module():
    page = export.page([Plain(), Plain()], "two")
    assert page.count("function framed(") == 1
    assert 'data-state="state-0"' in page and 'data-state="state-1"' in page


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere"):
        Plain().to_html(tmp_path / "nowhere" / "page.html")
    with pytest.raises(ValueError, match="path=None"):
        Plain().to_html(None)


@pytest.mark.parametrize(
    "esm",
    ["const x = 1;", "\nexport const y = 2;\nexport default { render };", 'const a = "</script>";\nexport default {};'],
)
def test_a_module_that_would_break_the_page_is_refused(esm):
    with pytest.raises(ValueError, match="player.js"):
        export._module("player", esm)
