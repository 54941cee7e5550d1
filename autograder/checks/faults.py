"""Whose mistake an error is: that of the student's code, or the check's own.

An error that comes out of the student's code is the student's, and so is one of a call that does not fit: a function
that takes other arguments, a class that lacks a method, a name that is no function. Python raises such an error in the
check, at the line of the call. What else is raised there is the check's own mistake, or shows that the check did not
expect what the student's code gave. A student is told so, and not blamed; `try` and `audit` name file and line.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ranks import RankError

_ROOT = Path(__file__).resolve().parents[2]
#: Code of ours, but for what students get, and for the handles of the jail, which raise what a student's code raised.
_OURS = re.compile(rf"{re.escape(str(_ROOT))}/(autograder/(?!grade/jail/)|solutions/[^/]+/checks\b)")
_LIBRARIES = (
    "<frozen",
    "<string>",  # what dataclasses write
    "<__array_function__",
    f"{_ROOT / 'ranks'}{os.sep}",
    *{f"{Path(sysconfig.get_path(name))}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)
#: What Python says of a function that takes other arguments, and of an object that cannot do something.
_CALLED = re.compile(r"([\w<>.]+)\(\) (?:missing|takes|got) ")
_OBJECT = re.compile(r"'(\w+)' object|non-iterable (\w+) object|of type '(\w+)'")
#: The value of an expression that cannot be found out without running code.
_UNKNOWN = object()


def of_check(error: BaseException, body: Callable, subjects: tuple = ()) -> str:
    """The line of a check's own code that raised an error, and the error, as `path:line: …`; "" if it is the student's.

    body: the check's function. subjects: the student's objects that it was given.
    """
    return _Judge(body, subjects).judge(error)


def of_driver(error: RankError, driver: Callable) -> str:
    """The same for an error of a rank, as far as it can be told from what came back; the line is the driver's first.

    A wrong name, a name that a module lacks, and a call of the driver's own module that does not fit.
    """
    name, text = error.type_name, error.reason
    called = _CALLED.match(text) if name == "TypeError" else None
    code = getattr(driver, "__code__", None)
    own = name in ("NameError", "UnboundLocalError") or (name == "AttributeError" and text.startswith("module "))
    source = "".join(linecache.getlines(code.co_filename)) if code is not None else ""
    if code is None or not (own or (called is not None and _defines(source, called[1]))):
        return ""
    return f"{place(code.co_filename, code.co_firstlineno)}: {driver.__name__}, in a rank: {name}: {text}"


def place(file: str, line: int) -> str:
    """`path:line`, below the repository if it is there."""
    return f"{Path(file).relative_to(_ROOT) if Path(file).is_relative_to(_ROOT) else file}:{line}"


class _Judge:
    def __init__(self, body: Callable, subjects: tuple):
        self.code, self.subjects = body.__code__, subjects
        self.codes = frozenset(_with_inner(body.__code__))

    def judge(self, error: BaseException) -> str:
        trace, frames = error.__traceback__, list[TracebackType]()
        while trace is not None:
            frames.append(trace)
            trace = trace.tb_next
        own = [n for n, one in enumerate(frames) if self._is_ours(one.tb_frame.f_code)]
        # A check may give the student's code a function to call, and the student's code may call it with anything.
        if not own or any(self._is_students_code(one.tb_frame.f_code) for one in frames[own[0] :]):
            return ""
        last = frames[own[-1]]
        if not isinstance(error, NameError) and (
            self._is_students(getattr(error, "obj", _UNKNOWN)) or self._uses_students(last, str(error))
        ):
            return ""
        line = place(self.code.co_filename, self.code.co_firstlineno)
        for one in frames:
            file = one.tb_frame.f_code.co_filename
            if one.tb_frame.f_code in self.codes or (_OURS.match(file) and "/solutions/" in file):
                line = place(file, one.tb_lineno)
        return f"{line}: {type(error).__name__}: {error}"

    # ---- whose ----

    def _is_ours(self, code: CodeType) -> bool:
        return code in self.codes or bool(_OURS.match(code.co_filename))

    def _is_students_code(self, code: CodeType) -> bool:
        return not self._is_ours(code) and not code.co_filename.startswith(_LIBRARIES)

    def _is_students(self, thing: Any) -> bool:
        """Is it a function or a class of the student's, or an object of such a class?"""
        if thing is _UNKNOWN:
            return False
        if any(thing is one for one in self.subjects):
            return True
        if inspect.ismethod(thing):
            return self._is_students(thing.__func__) or self._is_students(thing.__self__)
        if isinstance(thing, functools.partial):
            return self._is_students(thing.func)
        if inspect.isfunction(thing):
            return self._is_students_code(thing.__code__)
        return any(map(_is_students_class, inspect.getmro(thing if isinstance(thing, type) else type(thing))))

    # ---- what was being done ----

    def _uses_students(self, trace: TracebackType, text: str) -> bool:
        """Does the expression at which a frame stopped call something of the student's, or hand it to a library?"""
        frame, node = trace.tb_frame, _node(trace)
        if not isinstance(node, ast.Call):
            operands = [node, *ast.iter_child_nodes(node)] if node is not None else []
            named = _OBJECT.search(text)
            of_kind = [one for one in frame.f_locals.values() if named and type(one).__name__ in named.groups()]
            return any(map(self._is_students, of_kind)) or any(self._stems(one, frame) for one in operands)
        called, named = _value(node.func, frame), _CALLED.match(text)
        if self._is_students(called):
            return True
        if inspect.isfunction(called) or (inspect.isclass(called) and _OURS.match(_file_of(called) or "")):
            return False  # one of ours, even if a student's function is among its arguments
        if called is _UNKNOWN and named:  # a function that another one has made
            return not _defines(_source_of(frame), named[1])
        owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        handed = [*owner, *node.args, *(one.value for one in node.keywords)]
        return any(self._stems(one, frame) for one in handed)

    def _stems(self, node: ast.AST, frame: FrameType) -> bool:
        """Is the value of an expression the student's, or an object that it makes of a student's class?"""
        if isinstance(node, ast.Call):
            kind = _value(node.func, frame)
            return isinstance(kind, type) and self._is_students(kind)
        return self._is_students(_value(node, frame))


def _with_inner(code: CodeType) -> list[CodeType]:
    """A function's code, and that of the functions in it."""
    inner = (_with_inner(one) for one in code.co_consts if isinstance(one, CodeType))
    return [code, *itertools.chain.from_iterable(inner)]


def _file_of(kind: type) -> str | None:
    return getattr(sys.modules.get(kind.__module__), "__file__", None)


def _is_students_class(kind: type) -> bool:
    if kind.__module__ == "__main__" or kind.__module__ not in sys.modules:
        return True
    file = _file_of(kind)
    return file is not None and not _OURS.match(file) and not file.startswith(_LIBRARIES)


# ---- reading Python ----


def _source_of(frame: FrameType) -> str:
    return "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))


@functools.lru_cache(maxsize=64)
def _tree(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _defines(source: str, named: str) -> bool:
    """Does a module define the function that Python names so, as in `Shard.step` or `make.<locals>.inner`?"""
    return named.replace("<locals>.", "") in _functions(_tree(source).body, "")


def _functions(body: Iterable[ast.AST], within: str) -> set[str]:
    found: set[str] = set()
    for node in body:
        name = "<lambda>" if isinstance(node, ast.Lambda) else getattr(node, "name", "")
        new = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)
        found |= {within + name} if new else set()
        found |= _functions(ast.iter_child_nodes(node), f"{within}{name}." if new else within)
    return found


def _node(trace: TracebackType) -> ast.expr | None:
    """The expression that a frame was evaluating; None where that is not known."""
    code = trace.tb_frame.f_code
    line, end_line, column, end = next(itertools.islice(code.co_positions(), trace.tb_lasti // 2, None), (None,) * 4)
    nodes = [one for one in ast.walk(_tree(_source_of(trace.tb_frame))) if isinstance(one, ast.expr)]
    ending = [one for one in nodes if (one.end_lineno, one.end_col_offset) == (end_line, end)]
    # Of a call in several lines, Python keeps the line of its last attribute.
    found = [one for one in ending if isinstance(one, ast.Call) or (one.lineno, one.col_offset) == (line, column)]
    exact = [one for one in found if (one.lineno, one.col_offset) == (line, column)]
    return next(iter(exact or found), None)


def _value(node: ast.AST, frame: FrameType) -> Any:
    """The value of an expression, where no code has to run for it."""
    if isinstance(node, ast.Name):
        for space in (frame.f_locals, frame.f_globals, frame.f_builtins):
            if node.id in space:
                return space[node.id]
    elif isinstance(node, ast.Attribute):
        base = _value(node.value, frame)
        return base if base is _UNKNOWN else inspect.getattr_static(base, node.attr, _UNKNOWN)
    elif isinstance(node, ast.Starred):
        return _value(node.value, frame)
    elif isinstance(node, ast.Subscript):
        base = _value(node.value, frame)
        key = node.slice.value if isinstance(node.slice, ast.Constant) else _value(node.slice, frame)
        if type(base) in (dict, list, tuple) and type(key) in (int, str):
            pairs: dict[Any, Any] = base if type(base) is dict else dict(enumerate(base))
            return pairs.get(key, _UNKNOWN)
    return _UNKNOWN
