"""Formulas of a page as MathML, which browsers draw by themselves: the page needs no script and no font.

A formula can be a student's. The converter can be asked for links, styles and macros that double at each step. So what
it makes is written out anew here: known elements, known attributes, escaped texts.
"""

from __future__ import annotations

import functools
import html
import re
from xml.etree import ElementTree

from autograder.grade import limits
from autograder.lesson import mathml as converter

#: A tag, whose attributes may hold any sign but their quotes; what stands in these elements is code.
TAG = re.compile(r"""(<(?:[^>"]|"[^"]*")*>)""")
CODE = re.compile(r"<(/?)(?:code|pre)\b")
#: A formula on a line of its own, and one in a line.
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(?![\s$])([^$]+?)(?<![\s\\])\$(?!\d)", re.DOTALL)
#: A longer formula stays as it is written, and so does one that defines commands.
MAX_LENGTH, MAX_ELEMENTS = 1000, 2000
DEFINES = re.compile(r"\\(?:re)?newcommand|\\\w*def\b|\\let\b|\\providecommand|\\newenvironment|\\require")

ELEMENTS = {
    "math", "menclose", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded", "mphantom", "mroot", "mrow",
    "ms", "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder",
    "munderover",
}  # fmt: skip
ATTRIBUTES = {
    "accent", "accentunder", "columnalign", "columnlines", "columnspacing", "display", "displaystyle", "fence", "form",
    "largeop", "linethickness", "lspace", "mathvariant", "maxsize", "minsize", "movablelimits", "notation", "rowlines",
    "rowspacing", "rspace", "scriptlevel", "separator", "stretchy", "symmetric", "width",
}  # fmt: skip


#: Classes that Temml gives to the cells of aligned lines; the page's style says what they mean.
CLASSES = {"tml-jot", "tml-left", "tml-right"}


class Budget:
    """What is left of `limits.FORMULAS` for the formulas of a page."""

    def __init__(self) -> None:
        self.left = limits.FORMULAS

    def mathml(self, formula: str, block: bool) -> str:
        """As `mathml`; '' if there is not enough left."""
        if self.left <= 0:
            return ""
        found = mathml(formula, block)
        self.left -= max(len(formula), found.count("<m"))
        return found


def drawn(page: str, budget: Budget | None = None) -> str:
    """Clean HTML with its formulas, `$…$` and `$$…$$` outside code, as MathML. What cannot be converted stays."""
    parts, inside, budget = TAG.split(page), 0, budget or Budget()
    for number, part in enumerate(parts):
        if number % 2:
            if mark := CODE.match(part):
                inside = max(0, inside + (-1 if mark[1] else 1))
        elif not inside:
            parts[number] = _with_formulas(html.unescape(part), budget)
    return "".join(parts)


def _with_formulas(text: str, budget: Budget) -> str:
    pieces, end = [], 0
    for match in FORMULA.finditer(text):
        found = budget.mathml(match[1] or match[2], block=bool(match[1]))
        pieces += [html.escape(text[end : match.start()]), found or html.escape(match[0])]
        end = match.end()
    return "".join([*pieces, html.escape(text[end:])])


@functools.lru_cache(2000)
def mathml(formula: str, block: bool = False) -> str:
    """A formula as MathML; '' if it cannot be converted."""
    if len(formula) > MAX_LENGTH or DEFINES.search(formula):
        return ""
    try:
        tree = ElementTree.fromstring(converter.mathml(formula, block))
    except (ValueError, ElementTree.ParseError):
        return ""
    return _written(tree) if sum(1 for _ in tree.iter()) <= MAX_ELEMENTS else ""


def _written(element: ElementTree.Element) -> str:
    inner = "".join([_text(element.text), *(_written(child) + _text(child.tail) for child in element)])
    if element.tag not in ELEMENTS:
        return inner
    kept = {name: value for name, value in element.attrib.items() if name in ATTRIBUTES or _is_ours(name, value)}
    attributes = "".join(f' {name}="{html.escape(value)}"' for name, value in kept.items())
    return f"<{element.tag}{attributes}>{inner}</{element.tag}>"


def _is_ours(name: str, value: str) -> bool:
    """Is this a class by which the page's style places a formula's parts?"""
    return name == "class" and value in CLASSES


def _text(text: str | None) -> str:
    return html.escape(text or "")
