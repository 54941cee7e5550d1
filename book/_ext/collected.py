"""The `collected` directive: what the chapters and assignments hold of one kind, on one page.

    ```{collected} terms
    ```

The kinds are `terms` (the tables of key terms), `questions` (the interview questions), `theorems` (their statements,
without the proofs) and `exercises` (points, and the exercises on which each builds). Everything is read from the
chapters and notebooks while the book is built, so that nothing has to be kept in two places. A chapter that lacks what
is collected causes a warning, which stops the build.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

#: How the file of a lesson's chapter is named.
CHAPTERS = "[0-9][0-9]_*.md"


def number_of(path: Path) -> str:
    """The number of a lesson, as text: `05`."""
    return path.name[:2]


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


def exercises(notebook: dict) -> list[tuple[int, str, int]]:
    """(number, title, points) of each exercise of a released notebook."""
    found = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
        for heading in re.findall(r"^#+ Exercise .*$", text, re.MULTILINE):
            number, points = re.search(r"\d+", heading), re.search(r"\((\d+) points?\)", heading)
            title = heading.replace(points[0], "").split("·", 1)[1].strip()
            found.append((int(number[0]), title, int(points[1])))
    return found


def plain(term: str) -> str:
    """A term as it is sorted: without its markup."""
    return re.sub(r"[`*$\\(]", "", term).casefold()


def _terms_page(chapters: dict[str, str]) -> list[str]:
    meanings = defaultdict(list)
    for number, chapter in chapters.items():
        for term, meaning in terms(chapter):
            meanings[term].append(f"{meaning} ({_link(number, chapters)})")
    lines, letter = [], ""
    for term in sorted(meanings, key=plain):
        first = plain(term)[0]
        first = "0–9" if first.isdigit() else first.upper() if first.isascii() else first
        if first != letter:
            letter = first
            lines += [f"## {letter}", ""]
        lines += [term, *(f": {meaning}\n" for meaning in meanings[term])]
    return lines


def _questions_page(chapters: dict[str, str]) -> list[str]:
    lines = []
    for number, chapter in chapters.items():
        lines += [
            f"## {number} · {title_of(chapter)}",
            "",
            f"The answers are {_link(number, chapters, 'in the chapter')}.",
            "",
        ]
        lines += [*(f"- {question}" for question in questions(chapter)), ""]
    return lines


def _theorems_page(chapters: dict[str, str]) -> list[str]:
    lines = []
    for number, chapter in chapters.items():
        if stated := theorems(chapter):
            lines += [f"## {number} · {title_of(chapter)}", ""]
        for label, name, statement in stated:
            lines += [f"### {name}", "", f"{{prf:ref}}`{label}`", "", statement, ""]
    return lines


def _link(number: str, chapters: dict[str, str], text: str = "") -> str:
    return f"{{doc}}`{text or number} </book/{chapters.names[number]}>`"  # type: ignore[attr-defined]


class _Chapters(dict):
    """Number → text of each chapter; `names`: number → the file's name without its ending."""

    names: dict[str, str]


def read_chapters(folder: Path) -> _Chapters:
    """The chapters in a folder, in the order of their numbers."""
    paths = sorted(folder.glob(CHAPTERS))
    found = _Chapters({number_of(path): path.read_text(encoding="utf-8") for path in paths})
    found.names = {number_of(path): path.stem for path in paths}
    return found


def _exercises_page(root: Path, chapters: _Chapters) -> list[str]:
    lines = []
    for number, name in chapters.names.items():
        released = json.loads((root / "notebooks" / name / f"{name}.ipynb").read_text(encoding="utf-8"))
        needs = _needs(root / "solutions" / name / f"{name}.ipynb")
        lines += [f"## {number} · {title_of(chapters[number])}", ""]
        lines += ["| | exercise | points | builds on |", "|---|---|---|---|"]
        for exercise, title, points in exercises(released):
            on = ", ".join(map(str, needs.get(exercise, []))) or "–"
            lines.append(f"| {exercise} | {title.replace('|', chr(92) + '|')} | {points} | {on} |")
        lines.append("")
    return lines


def _needs(solution: Path) -> dict[int, list[int]]:
    """Exercise → the exercises of the same lesson on which it builds, by their numbers."""
    import nbformat

    from autograder.grading.carried import builds_on
    from autograder.lessons import notebook

    nb = nbformat.read(solution, as_version=4)
    answers = [cell.id for cell in nb.cells if notebook.nbgrader_role(cell) == "solution"]
    found: dict[int, set[int]] = defaultdict(set)
    for answer, others in builds_on(answers, [], nb).items():
        found[_exercise(answer)] |= {_exercise(other) for other in others}
    return {exercise: sorted(others - {exercise, 0}) for exercise, others in found.items()}


def _exercise(cell_id: str) -> int:
    match = re.match(r"\d\d-ex(\d+)-", cell_id)
    return int(match[1]) if match else 0


class Collected(SphinxDirective):
    """See the module's docstring."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The page's content."""
        kind, root = self.arguments[0], Path(self.env.srcdir)
        chapters = read_chapters(root / "book")
        for name in chapters.names.values():
            self.env.note_dependency(str(root / "book" / f"{name}.md"))
            self.env.note_dependency(str(root / "notebooks" / name / f"{name}.ipynb"))
        find = {"terms": terms, "questions": questions}.get(kind, lambda chapter: True)
        missing = [name for number, name in chapters.names.items() if not find(chapters[number])]
        messages = [
            self.state_machine.reporter.warning(f"collected: {name}.md has no {kind}", line=self.lineno)
            for name in missing
        ]
        if kind == "exercises":
            lines = _exercises_page(root, chapters)
        else:
            make = {"terms": _terms_page, "questions": _questions_page, "theorems": _theorems_page}[kind]
            lines = make(chapters)
        body = nodes.container()
        text = StringList("\n".join(lines).split("\n"), source=str(self.get_source_info()[0]))
        self.state.nested_parse(text, self.content_offset, body, match_titles=True)
        return [*body.children, *messages]


def setup(app):
    """Register the directive."""
    app.add_directive("collected", Collected)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
