"""The runtime behind the exercise cells: specviz.exercises, without the lessons themselves."""

import sys

import pytest

from specviz import exercises
from specviz.exercises import Hint, check, exercise, summary


@pytest.fixture(autouse=True)
def no_lessons(monkeypatch, tmp_path):
    """An empty registry, and an empty folder to look for lessons in."""
    monkeypatch.setattr(exercises, "_exercises", {})
    monkeypatch.setattr(exercises, "results", {})
    monkeypatch.setattr(exercises, "__path__", [str(tmp_path)])


@pytest.fixture
def double():
    @exercise("99-test", "double", todo="Return twice x.")
    def _(function):
        got = function(3)
        if got != 6:
            raise Hint(f"twice 3 is 6, not {got}")


def test_right(double, capsys):
    result = check("double", lambda x: 2 * x)
    assert (result.name, result.passed) == ("double", True)
    assert capsys.readouterr().out == "✓ double: right\n"


def test_the_lesson_may_say_what_was_learned(capsys):
    exercise("99-test", "any")(lambda answer: "that is why")
    assert check("any", 1).message == "that is why"


def test_wrong(double, capsys):
    result = check("double", lambda x: x)
    assert not result.passed
    assert capsys.readouterr().out == "✗ double: twice 3 is 6, not 3\n"


def test_an_exception_becomes_a_hint(double, capsys):
    result = check("double", lambda x: x / 0)
    assert not result.passed
    assert result.message == "your code raised ZeroDivisionError: division by zero"


def empty(x):
    pass


def documented(x):
    """A stub."""
    ...


def returns_ellipsis(x):
    return ...


def not_implemented(x):
    raise NotImplementedError


@pytest.mark.parametrize("stub", [None, ..., empty, documented, returns_ellipsis, not_implemented, lambda x: None])
def test_an_untouched_stub_is_not_answered(double, capsys, stub):
    result = check("double", stub)
    assert not result.passed
    assert result.message == "not answered yet. Return twice x."
    assert capsys.readouterr().out.startswith("○ double")


def returns_a_constant(x):
    return 6


@pytest.mark.parametrize("answer", [returns_a_constant, 0, "", False, int])
def test_other_answers_are_answers(capsys, answer):
    exercise("99-test", "any")(lambda answer: None)
    assert check("any", answer).passed


def test_given_values_may_be_none(capsys):
    exercise("99-test", "any")(lambda answer, seed: f"seed {seed}")
    assert check("any", 1, seed=None).message == "seed None"


def test_unknown_name(double):
    with pytest.raises(ValueError, match="'tripel'.*double"):
        check("tripel", 1)


def test_one_name_for_two_lessons(double):
    def other(answer):
        pass

    other.__module__ = "specviz.exercises.lesson98"
    with pytest.raises(ValueError, match="double.*99-test.*98-test"):
        exercise("98-test", "double")(other)


def test_lessons_are_imported_when_they_are_needed(tmp_path, monkeypatch, capsys):
    lesson = "from specviz.exercises import exercise\n@exercise('99-test', 'lazy')\ndef _(answer): pass\n"
    (tmp_path / "lesson99.py").write_text(lesson)
    (tmp_path / "helpers.py").write_text("raise ImportError('not a lesson')")
    monkeypatch.delitem(sys.modules, "specviz.exercises.lesson99", raising=False)
    assert check("lazy", 1).passed
    sys.modules.pop("specviz.exercises.lesson99")


def test_summary(double, capsys):
    for name in ("any", "untried", "stub"):
        exercise("99-test", name)(lambda answer: None)
    exercise("98-test", "elsewhere")(lambda answer: None)
    check("double", lambda x: x)
    check("any", 1)
    check("stub", None)
    capsys.readouterr()
    summary("99-test")
    assert capsys.readouterr().out == "1 of 4 checks passed: ✗ double, ✓ any, ○ untried, ○ stub\n"


def test_the_latest_try_counts(double, capsys):
    check("double", lambda x: 2 * x)
    check("double", lambda x: x)
    capsys.readouterr()
    summary("99-test")
    assert capsys.readouterr().out.startswith("0 of 1")


def test_summary_of_an_unknown_notebook(double):
    with pytest.raises(ValueError, match="99-test"):
        summary("77-nothing")


def test_a_result_is_not_shown_twice():
    """As a check cell's last value it would be displayed below the printed line."""
    from IPython.core.formatters import IPythonDisplayFormatter

    assert IPythonDisplayFormatter()(exercises.Result("a", True, "b")) is True
