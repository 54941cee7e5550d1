"""What every lesson and every page has in common; quick enough to run after each change (`make check`)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pybtex.database
import pytest

from autograder import properties
from autograder.author import drafts, rules
from autograder.lesson import notebook

ROOT = Path(__file__).resolve().parents[2]
LESSONS = notebook.lessons()
#: What compares numbers, however it is imported.
CLOSE = {"isclose", "allclose", "equal", "array_equal", "array_equiv"}
TEXTS = {".md", ".py", ".toml", ".yml", ".txt", ".ipynb", ".css", ".bib", ".svg"}


def ours():
    """Every text file that we wrote."""
    folders = [
        "autograder",
        "benchmarks",
        "book",
        "examples",
        "machines",
        "notebooks",
        "planner",
        "ranks",
        "solutions",
        "tests",
    ]
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    return [path for path in files if path.suffix in TEXTS and "_vendor" not in path.parts]


# Notebooks


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_solution_is_a_notebook_of_one_version(lesson):
    nb = nbformat.read(notebook.solution_path(lesson), as_version=nbformat.NO_CONVERT)
    assert (nb.nbformat, nb.nbformat_minor) == (4, 5)
    nbformat.validate(nb)
    assert {cell.cell_type for cell in nb.cells} == {"code", "markdown"}


def test_a_lesson_of_another_size_is_named_unless_it_is_a_draft(monkeypatch):
    lesson = LESSONS[0]
    assert rules.wrong_sizes(lesson) == []
    del (shorter := notebook.read(lesson)).cells[20:]
    monkeypatch.setattr(notebook, "read", lambda name: shorter)
    assert f"{lesson} has not the size of a lesson: cells 20 (35 to 60)" in rules.wrong_sizes(lesson)
    shorter.cells[0].metadata.tags = ["draft"]
    assert rules.wrong_sizes(lesson) == []
    assert drafts.line(lesson).startswith(f"{lesson} is a draft: cells 20 (35 to 60), ")


# What the visible assertions say


def silent_assertions(nb):
    """The visible assertions that compare a value and do not show it, though students are told that messages do."""
    found = []
    for cell in (cell for cell in nb.cells if notebook.nbgrader_role(cell) == "grade"):
        for node in ast.walk(ast.parse(properties.rest_of(cell))):
            if isinstance(node, ast.Assert) and compares_values(node.test) and not shows_one_of(node.test, node.msg):
                found.append(f"{cell.id}: {ast.unparse(node)}: say in an f-string what came, and what was expected")
    return found


def compares_values(node):
    """Does this part of an assertion compare anything but two booleans?"""
    if isinstance(node, ast.Compare):
        return not any(is_boolean(side) for side in (node.left, *node.comparators))
    if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in CLOSE:
        return True
    return any(compares_values(child) for child in ast.iter_child_nodes(node))


def is_boolean(node):
    return (
        isinstance(node, ast.Compare)
        or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
        or (isinstance(node, ast.Constant) and isinstance(node.value, bool))
    )


def shows_one_of(compared, message):
    """Is the message an f-string with a value that is compared?"""
    values = message.values if isinstance(message, ast.JoinedStr) else []
    shown = [value for value in values if isinstance(value, ast.FormattedValue)]
    return bool(variables(compared) & {name for value in shown for name in variables(value)})


def variables(node):
    """The names that are read here, other than those of functions that are called."""
    called = {id(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and id(one) not in called}


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_visible_assertion_shows_the_value_that_it_compares(lesson):
    assert not silent_assertions(notebook.read(lesson))


@pytest.mark.parametrize(
    "assertion",
    [
        "assert f(1) == [3]",
        'assert list(f(1)) == [3], "three layers free 15"',
        'assert list(f(1)) == [3], f"three layers free 15"',
        'assert math.isclose(f(1), 3), "two more of the forward"',
        'assert np.allclose(f(1), [3]) and good, "the new weights have no say"',
        'assert torch.equal(got[:4], got[4:]), "then the same cycle again"',
        'assert all(abs(one - 3) < 1e-6 for one in got), "about 3"',
        'assert got is None, "nothing in a healthy run"',
        'assert whole["hashes"] == rest["hashes"], f"rank {rank}: the parameters differ"',
        'assert len(got) == 3, f"{len(expected)} were expected"',
        'for got in f(1):\n    with x:\n        assert got == 3, "three"',
        'def trial(rank, world_size):\n    assert f(rank) == 3, "three"',
    ],
)
def test_an_assertion_that_shows_no_value_is_named(assertion):
    nb = notebook.read(LESSONS[0])
    assert silent_assertions(nb) == []
    test = [cell for cell in nb.cells if notebook.nbgrader_role(cell) == "grade"][-1]
    test.source += f"\n{assertion}"
    (said,) = silent_assertions(nb)
    assert said.startswith(f"{test.id}: assert ")


@pytest.mark.parametrize(
    "assertion",
    [
        'assert got == [3], f"got {got}, expected [3]"',
        'assert len(got["steps"]) == 3, f"rank {rank}: the steps are {got[\'steps\']}, expected three"',
        'assert cleared, "weight.grad is still there"',
        'assert not zeros.any(), "adam_update changed its arguments"',
        'assert (got is None) == (world_size == 1), "only one rank has none"',
        'assert same is True, "a second call must return the tensor of the first"',
        "### BEGIN HIDDEN TESTS\nfrom autograder.checks import try_exercise\nassert f(1) == 3\n### END HIDDEN TESTS",
    ],
)
def test_an_assertion_on_a_fact_needs_no_value(assertion):
    nb = notebook.read(LESSONS[0])
    [cell for cell in nb.cells if notebook.nbgrader_role(cell) == "grade"][-1].source += f"\n{assertion}"
    assert silent_assertions(nb) == []


# Pages


def lesson_rows(page):
    """The rows of the table of lessons: number → (name, its chapter or "", its assignment or "")."""
    row = r"^\| (\d\d) \| (?:\[(.*?)\]\((.*?)\)|(.*?)) \| .* \| (?:\[assignment\]\((.*?)\)|planned) \|$"
    rows = re.findall(row, page.read_text(), re.MULTILINE)
    return {number: (linked or plain, link, assignment) for number, linked, link, plain, assignment in rows}


def test_both_tables_of_lessons_say_what_is_there():
    home, readme = lesson_rows(ROOT / "book" / "index.md"), lesson_rows(ROOT / "README.md")
    assert list(home) == sorted(home)
    there = {lesson.split("_")[0]: lesson for lesson in LESSONS}
    assert set(there) <= set(home)
    for number, (name, link, assignment) in home.items():
        assert readme[number] == (name, f"book/{link}" if link else "", assignment.removeprefix("../"))
        lesson = there.get(number)
        expected = (f"{lesson}.md", f"../notebooks/{lesson}/{lesson}.ipynb") if lesson else ("", "")
        assert (link, assignment) == expected, f"{number}: the table of lessons is out of date"


def test_the_book_holds_every_lesson_and_its_notebook():
    toc, names = (ROOT / "_toc.yml").read_text(), lesson_rows(ROOT / "book" / "index.md")
    for lesson in LESSONS:
        number = lesson[:2]
        assert re.search(rf"file: book/{lesson}\n *title: {number} · {re.escape(names[number][0])}\n", toc), lesson
        assert f"file: notebooks/{lesson}/{lesson}\n" in toc


def test_pages_name_the_command_that_can_be_called_in_any_folder():
    """`python -m` takes modules from the folder in which it is called, such as a student's."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "book").rglob("*.md"), *(ROOT / "autograder").rglob("*.j2")]
    assert not [str(page) for page in pages if "python -m autograder" in page.read_text()]


def test_a_captioned_cell_has_one_short_caption_and_hides_its_code():
    cells = re.compile(r"^```\{code-cell\} python\n((?::.*\n)*)", re.MULTILINE)
    seen = 0
    for lesson in LESSONS:
        for options in cells.findall((ROOT / "book" / f"{lesson}.md").read_text()):
            captions = re.findall(r"^:caption: (.*)$", options, re.MULTILINE)
            if captions:
                assert len(captions) <= 1 and all(len(caption) < 110 for caption in captions), f"{lesson}: {captions}"
                hides = re.search(r"^:tags: .*(remove|hide)-(input|cell)", options, re.MULTILINE)
                assert hides, f"{lesson}: the code of a figure is in sight: {captions}"
                seen += len(captions)
    assert seen > 20


def test_every_source_is_complete_and_listed_once():
    for key, entry in pybtex.database.parse_file(ROOT / "book" / "references.bib").entries.items():
        fields = {name.lower() for name in (*entry.fields, *entry.persons)}
        # Documentation that is rewritten all the time has no year.
        assert fields >= {"author", "title", *(() if entry.type == "misc" else ("year",))}, key
        assert fields & {"doi", "url", "eprint"}, f"where is it to be found? {key}"


def test_no_file_names_the_folder_it_was_made_in():
    found = [path for path in ours() if str(ROOT) in path.read_text() or str(Path.home()) + "/" in path.read_text()]
    assert not found


def test_files_end_with_a_line_break_and_have_no_stray_spaces():
    kept = [path for path in ours() if path.suffix not in (".ipynb", ".txt") and "examples" not in path.parts]
    assert not [line for path in kept for line in rules.stray_spaces(path)]
