"""A class of eleven who hand in what classes hand in. `autograder grade --example` makes it, and grades it.

Where a lesson or a known answer has changed, write the points that they should have anew (after `make notebooks`):

    .venv/bin/python examples/class/make.py

Each submission is the released notebook with answers put in, and then what that student did to it. The
expected points follow from that: an exercise loses the points of the properties that a wrong answer in it is recorded
to fail, and has none where the student left, lost or looped it. Everything else has all of its points, also what builds
on these.
"""

from __future__ import annotations

import ast
import copy
import csv
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from autograder import properties
from autograder.answers import right, wrong
from autograder.lesson import notebook

EXPECTED = Path(__file__).resolve().with_name("expected.csv")


@dataclass
class Paper:
    """One student's notebook while it is made. lost: the test cells that will have no points. fails: test cell → the
    properties that will have none, where the others keep theirs."""

    lesson: str
    nb: nbformat.NotebookNode
    solution: nbformat.NotebookNode
    lost: set[str] = field(default_factory=set)
    fails: dict[str, tuple[str, ...]] = field(default_factory=dict)
    broken: bool = False

    @property
    def answers(self) -> list[str]:
        """The names of the answer cells, in order."""
        return [cell.id for cell in self.solution.cells if notebook.nbgrader_role(cell) == "solution"]

    @property
    def tests(self) -> list[nbformat.NotebookNode]:
        """The test cells of the solution notebook, in order."""
        return [cell for cell in self.solution.cells if notebook.nbgrader_role(cell) == "grade"]

    def cell(self, name: str) -> nbformat.NotebookNode:
        """The cell with this id in the student's notebook."""
        return self.nb.cells[self.at(name)]

    def at(self, name: str) -> int:
        """The position of a cell."""
        return next(at for at, cell in enumerate(self.nb.cells) if cell.id == name)

    def write(self, *names: str) -> None:
        """Put the solution's answer into these cells."""
        for name in names:
            self.put(name, next(cell.source for cell in self.solution.cells if cell.id == name))

    def put(self, name: str, source: str) -> None:
        """Put an answer into a cell, without the marks of the solution."""
        lines = [line for line in source.rstrip("\n").split("\n") if "### BEGIN" not in line and "### END" not in line]
        self.cell(name).source = "\n".join(lines)

    def leave(self, *names: str) -> None:
        """These exercises will have no points; `names` are their answer cells."""
        self.lost |= {f"{name}-test" for name in names}

    def mistake(self, name: str) -> None:
        """Put in the wrong answer of this name."""
        known = next(known for known in wrong.load_wrong(self.lesson) if known.name == name)
        self.put(known.cell, known.source)
        test = next(one for one in self.tests if one.id == f"{known.cell}-test")
        self.fails[test.id] = known.fails or (properties.of_test(test)[0].name,)

    def points(self, test: nbformat.NotebookNode) -> float:
        """What a test cell will give."""
        if test.id in self.lost:
            return 0.0
        fails = self.fails.get(test.id, ())
        return properties.earned([(one.name, one.points, one.name not in fails) for one in properties.of_test(test)])


def all_right(paper: Paper) -> None:
    """Writes what the solution says."""
    paper.write(*paper.answers)


def another_way(paper: Paper) -> None:
    """Writes every answer for which there is another right way in that way."""
    all_right(paper)
    for answer in reversed(right.load_right(paper.lesson)):  # the first one of each exercise stays
        paper.put(answer.cell, answer.source)


def mistakes(*names: str) -> Callable[[Paper], None]:
    """Right but for these wrong answers."""

    def write(paper: Paper) -> None:
        all_right(paper)
        for name in names:
            paper.mistake(name)

    return write


def untouched(paper: Paper) -> None:
    """Hands in the notebook as it was released."""
    paper.leave(*paper.answers)


def half_done(*written: str) -> Callable[[Paper], None]:
    """Writes these answers and leaves the others."""

    def write(paper: Paper) -> None:
        paper.write(*written)
        paper.leave(*(name for name in paper.answers if name not in written))

    return write


def cut_off(paper: Paper) -> None:
    """A right answer in a file that was cut off on its way."""
    all_right(paper)
    paper.broken = True
    paper.leave(*paper.answers)


def tampers(mistake: str) -> Callable[[Paper], None]:
    """One mistake, and hopes: deletes its test, and doubles, empties or retypes the tests of other exercises."""

    def write(paper: Paper) -> None:
        all_right(paper)
        paper.mistake(mistake)
        victim = f"{next(m.cell for m in wrong.load_wrong(paper.lesson) if m.name == mistake)}-test"
        del paper.nb.cells[paper.at(victim)]
        doubled, emptied, retyped = [test.id for test in paper.tests if test.id != victim][:3]
        twin = copy.deepcopy(paper.cell(doubled))
        twin.id = "copy"
        paper.nb.cells.insert(paper.at(doubled) + 1, twin)
        paper.cell(emptied).source = "pass"
        before = paper.cell(retyped)
        paper.nb.cells[paper.at(retyped)] = new_markdown_cell(before.source, id=before.id, metadata=before.metadata)

    return write


def never_ends(answer: str) -> Callable[[Paper], None]:
    """The cell of this answer goes round for ever."""

    def write(paper: Paper) -> None:
        all_right(paper)
        paper.cell(answer).source += "\n\nwhile True:\n    pass"
        paper.leave(answer)

    return write


def noisy(paper: Paper) -> None:
    """Right, with warnings and prints, on stderr too, in every answer."""
    all_right(paper)
    for name in paper.answers:
        cell = paper.cell(name)
        noise = 'import sys\nimport warnings\n\nwarnings.warn("noise from the answer cell", stacklevel=1)\n'
        cell.source = noise + _say_something(cell.source)


def hostile(*killers: str) -> Callable[[Paper], None]:
    """Shows scripts wherever a notebook can show something; functions in `killers` end Python when called."""

    def write(paper: Paper) -> None:
        all_right(paper)
        planted = "document.title = 'planted'"
        script = f'<script>{planted}</script><img src=x onerror="{planted}">'
        text = f"{script} [press me](javascript:{planted.replace(' ', '')})"
        paper.nb.cells.insert(1, new_markdown_cell(text, id="note"))
        drawing = f'<svg xmlns="http://www.w3.org/2000/svg" onload="{planted}"><circle r="9"/></svg>'
        shows = [
            "from IPython.display import HTML, SVG, Javascript, display\n",
            f"display(HTML({script!r}))",
            f"display(Javascript({planted!r}))",
            f"display(SVG({drawing!r}))",
            f"print({script!r})",
        ]
        shown = new_code_cell("\n".join(shows), id="show")
        shown.outputs = [new_output("display_data", data={"text/html": script})]
        paper.nb.cells.insert(2, shown)
        for name in killers:
            paper.cell(name).source = _first_line_of_body(paper.cell(name).source, "import os; os._exit(1)")
            paper.leave(name)

    return write


def _say_something(source: str) -> str:
    return _first_line_of_body(source, 'print("called", file=sys.stderr); warnings.warn("called", stacklevel=1)')


def _first_line_of_body(source: str, line: str) -> str:
    """`source` with `line` as the first thing that each of its functions does."""
    lines = source.split("\n")
    for function in reversed([node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]):
        first = function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else function.body[0]
        lines.insert(first.lineno - 1, " " * first.col_offset + line)
    return "\n".join(lines)


GRADIENT, MEAN, ADAM = "03-ex1-worker-gradient", "03-ex2-all-reduce-mean", "03-ex3-adam-update"
EMA, STEP = "03-ex4-ema-update", "03-ex5-training-step"

#: Who hands in what: student → lesson → what he or she did.
CLASS: dict[str, dict[str, Callable[[Paper], None]]] = {
    "student-01": {"01_collectives": all_right, "03_step": all_right},
    "student-02": {"04_accumulation": another_way, "03_step": another_way},
    "student-03": {
        "01_collectives": mistakes("reduce_scatter_ends_one_chunk_too_far"),
        "08_zero1": mistakes("gradients_are_summed"),
        "03_step": mistakes("sums_the_micro_batches"),
    },
    "student-04": {
        "02_costs": mistakes("ring_with_n_rounds", "every_backward_hides"),
        "05_ddp": mistakes("reducer_leaves_incomplete_buckets"),
        "07_bandwidth": mistakes("feedback_keeps_what_was_sent"),
        "03_step": mistakes("needs_one_array", "corrects_after_epsilon"),
    },
    "student-05": {"03_step": untouched},
    "student-06": {
        "03_step": half_done(GRADIENT, MEAN, ADAM),
        "15_layout": mistakes("whole_weights_count_often", "neighbors_in_dp_are_neighbors"),
    },
    "student-07": {"03_step": cut_off},
    "student-08": {"03_step": tampers("takes_worker_0")},
    "student-09": {
        "01_collectives": mistakes("reduce_scatter_everybody_sends_first"),  # the ranks wait for each other
        "03_step": never_ends(EMA),
    },
    "student-10": {"01_collectives": noisy, "03_step": noisy},
    "student-11": {"03_step": hostile(MEAN, STEP)},
}


def make(folder: Path) -> list[list[str]]:
    """Write what the class hands in into `folder/submitted`; the row of `expected.csv` for each test."""
    shutil.rmtree(folder / "submitted", ignore_errors=True)
    rows = []
    for student, papers in CLASS.items():
        for lesson, write in papers.items():
            path = notebook.NOTEBOOKS / lesson / f"{lesson}.ipynb"
            paper = Paper(lesson, nbformat.read(path, as_version=4), notebook.read(lesson))
            write(paper)
            text = nbformat.writes(paper.nb, version=nbformat.NO_CONVERT) + "\n"
            target = folder / "submitted" / student / lesson / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text[: len(text) // 2] if paper.broken else text, encoding="utf-8")
            for test in paper.tests:
                rows.append([student, lesson, test.id.removesuffix("-test"), f"{paper.points(test):g}"])
    return rows


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        rows = make(Path(scratch))
    with open(EXPECTED, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["student_id", "assignment", "exercise", "score"])
        writer.writerows(rows)
