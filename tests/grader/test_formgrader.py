"""nbgrader's own front doors, its command line and its formgrader page, grade and show what `make grade` does."""

import re
import subprocess
import sys

import pytest
from nbformat.v4 import new_markdown_cell

from tests.helpers import browser
from tests.helpers.formgrader_server import Server, environment
from tests.helpers.toy_course import LESSON, WRONG_SQUARE, Toy, submission

pytestmark = [pytest.mark.jail, pytest.mark.thorough]

SCRIPT = "<script>document.title='planted'</script><img src=x onerror=\"document.title='planted'\">"
#: A box over the whole page: MathJax drew it.
COVER = r"$\smash{\rule{900em}{900em}}$"
#: Ids of the page's fields, as headings of which the second rendering would make ids.
TAKEN = ["07-ex2-square-test", "07-ex2-square-comment", "07-ex2-square-test_extra_credit"]
NOISY = "import sys\n\ndef double(x):\n    print('noise', file=sys.stderr)\n    return 2 * x\n"


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A class of three: right but noisy, wrong, and no notebook at all."""
    toy = Toy(tmp_path_factory.mktemp("course"))
    toy.hand_in("noisy", submission(ex1=NOISY))
    wrong = submission(ex2=WRONG_SQUARE)
    wrong.cells[0].source = f"{SCRIPT}\n\n[press](javascript:planted) a < b {COVER} $x_1 * y_2 * z$"
    wrong.cells[:0] = [new_markdown_cell(f"<!-- --># {name}") for name in TAKEN]
    toy.hand_in("wrong", wrong)
    toy.hand_in("broken", "no notebook")
    (toy.root / "solutions" / LESSON / "wrong.md").write_text("kept back")
    (toy.root / "submitted" / "noisy" / LESSON / "link").symlink_to(toy.root / "solutions")
    return toy


@pytest.mark.slow
@pytest.mark.parametrize("here", [True, False], ids=["in the course", "from elsewhere"])
def test_the_command_line_grades_with_our_steps(toy, here, tmp_path):
    where = [] if here else [f"--course-dir={toy.root}"]
    for command in ("autograde", "generate_feedback"):
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", command, LESSON, "--force", *where],
            cwd=toy.root if here else tmp_path,
            env=environment(toy.root),
            capture_output=True,
            text=True,
            timeout=1800,
        )
        assert done.returncode == 0, done.stderr
    assert toy.points("noisy") == {"ex1": 1.0, "ex2": 2.0, "ex3": 3.0}
    assert toy.points("wrong") == {"ex1": 1.0, "ex2": 0.0, "ex3": 3.0}
    assert toy.points("broken") == {"ex1": 0.0, "ex2": 0.0, "ex3": 0.0}
    assert "Content-Security-Policy" in toy.page("wrong")
    assert "secret_inputs" not in toy.page("wrong")
    copied = {path.name for step in ("autograded", "feedback") for path in (toy.root / step / "noisy").rglob("*.*")}
    assert copied == {f"{LESSON}.ipynb", f"{LESSON}.html"}, "nothing that lies beside a notebook"


@pytest.fixture(scope="module")
def server(toy):
    for student in ("noisy", "wrong", "broken"):
        assert not toy.course.grade_one(student, LESSON)
    server = Server(toy.root)
    yield server
    server.stop()


def submissions_of(server):
    """What formgrader knows of the submissions."""
    return server.json(f"/formgrader/api/submitted_notebooks/{LESSON}/{LESSON}")


def test_formgrader_lists_the_lesson_and_its_scores(server):
    (assignment,) = server.json("/formgrader/api/assignments")
    assert (assignment["name"], assignment["max_score"], assignment["num_submissions"]) == (LESSON, 6.0, 3)
    submissions = server.json(f"/formgrader/api/submitted_notebooks/{LESSON}/{LESSON}")
    assert {s["student"]: s["score"] for s in submissions} == {"noisy": 6.0, "wrong": 4.0, "broken": 0.0}
    assert not any(s["needs_manual_grade"] for s in submissions)


PAGES = ["", "manage_assignments", f"gradebook/{LESSON}/{LESSON}", f"manage_submissions/{LESSON}"]


@pytest.mark.parametrize("page", PAGES)
def test_formgrader_pages_load(server, page):
    assert "formgrader" in server.get(f"/formgrader/{page}")


def test_grading_from_the_page_uses_our_steps(server, toy):
    with toy.course.gradebook() as gradebook:  # something to replace
        for grade in gradebook.find_submission_notebook(LESSON, LESSON, "noisy").grades:
            grade.auto_score, grade.needs_manual_grade = 0.0, True
        gradebook.db.commit()
    for student, score in {"noisy": 6.0, "broken": 0.0}.items():
        answer = server.json(f"/formgrader/api/submission/{LESSON}/{student}/autograde", "POST")
        assert answer["success"], answer
        assert server.json(f"/formgrader/api/submission/{LESSON}/{student}")["score"] == score
    toy.points("noisy")  # asserts that nothing waits for a person


def test_feedback_from_the_page_is_ours(server, toy):
    for path in (toy.root / "feedback").rglob("*.html"):
        path.unlink()
    assert server.json(f"/formgrader/api/assignment/{LESSON}/wrong/generate_feedback", "POST")["success"]
    assert "think of square" in toy.page("wrong")
    assert "secret_inputs" not in toy.page("wrong")


def test_the_page_on_a_submission_runs_nothing_from_it(server):
    submissions = submissions_of(server)
    for one in submissions:
        html = server.get(f"/formgrader/submissions/{one['id']}/")
        assert "<script>document.title" not in html
        assert 'onerror="document' not in html
        assert 'href="javascript' not in html
        assert "07-ex2-square-test" in html
        assert not re.search(r"<(script|link|img)[^>]*(src|href)=[\"'](https?:)?//", html), "fetched from elsewhere"
        assert "x-mathjax-config" not in html
        assert "contain: paint" in html
    assert any("a &lt; b" in server.get(f"/formgrader/submissions/{one['id']}/") for one in submissions)


def test_formulas_are_drawn_on_the_page_without_a_script(server):
    pages = [server.get(f"/formgrader/submissions/{one['id']}/") for one in submissions_of(server)]
    (page,) = [page for page in pages if "a &lt; b" in page]
    cell = page.split("a &lt; b")[1].split("</div>")[0]
    assert "<msub><mi>x</mi><mn>1</mn></msub>" in cell and "<em>" not in cell and "$" not in cell, cell


@pytest.fixture
def form(server):
    """The page on the submission with the headings, once its script has selected a field."""
    (one,) = [one for one in submissions_of(server) if one["student"] == "wrong"]
    with browser.chromium() as chromium:
        tab = browser.Tab(chromium)
        tab.page.set_extra_http_headers({"Authorization": f"token {server.token}"})
        tab.open(f"{server.url}/formgrader/submissions/{one['id']}/")
        tab.wait("window.formgrader?.loaded && formgrader.grades.loaded && formgrader.comments.loaded")
        yield tab


@pytest.mark.browser
def test_no_heading_of_a_submission_takes_the_place_of_a_field(form, toy):
    ids = form.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert [ids.count(name) for name in TAKEN] == [1, 1, 1]
    assert form.evaluate("document.querySelectorAll('.rendered_html [id], .output [id]').length") == 0
    for name, value in {"07-ex2-square-test": "1.5", "07-ex2-square-comment": "Nearly."}.items():
        form.page.fill(f"[id='{name}']", value)
        with form.page.expect_response(lambda answer: answer.request.method == "PUT"):
            form.page.press(f"[id='{name}']", "Escape")
    with toy.course.gradebook() as gradebook:
        nb = gradebook.find_submission_notebook(LESSON, LESSON, "wrong")
        assert {one.name: one.manual_score for one in nb.grades if one.manual_score is not None} == {TAKEN[0]: 1.5}
        assert [one.manual_comment for one in nb.comments if one.manual_comment] == ["Nearly."]


@pytest.mark.browser
def test_the_shortcuts_work_without_a_script_from_elsewhere(form, server):
    form.wait("document.activeElement.matches('.tabbable')")
    places = []
    for key in ("Tab", "Tab", "Shift+Tab"):
        form.page.keyboard.press(key)
        places.append(form.evaluate("$('.tabbable').index(document.activeElement)"))
    assert places[1] == places[0] + 1 and places[2] == places[0]
    form.page.keyboard.press("Escape")
    assert form.evaluate("document.activeElement.tagName") == "BODY"
    with form.page.expect_navigation():
        form.page.keyboard.press("Control+.")
    assert not form.outside and not [error for error in form.errors if "MathJax" in error], form.errors
