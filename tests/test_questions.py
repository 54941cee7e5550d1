"""Questions that a person grades, nbgrader's three kinds of them, from the release to the student's page."""

import csv
import io
import shutil
from urllib.parse import quote

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell

from autograder.authoring import rules
from autograder.grading import limits
from autograder.grading.course import Course
from autograder.grading.nbgrader import restore
from autograder.insight import answers_as_files, lms, marks, mistakes, regrade, report
from autograder.lessons import nbgrader_api, notebook, release
from tests.helpers.formgrader_server import Server
from tests.helpers.toy_course import LESSON, RIGHT, cell, lesson

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


def with_questions():
    nb = lesson()
    nb.cells += [
        asked(WORDS, "markdown", "Why?\n\n### BEGIN SOLUTION\nThe model answer.\n### END SOLUTION"),
        asked(CODE, "code", "### BEGIN SOLUTION\nprint('model answer')\n### END SOLUTION"),
        asked(TASK, "markdown", "Try it.\n\n### BEGIN MARK SCHEME\nTwo points for *each* try.\n### END MARK SCHEME"),
    ]
    nb.cells[-1].source = "Try it. ![as here](attachment:task.png)" + nb.cells[-1].source.removeprefix("Try it.")
    nb.cells[-1].attachments = {"task.png": {"image/png": f"{PNG[:-2]}AA"}}
    nb.cells[-3].source = nb.cells[-3].source.replace("model answer", "model answer ![s](attachment:secret.png)")
    nb.cells[-3].attachments = {"secret.png": {"image/png": PNG}}
    return nb


def change_lesson(course, change=lambda nb: None):
    nb = with_questions()
    change(nb)
    path = course.solutions / LESSON / f"{LESSON}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, path)


def hand_in(course, student, released, change=lambda nb: None):
    nb = nbformat.from_dict(released)
    for name, right in RIGHT.items():
        cell(nb, name).source = right
    change(nb)
    folder = course.root / "submitted" / student / LESSON
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, folder / f"{LESSON}.ipynb")


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
    root = tmp_path_factory.mktemp("class")
    (root / "solutions").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nbgrader_api, "CONFIG", "nbgrader_config.py")
        course = Course(root, 60, jail=False)
        change_lesson(course)
        patch.setattr(notebook, "SOLUTIONS", course.solutions)
        with release.generated([LESSON]) as ((_, folder),):
            given = nbformat.read(folder / f"{LESSON}.ipynb", as_version=4)
        hand_in(course, "ada", given, answer)
        hand_in(course, "ben", given)
        hand_in(course, "cyd", given)
        (root / "submitted" / "cyd" / LESSON / f"{LESSON}.ipynb").write_text("no notebook")
        hand_in(course, "dan", given, spoil)
        assert not course.grade(jobs=1)
    return root, given


@pytest.fixture
def course(graded, tmp_path, monkeypatch):
    """A copy of that class."""
    monkeypatch.setattr(nbgrader_api, "CONFIG", "nbgrader_config.py")
    shutil.copytree(graded[0], tmp_path / "course")
    return Course(tmp_path / "course", 60, jail=False)


def grade(course):
    assert not course.grade(jobs=1, solutions=False)


def enter(course, student, name, points, comment=None):
    """What formgrader writes when a person grades."""
    with course.gradebook() as gradebook:
        found = gradebook.find_grade(name, LESSON, LESSON, student)
        found.manual_score, found.needs_manual_grade = points, False
        gradebook.find_comment(name, LESSON, LESSON, student).manual_comment = comment
        gradebook.db.commit()


def page(course, student):
    return (course.root / "feedback" / student / LESSON / f"{LESSON}.html").read_text(encoding="utf-8")


def section(course, student, name):
    """What the page says about one question."""
    return page(course, student).split(f'<section id="{name}">')[1].split("</section>")[0]


def row(course, student):
    with open(course.root / "grades.csv", encoding="utf-8") as file:
        return next(line for line in csv.DictReader(file) if line["student_id"] == student)


def report_of(course):
    return report.page(marks.read(course), course.root / "report.html")


def to_grade(course, student):
    """What formgrader lists as still to be graded."""
    with course.gradebook() as gradebook:
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
def test_an_answered_question_waits_and_says_so(course, name):
    assert name in to_grade(course, "ada")
    said = section(course, "ada", name)
    assert "not graded yet" in said and "A person grades this." in said
    assert "All tests" not in said and "Two points" not in page(course, "ada")
    assert {WORDS: "Because.", CODE: "42", TASK: "Try it."}[name] in said and SCRIPT not in said


def test_only_what_is_graded_is_in_a_sum(course):
    assert course.totals()["ada", LESSON] == (6, 6) and course.totals()["ben", LESSON] == (6, 11)
    assert "Total of what is graded" in page(course, "ada") and "6 of 6 points" in page(course, "ada")
    assert list(row(course, "ada").values())[2:] == ["6", "6", "1", "2", "3", "", "", ""]
    assert list(row(course, "ben").values())[2:] == ["6", "11", "1", "2", "3", "0", "0", ""]
    assert list(row(course, "cyd").values())[2:] == ["0", "15", "0", "0", "0", "0", "0", "0"]
    for name, points in POINTS.items():
        enter(course, "ada", name, points - 0.5)
    grade(course)
    assert course.totals()["ada", LESSON] == (13.5, 15)
    assert list(row(course, "ada").values())[2:] == ["13.5", "15", "1", "2", "3", "1.5", "2.5", "3.5"]


def test_a_question_without_an_answer_has_no_points_and_waits_for_nobody(course):
    assert to_grade(course, "ben") == {TASK} and to_grade(course, "cyd") == set()
    assert "Not answered." in section(course, "ben", WORDS) and "not answered" in page(course, "ben")
    assert "not a Jupyter notebook" in section(course, "cyd", TASK)


@pytest.mark.parametrize("name", POINTS)
def test_points_comment_and_mark_scheme_reach_the_page_without_a_run(course, name, monkeypatch):
    monkeypatch.setattr(course, "task", lambda *job: pytest.fail(f"{job} was run again"))
    enter(course, "ada", name, 1.5, "Half of it.")
    grade(course)
    said = section(course, "ada", name)
    assert f"1.5 / {POINTS[name]:g}" in said and "Half of it." in said and "not graded yet" not in said
    assert ("Two points for <em>each</em> try." in said) == (name == TASK)
    assert page(course, "ada").count("not graded yet") == 2 * 2, "the others still wait"


@pytest.mark.parametrize(
    ("name", "change"), [(WORDS, {"words": "No."}), (CODE, {"code": "print(1)"}), (TASK, {"tried": "That."})]
)
def test_points_stay_for_a_new_answer_and_are_flagged(course, released, name, change):
    for one in POINTS:
        enter(course, "ada", one, 1.0)
    grade(course)
    hand_in(course, "ada", released, lambda nb: answer(nb, **change))
    grade(course)
    assert to_grade(course, "ada") == {name} and course.totals()["ada", LESSON] == (9, 15)
    assert "handed in anew since" in section(course, "ada", name)
    assert report_of(course).count("1 by hand, for an answer that was handed in anew since") == 1


def test_spoilt_cells_are_shown_to_who_grades_and_cost_nothing_by_themselves(course):
    assert to_grade(course, "dan") == set(POINTS)
    assert "The answer cell was missing." in section(course, "dan", WORDS)
    assert "turned into text; it was run as code" in section(course, "dan", CODE) and "42" in section(
        course, "dan", CODE
    )
    assert "what was in it stands below it" in section(course, "dan", TASK)
    nb = nbformat.read(course.root / "autograded" / "dan" / LESSON / f"{LESSON}.ipynb", as_version=4)
    (at,) = (number for number, one in enumerate(nb.cells) if notebook.is_task(one))
    assert nb.cells[at + 1].source.endswith("I wrote here.") and "I wrote" not in nb.cells[at].source
    assert "Two points" in nb.cells[at].source, "formgrader shows the mark scheme"


def test_pictures_reach_who_grades_and_the_page_or_both_are_told(course, released):
    def draw(nb):
        answer(nb)
        with_pictures(cell(nb, WORDS), KEPT | {"unused.png": {"image/png": "iVBORw0KGgoAAAA"}} | NOT_KEPT)
        cell(nb, WORDS).source = cell(nb, WORDS).source.replace(" ![it](attachment:unused.png)", "")
        cell(nb, "mine").source += ' <img src="attachment:mine.png" width="300">'
        cell(nb, "mine").attachments = {"mine.png": KEPT["mine.png"]}

    hand_in(course, "ada", released, draw)
    grade(course)
    nb = nbformat.read(course.root / "autograded" / "ada" / LESSON / f"{LESSON}.ipynb", as_version=4)
    nbformat.validate(nb)
    assert cell(nb, WORDS).attachments == KEPT and list(cell(nb, TASK).attachments) == ["task.png"]
    shown = [image.get("src") for image in BeautifulSoup(section(course, "ada", WORDS), "html.parser").find_all("img")]
    kept = [f"data:{kind};base64,{data}" for one in KEPT.values() for kind, data in one.items()]
    assert shown == kept + [None] * len(NOT_KEPT)
    whole = BeautifulSoup(page(course, "ada"), "html.parser").find("details", class_="whole")
    assert whole.find("img", width="300")["src"] == kept[0], "behind the task"
    for text in (page(course, "ada"), report_of(course)):
        (line,) = [line for line in text.split("\n") if "Left out of the text" in line]
        assert all(name in line for name in NOT_KEPT) and "unused" not in line


def test_another_picture_is_another_answer(course, released):
    hand_in(course, "ada", released, lambda nb: (answer(nb), with_pictures(cell(nb, WORDS), KEPT)))
    grade(course)
    enter(course, "ada", WORDS, 1.0)
    other = {"mine.png": {"image/png": f"{PNG[:-3]}A=="}, "my photo.jpg": KEPT["my photo.jpg"]}
    hand_in(course, "ada", released, lambda nb: (answer(nb), with_pictures(cell(nb, WORDS), other)))
    grade(course)
    assert WORDS in to_grade(course, "ada") and "handed in anew since" in section(course, "ada", WORDS)


def test_a_picture_in_a_mark_scheme_is_refused_with_the_reason(course):
    def draw(nb):
        cell(nb, "xq3").source = cell(nb, "xq3").source.replace("Two", "![s](attachment:task.png) Two")

    change_lesson(course, draw)
    with pytest.raises(ValueError, match="Encountered an attachment in a marking scheme"):
        course.prepare(LESSON)


def test_words_in_a_code_cell_are_read_as_words():
    source = restore.SourceCell(WORDS, "Why?", False, 2.0, "markdown", by_hand=True)
    found = restore.restore([new_code_cell("Because.", metadata={"nbgrader": {"grade_id": WORDS}})], [source])
    assert [(one.cell_type, one.source) for one in found.cells] == [("markdown", "Because.")]
    assert found.notes[WORDS] == ["The answer cell had been turned into code; it is read as text."]


def test_the_report_lists_what_waits_and_an_lms_gets_no_half_score(course):
    text = report_of(course)
    waiting = text.split("Still to be graded by hand")[1].split("</table>")[0]
    assert [waiting.count(one) for one in ("ada", "ben", "cyd", "dan")] == [3, 1, 0, 3]
    assert "<li>Question 1: The answer cell was missing.</li>" in text and "Question 1: why" in waiting
    assert "still wait for points by hand" in text
    table = list(csv.reader(io.StringIO(lms.canvas(marks.read(course)))))
    assert table[1][-1] == "15" and {line[3]: line[-1] for line in table[2:]}.items() >= {"ada": "", "cyd": "0"}.items()


def test_points_taken_off_by_hand_are_no_unknown_mistake(course):
    for name, points in POINTS.items():
        enter(course, "ada", name, points / 2)
    one = next(one for one in marks.read(course).submissions if one.student == "ada")
    kinds = {mistakes.kind(mark, one) for mark in one.marks if mark.lost}
    assert kinds == {mistakes.BY_HAND}


def test_a_regrade_says_what_waits(course, released):
    before = regrade.marks_of(course, [])
    hand_in(course, "ben", released, answer)
    grade(course)
    said = regrade.table(before, regrade.marks_of(course, []))
    assert f"{WORDS}: 0 of 2 → not graded yet: it waits for points by hand" in said


def test_another_kind_of_question_under_the_same_name_keeps_the_points(course):
    """nbgrader itself refuses such a change once something is graded."""
    enter(course, "ada", WORDS, 1.5, "Good.")

    def change(nb):
        cell(nb, "xq1").metadata.nbgrader.update(grade=False, solution=False, task=True, locked=True)
        cell(nb, "xq1").source = "Why?"

    change_lesson(course, change)
    grade(course)
    assert "1.5 / 2" in section(course, "ada", WORDS) and "Good." in section(course, "ada", WORDS)


def test_answers_in_words_are_exported_beside_code(course):
    found = answers_as_files.answers_of(course, "ada", LESSON)
    assert found[f"{WORDS}.md"].startswith("Because.") and found[f"{CODE}.py"] == "print(6 * 7)"
    assert set(answers_as_files.given(course, LESSON)) == found.keys() and f"{TASK}.md" not in found


def test_the_rules_for_lessons_allow_questions_and_count_their_points():
    number = "08"
    cells = notebook.read("08_zero1").cells
    assert not rules.wrong_points("08_zero1", cells)
    role = {
        "grade": True,
        "solution": True,
        "task": False,
        "locked": False,
        "points": 3,
        "grade_id": f"{number}-q1-why",
    }
    cells.append(new_markdown_cell("Why?", id=f"{number}-q1-why", metadata={"nbgrader": role}))
    assert not rules.strange_cells("08_zero1", cells) and not rules.strange_regions(cells)
    (line,) = rules.wrong_points("08_zero1", cells)
    assert "points` into the title" in line


@pytest.mark.thorough
def test_formgrader_shows_questions_and_takes_points(course):
    shutil.copy(notebook.ROOT / nbgrader_api.CONFIG, course.root / nbgrader_api.CONFIG)
    server = Server(course.root)
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
    assert to_grade(course, "ada") == set()
    grade(course)
    assert course.totals()["ada", LESSON] == (10.5, 15) and "not graded yet" not in page(course, "ada")
