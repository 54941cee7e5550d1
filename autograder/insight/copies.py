"""Pairs of students whose answers to a lesson are nearly alike, for a person to look at. It proves nothing.

An answer is compared by its tokens, in runs of RUN: comments, docstrings and layout are left out, and every name that
the answer gives itself counts as the same. What stands in the released stub is left out, and so is what many in the
class have: there are few ways to write a short function. JPlag and compare50 compare more (`autograder answers`).
"""

from __future__ import annotations

import ast
import collections
import io
import itertools
import re
import tokenize
from collections.abc import Sequence
from typing import NamedTuple

from autograder.insight.marks import Submission
from autograder.lessons.names import UNPARSABLE

#: Tokens, or words, of a run.
RUN = 6
#: Tokens of an answer that are looked at, so that nobody's answer takes long.
MOST = 20_000
#: Runs of its own that a notebook needs to be compared: of fewer, chance alone makes two alike.
LEAST = 40
#: The share of runs from which on a pair is named.
ALIKE = 0.8
#: A run is common if more students than this have it: a quarter of the class, but at least so many.
FEW = 3

_BLANK = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


class Pair(NamedTuple):
    """Two students, the share of the shorter one's runs that the other has too, and in which exercises they are."""

    students: tuple[str, str]
    share: float
    exercises: list[str]


def tokens_of(name: str, source: str) -> list[str]:
    """The tokens of an answer, by the name of its file (`answers_as_files`); of one in words, its words."""
    if name.endswith(".py"):
        try:
            tree = ast.parse(source)
            return list(_of_code(tree, source))
        except (*UNPARSABLE, tokenize.TokenError):
            pass
    return re.findall(r"\w+", source.lower())


def _of_code(tree: ast.Module, source: str) -> list[str]:
    bound, texts = set[str](), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts.add(node.lineno)
    found, first = [], True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_text = first and token.type == tokenize.STRING and token.start[0] in texts
        if token.type not in _BLANK and not is_text:
            found.append("=name" if token.string in bound else token.string)
        first = token.type in _BLANK
    return found


def _runs(name: str, source: str) -> set[tuple[str, ...]]:
    tokens = tokens_of(name, source)[:MOST]
    return {tuple(tokens[at : at + RUN]) for at in range(len(tokens) - RUN + 1)}


def pairs(submissions: Sequence[Submission], stubs: dict[str, str]) -> list[Pair]:
    """The pairs in these submissions to one lesson, the most alike first. stubs: file → what students were given."""
    given = {name: _runs(name, source) for name, source in stubs.items()}
    own = {
        one.student: {
            (name, run) for name, source in one.answers.items() for run in _runs(name, source) - given.get(name, set())
        }
        for one in submissions
    }
    numbers = collections.Counter(itertools.chain.from_iterable(own.values()))
    common = {run for run, number in numbers.items() if number > max(FEW, len(own) // 4)}
    own = {student: rare for student, runs in own.items() if len(rare := runs - common) >= LEAST}
    found = []
    for one, other in itertools.combinations(sorted(own), 2):
        shared = own[one] & own[other]
        share = len(shared) / min(len(own[one]), len(own[other]))
        if share >= ALIKE:
            found.append(Pair((one, other), share, sorted({name.rpartition(".")[0] for name, _ in shared})))
    return sorted(found, key=lambda pair: -pair.share)
