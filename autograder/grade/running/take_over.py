"""Lets the lesson's class, which stands in the place of a student's in a second run, have what only the student's has.

No statement says which attributes and methods of an earlier class a later exercise may use: a subclass that reads an
attribute of its own base class would otherwise pay for an error in that one. `take_over` goes into the notebook by its
source, so it needs nothing of this module.
"""

from __future__ import annotations

import ast
import inspect


def take_over(theirs: type, ours: type) -> None:
    """Give the class `ours` the methods, and its objects the attributes, that only `theirs` has.

    An attribute is looked for when it is missing: then an object of `theirs` is made of the same arguments.
    """
    if not (isinstance(theirs, type) and isinstance(ours, type)) or theirs is ours:
        return
    for name, value in list(vars(theirs).items()):
        if not name.startswith("__") and not hasattr(ours, name):
            setattr(ours, name, value)
    made = ours.__init__  # type: ignore[misc]
    missing = getattr(ours, "__getattr__", None)

    def __init__(self: object, *args: object, **kwargs: object) -> None:  # noqa: N807
        object.__setattr__(self, "_made_of", (args, kwargs))
        made(self, *args, **kwargs)

    def __getattr__(self: object, name: str) -> object:  # noqa: N807
        if missing is not None:
            try:
                return missing(self, name)
            except AttributeError:
                pass
        known = object.__getattribute__(self, "__dict__")
        if name.startswith("__") or "_made_of" not in known:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if "_other" not in known:
            other = theirs.__new__(theirs)  # type: ignore[call-overload]
            known["_other"] = other
            theirs.__init__(other, *known["_made_of"][0], **known["_made_of"][1])  # type: ignore[misc]
        found = vars(known["_other"])
        if name not in found:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        known[name] = found[name]
        return known[name]

    ours.__init__ = __init__  # type: ignore[misc]
    ours.__getattr__ = __getattr__  # type: ignore[attr-defined]


def cells_around(source: str) -> tuple[str, str]:
    """What runs before and after a cell of the lesson's, so that its classes take over what the student's have."""
    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    if not names:
        return "", ""
    before = f"_of_the_student = [globals().get(name) for name in {names!r}]"
    after = f"for _one in zip(_of_the_student, [{', '.join(names)}]):\n    take_over(*_one)\ndel take_over"
    return before, f"{inspect.getsource(take_over)}\n\n{after}"
