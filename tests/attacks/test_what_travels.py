"""What travels into the jail next to a submission, which can read all of it: no oracle, neither function nor method."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import typing
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from autograder.checks import check
from autograder.lesson.notebook import natural
from tests.helpers.modules import import_checks

#: What these are called with runs where the submission does.
SENDERS = ("call_inside", "run_ranks", "run_recorded", "Case", "Call")


def sent_from(module: Any) -> Iterator[Any]:
    """The functions and classes of a module of checks that travel into the jail, as its calls name them."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in SENDERS:
            for argument in node.args[:3]:
                thing = getattr(module, argument.id, None) if isinstance(argument, ast.Name) else None
                if isinstance(thing, (FunctionType, type)):
                    yield thing


def is_record(thing: Any) -> bool:
    return isinstance(thing, type) and dataclasses.is_dataclass(thing) and thing.__module__.startswith("autograder.")


def records_in(function: Any) -> Iterator[type]:
    """The records that are a function's arguments, by its annotations."""
    for hint in typing.get_type_hints(function).values() if isinstance(function, FunctionType) else ():
        yield from filter(is_record, (hint, *typing.get_args(hint)))


def methods(kind: type) -> dict[str, FunctionType]:
    """A class's own functions, those of its properties as well."""
    parts = {name: inspect.unwrap(getattr(part, "fget", None) or part) for name, part in vars(kind).items()}
    return {name: part for name, part in parts.items() if isinstance(part, FunctionType)}


def names_in(code: CodeType) -> set[str]:
    """The names that code mentions, in the functions inside it as well."""
    return set(code.co_names).union(*(names_in(one) for one in code.co_consts if isinstance(one, CodeType)))


def reached(thing: Any) -> list[FunctionType]:
    """The functions that travel with one of ours: those that it mentions, and the methods of its records."""
    seen: dict[int, Any] = {}
    todo = [thing]
    while todo:
        one = inspect.unwrap(todo.pop()) if callable(todo[-1]) else todo.pop()
        if id(one) in seen or not (getattr(one, "__module__", None) or "").startswith("autograder."):
            continue
        seen[id(one)] = one
        if isinstance(one, type):
            todo += [*one.__bases__, *methods(one).values()]
        elif isinstance(one, FunctionType):
            todo += [one.__globals__[name] for name in names_in(one.__code__) if name in one.__globals__]
            todo += [cell.cell_contents for cell in one.__closure__ or ()]
            todo += records_in(one)
    return [one for one in seen.values() if isinstance(one, FunctionType)]


def exercises(module: str) -> list[list]:
    """The exercises that a module's checks grade, in an order that can be compared."""
    return [natural(one.exercise) for (name, _), one in check.REGISTERED.items() if name == module]


@functools.cache
def all_sent() -> list[tuple[str, Any, list[FunctionType]]]:
    return [(module.__name__, thing, reached(thing)) for module in import_checks() for thing in sent_from(module)]


def is_oracle(thing: Any) -> bool:
    return "oracle" in thing.__name__ or (inspect.getdoc(thing) or "").startswith("The oracle")


def test_much_is_sent_and_oracles_are_found():
    assert len(all_sent()) > 100
    found = {one.__name__ for module in import_checks() for one in vars(module).values() if inspect.isfunction(one)
             and is_oracle(one)}  # fmt: skip
    assert {"_oracle", "deal"} <= found


def test_an_oracle_travels_only_with_the_test_of_a_later_exercise():
    """No process has seen a later exercise's test when an earlier one is tested (`run_cells`)."""
    for module, thing, sent in all_sent():
        for oracle in filter(is_oracle, sent):
            of_test, of_oracle = exercises(module), exercises(oracle.__module__)
            assert oracle.__module__ != module, f"{module}.{thing.__name__} carries {oracle.__name__}"
            assert of_oracle and max(of_oracle) < min(of_test), f"{module}.{thing.__name__} carries {oracle.__name__}"


def idle_methods(driver: Any, sent: list[FunctionType]) -> set[str]:
    """The methods of a driver's records that no code that travels with it mentions: one may know the answer."""
    mentioned = set().union(*(names_in(one.__code__) for one in sent))
    own = {name for record in records_in(driver) for name in methods(record) if not name.startswith("__")}
    return own - mentioned - {"name"}  # what a case is called


def test_a_record_travels_with_no_method_that_is_not_called_there():
    with_methods = [one for one in all_sent() if any(methods(record) for record in records_in(one[1]))]
    assert len(with_methods) > 10
    found = {f"{module}.{driver.__name__}": idle_methods(driver, sent) for module, driver, sent in with_methods}
    assert not {name: idle for name, idle in found.items() if idle}


@dataclasses.dataclass
class Fraction:
    """A record with a method that calls another one, and one that nothing calls."""

    over: int

    def as_float(self) -> float:
        return self.top() / self.over

    def top(self) -> int:
        return 1

    def answer(self) -> int:
        return 0


def drive(rank: int, case: Fraction) -> float:
    return case.as_float()


def test_a_method_that_knows_the_answer_is_found():
    for one in (Fraction, drive, *methods(Fraction).values()):
        one.__module__ = "autograder.checks.made_up"
    assert idle_methods(drive, reached(drive)) == {"answer"}
