"""A class on JupyterHub, as the book's page describes it: from the release of a lesson to the feedback in the browser.

The recipe's own configuration runs as a trial. Students work in JupyterLab with nbgrader's own extension.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
import tomllib
import types
from pathlib import Path

import nbformat
import pytest
import yaml

from autograder.grade.course import Course
from autograder.lesson import notebook
from tests.helpers import npm
from tests.helpers.browser import Tab, chromium
from tests.helpers.hub import RECIPE, Hub, proxy
from tests.helpers.patience import PATIENCE

LESSON = "03_step"
#: A student → how the exercises begin that this student solves, and the points for them.
STUDENTS = {"ada": ("03-ex", 27), "ben": ("03-ex1-", 4), "cyd": ("none", 0)}


@pytest.fixture
def hub(tmp_path):
    """A hub with three students and a course that holds one lesson. Without a network the test says so and skips."""
    with npm.or_skip():
        proxy()
    course = tmp_path / "course"
    for folder in ("solutions", "notebooks"):
        shutil.copytree(notebook.ROOT / folder / LESSON, course / folder / LESSON)
    shutil.copy(notebook.ROOT / "nbgrader_config.py", course)
    with contextlib.closing(Hub(tmp_path / "hub", course, tuple(STUDENTS))) as hub:
        yield hub


@pytest.mark.browser
@pytest.mark.hub
@pytest.mark.jail
@pytest.mark.slow
@pytest.mark.thorough
def test_a_class_from_release_to_feedback(hub):
    hub.run("nbgrader", "release_assignment", LESSON)
    inbound = hub.folder / "exchange" / "distributed-training" / "inbound"
    assert inbound.stat().st_mode & 0o777 == 0o733, "students can put something in, and cannot look"
    with chromium() as browser:
        tabs = {name: Tab(browser) for name in STUDENTS}
        for name, tab in tabs.items():
            hub.login(tab, name)
            fetch(tab, hub.home(name) / LESSON)
            solve(tab, f"{hub.url}/user/{name}", hub.home(name) / LESSON / f"{LESSON}.ipynb", STUDENTS[name][0])
            submit(tab)
        assert sorted(path.name.split("+")[0] for path in inbound.iterdir()) == sorted(STUDENTS)

        hub.run("nbgrader", "collect", LESSON)
        hub.run("autograder", "grade", "--course", str(hub.course))
        totals = {student: score for (student, _), (score, _) in Course(hub.course).totals().items()}
        assert totals == {name: points for name, (_, points) in STUDENTS.items()}

        hub.run("nbgrader", "release_feedback", LESSON)
        page = feedback(tabs["ben"])
        assert re.search(r"Total\s+4 / 27", page), page[:1000]
        answer = tabs["ben"].page.goto(f"{hub.url}/user/ada/lab")
        assert answer.status == 403, "a student does not get into another one's server"


def fetch(tab: Tab, folder: Path) -> None:
    """Fetch the lesson in the Assignment List, the only one of nbgrader's pages in a student's menu."""
    tab.page.click(".lm-MenuBar-itemLabel:text-is('Nbgrader')")
    tab.page.click(".lm-Menu-itemLabel:text-is('Assignment List')")
    assert tab.page.locator(".lm-Menu-itemLabel:text-is('Formgrader')").count() == 0
    tab.page.click("#released_assignments_list button:text-is('Fetch')")
    tab.page.wait_for_selector("#fetched_assignments_list .list_item")
    assert {path.name for path in folder.iterdir()} == {f"{LESSON}.ipynb", "AGENTS.md"}


def solve(tab: Tab, server: str, path: Path, beginning: str) -> None:
    """Open the notebook, put right answers into the cells that begin like this, run all cells, and save."""
    tab.page.goto(f"{server}/lab/tree/{LESSON}/{LESSON}.ipynb")
    tab.wait_for_kernel()
    answers = answers_of(beginning)
    for source in answers:
        cell = tab.page.locator(".jp-Notebook .jp-CodeCell", has_text=source.split("\n")[0]).first
        cell.locator(".cm-content").click()
        tab.page.keyboard.press("Control+a")
        tab.page.keyboard.insert_text(source)
    if answers:
        tab.page.click(".lm-MenuBar-itemLabel:text-is('Run')")
        tab.page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")
        tab.wait("[...document.querySelectorAll('.jp-InputPrompt')].some(it => /\\d/.test(it.innerText))")
        tab.wait("[...document.querySelectorAll('.jp-InputPrompt')].every(it => !it.innerText.includes('*'))")
    tab.page.keyboard.press("Control+s")
    until = time.monotonic() + PATIENCE
    while not sources(path).issuperset(answers):
        assert time.monotonic() < until, "the notebook was not saved"
        time.sleep(0.2)


def sources(path: Path) -> set[str]:
    """What the cells of a saved notebook hold; nothing while it is being written."""
    try:
        return {cell.source for cell in nbformat.read(path, as_version=4).cells}
    except nbformat.reader.NotJSONError:
        return set()


def answers_of(beginning: str) -> list[str]:
    """The lesson's own answers to the exercises that begin like this."""
    cells = notebook.read(LESSON).cells
    answers = [cell for cell in cells if notebook.nbgrader_role(cell) == "solution" and cell.id.startswith(beginning)]
    return [
        re.sub(r"^ *### (BEGIN|END) SOLUTION.*\n?", "", cell.source, flags=re.MULTILINE).strip() for cell in answers
    ]


def submit(tab: Tab) -> None:
    """Hand in with the Assignment List's button."""
    tab.page.click(".lm-MenuBar-itemLabel:text-is('Nbgrader')")
    tab.page.click(".lm-Menu-itemLabel:text-is('Assignment List')")
    tab.page.click("#fetched_assignments_list button:text-is('Submit')")
    tab.page.wait_for_selector("#submitted_assignments_list .list_item")


def feedback(tab: Tab) -> str:
    """Fetch the feedback in the Assignment List and open it from the file browser; the text of the page."""
    tab.page.click("#refresh_assignments_list")
    tab.page.click("#submitted_assignments_list button:text-is('Fetch Feedback')")
    tab.page.click("#submitted_assignments_list a:has-text('view feedback')")
    tab.page.dblclick(f".jp-DirListing-itemText:has-text('{LESSON}.html')")
    return tab.page.frame_locator(".jp-HTMLViewer iframe").locator("body", has_text="Total").inner_text()


def test_students_have_what_ranks_and_the_notebooks_import():
    project = tomllib.loads((notebook.ROOT / "pyproject.toml").read_text())["project"]
    wanted = {*project["dependencies"], *project["optional-dependencies"]["student"]}
    wanted |= {"jupyterhub", "jupyterlab", "nbgrader"}
    names = {re.split(r"[=>]", line)[0].lower() for line in wanted}
    lines = [line for line in (RECIPE / "students.txt").read_text().splitlines() if line and line[0] not in "#-"]
    assert {line.lower() for line in lines} == names


def test_the_values_for_kubernetes_give_each_student_a_uid_and_a_name():
    folder = RECIPE / "kubernetes"
    values = yaml.safe_load((folder / "values.yaml").read_text())
    settings = types.SimpleNamespace(Spawner=types.SimpleNamespace())
    exec(values["hub"]["extraConfig"]["class"], {"c": settings})
    spawner = types.SimpleNamespace(user=types.SimpleNamespace(name="ada", id=7), environment={"A": "b"}, uid=1000)
    settings.Spawner.pre_spawn_hook(spawner)
    assert spawner.uid == 10007 and spawner.environment == {"A": "b", "NBGRADER_STUDENT": "ada", "USER": "ada"}
    claim = next(
        one for one in yaml.safe_load_all((folder / "exchange.yaml").read_text()) if one["kind"].endswith("Claim")
    )
    volumes = values["singleuser"]["storage"]["extraVolumes"]
    assert [volume["persistentVolumeClaim"]["claimName"] for volume in volumes] == [claim["metadata"]["name"]]
