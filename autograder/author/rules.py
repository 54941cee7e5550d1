"""The rules that every lesson keeps, and what it lacks: each function returns lines that say what to do, and where.

`make check` tries them on all lessons, `autograder try` on the lesson of one exercise.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

from nbformat import NotebookNode

from autograder import checks
from autograder.answers import right, verdicts, wrong
from autograder.answers.answer import Answer
from autograder.author import drafts
from autograder.checks.check import Check
from autograder.lesson import notebook
from autograder.lesson.names import UNPARSABLE, of_cell

#: Exercises whose answer the exercises after them show at work.
LATER = {"13-ex4-backward", "17-ex3-invariants"}
#: The cell of an exercise that gives a name of another cell a new value on purpose, for cells behind the exercise.
REBOUND = {("06-ex5-try", "whole")}
#: The files of a lesson, below the repository.
FILES = (
    "solutions/{lesson}/{lesson}.ipynb",
    "solutions/{lesson}/checks.py",
    "solutions/{lesson}/wrong.md",
    "solutions/{lesson}/verdicts.txt",
    "solutions/{lesson}/right.py",
    "book/{lesson}.md",
)
#: The pages with a table of the lessons → where their links to chapters begin.
TABLES = {"README.md": "book/", "book/index.md": ""}
TOC = "_toc.yml"
#: What stands in all parts of an exercise that `new-exercise` has made, until its author has written them.
TO_REPLACE = "Replace this"
#: Words in a statement, without hints and formulas; about 120 are usual.
STATEMENT = 180
#: Lines of a cell that students see; of an answer as students see it, if it is a class; of an answer and of a class.
SHOWN, SHOWN_CLASS, ANSWER, CLASS = 25, 40, 40, 60

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
_TOTALS = (
    r"(?P<points>[\d.]+)\s+points?\s+in\s+(?P<exercises>\w+)\s+exercises?",
    r"(?P<exercises>\w+)\s+exercises?,\s+(?P<points>[\d.]+)\s+points?",
)
ANSWER_ROLE = {"grade": False, "locked": False, "schema_version": 3, "solution": True, "task": False}
TEST_ROLE = {"grade": True, "locked": True, "schema_version": 3, "solution": False, "task": False}


def lesson_problems(lesson: str) -> list[str]:
    """Every line on a lesson: on its cells, its points, its checks, its known answers and its chapter.

    ValueError, in one line, for a file of the lesson that cannot be read.
    """
    checks.refuse_checks_of_nothing(lesson)
    cells = notebook.read(lesson).cells
    own = [one for cell in cells if _role(cell) == "solution" for one in checks.of_exercise(cell.id)]
    mistakes = wrong.load_wrong(lesson)
    chapter = notebook.ROOT / "book" / f"{lesson}.md"
    return [
        *strange_form(lesson),
        *strange_markup(cells),
        *wrong_sizes(lesson),
        *strange_cells(lesson, cells),
        *strange_regions(cells),
        *rebound_names(cells),
        *long_cells(cells),
        *long_statements(cells),
        *wrong_points(lesson, cells),
        *wrong_totals(lesson, cells, chapter.read_text(encoding="utf-8") if chapter.is_file() else ""),
        *without_example(cells),
        *missing_parts(lesson, cells, own, mistakes, right.load_right(lesson)),
        *unlike_the_record(mistakes, verdicts.read(lesson)),
        *strange_answers(own, mistakes),
        *not_replaced(notebook.SOLUTIONS / lesson),
    ]


# ---- files ----


def strange_form(lesson: str) -> list[str]:
    """A notebook that is not stored as all are: it has outputs, or what an editor writes besides the cells."""
    path = notebook.solution_path(lesson)
    text, nb = path.read_text(encoding="utf-8"), notebook.read(lesson)
    found = [
        f"{notebook.place(cell.id)}: {cell.id} is empty: remove it" for cell in nb.cells if not cell.source.strip()
    ]
    if text != notebook.stored(nb):
        having = [cell.id for cell in nb.cells if cell.get("outputs") or cell.get("execution_count")]
        what = f"{having[0]} has outputs" if having else "it is not in the form in which solutions are stored"
        found.append(f"{path.relative_to(notebook.ROOT)}: {what}: close it in the editor and run make notebooks")
    return found


def wrong_sizes(lesson: str) -> list[str]:
    """What the lesson has too little or too much of, unless it is a draft."""
    if drafts.is_draft(lesson):
        return []
    return [f"{lesson} has not the size of a lesson: {size}" for size in drafts.sizes(lesson) if not size.fits]


def stray_spaces(path: Path) -> list[str]:
    """The lines of a text that end with a blank, and a last line without a line break."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(notebook.ROOT) if path.is_relative_to(notebook.ROOT) else path
    found = [n for n, line in enumerate(text.split("\n"), start=1) if line.endswith((" ", "\t"))]
    lines = [f"{name}:{n}: the line ends with a blank: remove it" for n in found]
    return lines + ([f"{name}: the last line has no line break: add one"] if text and not text.endswith("\n") else [])


# ---- cells ----


def strange_markup(cells: Iterable[NotebookNode]) -> list[str]:
    """Cells whose markup JupyterLab shows raw, and a lesson without its one cell of parameters."""
    cells = list(cells)
    found = [
        f"{notebook.place(cell.id)}: JupyterLab shows the ::: or ```{{…}} of {cell.id} raw: write plain Markdown"
        for cell in cells
        if re.search(r"^:::|^```{", cell.source, flags=re.MULTILINE)
    ]
    tagged = [cell.id for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        found.append(f"one cell of a lesson has the tag parameters, here: {', '.join(tagged) or 'none'}")
    return found


def strange_cells(lesson: str, cells: Iterable[NotebookNode]) -> list[str]:
    """Names that cells cannot have, and graded cells that are not an answer and its test, in the order of exercises."""
    cells, number = list(cells), lesson[:2]
    ids = [cell.id for cell in cells]
    found = [
        f"{notebook.place(name)}: a cell's id is {number}- and words in small letters, {number}-ex1-try, not {name}"
        for name in ids
        if not re.fullmatch(rf"{number}-[a-z0-9]+(-[a-z0-9]+)*", name)
    ]
    found += [f"{notebook.place(name)}: two cells have the id {name}" for name in set(ids) if ids.count(name) > 1]
    graded = [cell for cell in cells if _role(cell) in ("solution", "grade")]
    for at, cell in enumerate(graded):
        answer, exercise = graded[at - at % 2].id, at // 2 + 1
        wanted = f"{answer}-test" if at % 2 else answer
        keys = {**(TEST_ROLE if at % 2 else ANSWER_ROLE), "grade_id": wanted}
        keys |= {"points": cell.metadata.nbgrader.get("points")} if at % 2 else {}
        if cell.id != wanted:
            found.append(
                f"{notebook.place(cell.id)}: after the answer {answer} comes {wanted}, its test, not {cell.id}"
            )
        elif not cell.id.startswith(f"{number}-ex{exercise}-"):
            found.append(
                f"{notebook.place(cell.id)}: exercises are numbered in their order: "
                f"this one is {number}-ex{exercise}, not {cell.id}"
            )
        elif wrong_keys := sorted(
            key for key in {**keys, **cell.metadata.nbgrader} if keys.get(key) != cell.metadata.nbgrader.get(key)
        ):
            what = ", ".join(f"{key} should be {keys.get(key, 'left out')!r}" for key in wrong_keys)
            found.append(f"{notebook.place(cell.id)}: the nbgrader metadata of {cell.id}: {what}")
        elif at % 2 and not cell.metadata.nbgrader.points > 0:
            found.append(f"{notebook.place(cell.id)}: {cell.id} has no points: write them into its nbgrader metadata")
    if not graded or len(graded) % 2:
        found.append(f"{lesson} needs an answer cell and a test cell for each exercise")
    return found


def strange_regions(cells: Iterable[NotebookNode]) -> list[str]:
    """Answers and tests whose parts are not marked, or that do not say what is asked."""
    found = []
    for cell in cells:
        role, place = _role(cell), notebook.place(cell.id)
        if role == "question":  # nbgrader says what is wrong with it
            continue
        region = {"solution": "SOLUTION", "grade": "HIDDEN TESTS"}.get(role, "")
        marks = re.findall(r"^\s*### (BEGIN|END) (.*)$", cell.source, flags=re.MULTILINE)
        # An answer has a region in each function or method that is to be written.
        times = max(len(marks) // 2, 1) if role == "solution" else 1
        if marks != [(word, region) for word in ("BEGIN", "END")] * times * bool(role):
            how = f"one `### BEGIN {region}` and one `### END {region}`" if role else "no `### BEGIN` and `### END`"
            found.append(f"{place}: {cell.id} needs {how}{' for each function' if role == 'solution' else ''}")
        if role and '"""' not in cell.source.split("### BEGIN")[0]:
            found.append(f"{place}: {cell.id} needs a docstring that says what is asked, above its first region")
        if role == "solution" and not _defines_alone(cell.source):
            found.append(f"{place}: {cell.id} should define functions and classes alone: move the rest to another cell")
    return found


def rebound_names(cells: Iterable[NotebookNode]) -> list[str]:
    """The cells of an exercise that give a name of another cell a new value, which a cell behind the exercise reads.

    Whoever runs the whole notebook meets an error in the reader, and the cell at fault is elsewhere.
    """
    found, bound = [], dict[str, list[NotebookNode]]()
    for cell in (cell for cell in cells if cell.cell_type == "code"):
        with contextlib.suppress(*UNPARSABLE):
            names = of_cell(cell)
            for name in sorted(names.reads - names.defines):
                *before, last = bound.get(name) or [cell]
                others = [one for one in before if _role(one) != "grade" and short_of(one.id) != short_of(last.id)]
                in_exercise = re.fullmatch(r"\d+-ex\d+", short_of(last.id)) and short_of(cell.id) != short_of(last.id)
                if in_exercise and (others or _role(last) == "grade") and (last.id, name) not in REBOUND:
                    meant = f", and {others[-1].id} defines" if others else ""
                    what = f"{last.id} defines {name} anew, which {cell.id} reads{meant}"
                    found.append(f"{notebook.place(last.id)}: {what}: choose another name")
            for name in names.defines:
                bound.setdefault(name, []).append(cell)
    return list(dict.fromkeys(found))


def long_cells(cells: Iterable[NotebookNode]) -> list[str]:
    """The cells that cannot be taken in at a glance, as students see them; an answer may be longer than its stub."""
    found = []
    for cell in cells:
        if cell.cell_type != "code":
            continue
        region = r"^([ \t]*)### BEGIN (SOLUTION|HIDDEN TESTS)\n.*?^[ \t]*### END \2\n?"
        stub = re.sub(
            region, lambda match: "x\n" if match[2] == "SOLUTION" else "", cell.source + "\n", flags=re.DOTALL | re.M
        )
        is_answer, is_class = _role(cell) == "solution", re.search("^class ", cell.source, re.MULTILINE)
        whole, shown = cell.source.count("\n") + 1, stub.rstrip().count("\n") + 1
        most_shown = SHOWN_CLASS if is_answer and is_class else SHOWN
        most = CLASS if is_class else ANSWER
        if shown > most_shown:
            found.append(
                f"{notebook.place(cell.id)}: students see {shown} lines of {cell.id}: at most {most_shown}, cut it"
            )
        elif is_answer and whole > most:
            found.append(f"{notebook.place(cell.id)}: {cell.id} has {whole} lines: at most {most}, make it shorter")
    return found


def long_statements(cells: Iterable[NotebookNode]) -> list[str]:
    """The statements with more words than a student reads at once."""
    found = []
    for cell in cells:
        if cell.cell_type == "markdown" and re.fullmatch(r"\d\d-ex\d+", cell.id):
            words = words_of(cell.source)
            if words > STATEMENT:
                found.append(
                    f"{notebook.place(cell.id)}: the statement of {cell.id} has {words} words, its hints left out: "
                    f"at most {STATEMENT}, say it in fewer or split the exercise"
                )
    return found


def words_of(statement: str) -> int:
    """The words of a statement from its heading on; folded hints do not count, and a formula is one word."""
    text = re.split(r"^#+ Exercise", statement, flags=re.MULTILINE)[-1]
    text = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    return len(re.sub(r"\$\$.*?\$\$|```.*?```|\$[^$]*\$", "x", text, flags=re.DOTALL).split())


# ---- points ----


def wrong_points(lesson: str, cells: Iterable[NotebookNode]) -> list[str]:
    """What the title cell and the headings of the exercises say of points, where the graded cells have others."""
    cells = list(cells)
    points = {cell.id: cell.metadata.nbgrader.points for cell in cells if _role(cell) == "grade"}
    texts = {cell.id: cell.source for cell in cells if cell.cell_type == "markdown"}
    by_hand = sum(cell.metadata.nbgrader.points for cell in cells if _role(cell) == "question")
    title, total = f"{lesson[:2]}-title", f"{sum(points.values()) + by_hand:g} points"
    found = []
    if not re.search(rf"· {total.removesuffix('s')}s?\b", texts.get(title, "")):
        found.append(f"{notebook.place(title)}: the exercises have {total} in all: write `· {total}` into the title")
    for test, worth in points.items():
        short = short_of(test)
        heading = rf"^#+ Exercise {short.partition('-ex')[2]}\b.*\({worth:g} points?\)"
        if not re.search(heading, texts.get(short, ""), re.MULTILINE):
            found.append(
                f"{notebook.place(short)}: {test} has {worth:g} points: write `({worth:g} points)` into the heading"
            )
    return found


def wrong_totals(lesson: str, cells: Iterable[NotebookNode], chapter: str) -> list[str]:
    """What the chapter says of the number of exercises and of their points, where the notebook has others."""
    right_text, found = with_totals(chapter, cells), []
    for number, (line, wanted) in enumerate(zip(chapter.split("\n"), right_text.split("\n"), strict=True), start=1):
        if line != wanted:
            found.append(f"book/{lesson}.md:{number}: the notebook has other totals: write {wanted.strip()[:100]!r}")
    return found


def with_totals(chapter: str, cells: Iterable[NotebookNode]) -> str:
    """A chapter whose section on the exercises says how many there are, and their points, as the notebook has them."""
    tests = [cell for cell in cells if _role(cell) == "grade"]
    points, count = f"{sum(cell.metadata.nbgrader.points for cell in tests):g}", len(tests)
    words = _NUMBERS[count] if count < len(_NUMBERS) else str(count)
    head, heading, section = chapter.partition("\n## Exercises\n")

    def corrected(match: re.Match) -> str:
        new = {"points": points, "exercises": str(count) if match["exercises"].isdigit() else words}
        text = match[0]
        for name in sorted(new, key=match.start, reverse=True):
            begin, end = match.start(name) - match.start(), match.end(name) - match.start()
            text = text[:begin] + new[name] + text[end:]
        return text

    for pattern in _TOTALS:
        section = re.sub(pattern, corrected, section)
    return head + heading + section


# ---- parts ----


def without_example(cells: Iterable[NotebookNode]) -> list[str]:
    """The exercises that no cell shows at work: neither an answer nor a test."""
    codes = [cell for cell in cells if cell.cell_type == "code"]
    examples = {short_of(cell.id) for cell in codes if not _role(cell)}
    answers = [cell.id for cell in codes if _role(cell) == "solution"]
    return [
        f"{one} has no example: add a cell {short_of(one)}-try that runs the answer"
        for one in answers
        if short_of(one) not in examples and one not in LATER
    ]


def missing_parts(
    lesson: str, cells: Iterable[NotebookNode], own: Iterable[Check], mistakes: list[Answer], others: list[Answer]
) -> list[str]:
    """The exercises without a check, a known wrong answer or another right one; and answers to no exercise."""
    exercises = [cell.id for cell in cells if _role(cell) == "solution"]
    parts = {
        ("check", f"solutions/{lesson}/checks"): {one.exercise for one in own},
        ("known wrong answer", f"solutions/{lesson}/wrong.md"): {answer.cell for answer in mistakes},
        ("other right answer", f"solutions/{lesson}/right.py"): {answer.cell for answer in others},
    }
    found = [
        f"{one} has no {what}: add one to {where}"
        for one in exercises
        for (what, where), have in parts.items()
        if one not in have
    ]
    strange = [answer for answer in [*mistakes, *others] if answer.cell not in exercises]
    return found + [
        f"{one.name} answers {one.cell}, which is no exercise of {lesson}: correct its cell, or add it to the notebook"
        for one in strange
    ]


def strange_answers(own: Iterable[Check], answers: list[Answer]) -> list[str]:
    """The known answers that are recorded to fail a check which their exercise lacks."""
    found, own = [], list(own)
    for one in answers:
        names = {check.name for check in own if check.exercise == one.cell}
        strange = [name for name in one.fails if name not in names]
        there = f"no check of {one.cell}: its checks are {', '.join(sorted(names))}"
        found += [f"{one.name} is recorded to fail {name}, which is {there}" for name in strange]
    return found


def unlike_the_record(answers: list[Answer], recorded: Iterable[tuple[str, str]]) -> list[str]:
    """The wrong answers of which nothing is recorded, and what is recorded of answers that are no more."""
    known, there = {(one.cell, one.name) for one in answers}, set(recorded)
    found = []
    for pairs, what in ((there - known, "recorded, but no wrong answer"), (known - there, "not recorded")):
        for cell in sorted({cell for cell, _ in pairs}):
            names = sorted(name for other, name in pairs if other == cell)
            found.append(f"{', '.join(names)} {'are' if names[1:] else 'is'} {what}: {verdicts.to_record(cell)}")
    return found


def not_replaced(folder: Path) -> list[str]:
    """The parts of an exercise that are still those which `new-exercise` has made."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".ipynb", ".py", ".md")):
        place = path.relative_to(notebook.ROOT) if path.is_relative_to(notebook.ROOT) else path
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(TO_REPLACE, text) if TO_REPLACE in text else ():
            above, below = text[: match.start()], text[match.start() :]
            exercises = re.findall(r"\b\d\d-ex\d+", above)[-1:] or re.findall(r"\b\d\d-ex\d+", below)[:1]
            what = f"{''.join(exercises)} is the example of new-exercise here: write your own in its place"
            found.append(f"{place}:{above.count(chr(10)) + 1}: {what}")
    return found


def missing_files(lesson: str, root: Path) -> list[str]:
    """The files of a lesson that are not in the repository in `root`."""
    places = [place.format(lesson=lesson) for place in FILES]
    packages = {name: name.removesuffix(".py") for name in places}
    there = [(root / name).is_file() or (root / packages[name] / "__init__.py").is_file() for name in places]
    return [f"{lesson} has no {name}: add it" for name, found in zip(places, there, strict=True) if not found]


def missing_in_lists(lesson: str, pages: dict[str, str]) -> list[str]:
    """The pages that should list the lesson and do not. pages: each name in LISTS → its text."""
    found = []
    for name, text in pages.items():
        wanted = f"]({TABLES[name]}{lesson}.md)" if name in TABLES else f"file: book/{lesson}\n"
        if wanted not in text:
            found.append(
                f"{name} does not list {lesson}: add its chapter to {'the table' if '(' in wanted else 'a part'}"
            )
    return found


def short_of(cell: str) -> str:
    """What all cells of an exercise begin with: `08-ex3` for `08-ex3-step-test`."""
    return "-".join(cell.split("-")[:2])


def _defines_alone(source: str) -> bool:
    """Is this source nothing but definitions of functions and classes?"""
    with contextlib.suppress(*UNPARSABLE):
        return all(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.parse(source).body)
    return False


def _role(cell: NotebookNode) -> str:
    return notebook.nbgrader_role(cell)
