"""`autograder new-lesson NN_topic`: a small lesson that is whole, with one exercise to replace.

Its files are made from `templates/`, in which NN stands for the number, TOPIC for the topic and TITLE for the title.
All texts are made before the first is written, and if anything fails after that, everything is put back as it was.
"""

from __future__ import annotations

import argparse
import contextlib
import keyword
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from autograder.authoring import drafts
from autograder.lessons import notebook, release
from autograder.lessons.files import write_whole

TEMPLATES = Path(__file__).parent / "templates"

#: Template → the file that is made of it, below the repository.
FILES = {
    "notebook.ipynb": "solutions/{lesson}/{lesson}.ipynb",
    "checks.py": "solutions/{lesson}/checks.py",
    "wrong.md": "solutions/{lesson}/wrong.md",
    "verdicts.txt": "solutions/{lesson}/verdicts.txt",
    "right.py": "solutions/{lesson}/right.py",
    "chapter.md": "book/{lesson}.md",
}
#: The pages with a table of the lessons → where their links to chapters begin.
TABLES = {"README.md": "book/", "book/index.md": ""}
TOC = "_toc.yml"
#: What the table of the lessons says of the exercise in the template.
WHAT = "the mean of a tensor over the ranks, with one all-reduce"

_LESSON = re.compile(r"(?P<number>\d\d)_(?P<topic>[a-z][a-z0-9]*(_[a-z0-9]+)*)")
_ROW = re.compile(r"^\| (?P<number>\d\d) \| (?P<name>.*?) \| (?P<what>.*) \| (?P<state>.*?) \|\n", re.MULTILINE)
_CHAPTER = re.compile(r"^( *)- file: book/(\d\d)_\w+\n(?:\1 +.*\n)*", re.MULTILINE)


def add_parser(subparsers: Any) -> None:
    """Add the subcommand `new-lesson`."""
    parser = subparsers.add_parser("new-lesson", help="make a small, complete lesson to start from")
    parser.add_argument("lesson", metavar="NN_topic", help="its number and its topic, as in 18_routing")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status."""
    lesson, root = arguments.lesson, notebook.ROOT
    refuse(root, lesson)
    texts, planned = plan(root, lesson), planned_title(root, lesson[:2])
    with all_or_nothing(root, texts, [f"solutions/{lesson}", f"notebooks/{lesson}"]):
        released = release.release([lesson])
        line = drafts.line(lesson)
    for name in texts:
        print(f"{name} written")
    for said in released:
        print(said)
    if planned:
        print(f"the lesson's title is {planned!r}, as planned for the number {lesson[:2]}")
    print(line)
    print(f"next: autograder audit {lesson}, then replace its exercise (CONTRIBUTING.md)")
    return 0


def refuse(root: Path, lesson: str) -> None:
    """ValueError, in one line, for a name that no new lesson of the repository in `root` can have."""
    match = _LESSON.fullmatch(lesson)
    if not match or keyword.iskeyword(match["topic"]):
        raise ValueError(
            f"{lesson!r} is not a lesson's name: write two digits and a topic in small letters, 18_routing"
        )
    if match["number"] == "00":
        raise ValueError("lessons have numbers from 01 to 99")
    for other in notebook.lessons(root / "solutions"):
        if other.startswith(f"{match['number']}_"):
            raise ValueError(f"the number {match['number']} is taken: {other}")
        if other.split("_", 1)[1] == match["topic"]:
            raise ValueError(f"the topic {match['topic']} is taken: {other}")
    for name in (f"solutions/{lesson}", f"book/{lesson}.md", f"notebooks/{lesson}"):
        if (root / name).exists():
            raise ValueError(f"{name} exists, though there is no lesson {lesson}: move it away first")


def plan(root: Path, lesson: str) -> dict[str, str]:
    """The texts of a new lesson's files, and of those that list the lessons, by name below `root`.

    ValueError for a file in which the place for the lesson cannot be found.
    """
    number, topic = lesson.split("_", 1)
    title = planned_title(root, number) or topic.replace("_", " ").capitalize()
    texts = {}
    for template, place in FILES.items():
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        texts[place.format(lesson=lesson)] = fill(text, {"NN": number, "TOPIC": topic, "TITLE": title})
    texts[TOC] = in_toc((root / TOC).read_text(encoding="utf-8"), lesson, title)
    for name, folder in TABLES.items():
        texts[name] = in_table((root / name).read_text(encoding="utf-8"), name, lesson, title, folder)
    return texts


def planned_title(root: Path, number: str) -> str | None:
    """The title that the table of the lessons has for this number already."""
    rows = _ROW.finditer((root / next(iter(TABLES))).read_text(encoding="utf-8"))
    return next((row["name"] for row in rows if row["number"] == number), None)


def fill(text: str, values: dict[str, str]) -> str:
    """A template's text with these values in the places of their names."""
    return re.sub("|".join(map(re.escape, values)), lambda match: values[match.group()], text)


def in_table(text: str, name: str, lesson: str, title: str, folder: str) -> str:
    """A table of the lessons with a row for the new one: in the place of a planned one, or after the number before it.

    name: the page, for messages. folder: where its links to chapters begin.
    """
    number, root = lesson[:2], "" if folder else "../"
    rows = list(_ROW.finditer(text))
    if not rows:
        raise ValueError(f"{name} has no table of the lessons, with rows such as | 01 | … | … | … |")
    planned = [row for row in rows if row["number"] == number]
    what = planned[0]["what"] if planned else WHAT
    assignment = f"[assignment]({root}notebooks/{lesson}/{lesson}.ipynb)"
    row = f"| {number} | [{title}]({folder}{lesson}.md) | {what} | {assignment} |\n"
    if planned:
        return text[: planned[0].start()] + row + text[planned[0].end() :]
    return _inserted(text, row, [(row["number"], *row.span()) for row in rows], number)


def in_toc(text: str, lesson: str, title: str) -> str:
    """The list of the book's pages with the lesson's chapter and notebook after those of the number before it."""
    chapters = list(_CHAPTER.finditer(text))
    if not chapters:
        raise ValueError(f"{TOC} lists no chapter, such as - file: book/01_collectives")
    indent = chapters[0][1]
    lines = [
        f"- file: book/{lesson}",
        f"  title: {lesson[:2]} · {title}",
        "  sections:",
        f"    - file: notebooks/{lesson}/{lesson}",
        "      title: The assignment",
    ]
    entry = "".join(f"{indent}{line}\n" for line in lines)
    return _inserted(text, entry, [(chapter[2], *chapter.span()) for chapter in chapters], lesson[:2])


def _inserted(text: str, entry: str, others: list[tuple[str, int, int]], number: str) -> str:
    """`text` with `entry` after the last of the others, (number, start, end), that has a lower number."""
    before = [end for other, _, end in others if other < number]
    at = before[-1] if before else others[0][1]
    return text[:at] + entry + text[at:]


@contextlib.contextmanager
def all_or_nothing(root: Path, texts: dict[str, str], folders: list[str], others: Iterable[str] = ()) -> Iterator[None]:
    """Write the texts. If that fails, or what is done inside, everything is as it was before.

    texts: by name below `root`. folders: new folders, also those that are made inside; on failure they are removed.
    others: files that may be written inside.
    """
    kept = [*texts, *others]
    before = {name: (root / name).read_bytes() if (root / name).is_file() else None for name in kept}
    try:
        for name, text in texts.items():
            write_whole(root / name, text)
        yield
    except BaseException:
        for folder in folders:
            shutil.rmtree(root / folder, ignore_errors=True)
        for name, content in before.items():
            if content is None:
                (root / name).unlink(missing_ok=True)
            else:
                write_whole(root / name, content)
        raise
