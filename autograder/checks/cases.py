"""Cases: what a check tries, and what must come out.

A check yields cases. Each says what is run and what is expected; all else is done here::

    for n in (2, 3):
        grads = [eighths(rng, (7,)) for _ in range(n)]
        mean = np.mean(grads, axis=0).reshape(n, -1)
        yield Case("7 numbers", n, reduce, (ShardedGradient, grads),
                   expect=[Reduced(shard=close(mean[rank])) for rank in range(n)], sends=[("reduce_scatter", 28)])
    yield from refused(shard_bounds, {"numel": 10, "rank": 3, "world_size": 4}, gives=(9, 10), wrong=[{"rank": 4}])

`reduce(rank, world_size, ShardedGradient, grads)` is a driver. It runs in each rank and returns facts: a dataclass
whose fields carry their words, `shard: Any = fact("the reduced gradient")`, or a list of such, one for each moment.
What `expect` does not mention is not compared. `sends` is what each rank has to call, in order. Cases in a row on
equally many ranks share a launch. The first fact that differs fails the check: its words, the moment, the rank, what
came and what was expected make the sentence; its values on all ranks, and the facts with `evidence()`, the evidence.
What is yes or no is a `sentence` itself, or "". `Call(function, *args, gives=…)` needs no driver. A
check that none of this fits compares by itself, and yields nothing.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from numbers import Real
from pathlib import Path
from types import GeneratorType
from typing import Any

import numpy as np
import torch

from autograder.checks.expect import (
    LONG,
    WRONG,
    CheckFailed,
    collective,
    count_of_ranks,
    expect_close,
    expect_equal,
    expect_raises,
    fail,
    same,
    shown,
)
from autograder.checks.stage import call_inside, jailed, picture, preload, run_ranks
from ranks.ledger import Ledger, Message

#: Characters of an input that a failure shows, if the check says how (`shows`); without, it shows at most LONG.
INPUT = 1_000

#: The expectation of a fact that is not compared.
ANYTHING: Any = ...

_ROOT = Path(__file__).resolve().parents[2]


class CaseError(Exception):
    """A check's cases are not as they should be, in one line that begins with the check's file and line."""


# ---- facts ----


def fact(words: str, because: str = "", seen: Callable[[Any], Any] = lambda value: value) -> Any:
    """A field of facts. words: its name in a sentence; in those of a list or a dict, {} is an item's place or key.

    because: a clause that helps. seen: what of its value counts as evidence. The field `when`, a plain text, is the
    moment, in the words that a sentence has for it: "after step 2".
    """
    return field(default=ANYTHING, metadata={"words": words, "because": because, "seen": seen})


def sentence() -> Any:
    """A field whose text is the sentence itself, "" where all is well; or a list, of which the first text counts."""
    return fact("")


def evidence() -> Any:
    """A field that is not compared: it goes along in the evidence, where the facts alone do not tell mistakes apart."""
    return field(default=ANYTHING, metadata={"evidence": True})


@dataclass(frozen=True)
class close:  # noqa: N801
    """Expected: these numbers, up to `atol + rtol * max|numbers|`, in this dtype if one is named."""

    numbers: Any
    rtol: float = 0.0
    atol: float = 0.0
    dtype: str = ""


@dataclass(frozen=True)
class at_most:  # noqa: N801
    """Expected: a number that is not larger, or by no more than `slack`, of which messages say nothing.

    Of what an answer that does nothing has 0, name the `least` that a right one has.
    """

    number: float
    slack: float = 0.0
    least: float = -math.inf


# ---- cases ----


@dataclass
class Case:
    """`ranks` ranks run the driver `run(rank, ranks, *args)`.

    name: of the input. shows: the input as a student should see it, where the arguments are too long. expect: the facts
    of each rank. sends: [(operation, bytes), …], what each rank calls, in order, receives included, the same on all
    ranks (else use `judge`); with a third entry that says what it is, if that helps; None if it does not matter; a rank
    that is alone may leave any out. scalars: how many collectives of one number there may be besides. because: a clause
    that helps whoever sends something else. must: a sentence that stands before whatever it is that the ranks raise, or
    wait for; such a case has a launch of its own. parts: into how many parts the driver's own barriers cut the case; 0
    if the answer may make some, too: such a case has a launch of its own, and its messages are not judged. judge:
    (rank, its messages in each part, with all of the rank's spans) → a sentence on what is wrong with them, or "",
    where `sends` cannot say it (it is not given the case: define it where the case is made); or the sentence and the
    evidence, where the bytes of all messages do not tell mistakes apart. sees: (the facts of all ranks) → those that
    are compared, where what is right on one rank depends on what the others have.
    """

    name: str
    ranks: int
    run: Callable
    args: tuple
    expect: list[Any] | None = None
    sends: list[tuple] | None = None
    scalars: int = 0
    because: str = ""
    must: str = ""
    parts: int = 1
    judge: Callable[[int, list[Ledger]], str | tuple[str, Any]] | None = None
    sees: Callable[[list[Any]], list[Any]] | None = None
    shows: str = ""

    def __post_init__(self) -> None:
        self.name = f"{count_of_ranks(self.ranks)}, {self.name}"

    def fault(self) -> str:
        """What is wrong with the case itself, or ""."""
        if self.ranks < 1:
            return f"a Case on {count_of_ranks(self.ranks)}: at least 1, or a Call, which needs none"
        if self.expect is None:
            return "a Case without expectation: expect=[the facts of each rank]"
        if len(self.expect) != self.ranks:
            return f"expect has the facts of {len(self.expect)} ranks, and the Case {self.ranks}"
        moments = [_moments(facts) for facts in self.expect]
        if other := [one for of_rank in moments for one in of_rank if not _is_facts(one)]:
            return f"expect has {_kind(other[0])} in it, which is no dataclass with facts"
        if len({len(of_rank) for of_rank in moments}) != 1:
            return f"expect has {' and '.join(str(len(of_rank)) for of_rank in moments)} moments on the ranks"
        compares = any(one is not ANYTHING for of_rank in moments for facts in of_rank for _, one in _facts(facts))
        return "" if compares or self.sends is not None or self.judge else "a Case that expects nothing of any fact"


class Call:
    """A plain call of a student's function, which gives a value, or raises an error that names what is wrong.

    It gets copies of the arguments. A driver that gets a student's function among them runs next to the submission.
    sees: (result, *the copies) → what is compared, a value or facts; the result itself if not given. what: the value's
    name in a sentence. because: a clause that helps. name: of the input; the call as a student would write it, if not
    given. shows: the input as a student should see it, where the arguments are too long. evidence: of every failure of
    `raises`, where it does not matter what happened instead.
    """

    def __init__(
        self,
        function: Callable,
        *args: Any,
        gives: Any = ANYTHING,
        sees: Callable = lambda result, *args: result,
        raises: type[Exception] | None = None,
        naming: str = "",
        name: str = "",
        what: str = "what it returns",
        because: str = "",
        evidence: Any = None,
        shows: str = "",
    ):
        self.function, self.args, self.gives, self.sees, self.raises = function, args, gives, sees, raises
        self.naming, self.name, self.what, self.because, self.evidence = naming, name, what, because, evidence
        self.shows = shows

    def fault(self) -> str:
        """What is wrong with the call itself, or ""."""
        return "" if self.raises or self.gives is not ANYTHING else "a Call without expectation: gives=… or raises=…"


def refused(
    function: Callable,
    right: dict[str, Any],
    *,
    wrong: list[dict[str, Any]] | dict[str, dict[str, Any]],
    gives: Any,
    right_name: str = "",
    evidence: Any = None,
    **how: Any,
) -> Iterator[Call]:
    """Each of these wrong arguments, in the place of the right ones, is a ValueError that names the first of them.

    right: the arguments in their order; what they give shows that the function does not refuse everything. wrong: in a
    dict, by the names of the cases. evidence: as in `Call`. right_name and how: of the right calls.
    """
    for name, instead in wrong.items() if isinstance(wrong, dict) else (("", one) for one in wrong):
        yield Call(function, *right.values(), gives=gives, name=right_name, **how)
        arguments = (right | instead).values()
        yield Call(function, *arguments, raises=ValueError, naming=next(iter(instead)), name=name, evidence=evidence)


# ---- running ----


def play(cases: Any, names: dict[int, str]) -> None:
    """Try a check's cases. names: of the student's functions, by their ids.

    CheckFailed for the first that does not come out as expected, CaseError for one that is wrong itself.
    """
    alone = itertools.count()  # what does not share a launch
    found = False
    for _, group in itertools.groupby(_sound(cases), lambda case: -case.ranks if _shares(case) else next(alone)):
        tried, found = list(group), True
        if isinstance(tried[0], Call):
            _make(tried[0], names)
        else:
            _launch(tried)
    if not found:
        raise CaseError(f"{_place(cases)}: the check yields no case")


def _sound(cases: GeneratorType) -> Iterator[Any]:
    """The cases, each with its `place`, if none is wrong itself."""
    for case in cases:
        place = _place(cases)
        fault = case.fault() if isinstance(case, (Case, Call)) else f"{_kind(case)} was yielded, not a Case or a Call"
        if fault:
            raise CaseError(f"{place}: {fault}")
        case.place = place
        yield case


def _place(cases: GeneratorType) -> str:
    """File and line at which a check is, or at which it begins when it has ended."""
    code, frame = cases.gi_code, cases.gi_frame
    file = Path(code.co_filename)
    file = file.relative_to(_ROOT) if file.is_relative_to(_ROOT) else file
    return f"{file}:{code.co_firstlineno if frame is None else frame.f_lineno}"


def _shares(case: Case | Call) -> bool:
    return isinstance(case, Case) and not case.must and case.parts > 0


def _make(case: Any, names: dict[int, str]) -> None:
    """Make a call and judge what it gives."""
    picture(None)  # of ranks that ran before, the messages explain nothing of it
    if not case.name:
        if id(case.function) not in names:
            raise CaseError(f"{case.place}: a Call of a driver needs a name")
        case.name = f"{names[id(case.function)]}({', '.join(map(shown, case.args))})"
    memo: dict = {}
    args = [_copy(one, memo) for one in case.args]
    with _showing_the_input(case):
        if case.raises:
            how = {"error": case.raises, "mentions": case.naming, "evidence": case.evidence}
            expect_raises(case.name, call_inside, case.function, *args, **how)
            return
        seen = case.sees(call_inside(case.function, *args), *args)
        if _is_facts(case.gives):
            _judge(case, [case.gives], [seen])
        else:
            _compare(seen, case.gives, case.what, case.because)


@contextlib.contextmanager
def _showing_the_input(case: Any) -> Iterator[None]:
    """Inside, what turns out wrong names the case, with its input where that is short. The evidence is without it."""
    try:
        yield
    except CheckFailed as error:
        failure = error.failure
        if failure.kind != WRONG or failure.case not in ("", case.name):
            raise
        got = error.got if failure.case else _plain(error.got)
        given = [one for one in case.args if not callable(one)]
        text = case.shows[:INPUT] or (
            ", ".join(shown(one, LONG + 1) for one in given) if all(map(_is_data, given)) else ""
        )
        hidden = text in case.name or (not case.shows and len(text) > LONG)
        name = case.name if hidden else f"{case.name}; the input: {text}"
        raise CheckFailed(failure.message, name, got, compared=(case.name, got)) from None


def _is_data(value: Any) -> bool:
    """Is this a value that reads as it is written: numbers, texts, arrays, and lists and dicts of them?"""
    if isinstance(value, dict):
        return all(map(_is_data, [*value, *value.values()]))
    if isinstance(value, (list, tuple)):
        return all(map(_is_data, value))
    return value is None or isinstance(value, (str, bytes, Real, np.ndarray))


def _copy(value: Any, memo: dict) -> Any:
    """A value with copies of the arrays and tensors in it, which an answer may change."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return copy.deepcopy(value, memo)
    if type(value) in (list, tuple):
        return type(value)(_copy(one, memo) for one in value)
    return {key: _copy(one, memo) for key, one in value.items()} if type(value) is dict else value


def _launch(cases: list[Any]) -> None:
    """One launch for cases on equally many ranks, with a barrier before each.

    When it fails, each case is tried alone: which of them raises or hangs, and whether one before it is wrong?
    """
    try:
        results = _run(cases)
    except CheckFailed as error:
        if len(cases) > 1:
            for case in cases:
                _launch([case])
            raise
        first, *more = " ".join(filter(None, [cases[0].must, error.failure.message])).split("\n")
        # The message is long, so its first line names the case.
        told = copy.copy(error)
        told.failure = replace(error.failure, message="\n".join([f"{first} (case: {cases[0].name})", *more]), case="")
        told.compared = (cases[0].name, error.got)
        raise told from error.__cause__
    own = [results.ledger.of(rank) for rank in range(cases[0].ranks)]
    of_ranks = [ledger.between_barriers() for ledger in own]
    for ledger, parts in zip(own, of_ranks, strict=True):
        for part in parts:
            part.spans = ledger.spans
    barriers = sum(case.parts for case in cases) + 1
    if cases[0].parts and any(len(parts) != barriers + 1 for parts in of_ranks):
        fail("barrier was called, which nothing here needs", count_of_ranks(cases[0].ranks), "barrier")
    if any(not isinstance(found, list) or len(found) != len(cases) for found in results):
        _unreadable(cases[0], "the ranks returned something else than their facts")
    start = 1  # part 0 stands before the first case
    for number, case in enumerate(cases):
        messages = [parts[start : start + case.parts] for parts in of_ranks]
        if len(cases) > 1:
            picture(Ledger(sorted(itertools.chain(*itertools.chain(*messages)), key=lambda m: m.start), case.ranks))
        with _showing_the_input(case):
            _judge(case, case.expect, [found[number] for found in results])
            _judge_all_messages(case, messages)
        start += case.parts


def _run(cases: list[Case]) -> Any:
    for case in cases:
        preload(case.run)
    todo = [(case.run, case.args) for case in cases]
    return run_ranks(_in_each_rank, cases[0].ranks, (todo,), timeout=20.0 + len(cases) - 1, driver=cases[0].run)


def _in_each_rank(rank: int, world_size: int, todo: list[tuple[Callable, tuple]]) -> list[Any]:
    import torch.distributed as dist

    found = []
    for run, args in todo:
        dist.barrier()
        found.append(run(rank, world_size, *args))
    dist.barrier()
    return found


# ---- judging ----


def _judge(case: Any, expected: list[Any], returned: list[Any]) -> None:
    """Compare the facts that the ranks returned with those that are expected, moment by moment, each on all ranks."""
    want, got = [_moments(facts) for facts in expected], [_moments(facts) for facts in returned]
    for of_rank, wanted in zip(got, want, strict=True):
        if [type(one) for one in of_rank] != [type(one) for one in wanted]:
            kinds = [", ".join(type(one).__name__ for one in facts) for facts in (of_rank, wanted)]
            _unreadable(case, f"the driver returned {kinds[0]}, and expect has {kinds[1]}")
    if isinstance(case, Case) and case.sees:
        got = [_moments(facts) for facts in case.sees(returned)]
    for moment, first in enumerate(want[0]):
        now, wanted = [of_rank[moment] for of_rank in got], [of_rank[moment] for of_rank in want]
        for name, _ in _facts(first):
            _judge_fact(case, name, moment, now, wanted)


def _unreadable(case: Any, text: str) -> None:
    """What came back has not the form that the driver gives it: the check's fault, or in a jail an attack."""
    if jailed():
        fail("what the ranks returned cannot be read", case.name, "unreadable")
    raise CaseError(f"{case.place}: {text}")


def _judge_fact(case: Any, name: str, moment: int, now: list[Any], wanted: list[Any]) -> None:
    """One field of the facts of one moment, on each rank."""
    about = next(one for one in fields(now[0]) if one.name == name).metadata
    besides = [[_plain(getattr(got, c.name)) for got in now] for c in fields(now[0]) if c.metadata.get("evidence")]
    for rank, (got, want) in enumerate((getattr(a, name), getattr(b, name)) for a, b in zip(now, wanted, strict=True)):
        if want is ANYTHING:
            continue
        place = f" on rank {rank}" if isinstance(case, Case) else ""
        try:
            if not about["words"]:
                texts = [text for text in (got if isinstance(got, list) else [got]) if not same(text, "")]
                if texts:
                    fail(f"{place.strip()}, {texts[0]}".removeprefix(", "), "", None)
                continue
            when = f" {now[rank].when}" if getattr(now[rank], "when", "") else ""
            _compare(got, want, f"{about['words']}{when}{place}", about["because"])
        except CheckFailed as error:
            seen = _dtypes if isinstance(error.got, _WrongDtype) else about["seen"]
            values = [_plain(seen(getattr(one, name))) for one in now]
            raise CheckFailed(error.failure.message, case.name, [name, moment, values, *besides]) from None


class _WrongDtype(str):
    """The evidence of a wrong dtype, which is the same for all numbers."""


def _compare(got: Any, want: Any, what: str, because: str) -> None:
    """CheckFailed, without a case, if a value is not what is expected."""
    why = f"; {because}" if because else ""
    if isinstance(want, close):
        if want.dtype and (dtype := _dtype(got)) not in ("", want.dtype):
            fail(f"{what} is {dtype}, expected {want.dtype}{why}", "", _WrongDtype(dtype))
        numbers = np.asarray(want.numbers)
        expect_close("", _plain(got), numbers, what=what, rtol=want.rtol, atol=want.atol, because=because)
    elif isinstance(want, at_most):
        if not (isinstance(got, Real) and got <= want.number + want.slack):
            fail(f"{what} is {shown(got)}, expected at most {shown(want.number)}{why}", "", got)
        if got < want.least:
            fail(f"{what} is {shown(got)}, expected at least {shown(want.least)}{why}", "", got)
    elif "{}" in what and isinstance(want, dict):
        expect_equal("", sorted(got), sorted(want), what=f"the list of {what.replace('{}', 'keys')}")
        for key, expected in want.items():
            _compare(got[key], expected, what.replace("{}", repr(key)), because)
    elif "{}" in what and isinstance(want, list):
        expect_equal("", len(got), len(want), what=f"the number of {what.replace(' {}', 's')}")
        for number, (one, expected) in enumerate(zip(got, want, strict=True)):
            _compare(one, expected, what.replace("{}", str(number)), because)
    else:
        expect_equal("", got, want, what=what, because=because)


def _judge_all_messages(case: Case, messages: list[list[Ledger]]) -> None:
    """What the ranks sent in each part, against `case.sends` and `case.judge`."""
    for rank, parts in enumerate(messages):
        sent = [message for part in parts for message in part]
        if case.sends is not None:
            _judge_messages(case, rank, sent)
        if case.judge and (said := case.judge(rank, parts)):
            of_all = [[[[m.call, m.bytes] for m in part] for part in of_rank] for of_rank in messages]
            text, seen = said if isinstance(said, tuple) else (said, of_all)
            fail(f"{text}; {case.because}" if case.because else text, case.name, ["sent", rank, seen])


def _judge_messages(case: Case, rank: int, sent: list[Message]) -> None:
    """What a rank sent, against `case.sends`: the first message that differs."""
    small = [m for m in sent if case.scalars and m.is_collective and m.bytes <= 8]
    got, want = [(collective(m.call), m.bytes) for m in sent if m not in small], case.sends or []
    if len(small) > case.scalars:
        text = f"rank {rank} makes {len(small)} collectives of a single number, expected at most {case.scalars}"
        fail(text, case.name, ["sent", got, len(small)])
    rest = iter(want)
    if case.ranks == 1 and all(any(one == other[:2] for other in rest) for one in got):
        return
    fitting = itertools.takewhile(lambda pair: pair[0] == pair[1][:2], zip(got, want, strict=False))
    at = sum(1 for _ in fitting)
    if at < max(len(got), len(want)):
        text = _difference(rank, got, want, at) + (f"; {case.because}" if case.because else "")
        fail(text, case.name, ["sent", got])


def _difference(rank: int, got: list[tuple], want: list[tuple], at: int) -> str:
    """In words: how the messages differ, from number `at` on."""
    counts = f"rank {rank} sends {len(got)} messages, expected {len(want)}"
    if at == len(want):
        return f"{counts}: {got[at][0]} of {got[at][1]} bytes is one too many"
    kind, nbytes, *which = want[at]
    words = "".join(f": {text}" for text in which)
    if at == len(got):
        return f"{counts}; missing is {kind} of {nbytes} bytes{words}"
    number = f"message {at + 1} of {len(got)}" if len(got) > 1 else "the message"
    if got[at][0] == kind:
        place = f" ({number})" if len(got) > 1 else ""
        return f"rank {rank} puts {got[at][1]} bytes into {kind}{place}, expected {nbytes}{words}"
    return f"{number} on rank {rank} is {got[at][0]} of {got[at][1]} bytes, expected {kind} of {nbytes} bytes{words}"


# ---- helpers ----


def _moments(facts: Any) -> list[Any]:
    return facts if isinstance(facts, list) else [facts]


def _is_facts(thing: Any) -> bool:
    return is_dataclass(thing) and any("words" in one.metadata for one in fields(thing))


def _facts(thing: Any) -> list[tuple[str, Any]]:
    """(name, value) of the fields that are compared, in order."""
    return [(one.name, getattr(thing, one.name)) for one in fields(thing) if "words" in one.metadata]


def _kind(thing: Any) -> str:
    return f"a {type(thing).__name__}"


def _dtypes(value: Any) -> Any:
    """The dtype of numbers; of a list or a dict, that of each item."""
    if isinstance(value, dict):
        return {key: _dtypes(one) for key, one in value.items()}
    return [_dtypes(one) for one in value] if isinstance(value, list) else _dtype(value)


def _dtype(value: Any) -> str:
    """The dtype of numbers; "" for anything else."""
    if not hasattr(value, "dtype"):
        try:
            value = np.asarray(value)
        except (TypeError, ValueError, RuntimeError):
            return ""
    name = str(value.dtype).removeprefix("torch.")
    return "" if name.startswith(("object", "<U", "|S")) else name


def _plain(value: Any) -> Any:
    """A value as evidence: tensors as arrays, floating ones in float64."""
    if isinstance(value, np.integer):
        return int(value)
    if hasattr(value, "detach"):
        value = value.detach()
        value = (value.double() if value.is_floating_point() else value).numpy()
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value
