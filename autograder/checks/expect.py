"""What a check says of an answer: expectations that hold, or fail with a message, a case and evidence.

The message is for the student. The case names the input. The evidence is what was observed, as plain data (numbers,
strings, arrays, lists of them): a known wrong answer that fails in the same case with the same evidence is taken for
the same mistake, and its hint is shown (`hints`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, TypeVar

import numpy as np

T = TypeVar("T")


#: What became of a property that does not hold: something is wrong; the answer raised an error; its ranks wait for each
#: other; a rank ended; the answer is not written.
WRONG, RAISED, HANG, DIED, UNWRITTEN = "wrong", "raised", "hang", "died", "unwritten"


@dataclass(frozen=True)
class Hint:
    """What the author of a known wrong answer would say to it. name: of that answer. sure: is it hardly another one?"""

    name: str
    text: str
    sure: bool = True


@dataclass(frozen=True)
class Failure:
    """Why a cell did not run to its end, or why a property does not hold."""

    #: WRONG, RAISED, HANG, DIED or UNWRITTEN; of a run (`outcome`), TIMEOUT, OUT_OF_TIME or OUTDATED as well.
    kind: str
    #: The class of what was raised.
    error: str = ""
    #: A sentence for the student, if a check failed; else the error's own text.
    message: str = ""
    #: On which input, "" if the message says it.
    case: str = ""
    #: The check that failed, if it was one.
    check: str = ""
    #: Of the known wrong answers that fail in the same way.
    hints: list[Hint] = field(default_factory=list)
    #: The check's own mistake that showed here, if it is one: `path:line: error` (`faults`).
    fault: str = ""
    #: The seconds after which the cell was stopped.
    limit: float = 0.0
    #: What ended the kernel, if known.
    why: str = ""

    @classmethod
    def of_data(cls, data: dict[str, Any]) -> Failure:
        """The failure of which `dataclasses.asdict` or a notebook has kept this; texts, whatever stands there."""
        texts = {one.name: str(data[one.name]) for one in fields(cls) if one.type == "str" and one.name in data}
        told = data.get("hints", [])
        hints = [Hint(str(one["name"]), str(one["text"]), one.get("sure") is not False) for one in told]
        return cls(**texts, hints=hints, limit=float(data.get("limit", 0)))


class CheckFailed(AssertionError):
    """A property does not hold; `failure` says why.

    got: the evidence. compared: what is the same in another answer that makes the same mistake, if not case and
    evidence.
    """

    def __init__(
        self,
        message: str,
        case: str = "",
        got: Any = None,
        kind: str = WRONG,
        error: str = "",
        compared: Any = None,
        fault: str = "",
    ):
        self.failure = Failure(kind, str(error), message, case, fault=fault)
        self.got, self.compared = got, (case, got) if compared is None else compared
        #: The messages of the ranks that failed, if any: for a picture of them.
        self.ledger: Any = None
        #: The seed of the inputs on which it failed; it repeats the failure (`check.AUTOGRADER_SEED`).
        self.seed: int | None = None
        #: Searches for the hints, where there may be some; `passed`: the checks that the answer passes.
        self.find_hints: Callable[..., tuple[Hint, ...]] | None = None
        super().__init__(message)

    def __str__(self) -> str:
        hints = [f"{'Hint' if hint.sure else 'Perhaps'}: {hint.text}" for hint in self.failure.hints]
        return "\n".join([with_case(self.failure.message, self.failure.case), *hints])


def with_case(message: str, case: str) -> str:
    """A sentence about a failure, with the case in which it was seen."""
    return f"{message} (case: {case})" if case else message


def fail(message: str, case: str, got: Any, raised: str = "") -> NoReturn:
    """Report a property that does not hold: `message` for the student, `got` the evidence observed in `case`.

    raised: the class of an error that the answer should not have raised, where that is what is wrong.
    """
    raise CheckFailed(message, case, got, kind=RAISED if raised else WRONG, error=raised)


# ---- values ----


def expect_equal(case: str, got: Any, expected: Any, *, what: str, because: str = "", evidence: Any = None) -> None:
    """`got` must be `expected`: of the same type and equal, item by item in lists, tuples, dicts and arrays.

    what: the quantity, as the subject of a sentence. because: a clause that helps. evidence: `got` if not given.
    """
    if not same(got, expected):
        why = f"; {because}" if because else ""
        fail(f"{what} {apart(got, expected)}{why}", case, got if evidence is None else evidence)


def expect_type(case: str, got: Any, kind: type | tuple[type, ...], *, what: str) -> None:
    """`got` must be of this type, or of one of these. A bool does not count as an int."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(got, kinds) or (isinstance(got, bool) and bool not in kinds):
        names = " or ".join(one.__name__ for one in kinds)
        fail(f"{what} should be {_a(names)}, got {_a(type(got).__name__)}", case, type(got).__name__)


def expect_close(
    case: str,
    got: Any,
    expected: np.ndarray,
    *,
    what: str,
    rtol: float,
    atol: float = 0.0,
    show_expected: bool = True,
    because: str = "",
    evidence: Any = None,
) -> None:
    """`got` must have the shape of `expected` and its values within `atol + rtol * max|expected|`.

    what: the quantity, as the subject of a sentence ("the gradient"). because: one clause that helps,
    never the answer. evidence: of an array with wrong numbers; the array if not given. Comparing against the largest
    entry keeps entries that happen to be near zero from being judged by their own size. Where inf is expected, there
    must be inf; nothing is close to an expected nan.
    """
    got_array = as_array(case, got, what)
    seen = got_array if evidence is None else evidence
    if got_array.shape != expected.shape:
        fail(f"{what} has shape {got_array.shape}, expected {expected.shape}", case, seen)
    bad = got_array[~np.isfinite(got_array)]
    if bad.size and np.all(np.isfinite(expected)):
        fail(f"{what} contains {bad.flat[0]}", case, seen)
    finite = np.isfinite(expected)
    if not np.array_equal(got_array[~finite], expected[~finite]):  # differences say nothing here
        fail(f"{what} is wrong where {expected[~finite].flat[0]} is expected", case, seen)
    bound = atol + rtol * float(np.max(np.abs(expected[finite]), initial=0.0))
    kind = np.complex128 if "c" in (got_array.dtype.kind, expected.dtype.kind) else np.float64
    worst = np.abs(np.where(finite, got_array, 0).astype(kind) - np.where(finite, expected, 0).astype(kind))
    if wrong := int(np.sum(~(worst <= bound))):
        at = np.unravel_index(int(np.argmax(worst)), worst.shape)
        place = f" at index {tuple(int(i) for i in at)}" if worst.ndim else ""
        one, other = digits_that_differ(got_array[at], expected[at])
        values = f"got {one}" + (f", expected {other}" if show_expected else "")
        if wrong > 1:
            values += f" ({wrong} of {worst.size} numbers are wrong)"
        fail(f"{what} is wrong{place}: {values}{'; ' + because if because else ''}", case, seen)


def as_array(case: str, got: Any, what: str) -> np.ndarray:
    """`got` as a numeric numpy array; a tensor, a list or a number will do. Anything else fails the check."""
    if got is None:
        of_backward = re.match(r"the (gradient|\.grad) of ", what)
        why = "backward does not reach it" if of_backward else "does the function return it?"
        fail(f"{what} is None: {why}", case, "None")
    try:
        array = np.asarray(got.detach().cpu() if hasattr(got, "detach") else got)
        if array.dtype.kind not in "iufc":  # a span of time counts as a number for numpy
            raise TypeError
    except (TypeError, ValueError, RuntimeError):
        fail(f"{what} should be an array of numbers, got {_a(type(got).__name__)}", case, type(got).__name__)
    return array


def expect_unchanged(case: str, before: Any, after: Any, *, what: str) -> None:
    """An input must still hold the bytes that it held before the call."""
    before, after = np.asarray(before), np.asarray(after)
    if before.dtype != after.dtype or before.tobytes() != after.tobytes():
        fail(f"{what} was changed in place: work on a copy", case, ("changed", what))


# ---- errors ----


def caught(function: Callable, *args: Any, **kwargs: Any) -> tuple[str, str]:
    """The name and the text of what a call raises, ("", "") for nothing. "Not written yet" goes through.

    For drivers in the ranks: what they return has to be plain data.
    """
    try:
        function(*args, **kwargs)
    except NotImplementedError:
        raise
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def expect_raises(
    case: str, function: Callable, *args: Any, error: type[Exception], mentions: str = "", evidence: Any = None
) -> None:
    """`function(*args)` must raise `error`, and its text must contain `mentions` as a word of its own.

    evidence: of every failure, where it does not matter what happened instead; if not given, it says what did.
    """
    try:
        function(*args)
    except error as raised:
        if mentions and not re.search(rf"(?<![^\W_]){re.escape(mentions)}s?(?![^\W_])", str(raised)):
            text = f"the {error.__name__} should name {mentions!r}, but it says {str(raised)!r}"
            fail(text, case, evidence or "unnamed")
    except NotImplementedError:
        raise
    except Exception as raised:
        kind = type(raised).__name__
        fail(f"expected {error.__name__}, got {kind}: {raised}", case, evidence or kind)
    else:
        fail(f"expected {error.__name__}, but nothing was raised", case, evidence or "nothing raised")


# ---- ranks ----


@dataclass(frozen=True)
class OneRank:
    """One rank of a launch, in one case: its messages name it, its failures carry the evidence of all ranks."""

    rank: int
    case: str
    evidence: Any

    def fail(self, message: str, evidence: Any = None, raised: str = "") -> NoReturn:
        """This rank does not do what it should. message: a clause; the rank is named in front of it."""
        fail(f"on rank {self.rank}, {message}", self.case, self.evidence if evidence is None else evidence, raised)

    def expect(self, holds: Any, message: str, evidence: Any = None, raised: str = "") -> None:
        """`holds` must be true; message: a clause that says what is wrong where it is not. raised: as for `fail`."""
        if not holds:
            self.fail(message, evidence, raised)

    def expect_equal(self, got: Any, expected: Any, *, what: str, because: str = "", evidence: Any = None) -> None:
        """As `expect_equal`, on this rank; evidence: of all ranks if not given."""
        seen = self.evidence if evidence is None else evidence
        expect_equal(self.case, got, expected, what=f"{what} on rank {self.rank}", because=because, evidence=seen)

    def expect_close(self, got: Any, expected: np.ndarray, *, what: str, rtol: float, **how: Any) -> None:
        """As `expect_close`, on this rank, with the evidence of all ranks."""
        try:
            expect_close(self.case, got, expected, what=f"{what} on rank {self.rank}", rtol=rtol, **how)
        except CheckFailed as error:
            raise CheckFailed(error.failure.message, error.failure.case, self.evidence) from None


def each_rank(
    case: str, outcomes: Iterable[T], evidence: Callable[[T], Any] | None = None
) -> Iterator[tuple[OneRank, T]]:
    """(the rank, its outcome) for each rank of a launch, in order.

    evidence: what of one rank's outcome tells mistakes apart, as plain data; the whole outcome if not given. A
    failure carries it of all ranks, so that "rank 0 alone is right" differs from "all are wrong".
    """
    outcomes = list(outcomes)
    of_all = [one if evidence is None else evidence(one) for one in outcomes]
    for rank, outcome in enumerate(outcomes):
        yield OneRank(rank, case, of_all), outcome


def count_of_ranks(world_size: int) -> str:
    """How many ranks, in words: "1 rank", "3 ranks"."""
    return f"{world_size} rank{'' if world_size == 1 else 's'}"


# ---- helpers ----


def collective(call: str) -> str:
    """A collective by what it does, whichever of torch's functions does it: `all_gather_single` is an all_gather."""
    return next((kind for kind in ("reduce_scatter", "all_gather") if call.startswith(kind)), call)


def between_barriers(results: Any, world_size: int, barriers: int, instead: str, case: str = "") -> list[Any]:
    """rank → its messages before, between and after the barriers of the check's driver.

    barriers: how many the driver makes. An answer that makes one of its own fails, and reads what it should have done
    `instead`. case: the case's name, if it is not just the number of ranks.
    """
    parts = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
    if any(len(mine) != barriers + 1 for mine in parts):
        fail(f"barrier was called, {instead}", case or count_of_ranks(world_size), "barrier")
    return parts


def ceil_div(a: int, b: int) -> int:
    """⌈a / b⌉ in whole numbers of any size."""
    return -(a // -b)


def same(a: Any, b: Any) -> bool:
    """Equal and of the same type, item by item; arrays and tensors of the same dtype, shape and bytes.

    Whole numbers are compared by their values: numpy's are as good as Python's. A bool is none.
    """
    if hasattr(a, "detach") or hasattr(b, "detach"):
        if not (hasattr(a, "detach") and hasattr(b, "detach")) or a.dtype != b.dtype:
            return False
        a, b = (t.detach().double().cpu().numpy() if t.is_floating_point() else t.cpu().numpy() for t in (a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        both = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
        return both and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return (type(a) is type(b) or (is_whole(a) and is_whole(b))) and bool(a == b)


def is_whole(value: Any) -> bool:
    """Is this a whole number, of Python or of numpy?"""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


class _Nothing:
    """Stands for what one of two values does not have."""

    def __repr__(self) -> str:
        return "nothing"


def apart(got: Any, expected: Any) -> str:
    """The rest of a sentence on two values that are not the same; of long ones, where they begin to differ."""
    if max(len(_text(got)), len(_text(expected))) <= LONG:
        return f"is {shown(got)}, expected {shown(expected)}"
    place, one, other = _first_difference(got, expected)
    where = f"differs at {place}: got" if place else "is"
    return f"{where} {shown(one)}, expected {shown(other)}"


def _first_difference(got: Any, expected: Any, place: str = "") -> tuple[str, Any, Any]:
    """Where in two values that are not the same something differs, such as ['a'][2], and what is there."""
    pairs: list[tuple[Any, Any, Any]] = []
    if isinstance(got, dict) and isinstance(expected, dict):
        pairs = [(key, got.get(key, _Nothing()), expected.get(key, _Nothing())) for key in {**expected, **got}]
    elif isinstance(got, (list, tuple)) and type(got) is type(expected):
        count = max(len(got), len(expected))
        both = ([*value, *[_Nothing()] * (count - len(value))] for value in (got, expected))
        pairs = list(zip(range(count), *both, strict=True))
    elif isinstance(got, str) and isinstance(expected, str):
        same_signs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(got, expected, strict=False))
        at = sum(1 for _ in same_signs)
        start = max(0, at - 20)
        return f"{place} sign {at}".strip(), got[start : at + 60], expected[start : at + 60]
    for key, one, other in pairs:
        if not same(one, other):
            return _first_difference(one, other, f"{place}[{shown(key, 60)}]")
    return place, got, expected


#: Characters of a value that a message shows.
LONG = 200


def _text(value: Any) -> str:
    if isinstance(value, float):
        return repr(float(f"{value:.12g}"))  # 11.85, not 11.850000000000001
    return repr(value.tolist()) if isinstance(value, (np.ndarray, np.integer)) else repr(value)


def shown(value: Any, most: int = LONG) -> str:
    """A value as a message shows it: at most `most` characters."""
    text = _text(value)
    return text if len(text) <= most else f"{text[: most - 2]} …"


def digits_that_differ(a: Any, b: Any) -> tuple[str, str]:
    """Two numbers with six digits, or with as many as it takes to tell them apart; whole numbers whole."""
    if all(np.isrealobj(n) and abs(n) < 1e16 and n == n // 1 for n in (a, b)):
        return f"{a:.0f}", f"{b:.0f}"
    for digits in (6, 9, 12, 17):
        one, other = f"{a:.{digits}g}", f"{b:.{digits}g}"
        if one != other:
            break
    return one, other


def _a(noun: str) -> str:
    """With its article: "a list", "an int"."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
