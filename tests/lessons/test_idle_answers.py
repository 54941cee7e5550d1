"""No check holds for an answer that does nothing: one that counts messages must look at what was computed as well.

The core of each exercise catches such an answer. But an answer can do its work where the core looks, and nothing
elsewhere; then every other check must see that nothing was done.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from autograder import properties
from autograder.checks import hints
from autograder.checks.expect import CheckFailed
from autograder.lesson import notebook

#: What every function and method of an exercise does instead of its work, with the arguments of its call.
IDLE = {
    "returns nothing": "return None",
    "returns its first argument": "return arguments[0] if arguments else None",
    "returns zeros": "return next((one * 0 for one in arguments if hasattr(one, 'dtype')), 0)",
    "raises an error that names everything": "raise ValueError({names!r})",
}

FUNCTION = """
def {name}(*arguments, **named):
    {does}
"""

#: Whatever is asked of this class, or of an object of it, is such a function.
CLASS = """
def {name}_idle(*arguments, **named):
    {does}

class {name}_kind(type):
    def __getattr__(cls, asked):
        if asked.startswith("__"):
            raise AttributeError(asked)
        return {name}_idle

class {name}(metaclass={name}_kind):
    def __init__(self, *arguments, **named):
        {name}_idle() if {raises} else None

    def __getattr__(self, asked):
        if asked.startswith("__"):
            raise AttributeError(asked)
        return {name}_idle

    def __call__(self, *arguments, **named):
        {does}
"""


def idle(source: str, does: str) -> str:
    """The source of an answer whose functions and classes all do this instead."""
    tree = ast.parse(source)
    names = " ".join(sorted({node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}))
    does = does.format(names=names)
    defined = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    forms = [FUNCTION if isinstance(node, ast.FunctionDef) else CLASS for node in defined]
    raises = does.startswith("raise")
    return source + "".join(
        form.format(name=node.name, does=does, raises=raises) for form, node in zip(forms, defined, strict=True)
    )


def held(lesson: str, does: str) -> Iterator[str]:
    """The checks of a lesson that hold for such answers; each exercise is replaced by itself."""
    cells = {cell.id: cell for cell in notebook.read(lesson).cells}
    for test in cells.values():
        if notebook.nbgrader_role(test) != "grade":
            continue
        answer = test.id.removesuffix("-test")
        space = notebook.functions(lesson, swap={answer: idle(cells[answer].source, does)})
        for one in properties.of_test(test):
            if one.points:
                try:
                    with hints.later():
                        exec(one.source, dict(space))
                except CheckFailed:
                    continue
                yield f"{answer}: {one.name}"


@pytest.mark.thorough
@pytest.mark.apart
@pytest.mark.parametrize("lesson", notebook.lessons())
def test_no_check_holds_for_an_answer_that_does_nothing(lesson):
    found = [f"{check} holds for an answer that {what}" for what, does in IDLE.items() for check in held(lesson, does)]
    assert not found, "\n".join(found)


def test_an_idle_answer_is_idle():
    space: dict = {}
    source = "def f(x): return x\n\nclass C:\n    def go(self, y): return y\n"
    exec(idle(source, IDLE["returns nothing"]), space)
    assert (space["f"](1), space["C"](2).go(3), space["C"].go(3), space["C"]()(4)) == (None, None, None, None)
    exec(idle(source, IDLE["raises an error that names everything"]), space)
    for call in (lambda: space["f"](1), lambda: space["C"](1)):
        with pytest.raises(ValueError, match=r"^self x y$"):
            call()
