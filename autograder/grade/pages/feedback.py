"""The page a student gets back: for each exercise its points, why, the student's own code, and no hidden test."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from nbconvert.exporters import Exporter
from nbconvert.filters import Highlight2HTML, ansi2html
from pygments.formatters import HtmlFormatter

from autograder.grade import limits, outcome
from autograder.grade.nbgrader import scoring, setup_cells, slow_cells
from autograder.grade.nbgrader.restore import mark_scheme, visible_part
from autograder.grade.outcome import NOT_RUN, NOT_TRIED, CellOutcome, NotebookOutcome, Tried
from autograder.grade.pages import formulas, safe_html
from autograder.grade.running.run_cells import is_test
from autograder.lesson import mathml
from autograder.lesson.notebook import answer_of, is_task

TEMPLATES = Path(__file__).parent / "templates"
NOT_GRADED_YET = "not graded yet"
NOT_READ = "Not run: the notebook could not be read, as said above."
#: What nbconvert puts after a heading. An attribute may hold any sign but its quotes.
ANCHOR = re.compile(r"""<a(?:[^>"]|"[^"]*")*>(?:¶|&#182;)</a>""")


class FeedbackExporter(Exporter):
    """Turns an autograded notebook, with the scores that ReadGrades put in, into one HTML file."""

    file_extension = ".html"
    output_mimetype = "text/html"

    def from_notebook_node(
        self, nb: nbformat.NotebookNode, resources: dict | None = None, **kwargs: Any
    ) -> tuple[Any, dict]:
        """The page as text, and the resources."""
        nb, resources = super().from_notebook_node(nb, resources, **kwargs)
        return bounded_page(nb, resources["nbgrader"]), resources


_helper = limits.Helper(limits.PAGE_MEMORY, limits.PAGE_SECONDS, prepare=mathml.engine)


def bounded_page(nb: nbformat.NotebookNode, info: dict) -> str:
    """`page`, made in a process that may die of it; then the page says why it has no more than the points."""
    try:
        return str(_helper.call(page, nb, info))
    except limits.OutOfLimitsError as error:
        bare = nbformat.from_dict(nb)
        bare.cells = [cell for cell in bare.cells if is_test(cell) or scoring.is_question(cell)]
        for cell in bare.cells:
            outcome.to_metadata(cell, CellOutcome())
            cell.update({"outputs": []} if cell.cell_type == "code" else {})
            cell.source = cell.source if is_test(cell) else ""
        why = f"This page shows the points only, since the notebook's texts are too large to be shown: {error}."
        outcome.to_metadata(bare, NotebookOutcome(why))
        return page(bare, info)


def page(nb: nbformat.NotebookNode, info: dict) -> str:
    """The feedback on a notebook. info: nbgrader's student, notebook, score and max_score."""
    schemes = _take_mark_schemes(nb)
    nb, _ = safe_html.SafeCells().preprocess(nb, {})
    secrets = hidden_lines(nb)
    budget = formulas.Budget()
    drawn = {name: _markdown(scheme, budget) for name, scheme in schemes.items()}
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.drawn = _markdown(cell.source, budget)
        quiet = cell.cell_type != "code" or is_test(cell)
        cell.shown = [] if quiet else [_output(output, secrets) for output in cell.outputs]
    graded = [cell for cell in nb.cells if is_test(cell) or scoring.is_question(cell)]
    run = [cell for cell in nb.cells if outcome.of_metadata(cell).status != NOT_RUN]
    answers = {cell.id: cell for cell in nb.cells if cell.metadata.get("nbgrader", {}).get("solution")}
    whole = outcome.of_notebook(nb)
    return (
        _environment()
        .get_template("feedback.html.j2")
        .render(
            lesson=info["notebook"],
            student=info["student"],
            score=info["score"],
            max_score=info["max_score"],
            late_penalty=info.get("late_penalty") or 0,
            late=info.get("late", ""),
            based_on=info.get("based_on", ""),
            whole=whole,
            on_the_run=[
                hide(remark, secrets)
                for remark in (*setup_cells.remarks(nb.cells), slow_cells.remark(nb.cells))
                if remark
            ],
            waiting=sum(cell.metadata.nbgrader.points for cell in graded if cell.metadata.nbgrader.get("waits")),
            exercises=[
                exercise(cell, answers.get(answer_of(cell.id)), secrets, bool(whole.problem))
                if is_test(cell)
                else question(cell, drawn.get(cell.id, Markup("")))
                for cell in graded
            ],
            cells=[(cell, is_test(cell), visible_part(cell.source) if is_test(cell) else cell.source) for cell in run],
            all_run=len(run) == len(nb.cells),
            light=_colors("default"),
            dark=_colors("github-dark"),
        )
    )


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(points=_points, sentence=_sentence, code=_code)
    return environment


@functools.cache
def _colors(style: str) -> Markup:
    return Markup(HtmlFormatter(style=style).get_style_defs(".highlight"))


def exercise(
    test: nbformat.NotebookNode, answer: nbformat.NotebookNode | None, secrets: list[str], unreadable: bool = False
) -> dict:
    """What the page says about one exercise. unreadable: the notebook could not be run."""
    ours, entered = outcome.of_metadata(test), test.metadata.nbgrader.get("entered", False)
    item = _item(test, ours, answer, answer.metadata.nbgrader.get("comment") if answer is not None else "")
    carried = any(one.carried for one in ours.properties)
    return item | {
        "result": "by hand" if entered else result_of(item["score"], item["points"], carried),
        "properties": [property_of(one, ours.score > 0) for one in ours.properties] if len(ours.properties) > 1 else [],
        "all_or_nothing": ours.all_or_nothing,
        "failures": failures(ours, outcome.of_metadata(answer) if answer is not None else None, secrets),
        "remarks": scoring.remarks(ours) if ours.properties else [NOT_READ] if unreadable else [],
        "entered": entered,
    }


def question(cell: nbformat.NotebookNode, scheme: Markup) -> dict:
    """What the page says about a question or a task that a person grades. scheme: how, as it is shown."""
    role, ours = cell.metadata.nbgrader, outcome.of_metadata(cell)
    item, waits = _item(cell, ours, cell, role.get("comment")), role.get("waits", False)
    return item | {
        "result": NOT_GRADED_YET if waits else "not answered" if ours.comment and not item["score"] else "graded",
        "remarks": [ours.comment] if ours.comment else [],
        "by_hand": True,
        "waits": waits,
        "scheme": "" if waits else scheme,
    }


def _item(
    cell: nbformat.NotebookNode, ours: CellOutcome, answer: nbformat.NotebookNode | None, comment: str | None
) -> dict:
    """What the page says about whatever has points. comment: the record's, which a person may have written."""
    role = cell.metadata.nbgrader
    return {
        "title": title(cell.id, ours.functions),
        "anchor": answer_of(cell.id),
        "score": role.get("score") or 0.0,
        "points": role.get("points") or 0.0,
        "properties": [],
        "failures": [],
        "notes": ours.notes,
        "comment": comment if comment and comment != ours.by_machine else "",
        "entered": False,
        "outdated": role.get("outdated", False),
        "by_hand": False,
        "waits": False,
        "scheme": "",
        "answer": answer,
    }


def _take_mark_schemes(nb: nbformat.NotebookNode) -> dict[str, str]:
    """Take the mark schemes out of the tasks: id → clean HTML. They are shown only where points are."""
    found = {}
    for cell in filter(is_task, nb.cells):
        if scheme := mark_scheme(cell.source):
            found[cell.id] = safe_html.markdown(scheme)
        cell.source = visible_part(cell.source)
    return found


def property_of(tried: Tried, earns: bool) -> dict:
    """A row of the exercise's table: the sentence, what became of it, its points. earns: has the exercise any?"""
    result = "not tried" if tried.status == NOT_TRIED else "failed"
    if tried.holds:
        result = "right" if tried.carried else "passed"
    color = "none" if result == "failed" else "full" if earns and tried.holds else "note"
    lost = tried.holds and tried.points and not earns
    points = f"0 of {_points(tried.points)}" if lost else _points(tried.points)
    return {"says": tried.says, "result": result, "points": points, "color": color}


def failures(test: CellOutcome, answer: CellOutcome | None, secrets: list[str]) -> list[dict]:
    """What failed, with its hints, unless one that is shown already explains it."""
    found, seen = list[dict](), set[str]()
    for reason in scoring.reasons(test, answer):
        first = reason.outcomes[0]
        found.append(
            {
                "says": [one.says for one in reason.outcomes if one.says],
                "message": re.sub(r"^the ", "The ", hide(reason.message, secrets).strip()),
                "hints": [] if seen & set(reason.hints) else [hide(hint, secrets) for hint in reason.hints],
                "sure": reason.sure,
                "picture": picture(first.picture),
                "where": [hide(frame, secrets) for frame in first.where],
            }
        )
        seen.update(reason.hints)
    return found


def result_of(score: float, most: float, carried: bool) -> str:
    """One word for the table. carried: the exercise failed only because of another one."""
    if score >= most:
        return "right" if carried else "passed"
    return "in part" if score > 0 else "failed"


def picture(drawn: object) -> dict[str, str] | None:
    """A picture that the grader has drawn (`pictures.picture_of`): its data and its text alternative."""
    if not isinstance(drawn, dict) or not safe_html.BASE64.fullmatch(str(drawn.get("png", ""))):
        return None
    return {"png": drawn["png"], "alt": str(drawn.get("alt", ""))}


def title(test: str, functions: Collection[str] = ()) -> str:
    """A name as a reader would write it: `03-ex2-mean-test` as "Exercise 2: mean", `03-q1-why` as "Question 1: why".

    functions: those that students write, which the title names if they are given.
    """
    match = re.fullmatch(r"\d+-(ex|q)(\d+)-(.+)", answer_of(test))
    if not match:
        return answer_of(test)
    if match[1] == "q":
        return f"Question {match[2]}: {match[3].replace('-', ' ')}"
    return f"Exercise {match[2]}: {', '.join(functions) or match[3].replace('-', '_')}"


def hidden_lines(nb: nbformat.NotebookNode) -> list[str]:
    """The lines of the hidden tests, short ones aside."""
    lines = []
    for cell in filter(is_test, nb.cells):
        shown = {line.strip() for line in visible_part(cell.source).split("\n")}
        lines += [line.strip() for line in cell.source.split("\n") if line.strip() not in shown]
    return [line for line in lines if len(line) >= 8]


def hide(text: str, secrets: list[str]) -> str:
    """`text` without the lines that repeat a line of a hidden test."""
    return "\n".join("…" if any(line in part for line in secrets) else part for part in text.split("\n"))


def _output(output: nbformat.NotebookNode, secrets: list[str]) -> Markup:
    """One output as HTML; it has been through `safe.outputs`."""
    if output.output_type == "stream":
        return _terminal(output.text, secrets, "warning" if output.get("name") == "stderr" else "")
    if output.output_type == "error":
        text = "\n".join(output.traceback) or f"{output.ename}: {output.evalue}"
        return _terminal(text, secrets, "error")
    for kind in ("image/png", "image/jpeg"):
        if kind in output.data:
            return _box(Markup('<img alt="figure" src="data:{};base64,{}">').format(kind, output.data[kind]))
    if "text/html" in output.data:
        # Cleaned once more: where a line is struck out, a tag may have lost its end.
        return _box(Markup(safe_html.clean(hide(output.data["text/html"], secrets))))
    return _terminal(output.data.get("text/plain", ""), secrets, "")


def _box(content: Markup) -> Markup:
    # The page's style keeps what is in the box from covering anything outside it.
    return Markup('<div class="box output-box">{}</div>').format(content)


def _terminal(text: str, secrets: list[str], kind: str) -> Markup:
    # ansi2html escapes the text and turns colors into spans.
    if text.count("\x1b") > limits.COLORED:
        return Markup('<pre class="output {}">{}</pre>').format(kind, hide(text, secrets))
    return Markup('<pre class="output {}">{}</pre>').format(kind, Markup(ansi2html(hide(text, secrets))))


@safe_html.once
def _code(source: str) -> Markup:
    if limits.is_plain(source):
        return Markup('<div class="highlight"><pre>{}</pre></div>').format(source)
    return Markup(Highlight2HTML(pygments_lexer="ipython3")(source))


def _markdown(source: str, budget: formulas.Budget | None = None) -> Markup:
    # `safe.markdown` has made clean HTML of it; the anchors of its headings are of no use here.
    return Markup('<div class="box">{}</div>').format(Markup(formulas.drawn(ANCHOR.sub("", source), budget)))


def _sentence(text: str) -> Markup:
    """The first line of a check's docstring, with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _points(value: float) -> str:
    return f"{value:g}"
