"""The reference pages that are collected from chapters and assignments."""

import importlib
import json
import re
import sys

import pytest
from docutils import nodes, utils

from autograder.lesson import chapter, notebook

sys.path.insert(0, str(notebook.ROOT / "book" / "_ext"))
collected, effort = importlib.import_module("collected"), importlib.import_module("effort")

CHAPTER = r"""# A title

::::{prf:theorem} A name
:label: thm-name

One is one:

$$
1 = 1
$$ (eq-one)
::::

:::{prf:lemma}
:label: lem-without-a-name
Nothing.
:::

## Key terms

| people say | it means |
|---|---|
| rank | one process |
| `a \| b` | a size |

## Interview questions

:::{dropdown} Why $2T$?
Because.
:::

## Exercises

:::{dropdown} Not a question of an interview
:::
"""


def test_what_a_chapter_holds():
    assert collected.title_of(CHAPTER) == "A title"
    assert collected.questions(CHAPTER) == ["Why $2T$?"]
    assert collected.theorems(CHAPTER) == [("thm-name", "A name", "One is one:\n\n$$\n1 = 1\n$$")]
    assert collected.section(CHAPTER, "Nothing of that name") == ""


def test_terms_are_the_rows_of_the_table():
    assert collected.terms(CHAPTER) == [("rank", "one process"), ("`a \\| b`", "a size")]


def test_exercises_are_found_wherever_their_heading_stands():
    cells = [
        {"cell_type": "markdown", "source": ["Some text.\n", "\n", "### Exercise 2 · `f(x)` (1 point)\n", "\n", "Do."]},
        {"cell_type": "markdown", "source": "## Exercise 10 (3 points) · the whole\n"},
        {"cell_type": "code", "source": "# ### Exercise 3 · no (2 points)"},
    ]
    assert collected.exercises({"cells": cells}) == [(2, "`f(x)`", 1), (10, "the whole", 3)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("About 2 to 4 hours: the less if you can · 2 points", "2 to 4 hours"),
        ("About 3½ hours, in two sittings · 2 points", "3½ hours"),
        ("Two sittings of about two hours; stop where you like", "4 hours"),
        ("It takes hours", "–"),
    ],
)
def test_an_assignment_says_how_long_it_takes(text, expected):
    assert collected._hours({"cells": [{"source": ["# A title\n", "\n", text]}]}) == expected


def test_the_shortest_way_to_the_capstone_has_all_that_it_builds_on():
    pairs = re.findall(r"\b(\d\d)<([\d,]+)", (notebook.ROOT / "book" / "index.md").read_text())
    needs, way = {lesson: set(on.split(",")) for lesson, on in pairs}, {"17"}
    while more := set().union(*(needs.get(lesson, set()) for lesson in way)) - way:
        way |= more
    said = re.search(
        r"way to the capstone is (.*?), and each", (notebook.ROOT / "book/start/student.md").read_text(), re.S
    )
    assert re.findall(r"\d\d", said[1]) == sorted(way)


@pytest.mark.parametrize("lesson", notebook.lessons())
def test_nothing_of_a_lesson_is_left_out(lesson):
    chapter = (notebook.ROOT / "book" / f"{lesson}.md").read_text()
    assert len(collected.terms(chapter)) >= 3 and len(collected.questions(chapter)) >= 3
    named = re.findall(r"^:::+\{prf:(?:theorem|lemma|definition)\} \S", chapter, re.MULTILINE)
    assert len(collected.theorems(chapter)) == len(named)
    released = json.loads((notebook.NOTEBOOKS / lesson / f"{lesson}.ipynb").read_text())
    tests = [cell for cell in released["cells"] if cell["metadata"].get("nbgrader", {}).get("grade")]
    points = sum(cell["metadata"]["nbgrader"]["points"] for cell in tests)
    assert sum(points for _, _, points in collected.exercises(released)) == points
    assert collected._hours(released) != "–", "the title cell says nothing like `About 2 hours`"


def page(marked):
    """A chapter with 1,200 words of core, 1,200 and 120 lines of code that are folded, which say so if `marked`."""
    paragraph = nodes.paragraph("", "word " * 1200)
    folded = nodes.container("", paragraph.deepcopy(), design_component="dropdown")
    document = utils.new_document("")
    code = nodes.container("", nodes.literal_block("", "line\n" * 120), classes=["cell_input"])  # 13 minutes
    cell = nodes.container("", code, hide_mode="input")
    document += nodes.section("", nodes.title("", "A title"), paragraph, nodes.math_block(), folded, cell)
    for name in [*(["Optional sections"] * marked), "Quiz"]:
        document[0] += nodes.section("", nodes.title("", name), nodes.literal_block("", "line\n" * 12))
    return document


def test_a_chapter_with_optional_sections_says_the_minutes_of_its_core_and_of_all():
    assert effort.reading(page(marked=True)) == [15, 45]  # 13 + 2/3; 40 + 2/3 + 4/3 + 4/3
    assert effort.reading(page(marked=False)) == [45]
    assert effort.reading(utils.new_document("")) == [5]


def test_many_numbers_take_their_time():
    formula = nodes.math("", "2 " * 20)  # not counted as numbers
    for text, times in (("word " * 90 + "7 " * 10, 1), ("word " * 80 + "3.5 MB " * 20, effort.SLOWER)):
        paragraph = nodes.paragraph("", "", nodes.Text(text), formula.deepcopy())
        assert effort.minutes_of(paragraph) == pytest.approx(times * effort.WORD * len(paragraph.astext().split()))


def test_the_words_of_a_core_are_counted_without_what_is_optional(tmp_path, monkeypatch):
    (tmp_path / "book").mkdir()
    text = CHAPTER.replace(
        "## Key terms", ":::{dropdown} Optional: more\nA b c.\n:::\n\n## Optional sections\n\nD e f.\n\n## Key terms"
    )
    (tmp_path / "book" / "01_one.md").write_text(text)
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    assert chapter.core_words("01_one") == 7  # A title. One is one: formula. Nothing.
    (tmp_path / "book" / "01_one.md").write_text(CHAPTER)
    assert chapter.core_words("01_one") == 0 < chapter.words("01_one")
