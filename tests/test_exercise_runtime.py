"""The runtime behind the exercise cells: specviz.exercises, without the lessons themselves."""

import sys

import numpy as np
import pytest
import torch

from specviz import exercises
from specviz.exercises import Hint, check, exercise, summary
from specviz.exercises.answers import array, ids, judge, number, parts, whole


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


@pytest.mark.parametrize("answer", [lambda x: int("a"), len], ids=["own code", "a built-in function"])
def test_errors_of_the_learners_code_are_told_from_the_checks_own(capsys, answer):
    @exercise("99-test", "careless")
    def _(function):
        function(1)
        raise KeyError("the check's own")

    assert "your code raised" in check("careless", answer).message
    assert check("careless", lambda x: x).message == "the check cannot judge this answer: KeyError: \"the check's own\""


@pytest.mark.parametrize("given", [torch.ones(2), np.ones(2)])
def test_a_function_may_change_the_arrays_that_it_is_given(capsys, given):
    @exercise("99-test", "in place")
    def _(function):
        judge(function(given), [2, 2])
        judge(given, [1, 1])

    def doubled(x):
        x *= 2
        return x

    assert check("in place", doubled).passed


def test_numbers_are_read_from_any_type():
    for answer in (2, 2.0, np.float32(2), np.array(2), torch.tensor(2), torch.tensor([2.0]), True + 1):
        assert (number(answer), whole(answer)) == (2.0, 2)
    for answer in ([1, 2], (1, 2), np.array([1, 2], np.int32), torch.tensor([[1, 2]]), [torch.tensor(1), 2.0], {1, 2}):
        assert ids(answer) == [1, 2]
    for answer in ([0.5, 1], np.float32([0.5, 1]), torch.tensor([0.5, 1], dtype=torch.float16), [torch.tensor(0.5), 1]):
        assert array(answer, (2,)).tolist() == [0.5, 1.0]
    assert parts(np.array([1, 2]), "the first", "the second") == [1, 2]


@pytest.mark.parametrize(
    "read, hint",
    [
        (lambda: number(None), "a number is needed, not None"),
        (lambda: number([1, 2], where="γ: "), "γ: a number is needed"),
        (lambda: whole(1.5), "a whole number is needed, not 1.5"),
        (lambda: whole(float("nan")), "a whole number"),
        (lambda: array([1, 2], (3,)), "shape of yours is"),
        (lambda: array("abc", (3,)), "a list of numbers is needed"),
        (lambda: ids(3), "a list of token ids is needed, not 3"),
        (lambda: ids([0.5]), "a list of token ids"),
        (lambda: parts(3, "α", "β"), "return 2 things: α, β"),
        (lambda: parts([1], "α", "β"), "return 2 things: α, β"),
    ],
)
def test_an_answer_of_another_kind_gets_a_hint(read, hint):
    with pytest.raises(Hint, match=hint):
        read()


def test_a_known_wrong_answer_gets_its_hint():
    wrong = {"twice": 2.0, "none": 0.0}
    judge(1.0 + 1e-7, 1, wrong)
    for answer, hint in ((2.0, "case: twice"), (0.0, "case: none"), (3.0, "case: not right")):
        with pytest.raises(Hint, match=f"^{hint}$"):
            judge(answer, 1, wrong, "not right", "case: ")
    with pytest.raises(Hint, match="^shape$"):
        judge(torch.ones(2), 1.0, {"one": 1.0}, "shape")
    judge(100.6, 100, atol=1)


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
