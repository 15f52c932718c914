"""Read the learner's answers, compare them with the right ones, and give the hint that belongs to a wrong one."""

from __future__ import annotations

import numpy as np
import torch

RTOL, ATOL = 1e-5, 1e-6  # an answer that was computed in float32 is right as well


class Hint(Exception):
    """A check raises it on a wrong answer; its text is shown to the learner."""


class AnswerError(Exception):
    """The learner's own code raised an error, the cause of this one."""


def guarded(answer):
    """The learner's function with its errors marked as its own. It gets copies of arrays, so it may change them."""
    if not callable(answer):
        return answer

    def call(*args, **kwargs):
        try:
            return answer(*map(_copied, args), **kwargs)
        except NotImplementedError:  # the stub's way to say that nothing is there yet
            raise
        except Exception as error:
            raise AnswerError from error

    return call


def _copied(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if isinstance(value, np.ndarray) else value


# --- reading: lists, numpy's and torch's arrays and scalars, of any type of number ----------------


def number(answer, what="a number", where="") -> float:
    try:
        return float(answer)
    except (TypeError, ValueError, RuntimeError):
        raise Hint(f"{where}{what} is needed, not {answer!r}.") from None


def whole(answer, what="a whole number", where="") -> int:
    value = number(answer, what, where)
    if value % 1:  # a fraction, infinite or not a number
        raise Hint(f"{where}{what} is needed, not {answer!r}.")
    return int(value)


def parts(answer, *names) -> list:
    """The parts of an answer that should have one for each name."""
    try:
        found = list(answer)
    except TypeError:
        found = []
    if len(found) != len(names):
        raise Hint(f"return {len(names)} things: {', '.join(names)}.")
    return found


def array(answer, shape, what="a list of numbers", dtype=torch.float64) -> torch.Tensor:
    """The answer as a tensor of this shape (None: any); dtype None keeps the type."""
    try:
        tensor = answer if isinstance(answer, torch.Tensor) else torch.as_tensor(np.asarray(answer))
        tensor = tensor.detach().cpu().to(dtype or tensor.dtype)
    except (TypeError, ValueError, RuntimeError):
        raise Hint(f"{what} is needed, not {answer!r}.") from None
    if shape is not None and tensor.shape != shape:
        raise Hint(f"{what} is needed; the shape of yours is {list(tensor.shape)}.")
    return tensor


def ids(answer, what="a list of token ids") -> list[int]:
    if not np.iterable(answer):
        raise Hint(f"{what} is needed, not {answer!r}.")
    return [whole(token, what) for token in array(list(answer), None, what).flatten().tolist()]


# --- judging --------------------------------------------------------------------------------------


def same(answer, value, atol=ATOL) -> bool:
    """Whether two numbers or arrays agree in shape and, up to rounding in float32, in value."""
    answer, value = (torch.as_tensor(x, dtype=torch.float64) for x in (answer, value))
    return answer.shape == value.shape and torch.allclose(answer, value, rtol=RTOL, atol=atol)


def judge(answer, right, wrong=None, otherwise="", where="", atol=ATOL):
    """Return if answer is the right one. Otherwise raise the Hint of the first wrong answer {hint: value} that it is.

    otherwise is the hint for all other answers; where names the case, and stands before every hint.
    """
    if same(answer, right, atol):
        return
    for hint, value in (wrong or {}).items():
        if same(answer, value, atol):
            raise Hint(where + hint)
    raise Hint(where + otherwise)
