"""Questions that a person grades, nbgrader's three kinds of them, from the release to the student's page."""

import csv
import io
from urllib.parse import quote

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell

from autograder.author import rules
from autograder.desk import answers_as_files, lms, marks, mistakes, regrade, report
from autograder.grade import limits
from autograder.grade.nbgrader import release, restore
from autograder.lesson import notebook
from tests.helpers.formgrader_server import Server
from tests.helpers.toy_course import LESSON, RIGHT, Toy, cell

pytestmark = pytest.mark.apart

WORDS, CODE, TASK = "07-q1-why", "07-q2-show", "07-q3-try"
POINTS = {WORDS: 2.0, CODE: 3.0, TASK: 4.0}
SCRIPT = "<script>document.title='planted'</script>"
#: A picture of one pixel, and one that is too large.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
HUGE = PNG.rstrip("=") + "A" * limits.PICTURE
#: Pictures of a student's cells: those that are kept, and names of those that are not.
KEPT = {"mine.png": {"image/png": PNG}, "my photo.jpg": {"image/jpeg": "/9j/4AAQSkZJRgABAQ=="}}
NOT_KEPT = {
    "drawn.svg": {"image/svg+xml": "<svg onload='x()'/>"}, "huge.png": {"image/png": HUGE},
    "text.png": {"image/png": "<script>"}, "none.png": {}, "moving.png": {"image/gif": "R0lGODlh"},
}  # fmt: skip


def with_pictures(one, pictures):
    """A cell whose text shows each of these."""
    one.source += "".join(f" ![it](attachment:{quote(name)})" for name in pictures)
    one.attachments = pictures
    return one


def asked(name, kind, source):
    """A cell as JupyterLab's Create Assignment leaves it: with an id that is not its grade_id."""
    task = name == TASK
    role = {"grade": not task, "solution": not task, "task": task, "locked": task, "points": POINTS[name]}
    make = new_code_cell if kind == "code" else new_markdown_cell
    return make(source, id=f"x{name[3:5]}", metadata={"nbgrader": {**role, "grade_id": name, "schema_version": 3}})


def add_questions(nb):
    nb.cells += [
        asked(WORDS, "markdown", "Why?\n\n### BEGIN SOLUTION\nThe model answer.\n### END SOLUTION"),
        asked(CODE, "code", "### BEGIN SOLUTION\nprint('model answer')\n### END SOLUTION"),
        asked(TASK, "markdown", "Try it.\n\n### BEGIN MARK SCHEME\nTwo points for *each* try.\n### END MARK SCHEME"),
    ]
    nb.cells[-1].source = "Try it. ![as here](attachment:task.png)" + nb.cells[-1].source.removeprefix("Try it.")
    nb.cells[-1].attachments = {"task.png": {"image/png": f"{PNG[:-2]}AA"}}
    nb.cells[-3].source = nb.cells[-3].source.replace("model answer", "model answer ![s](attachment:secret.png)")
    nb.cells[-3].attachments = {"secret.png": {"image/png": PNG}}


def answered(released, change=lambda nb: None):
    """The released notebook with the right code."""
    nb = nbformat.from_dict(released)
    for name, right in RIGHT.items():
        cell(nb, name).source = right
    change(nb)
    return nb


def answer(nb, words=f"Because. {SCRIPT}", code="print(6 * 7)", tried="I tried this."):
    cell(nb, WORDS).source, cell(nb, CODE).source = words, code
    nb.cells.append(new_markdown_cell(tried, id="mine"))


def spoil(nb):
    """The first question's cell is gone, the second has become text, and the work stands in the task's own cell."""
    answer(nb)
    nb.cells.remove(cell(nb, WORDS))
    nb.cells.remove(cell(nb, "mine"))
    cell(nb, CODE).cell_type = "markdown"
    cell(nb, TASK).source += "\n\nI wrote here."


@pytest.fixture(scope="module")
def released(graded):
    return graded[1]


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A class, graded by the machine: ada answered all, ben no question, cyd's file is none, dan's cells are spoilt."""
    toy = Toy(tmp_path_factory.mktemp("class"), timeout=60)
    toy.course.jail = False
    toy.teach(add_questions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notebook, "SOLUTIONS", toy.course.solutions)
        with release.generated([LESSON]) as ((_, folder),):
            given = nbformat.read(folder / f"{LESSON}.ipynb", as_version=4)
    toy.hand_in("ada", answered(given, answer))
    toy.hand_in("ben", answered(given))
    toy.hand_in("cyd", "no notebook")
    toy.hand_in("dan", answered(given, spoil))
    assert not toy.course.grade(jobs=1)
    return toy, given


@pytest.fixture
def toy(graded, tmp_path):
    """A copy of that class."""
    return graded[0].copy(tmp_path)


def grade(toy):
    assert not toy.course.grade(jobs=1, solutions=False)


def section(toy, student, name):
    """What the page says about one question."""
    return toy.page(student).split(f'<section id="{name}">')[1].split("</section>")[0]


def report_of(toy):
    return report.page(marks.read(toy.course), toy.root / "report.html")


def to_grade(toy, student):
    """What formgrader lists as still to be graded."""
    with toy.course.gradebook() as gradebook:
        nb = gradebook.find_submission_notebook(LESSON, LESSON, student)
        return {one.name for one in nb.grades if one.needs_manual_grade}


def test_students_get_the_question_and_neither_model_answer_nor_mark_scheme(released):
    text = nbformat.writes(released)
    assert "model answer" not in text and "Two points" not in text
    assert cell(released, WORDS).source == "Why?\n\nYOUR ANSWER HERE"
    assert "NotImplementedError" in cell(released, CODE).source
    assert cell(released, TASK).source.strip() == "Try it. ![as here](attachment:task.png)"
    assert "secret.png" not in text and PNG not in text and list(cell(released, TASK).attachments) == ["task.png"]


def test_work_in_words_is_not_overwritten_by_a_release(released, tmp_path):
    path = tmp_path / "mine.ipynb"
    nbformat.write(released, path)
    assert not release._holds_answers(path)
    nb = nbformat.from_dict(released)
    cell(nb, WORDS).source = "Why?\n\nBecause."
    nbformat.write(nb, path)
    assert release._holds_answers(path)


@pytest.mark.parametrize("name", POINTS)
def test_an_answered_question_waits_and_says_so(toy, name):
    assert name in to_grade(toy, "ada")
    said = section(toy, "ada", name)
    assert "not graded yet" in said and "A person grades this." in said
    assert "All tests" not in said and "Two points" not in toy.page("ada")
    assert {WORDS: "Because.", CODE: "42", TASK: "Try it."}[name] in said and SCRIPT not in said


def test_only_what_is_graded_is_in_a_sum(toy):
    assert toy.course.totals()["ada", LESSON] == (6, 6) and toy.course.totals()["ben", LESSON] == (6, 11)
    assert "Total of what is graded" in toy.page("ada") and "6 of 6 points" in toy.page("ada")
    assert list(toy.row("ada").values())[2:] == ["6", "6", "1", "2", "3", "", "", ""]
    assert list(toy.row("ben").values())[2:] == ["6", "11", "1", "2", "3", "0", "0", ""]
    assert list(toy.row("cyd").values())[2:] == ["0", "15", "0", "0", "0", "0", "0", "0"]
    for name, points in POINTS.items():
        toy.enter("ada", name, points - 0.5)
    grade(toy)
    assert toy.course.totals()["ada", LESSON] == (13.5, 15)
    assert list(toy.row("ada").values())[2:] == ["13.5", "15", "1", "2", "3", "1.5", "2.5", "3.5"]


def test_a_question_without_an_answer_has_no_points_and_waits_for_nobody(toy):
    assert to_grade(toy, "ben") == {TASK} and to_grade(toy, "cyd") == set()
    assert "Not answered." in section(toy, "ben", WORDS) and "not answered" in toy.page("ben")
    assert "not a Jupyter notebook" in section(toy, "cyd", TASK)


@pytest.mark.parametrize("name", POINTS)
def test_points_comment_and_mark_scheme_reach_the_page_without_a_run(toy, name, monkeypatch):
    monkeypatch.setattr(toy.course, "task", lambda *job: pytest.fail(f"{job} was run again"))
    toy.enter("ada", name, 1.5, "Half of it.")
    grade(toy)
    said = section(toy, "ada", name)
    assert f"1.5 / {POINTS[name]:g}" in said and "Half of it." in said and "not graded yet" not in said
    assert ("Two points for <em>each</em> try." in said) == (name == TASK)
    assert toy.page("ada").count("not graded yet") == 2 * 2, "the others still wait"


@pytest.mark.parametrize(
    ("name", "change"), [(WORDS, {"words": "No."}), (CODE, {"code": "print(1)"}), (TASK, {"tried": "That."})]
)
def test_points_stay_for_a_new_answer_and_are_flagged(toy, released, name, change):
    for one in POINTS:
        toy.enter("ada", one, 1.0)
    grade(toy)
    toy.hand_in("ada", answered(released, lambda nb: answer(nb, **change)))
    grade(toy)
    assert to_grade(toy, "ada") == {name} and toy.course.totals()["ada", LESSON] == (9, 15)
    assert "handed in anew since" in section(toy, "ada", name)
    assert report_of(toy).count("1 by hand, for an answer that was handed in anew since") == 1


def test_spoilt_cells_are_shown_to_who_grades_and_cost_nothing_by_themselves(toy):
    assert to_grade(toy, "dan") == set(POINTS)
    assert "The answer cell was missing." in section(toy, "dan", WORDS)
    code = section(toy, "dan", CODE)
    assert "turned into text; it was run as code" in code and "42" in code
    assert "what was in it stands below it" in section(toy, "dan", TASK)
    nb = nbformat.read(toy.root / "autograded" / "dan" / LESSON / f"{LESSON}.ipynb", as_version=4)
    (at,) = (number for number, one in enumerate(nb.cells) if notebook.is_task(one))
    assert nb.cells[at + 1].source.endswith("I wrote here.") and "I wrote" not in nb.cells[at].source
    assert "Two points" in nb.cells[at].source, "formgrader shows the mark scheme"


def test_pictures_reach_who_grades_and_the_page_or_both_are_told(toy, released):
    def draw(nb):
        answer(nb)
        with_pictures(cell(nb, WORDS), KEPT | {"unused.png": {"image/png": "iVBORw0KGgoAAAA"}} | NOT_KEPT)
        cell(nb, WORDS).source = cell(nb, WORDS).source.replace(" ![it](attachment:unused.png)", "")
        cell(nb, "mine").source += ' <img src="attachment:mine.png" width="300">'
        cell(nb, "mine").attachments = {"mine.png": KEPT["mine.png"]}

    toy.hand_in("ada", answered(released, draw))
    grade(toy)
    nb = nbformat.read(toy.root / "autograded" / "ada" / LESSON / f"{LESSON}.ipynb", as_version=4)
    nbformat.validate(nb)
    assert cell(nb, WORDS).attachments == KEPT and list(cell(nb, TASK).attachments) == ["task.png"]
    shown = [image.get("src") for image in BeautifulSoup(section(toy, "ada", WORDS), "html.parser").find_all("img")]
    kept = [f"data:{kind};base64,{data}" for one in KEPT.values() for kind, data in one.items()]
    assert shown == kept + [None] * len(NOT_KEPT)
    whole = BeautifulSoup(toy.page("ada"), "html.parser").find("details", class_="whole")
    assert whole.find("img", width="300")["src"] == kept[0], "behind the task"
    for text in (toy.page("ada"), report_of(toy)):
        (line,) = [line for line in text.split("\n") if "Left out of the text" in line]
        assert all(name in line for name in NOT_KEPT) and "unused" not in line


def test_another_picture_is_another_answer(toy, released):
    toy.hand_in("ada", answered(released, lambda nb: (answer(nb), with_pictures(cell(nb, WORDS), KEPT))))
    grade(toy)
    toy.enter("ada", WORDS, 1.0)
    other = {"mine.png": {"image/png": f"{PNG[:-3]}A=="}, "my photo.jpg": KEPT["my photo.jpg"]}
    toy.hand_in("ada", answered(released, lambda nb: (answer(nb), with_pictures(cell(nb, WORDS), other))))
    grade(toy)
    assert WORDS in to_grade(toy, "ada") and "handed in anew since" in section(toy, "ada", WORDS)


def test_a_picture_in_a_mark_scheme_is_refused_with_the_reason(toy):
    def draw(nb):
        add_questions(nb)
        cell(nb, "xq3").source = cell(nb, "xq3").source.replace("Two", "![s](attachment:task.png) Two")

    toy.teach(draw)
    with pytest.raises(ValueError, match="Encountered an attachment in a marking scheme"):
        toy.course.prepare(LESSON)


def test_words_in_a_code_cell_are_read_as_words():
    source = restore.SourceCell(WORDS, "Why?", False, 2.0, "markdown", by_hand=True)
    found = restore.restore([new_code_cell("Because.", metadata={"nbgrader": {"grade_id": WORDS}})], [source])
    assert [(one.cell_type, one.source) for one in found.cells] == [("markdown", "Because.")]
    assert found.notes[WORDS] == ["The answer cell had been turned into code; it is read as text."]


def test_the_report_lists_what_waits_and_an_lms_gets_no_half_score(toy):
    text = report_of(toy)
    waiting = text.split("Still to be graded by hand")[1].split("</table>")[0]
    assert [waiting.count(one) for one in ("ada", "ben", "cyd", "dan")] == [3, 1, 0, 3]
    assert "<li>Question 1: The answer cell was missing.</li>" in text and "Question 1: why" in waiting
    assert "still wait for points by hand" in text
    table = list(csv.reader(io.StringIO(lms.canvas(marks.read(toy.course)))))
    assert table[1][-1] == "15" and {line[3]: line[-1] for line in table[2:]}.items() >= {"ada": "", "cyd": "0"}.items()


def test_points_taken_off_by_hand_are_no_unknown_mistake(toy):
    for name, points in POINTS.items():
        toy.enter("ada", name, points / 2)
    one = next(one for one in marks.read(toy.course).submissions if one.student == "ada")
    kinds = {mistakes.kind(mark, one) for mark in one.marks if mark.lost}
    assert kinds == {mistakes.BY_HAND}


def test_a_regrade_says_what_waits(toy, released):
    before = regrade.marks_of(toy.course, [])
    toy.hand_in("ben", answered(released, answer))
    grade(toy)
    said = regrade.table(before, regrade.marks_of(toy.course, []))
    assert f"{WORDS}: 0 of 2 → not graded yet: it waits for points by hand" in said


def test_another_kind_of_question_under_the_same_name_keeps_the_points(toy):
    """nbgrader itself refuses such a change once something is graded."""
    toy.enter("ada", WORDS, 1.5, "Good.")

    def change(nb):
        add_questions(nb)
        cell(nb, "xq1").metadata.nbgrader.update(grade=False, solution=False, task=True, locked=True)
        cell(nb, "xq1").source = "Why?"

    toy.teach(change)
    grade(toy)
    assert "1.5 / 2" in section(toy, "ada", WORDS) and "Good." in section(toy, "ada", WORDS)


def test_answers_in_words_are_exported_beside_code(toy):
    found = answers_as_files.answers_of(toy.course, "ada", LESSON)
    assert found[f"{WORDS}.md"].startswith("Because.") and found[f"{CODE}.py"] == "print(6 * 7)"
    assert set(answers_as_files.given(toy.course, LESSON)) == found.keys() and f"{TASK}.md" not in found


def test_the_rules_for_lessons_allow_questions_and_count_their_points():
    cells = notebook.read("08_zero1").cells
    assert not rules.wrong_points("08_zero1", cells)
    role = {"grade": True, "solution": True, "task": False, "locked": False, "points": 3, "grade_id": "08-q1-why"}
    cells.append(new_markdown_cell("Why?", id="08-q1-why", metadata={"nbgrader": role}))
    assert not rules.strange_cells("08_zero1", cells) and not rules.strange_regions(cells)
    (line,) = rules.wrong_points("08_zero1", cells)
    assert "points` into the title" in line


@pytest.mark.thorough
def test_formgrader_shows_questions_and_takes_points(toy):
    server = Server(toy.root)
    try:
        submissions = server.json(f"/formgrader/api/submitted_notebooks/{LESSON}/{LESSON}")
        assert {one["student"] for one in submissions if one["needs_manual_grade"]} == {"ada", "ben", "dan"}
        (ada,) = (one["id"] for one in submissions if one["student"] == "ada")
        html = server.get(f"/formgrader/submissions/{ada}/")
        assert all(f'class="score tabbable" id="{name}"' in html for name in POINTS)
        assert "Two points for" in html and SCRIPT not in html
        grades = {one["name"]: one["id"] for one in server.json(f"/formgrader/api/grades?submission_id={ada}")}
        for name in POINTS:
            server.get(f"/formgrader/api/grade/{grades[name]}", "PUT", {"manual_score": 1.5, "extra_credit": None})
    finally:
        server.stop()
    assert to_grade(toy, "ada") == set()
    grade(toy)
    assert toy.course.totals()["ada", LESSON] == (10.5, 15) and "not graded yet" not in toy.page("ada")
