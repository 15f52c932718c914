"""The runtime behind the notebooks' exercise cells.

A lesson module, lesson01.py and so on, holds one function for each exercise:

    @exercise("01-draft", "draft-loop", todo="Keep q before you draw from it.")
    def _(answer):
        if wrong(answer):
            raise Hint("you keep q after the draw")
        return "the token was drawn from this q_i"  # optional: said when the check passes

and its notebook calls `check("draft-loop", my_answer)`. A check cell always runs to its end, so that a
notebook executes from top to bottom: errors of the learner's code and of the check itself become messages.
"""

import dis
import importlib
import pkgutil
from dataclasses import dataclass

from specviz.exercises.answers import AnswerError, Hint, guarded

__all__ = ["Hint", "Result", "check", "exercise", "summary"]
NOT_ANSWERED = "not answered yet"


@dataclass(frozen=True)
class Result:
    name: str
    passed: bool
    message: str

    @property
    def glyph(self):
        return "✓" if self.passed else "○" if self.message.startswith(NOT_ANSWERED) else "✗"

    def __str__(self):
        return f"{self.glyph} {self.name}: {self.message}"

    def _ipython_display_(self):
        pass  # check() has printed it; as a cell's last value it would be shown once more


@dataclass(frozen=True)
class _Exercise:
    notebook: str
    test: callable
    todo: str


_exercises: dict[str, _Exercise] = {}
results: dict[str, Result] = {}  # the latest of each exercise that was tried in this session


def exercise(notebook, name, todo=""):
    """Register the decorated function as the check of one exercise. `todo` is the hint on an untouched stub."""

    def register(test):
        known = _exercises.get(name)
        if known and known.test.__module__ != test.__module__:
            raise ValueError(f"two exercises are called {name!r}: in {known.notebook} and in {notebook}")
        _exercises[name] = _Exercise(notebook, test, todo)
        return test

    return register


def check(name, *answers, **given):
    """Check the answers to one exercise: print the verdict and return it as a Result.

    `given` reaches the lesson's function as well, but may be None. Raises ValueError for an unknown name only.
    """
    if name not in _exercises:
        _import_lessons()
    if name not in _exercises:
        raise ValueError(f"no exercise is called {name!r}; there are: {', '.join(sorted(_exercises)) or 'none'}")
    results[name] = result = _judge(name, answers, given)
    print(result)
    return result


def summary(notebook):
    """Print how many of a notebook's checks have passed in this session, and which have not."""
    _import_lessons()
    names = [name for name, known in _exercises.items() if known.notebook == notebook]
    if not names:
        notebooks = sorted({known.notebook for known in _exercises.values()})
        raise ValueError(f"no exercises for {notebook!r}; there are for: {', '.join(notebooks) or 'none'}")
    tried = [results.get(name, Result(name, False, NOT_ANSWERED)) for name in names]
    passed = sum(result.passed for result in tried)
    print(f"{passed} of {len(names)} checks passed:", ", ".join(f"{result.glyph} {result.name}" for result in tried))


def _judge(name, answers, given):
    todo = f"{NOT_ANSWERED}. {_exercises[name].todo}".strip()
    if any(_untouched(answer) for answer in answers):
        return Result(name, False, todo)
    try:
        return Result(name, True, _exercises[name].test(*map(guarded, answers), **given) or "right")
    except Hint as hint:
        return Result(name, False, str(hint))
    except NotImplementedError:
        return Result(name, False, todo)
    except AnswerError as error:
        return Result(name, False, f"your code raised {type(error.__cause__).__name__}: {error.__cause__}")
    except Exception as error:
        return Result(name, False, f"the check cannot judge this answer: {type(error).__name__}: {error}")


def _untouched(answer):
    """None, `...`, or a function whose body is only that (and a docstring)."""
    if answer is None or answer is ...:
        return True
    if not hasattr(answer, "__code__"):
        return False
    steps = [step for step in dis.get_instructions(answer.__code__) if step.opname not in ("RESUME", "NOP")]
    only_returns = all(step.opname in ("LOAD_CONST", "RETURN_VALUE", "RETURN_CONST") for step in steps)
    return only_returns and steps[-1 if len(steps) == 1 else -2].argval in (None, ...)


def _import_lessons():
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("lesson"):
            importlib.import_module(f"{__name__}.{module.name}")
