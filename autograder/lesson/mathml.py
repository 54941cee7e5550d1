"""Formulas as MathML, which browsers draw by themselves: the page needs no script, and a screen reader reads them.

Temml (`book/_vendor/temml`) converts, in V8, which the package mini-racer brings. The book's pages and the feedback
pages have their formulas from here.
"""

from __future__ import annotations

import functools
from typing import Any

from autograder.lesson.notebook import ROOT

TEMML = ROOT / "book" / "_vendor" / "temml" / "temml.min.js"


@functools.cache
def engine() -> Any:
    """V8 with Temml in it. It reserves more address space than a process with limits may have: start it before them."""
    from py_mini_racer import MiniRacer

    started = MiniRacer()
    started.eval(TEMML.read_text(encoding="utf-8"))
    return started


@functools.cache
def mathml(latex: str, display: bool) -> str:
    """A formula as MathML. ValueError, with Temml's words, if it cannot be converted."""
    from py_mini_racer import JSEvalException

    try:
        return str(engine().call("temml.renderToString", latex, {"displayMode": display, "throwOnError": True}))
    except JSEvalException as error:
        raise ValueError(str(error).strip().splitlines()[0]) from None
