"""The `collected` directive: what the chapters and assignments hold of one kind, on one page.

    ```{collected} terms
    ```

The kinds are `terms` (the tables of key terms), `questions` (the interview questions), `theorems` (their statements,
without the proofs) and `exercises` (what each lesson takes; points, and the exercises on which each builds). Everything
is read from the chapters and notebooks while the book is built, so that nothing has to be kept in two places. A chapter
that lacks what is collected causes a warning, which stops the build.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from docutils.statemachine import StringList
from effort import effort_of, exercises, hours
from sphinx.util.docutils import SphinxDirective

#: Sections of a chapter that come after its prose.
AFTER_THE_PROSE = {"Key terms", "Interview questions", "Quiz", "Exercises", "Further reading"}


class Chapter(NamedTuple):
    """A lesson's chapter. name: its file's name without the ending, which is the lesson's."""

    name: str
    text: str

    @property
    def number(self) -> str:
        """The number of the lesson, as text: `05`."""
        return self.name[:2]

    @property
    def heading(self) -> str:
        """How the chapter is called on a page that collects."""
        return f"## {self.number} · {title_of(self.text)}"

    def link(self, text: str = "") -> str:
        """A link to the chapter, as MyST."""
        return f"{{doc}}`{text or self.number} </book/{self.name}>`"


def read_chapters(folder: Path) -> list[Chapter]:
    """The chapters in a folder, in the order of their numbers."""
    return [Chapter(path.stem, path.read_text(encoding="utf-8")) for path in sorted(folder.glob("[0-9][0-9]_*.md"))]


def title_of(chapter: str) -> str:
    """A chapter's title."""
    found = re.search(r"^# (.+)$", chapter, re.MULTILINE)
    return found[1] if found else ""


def section(chapter: str, title: str) -> str:
    """What stands under a heading of the second level, up to the next one; '' if there is no such heading."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", chapter, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def terms(chapter: str) -> list[tuple[str, str]]:
    """The key terms of a chapter, each with what it means."""
    rows = [row for row in section(chapter, "Key terms").splitlines() if row.startswith("|")][2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))] for row in rows]
    return [(term, meaning) for term, meaning in cells]


def questions(chapter: str) -> list[str]:
    """The interview questions of a chapter."""
    return re.findall(r"^:::+\{dropdown\} (.+)$", section(chapter, "Interview questions"), re.MULTILINE)


def theorems(chapter: str) -> list[tuple[str, str, str]]:
    """(label, name, statement) of each theorem, lemma and definition of a chapter that has a name and a label."""
    found = re.findall(
        r"^(:::+)\{prf:(?:theorem|lemma|definition)\} ([^\n]+)\n:label: (\S+)\n(.*?)^\1$",
        chapter,
        re.MULTILINE | re.DOTALL,
    )
    # The label of an equation may stand only once, in the chapter.
    return [(label, name, re.sub(r"\$\$ \(\S+\)", "$$", text.strip())) for _, name, label, text in found]


def plain(term: str) -> str:
    """A term as it is sorted: without its markup."""
    return re.sub(r"[`*$\\(]", "", term).casefold()


def _terms_page(chapters: list[Chapter], root: Path) -> list[str]:
    meanings = defaultdict(list)
    for chapter in chapters:
        for term, meaning in terms(chapter.text):
            meanings[term].append(f"{meaning} ({chapter.link()})")
    lines, letter = [], ""
    for term in sorted(meanings, key=plain):
        first = plain(term)[0]
        first = "0–9" if first.isdigit() else first.upper() if first.isascii() else first
        if first != letter:
            letter = first
            lines += [f"## {letter}", ""]
        lines += [term, *(f": {meaning}\n" for meaning in meanings[term])]
    return lines


def _questions_page(chapters: list[Chapter], root: Path) -> list[str]:
    lines = []
    for chapter in chapters:
        lines += [chapter.heading, "", f"The answers are {chapter.link('in the chapter')}.", ""]
        lines += [*(f"- {question}" for question in questions(chapter.text)), ""]
    return lines


def _theorems_page(chapters: list[Chapter], root: Path) -> list[str]:
    lines = []
    for chapter in chapters:
        if stated := theorems(chapter.text):
            lines += [chapter.heading, ""]
        for label, name, statement in stated:
            lines += [f"### {name}", "", f"{{prf:ref}}`{label}`", "", statement, ""]
    return lines


def _released(chapter: Chapter, root: Path) -> dict:
    return json.loads((root / "notebooks" / chapter.name / f"{chapter.name}.ipynb").read_text(encoding="utf-8"))


def _hours(notebook: dict) -> str:
    """How long an assignment takes, by its first cell: `3½ hours`."""
    span = hours(notebook)
    if not span:
        return "–"
    least, most = (f"{value:g}".replace(".5", "½") for value in span)
    return f"{least}{f' to {most}' * (least != most)} hour{'s' * (span[1] > 1)}"


def _efforts(chapters: list[Chapter], root: Path) -> list[str]:
    """A table of what each lesson takes, and of the lessons that it needs, which the home page's map says as well."""
    home = (root / "book" / "index.md").read_text(encoding="utf-8")
    needs = dict(re.findall(r"\b(\d\d)<([\d,]+)", home))
    lines = ["## What each lesson takes", "", "| | lesson | reading | assignment | exercises | points | needs |"]
    lines.append("|---|---|---:|---:|---:|---:|---|")
    for chapter in chapters:
        released = _released(chapter, root)
        found = exercises(released)
        points = sum(points for *_, points in found)
        on = needs.get(chapter.number, "–").replace(",", ", ")
        cells = [chapter.number, chapter.link(title_of(chapter.text)), f"@{chapter.name}@", _hours(released)]
        lines.append(f"| {' | '.join([*cells, str(len(found)), str(points), on])} |")
    return [*lines, ""]


def _exercises_page(chapters: list[Chapter], root: Path) -> list[str]:
    lines = _efforts(chapters, root)
    for chapter in chapters:
        file = Path(chapter.name, f"{chapter.name}.ipynb")
        released = _released(chapter, root)
        needs = _needs(root / "solutions" / file)
        lines += [chapter.heading, "", "| | exercise | points | builds on |", "|---|---|---|---|"]
        for exercise, title, points in exercises(released):
            on = ", ".join(map(str, needs.get(exercise, []))) or "–"
            lines.append(f"| {exercise} | {title.replace('|', chr(92) + '|')} | {points} | {on} |")
        lines.append("")
    return lines


def _needs(solution: Path) -> dict[int, list[int]]:
    """Exercise → the exercises of the same lesson on which it builds, by their numbers."""
    import nbformat

    from autograder.lesson import notebook
    from autograder.lesson.names import builds_on

    nb = nbformat.read(solution, as_version=4)
    answers = [cell.id for cell in nb.cells if notebook.nbgrader_role(cell) == "solution"]
    found: dict[int, set[int]] = defaultdict(set)
    for answer, others in builds_on(answers, [], nb).items():
        found[_exercise(answer)] |= {_exercise(other) for other in others}
    return {exercise: sorted(others - {exercise, 0}) for exercise, others in found.items()}


def _exercise(cell_id: str) -> int:
    match = re.match(r"\d\d-ex(\d+)-", cell_id)
    return int(match[1]) if match else 0


#: Kind → how its page is made, and what finds it in a chapter that must have it.
PAGES: dict[str, tuple[Callable[[list[Chapter], Path], list[str]], Callable[[str], Any]]] = {
    "terms": (_terms_page, terms),
    "questions": (_questions_page, questions),
    "theorems": (_theorems_page, lambda chapter: True),  # a chapter may have none with a name
    "exercises": (_exercises_page, lambda chapter: True),
}


class Collected(SphinxDirective):
    """See the module's docstring."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The page's content."""
        kind, root = self.arguments[0], Path(self.env.srcdir)
        if kind not in PAGES:
            return [self._warning(f"there is no kind {kind!r}; the kinds are {', '.join(PAGES)}")]
        make, find = PAGES[kind]
        chapters = read_chapters(root / "book")
        for chapter in chapters:
            self.env.note_dependency(str(root / "book" / f"{chapter.name}.md"))
            self.env.note_dependency(str(root / "notebooks" / chapter.name / f"{chapter.name}.ipynb"))
        missing = [self._warning(f"{chapter.name}.md has no {kind}") for chapter in chapters if not find(chapter.text)]
        body = nodes.container()
        text = StringList("\n".join(make(chapters, root)).split("\n"), source=str(self.get_source_info()[0]))
        self.state.nested_parse(text, self.content_offset, body, match_titles=True)
        for term in list(self.state.document.findall(nodes.term)) if kind == "terms" else []:
            self._name(term)
        for text in list(self.state.document.findall(nodes.Text)):
            if place := re.fullmatch(r"@(\d\d_\w+)@", text):
                text.parent.replace(text, effort_of(chapter=f"book/{place[1]}"))
        return [*body.children, *missing]

    def _name(self, term: nodes.term) -> None:
        """Give an entry of the glossary an anchor, and tell Sphinx of it."""
        text = plain(term.astext())
        term["ids"].append(f"term-{nodes.make_id(text)}")
        self.env.get_domain("std").note_object("term", text, term["ids"][0], location=term)

    def _warning(self, text: str) -> nodes.system_message:
        return self.state_machine.reporter.warning(f"collected: {text}", line=self.lineno)


def setup(app):
    """Register the directive."""
    app.add_directive("collected", Collected)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
