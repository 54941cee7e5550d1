"""The exercises that are solved on a page: what the page gets of them, and what Run and Check say, in a browser."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup
from playwright.sync_api import expect
from sphinx.application import Sphinx
from sphinx.errors import ConfigError
from sphinx.util.docutils import docutils_namespace

from autograder.answers import wrong
from autograder.lesson import notebook
from tests.helpers import npm, pyodide, website
from tests.helpers.browser import Tab
from tests.helpers.notebook_regions import split

sys.path[:0] = [str(notebook.ROOT / "book" / "_ext"), str(notebook.ROOT / "book" / "exercise")]
py_exercise, program = importlib.import_module("py_exercise"), importlib.import_module("run")

LESSON, ADAM = "03_step", "03-ex3-adam-update"
#: An exercise that needs no package at all, so that it runs in a Pyodide without numpy.
PURE_LESSON, PURE = "02_costs", "02-ex6-roofline"


def released(lesson: str = LESSON) -> Path:
    return notebook.NOTEBOOKS / lesson / f"{lesson}.ipynb"


def cells(lesson: str, solved: bool = False) -> dict[str, str]:
    """The sources of a lesson's cells: as students get them, or with the answers."""
    nb = notebook.read(lesson) if solved else nbformat.read(released(lesson), as_version=4)
    return {cell.id: cell.source for cell in nb.cells}


def answers() -> list[tuple[str, str]]:
    """Every answer cell with its lesson."""
    found = [(lesson, cell) for lesson in notebook.lessons() for cell in notebook.read(lesson).cells]
    return [(lesson, cell.id) for lesson, cell in found if notebook.nbgrader_role(cell) == "solution"]


# What a page gets


def test_everything_is_the_released_notebooks():
    cell, found = cells(LESSON), py_exercise.material(released(), ADAM)
    assert found.title == "Exercise 3 · Adam"
    assert found.start == f"{cell[ADAM]}\n\n\n{cell['03-ex3-try-it']}"
    assert found.tests == cell[f"{ADAM}-test"]
    assert found.setup == "import numpy as np", "what the cells need of the setup, and no more"
    assert found.packages == ["numpy"]


def test_no_page_can_get_an_answer_or_a_hidden_test():
    made = 0
    for lesson, answer in answers():
        with contextlib.suppress(ValueError):
            text = "\n".join(map(str, py_exercise.material(released(lesson), answer)))
            made += 1
            hidden, shown = split(lesson, "SOLUTION", "HIDDEN TESTS")
            secret = {line for line in hidden if len(line) > 15} - set(shown)
            assert not [line for line in secret if line in text], answer
            assert "autograder" not in text
    assert made > 15


@pytest.mark.parametrize(
    "lesson, answer, problem",
    [
        ("03_step", "03-ex3-nothing", "03_step.ipynb has no cell 03-ex3-nothing"),
        ("01_collectives", "01-ex1-broadcast", "needs ranks, torch: the page loads only numpy"),
        ("03_step", "03-ex6-sum-bug", "needs distributed_training_step, which another exercise has the reader write"),
    ],
)
def test_what_cannot_be_done_on_a_page_is_said(lesson, answer, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        py_exercise.material(released(lesson), answer)


def small_book(folder: Path, url: str, *exercises: str) -> Path:
    """A book of one page with these exercises, made by Sphinx alone; the page."""
    source, out = folder / "source", folder / "html"
    for exercise in exercises:
        lesson = exercise.partition("/")[0]
        (source / "notebooks" / lesson).mkdir(parents=True)
        shutil.copy(released(lesson), source / "notebooks" / lesson)
        (source / "notebooks" / lesson / f"{lesson}.md").write_text("# The assignment")
    fences = [f"```{{py-exercise}} {exercise}\n```\n" for exercise in exercises]
    (source / "pages").mkdir(exist_ok=True)
    (source / "pages" / "page.md").write_text("# A page\n\n" + "\n".join(fences))
    (source / "index.md").write_text("# A book")
    settings = {"extensions": ["myst_parser", "py_exercise"], "pyodide_url": url, "suppress_warnings": ["toc"]}
    warnings = io.StringIO()
    with docutils_namespace():
        app = Sphinx(source, None, out, folder / "doctrees", "html", settings, None, warnings)
        app.build()
    assert not re.sub(r".*isn't included in any toctree.*\n|.*document.*", "", warnings.getvalue()), warnings.getvalue()
    return out / "pages" / "page.html"


def test_the_page_has_the_code_the_tests_and_the_links(tmp_path):
    page = small_book(tmp_path, "https://example.org/full", f"{LESSON}/{ADAM}")
    html = BeautifulSoup(page.read_text(), "html.parser")
    box, found = html.select_one(".py-exercise"), py_exercise.material(released(), ADAM)
    assert (box["role"], box["aria-label"]) == ("group", found.title)
    assert (box["data-pyodide"], box["data-seconds"]) == ("https://example.org/full/", "5")
    assert box.select_one(".py-start pre").get_text().strip() == found.start
    assert box.select_one("details.py-tests pre").get_text().strip() == found.tests
    links = [(page.parent / link["href"]).resolve() for link in box.select(".py-from a")]
    assert [link.name for link in links] == [f"{LESSON}.html", f"{LESSON}.ipynb"]
    assert links[1].read_bytes() == released().read_bytes()
    data = json.loads(box.select_one("script.py-data").string)
    assert {**found._asdict(), "name": ADAM}.items() <= data.items()
    assert set(data) - set(found._asdict()) == {"name", "worker", "program"}
    scripts = [tag["src"].partition("?")[0].rpartition("_static/")[2] for tag in html.select("script[src]")]
    assert scripts[-2:] == ["exercise/vendor/codemirror.js", "exercise/exercise.js"]
    assert "exercise" not in (tmp_path / "html" / "index.html").read_text(), "no other page loads them"
    copied = {path.name for path in (tmp_path / "html" / "_static" / "exercise").rglob("*") if path.is_file()}
    assert copied == {"exercise.css", "exercise.js", "codemirror.js", "LICENSE-codemirror"}


def with_a_stub_of_numpy(core: Path, folder: Path) -> Path:
    """A Pyodide distribution: the core, and a package numpy that holds nothing."""
    shutil.copytree(core, folder)
    lock = json.loads((folder / "pyodide-lock.json").read_text())
    wheel = folder / lock["packages"]["numpy"]["file_name"]
    name = "-".join(wheel.name.split("-")[:2])
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("numpy/__init__.py", "")
        file.writestr(f"{name}.dist-info/METADATA", f"Name: numpy\nVersion: {name.partition('-')[2]}\n")
        file.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{name}.dist-info/RECORD", "")
    lock["packages"]["numpy"]["sha256"] = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / "pyodide-lock.json").write_text(json.dumps(lock))
    return folder


def test_a_folder_takes_the_place_of_the_setting(tmp_path, monkeypatch):
    folder = tmp_path / "pyodide"
    folder.mkdir()
    names = {"pyodide.js", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip", "numpy-2-any.whl"}
    for name in (*names, "pandas.whl", "pyodide.d.ts", "pyodide.js.map"):
        (folder / name).touch()
    monkeypatch.setenv("PYODIDE", str(folder))
    page = small_book(tmp_path, "https://example.org/full/", f"{LESSON}/{ADAM}")
    assert 'data-pyodide="../_static/pyodide/"' in page.read_text()
    assert {path.name for path in (tmp_path / "html" / "_static" / "pyodide").iterdir()} == names


@pytest.mark.parametrize("names, lacks", [((), "pyodide.js"), (("pyodide.js",), "numpy*")])
def test_a_folder_without_python_or_numpy_is_refused(tmp_path, names, lacks):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=re.escape(f"there is no {lacks} in it")):
        py_exercise.check_pyodide(tmp_path)


def test_the_setting_names_the_version_that_the_tests_drive():
    settings = yaml.safe_load((notebook.ROOT / "_config.yml").read_text())["sphinx"]["config"]
    assert settings["pyodide_url"].endswith(f"/v{pyodide.CURRENT.name.partition('@')[2]}/full/")


def test_the_editor_is_the_one_that_its_readme_describes():
    vendor = notebook.ROOT / "book" / "exercise" / "vendor"
    readme = (vendor / "README.md").read_text()
    assert hashlib.sha256((vendor / "codemirror.js").read_bytes()).hexdigest() in readme
    for name, version in json.loads((vendor / "package.json").read_text())["devDependencies"].items():
        assert re.search(rf"{name.partition('codemirror/')[2] or name}`? {re.escape(version)}", readme), name


# The program that runs the reader's code


def ran(code: str, tests: str = "", setup: str = "") -> tuple[dict[str, str], str]:
    """What an error says, and what was printed."""
    printed: list[str] = []
    return json.loads(program.run(setup, code, tests, printed.append)), "".join(printed)


def notebook_says(code: str) -> str | None:
    """The message with which the notebook's visible tests fail on an answer, as its last line has it."""
    names: dict[str, object] = {}
    exec(cells(LESSON)["03-imports"], names)
    try:
        exec(code, names)
        exec(cells(LESSON)[f"{ADAM}-test"], names)
    except AssertionError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("known", wrong.of_exercise(ADAM), ids=lambda known: known.name)
def test_a_wrong_answer_is_told_what_the_notebook_says(known):
    found = py_exercise.material(released(), ADAM)
    assert ran(known.source, found.tests, found.setup)[0].get("headline") == notebook_says(known.source)


def test_right_and_missing_answers():
    found = py_exercise.material(released(), ADAM)
    assert ran(cells(LESSON, solved=True)[ADAM], found.tests, found.setup)[0] == {}
    missing, _ = ran(found.start, found.tests, found.setup)
    assert missing["headline"] == "NotImplementedError: write this function" == notebook_says(found.start)
    assert missing["where"].splitlines()[-2:] == [
        "your code, line 9, in adam_update",
        '    raise NotImplementedError("write this function")',
    ]


@pytest.mark.parametrize(
    "code, headline, where",
    [
        ("x = 1\ny = (", "SyntaxError: '(' was never closed", "your code, line 2\n    y = ("),
        ("import sys\nsys.exit(3)", "SystemExit: 3", "your code, line 2\n    sys.exit(3)"),
        ("assert 1 == 2, 'no'", "AssertionError: no", "your code, line 1\n    assert 1 == 2, 'no'"),
        ("import json\njson.loads('{')", None, "your code, line 2\n    json.loads('{')"),
    ],
)
def test_an_error_is_told_with_the_readers_lines_alone(code, headline, where):
    error, _ = ran(code)
    assert headline in (None, error["headline"]) and error["where"] == where


def test_a_long_output_and_a_deep_recursion_are_cut():
    _, printed = ran("for i in range(9999): print('x' * 99)")
    assert len(printed) < program.SHOWN + 50 and printed.endswith("… and more\n")
    error, _ = ran("def f(): f()\nf()")
    assert error["headline"].startswith("RecursionError") and error["where"].count("your code") == program.FRAMES


# In the browser


def server(package):
    """A fixture: the URL of a Pyodide on a server of this machine. Without npm's registry the tests say so and skip."""

    @pytest.fixture(scope="module")
    def url():
        with npm.or_skip():
            folder = npm.get(package)
        with website.served(folder) as url:
            yield url

    return url


full, current = server(pyodide.FULL), server(pyodide.CURRENT)


class Exercise:
    """An exercise on a page, as a reader handles it. python: where its Pyodide comes from, if not from the setting."""

    def __init__(self, tab: Tab, page: str, python: str = ""):
        self.tab, self.python = tab, python
        self.box = tab.page.locator(".py-exercise")
        self.open(page)

    def open(self, page: str) -> None:
        self.tab.open(page)
        if self.python:
            self.box.evaluate("(box, url) => { box.dataset.pyodide = url }", self.python)

    @property
    def code(self) -> str:
        return "\n".join(self.box.locator(".cm-line").all_text_contents())

    def write(self, code: str) -> None:
        self.box.locator(".cm-content").fill(code)

    def press(self, name: str) -> tuple[str, str]:
        """Press a button and wait; what the page says, and what it shows below."""
        button = self.box.get_by_role("button", name=name)
        button.click()
        expect(button).to_have_attribute("aria-disabled", "false")
        return self.says, self.output

    @property
    def says(self) -> str:
        return self.box.get_by_role("status").inner_text()

    @property
    def output(self) -> str:
        return self.box.locator(".py-output").text_content()


@pytest.fixture
def chapter(book) -> str:
    return (book / "book" / f"{LESSON}.html").as_uri()


@pytest.fixture
def exercise(chromium, chapter, full):
    """The exercise of the chapter, opened from disk, with a Python that holds numpy."""
    return Exercise(Tab(chromium), chapter, full)


UNFILLED = "NotImplementedError: write this function"
RIGHT = "All of these tests pass. The notebook's grader has more of them."


@pytest.mark.browser
@pytest.mark.slow
def test_run_and_check(exercise):
    tab = exercise.tab
    assert not [url for url in tab.requests if not url.startswith(("file:", "data:"))], "nothing before a click"
    assert exercise.press("Run")[0] == UNFILLED
    assert exercise.press("Check")[0] == f"Not yet: {UNFILLED}"
    wrong = cells(LESSON, solved=True)[ADAM].replace("(1 - beta1) * g", "beta1 * g")
    exercise.write(wrong)
    says, output = exercise.press("Check")
    assert says == f"Not yet: {notebook_says(wrong)}" and "m is [ 3.6 -1.8], expected [0.4, -0.2]" in says
    assert output.startswith("the tests, line 5\n    assert np.allclose(m, [0.4, -0.2])")
    exercise.write(cells(LESSON, solved=True)[ADAM] + "\n\nprint('hello', np.arange(3))")
    assert exercise.press("Run") == ("Done.", "hello [0 1 2]\n")
    assert exercise.press("Check") == (RIGHT, "hello [0 1 2]\n")
    exercise.write("x = 1")
    assert exercise.press("Run") == ("Done; nothing was printed.", "")
    assert exercise.press("Check")[0] == "Not yet: NameError: name 'adam_update' is not defined", "runs share nothing"
    assert not tab.outside and not tab.errors


@pytest.mark.browser
@pytest.mark.slow
def test_an_endless_loop_is_stopped(exercise):
    exercise.write("print('before')\nwhile True:\n    try:\n        pass\n    except BaseException:\n        pass")
    says, output = exercise.press("Run")
    assert says == "Stopped after 5 seconds. Does a loop never end? The next click starts Python anew."
    assert output == "before\n"
    exercise.write("print(6 * 7)")
    assert exercise.press("Run") == ("Done.", "42\n")


@pytest.mark.browser
def test_the_text_is_kept_and_reset(chromium, chapter):
    exercise = Exercise(Tab(chromium), chapter)
    start = py_exercise.material(released(), ADAM).start
    assert exercise.code == start
    exercise.write("x = 1\n")
    exercise.tab.page.wait_for_function("() => Object.values(localStorage).includes('x = 1\\n')")
    exercise.open(chapter)
    assert exercise.code == "x = 1\n"
    exercise.box.get_by_role("button", name="Reset").click()
    assert exercise.code == start
    exercise.box.locator(".cm-content").press("Control+z")
    assert exercise.code == "x = 1\n", "a reset can be undone"
    exercise.box.get_by_role("button", name="Reset").click()
    exercise.open(chapter)
    assert exercise.code == start


@pytest.mark.browser
def test_without_storage_the_editor_works(chromium, chapter):
    tab = Tab(chromium)
    tab.page.add_init_script("Object.defineProperty(window, 'localStorage', {get() { throw new Error('off'); }})")
    exercise = Exercise(tab, chapter)
    exercise.write("x = 1")
    exercise.box.get_by_role("button", name="Reset").click()
    assert exercise.code == py_exercise.material(released(), ADAM).start


@pytest.mark.browser
def test_without_a_network_the_page_offers_the_notebook(chromium, chapter):
    exercise = Exercise(Tab(chromium), chapter)
    for name in ("Run", "Check"):  # and once more, when it may be back
        says, _ = exercise.press(name)
        assert says.startswith("Python could not be loaded from cdn.jsdelivr.net: check the network and try again.")
        links = exercise.box.get_by_role("status").locator("a")
        assert [link.get_attribute("href").rpartition("/")[2] for link in links.all()] == [
            "03_step.html",
            "03_step.ipynb",
        ]
    assert all(url.startswith("https://cdn.jsdelivr.net/pyodide/") for url in exercise.tab.outside)


@pytest.mark.browser
def test_the_keyboard_gets_into_the_editor_and_out(chromium, chapter):
    exercise = Exercise(Tab(chromium), chapter)
    keyboard, text = exercise.tab.page.keyboard, exercise.box.locator(".cm-content")
    exercise.write("")
    expect(text).to_have_attribute("aria-label", "Your code for Exercise 3 · Adam")
    text.focus()
    keyboard.press("Tab")
    assert exercise.code == "    ", "Tab indents"
    keyboard.press("Escape")
    keyboard.press("Tab")
    run = exercise.box.get_by_role("button", name="Run")
    expect(run).to_be_focused()
    keyboard.press("Enter")
    expect(run).to_have_attribute("aria-disabled", "false")
    expect(run).to_be_focused()
    text.focus()
    exercise.box.get_by_role("status").evaluate("e => e.replaceChildren()")
    keyboard.press("Control+Enter")
    expect(exercise.box.get_by_role("status")).to_contain_text("Python could not be loaded")
    described = text.get_attribute("aria-describedby")
    assert "Escape, then Tab" in exercise.box.locator(f"#{described}").inner_text()


@pytest.mark.browser
def test_paper_and_readers_without_scripts_have_the_starting_code(chromium, chapter):
    start = py_exercise.material(released(), ADAM).start
    tab = Tab(chromium)
    tab.open(chapter)
    expect(tab.page.locator(".py-start")).to_be_hidden()
    tab.page.emulate_media(media="print")
    expect(tab.page.locator(".py-live")).to_be_hidden()
    expect(tab.page.locator(".py-start pre")).to_be_visible()
    page = chromium.new_page(java_script_enabled=False)
    page.goto(chapter)
    assert page.locator(".py-start pre").inner_text().strip() == start
    expect(page.locator(".py-from a[download]")).to_be_visible()
    page.close()


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.thorough
def test_the_pyodide_of_today_runs_an_exercise_from_disk_and_from_a_server(chromium, current, tmp_path):
    """The version that the book names; npm has it without numpy, which this exercise does not need."""
    page = small_book(tmp_path, current, f"{PURE_LESSON}/{PURE}")
    with website.served(tmp_path / "html") as site:
        for url in (page.as_uri(), f"{site}pages/page.html"):
            exercise = Exercise(Tab(chromium), url)
            assert exercise.press("Check")[0] == f"Not yet: {UNFILLED}"
            exercise.write(cells(PURE_LESSON, solved=True)[PURE])
            assert exercise.press("Check")[0] == RIGHT


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.thorough
def test_a_pyodide_beside_the_pages_is_used(chromium, current, tmp_path, monkeypatch):
    distribution = with_a_stub_of_numpy(npm.get(pyodide.CURRENT), tmp_path / "pyodide")
    monkeypatch.setenv("PYODIDE", str(distribution))
    page = small_book(tmp_path, "https://example.org/full/", f"{LESSON}/{ADAM}")
    with website.served(tmp_path / "html") as site:
        exercise = Exercise(Tab(chromium), f"{site}pages/page.html")
        exercise.write("print(np.__name__)")
        assert exercise.press("Run") == ("Done.", "numpy\n")
        assert all(url.startswith((site, "blob:", "data:")) for url in exercise.tab.requests)
    exercise = Exercise(Tab(chromium), page.as_uri())
    assert exercise.press("Run")[0].startswith(
        "Python does not load on a page opened from disk: serve the book's folder"
    )
