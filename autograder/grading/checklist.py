"""What the grader checks: a folded list under each exercise of a released notebook, made from the checks themselves.

The first line of a check's docstring says in one sentence which property it tries. So whatever is graded is listed, and
whatever is listed is graded.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable

from autograder.checking.check import REGISTERED
from autograder.lessons import properties
from autograder.lessons.notebook import answer_of


def statement_of(test: str) -> str:
    """The cell with the statement that a test belongs to: `08-ex3` for `08-ex3-step-test`."""
    return re.sub(r"^(\d+-ex\d+)-.*", r"\1", answer_of(test))


def checks_called_by(source: str) -> list[Callable]:
    """The checks that a test cell calls, in order, each once.

    The cell says `from autograder.checks import MODULE` and calls MODULE.CHECK.
    """
    nodes = list(ast.walk(ast.parse(source)))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == properties.CHECKS]
    modules = {
        alias.asname or alias.name: importlib.import_module(f"{properties.CHECKS}.{alias.name}")
        for node in imports
        for alias in node.names
    }
    calls = [node.func for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    found: dict[str, Callable] = {}
    for called in sorted(calls, key=lambda called: (called.lineno, called.col_offset)):
        if isinstance(called.value, ast.Name) and called.value.id in modules:
            function = getattr(modules[called.value.id], called.attr, None)
            # A cell may later give the module's name to something else, and call that.
            if function is not None and (getattr(function, "__module__", ""), called.attr) in REGISTERED:
                found[called.attr] = function
    return list(found.values())


def sentence_of(check: Callable) -> str:
    """The first line of a check's docstring. ValueError names a check that has none."""
    text = (check.__doc__ or "").strip()
    if not text:
        raise ValueError(f"{check.__module__}.{check.__name__} needs a docstring whose first line says what it checks")
    return text.split("\n")[0]


def lines_of(sentences: dict[str, str], found: list[properties.Property]) -> list[str]:
    """The sentences by check, each with what it is worth, if there are several; the core comes first."""
    if len(sentences) == 1:
        return list(sentences.values())
    core, *others = found
    joined = [name for name in core.checks if name != core.name]
    return [
        f"{points(core.points)}, the core, without which the rest earns nothing: {sentences[core.name]}",
        *(f"The core, too: {sentences[name]}" for name in joined),
        *(f"{points(one.points)}: {sentences[one.name]}" for one in others if one.name != properties.VISIBLE),
    ]


def points(number: float) -> str:
    """A number of points, in words: "1 point", "0.5 points"."""
    return f"{number:g} point{'' if number == 1 else 's'}"


def folded(sentences: list[str]) -> str:
    """A Markdown list that opens with a click."""
    items = "\n".join(f"- {sentence}" for sentence in sentences)
    return f"<details><summary>What the grader checks</summary>\n\n{items}\n\n</details>"
