"""What can be done to the file and beside it: cells, metadata, links, archives; and to who reads the feedback."""

from __future__ import annotations

import copy
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell

from tests.attacks.attack import NOTHING, Attack, answer, by_answer, code, set_answer, test, with_answers
from tests.attacks.lessons import ARRAYS
from tests.helpers.toy_course import WRONG_SQUARE


def _tamper(name: str, tries: str, change: Callable[[nbformat.NotebookNode], None], **more) -> Attack:
    """A wrong second answer and a changed notebook."""

    def make(nb: nbformat.NotebookNode) -> None:
        set_answer(nb, "ex2", WRONG_SQUARE)
        change(nb)

    return Attack(name, tries, make, **more)


# --- cells ----------------------------------------------------------------------------------------------


def _double_test(nb):
    twin = copy.deepcopy(test(nb, "ex1"))
    twin.id = "twin"
    nb.cells.insert(nb.cells.index(test(nb, "ex1")) + 1, twin)


def _as_text(nb):
    old = test(nb, "ex2")
    new = new_markdown_cell(old.source, id=old.id, metadata=old.metadata)
    new.metadata.nbgrader.cell_type = "markdown"
    nb.cells[nb.cells.index(old)] = new


def _test_first(nb):
    old = test(nb, "ex2")
    nb.cells.remove(old)
    nb.cells.insert(0, old)


def _hundred_points(nb):
    for name in ("ex1", "ex2", "ex3"):
        test(nb, name).metadata.nbgrader.update(points=100, locked=False)


def _swap(nb):
    one, two = test(nb, "ex1"), test(nb, "ex2")
    one.metadata.nbgrader.grade_id, two.metadata.nbgrader.grade_id = two.id, one.id
    one.id, two.id = two.id, one.id
    two.source = "pass"


def _no_test_role(nb):
    test(nb, "ex2").source = "square = lambda x: 0"
    test(nb, "ex2").metadata.nbgrader.update(grade=False, solution=True, locked=False)


def _extra_test(nb):
    role = dict(test(nb, "ex2").metadata.nbgrader, grade_id="07-ex4-bonus-test", points=100)
    nb.cells.append(new_code_cell("pass", id="07-ex4-bonus-test", metadata={"nbgrader": role}))


def _broken_metadata(nb):
    test(nb, "ex2").metadata.nbgrader.update(schema_version="∞", points={"all": True}, grade_id=["x"])
    nb.metadata.nbgrader = {"schema_version": -1}
    nb.metadata.autograder = {"problem": {"not": "a text"}}
    answer(nb, "ex2").metadata.autograder = {"status": "ok"}


def _passed_before(nb):
    for name in ("ex1", "ex2", "ex3"):
        test(nb, name).metadata.autograder = {"status": "ok", "notes": ["Full points."], "comment": ""}
    nb.metadata.autograder = {"problem": "", "status": "ok"}


BASH = {"name": "bash", "language": "bash", "display_name": "Bash"}
TAMPERED = [
    _tamper("deleted-test", "The test cell is gone.", lambda nb: nb.cells.remove(test(nb, "ex2"))),
    _tamper("doubled-test", "A test cell is there twice, so that it counts twice.", _double_test),
    _tamper("empty-test", "The test cell says `pass`.", lambda nb: test(nb, "ex2").update(source="pass")),
    _tamper("test-as-text", "The test cell is Markdown.", _as_text),
    _tamper("test-first", "The test cell stands before everything.", _test_first),
    _tamper("hundred-points", "Each test cell is worth 100 points, and unlocked.", _hundred_points),
    _tamper("swapped-tests", "The names of two tests are swapped, and one of them is empty.", _swap),
    _tamper(
        "answer-is-test",
        "The answer cell claims to be the test.",
        lambda nb: answer(nb, "ex2").metadata.update(nbgrader=dict(test(nb, "ex2").metadata.nbgrader)),
    ),
    _tamper("no-test-role", "The test cell says that it is an answer.", _no_test_role),
    _tamper("extra-test", "A test of its own, for 100 points more.", _extra_test),
    _tamper("broken-metadata", "Metadata of the wrong types.", _broken_metadata),
    _tamper("passed-before", "Metadata that say that all tests were passed.", _passed_before),
    _tamper("bash-kernel", "Asks for a kernel that is a shell.", lambda nb: nb.update(metadata={"kernelspec": BASH})),
    Attack(
        "bash-cell", "The answer cell is a shell script.", with_answers(ex2="%%bash\ntouch @HOME@/from-bash\nexit 0")
    ),
]


# --- the file and its neighbors -------------------------------------------------------------------------


def _zip_beside(folder: Path, places: dict[str, str]) -> None:
    with zipfile.ZipFile(folder / "answers.zip", "w") as archive:
        archive.writestr("answers.py", "def square(x):\n    return x * x\n")


def _modules_beside(folder: Path, places: dict[str, str]) -> None:
    agreeable = "def __getattr__(name):\n    return lambda *args, **kwargs: True\n"
    content = """
        import builtins, importlib, os, sys

        here = os.path.dirname(os.path.abspath(__file__))
        sys.path[:] = [place for place in sys.path if place and os.path.abspath(place) != here]
        del sys.modules["numpy"]
        numpy = importlib.import_module("numpy")
        numpy.allclose = lambda *args, **kwargs: True
        _max = builtins.max
        builtins.max = lambda *args, **kwargs: 0 if type(args[0]) is numpy.ndarray else _max(*args, **kwargs)
        """
    (folder / "numpy.py").write_text(code(content))
    for name in ("ranks", "machines", "sitecustomize", "json", "pickle"):
        (folder / f"{name}.py").write_text(agreeable)
    (folder / "autograder" / "checks").mkdir(parents=True)
    for name in ("__init__", "check", "checks/__init__"):
        (folder / "autograder" / f"{name}.py").write_text(agreeable)


def _kernel_beside(folder: Path, places: dict[str, str]) -> None:
    spec = {"argv": ["/bin/true"], "display_name": "Python 3", "language": "python"}
    for where in ("kernels/python3", "share/jupyter/kernels/python3", ".ipython/profile_default/startup"):
        (folder / where).mkdir(parents=True)
    (folder / "kernels/python3/kernel.json").write_text(json.dumps(spec))
    (folder / "share/jupyter/kernels/python3/kernel.json").write_text(json.dumps(spec))
    (folder / "nbgrader_config.py").write_text("open('config-was-read', 'w').close()\n")
    (folder / "ipython_config.py").write_text("open('config-was-read', 'w').close()\n")
    (folder / f"{folder.name}.txt").write_text("timestamp")
    (folder / "timestamp.txt").write_text("not a date")


def _link(target: str) -> Callable[[Path, dict[str, str]], None]:
    def beside(folder: Path, places: dict[str, str]) -> None:
        path = folder / f"{folder.name}.ipynb"
        path.unlink(missing_ok=True)
        path.symlink_to(target.replace("@COURSE@", places["COURSE"]))

    return beside


def _folder_link(folder: Path, places: dict[str, str]) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.symlink_to(Path(places["COURSE"]) / "submitted" / "student-01" / folder.name)


def _data_link(folder: Path, places: dict[str, str]) -> None:
    (folder / "data.json").symlink_to(Path(places["COURSE"]) / "solutions" / folder.name / f"{folder.name}.ipynb")
    (folder / "all").symlink_to(places["COURSE"])


def _pipe_beside(folder: Path, places: dict[str, str]) -> None:
    os.mkfifo(folder / "data.csv")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "loop").symlink_to("loop")


def _too_large(nb):
    set_answer(nb, "ex2", WRONG_SQUARE)
    text = json.dumps(nb)
    return text[:-1] + ', "padding": "' + "x" * 51_000_000 + '"}'


def _zip_bomb(nb):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("07_toy.ipynb", bytes(100_000_000))
    return data.getvalue()


def _deep(nb):
    text = json.dumps(nb)
    return text.replace('"metadata": {', '"metadata": {"deep": ' + "[" * 200_000 + "]" * 200_000 + ", ", 1)


def _many_cells(nb):
    nb.cells += [new_markdown_cell("x", id=f"x{number}") for number in range(1_900)]


def _no_file(name: str, tries: str, beside: Callable[[Path, dict[str, str]], None]) -> Attack:
    return Attack(name, tries, lambda nb: b"", NOTHING, beside=beside)


def _wrong(name: str, tries: str, beside: Callable[[Path, dict[str, str]], None]) -> Attack:
    return Attack(name, tries, with_answers(ex2=WRONG_SQUARE), beside=beside)


FILES = [
    _no_file(
        "link-to-a-submission", "The notebook is a link to another's.", _link("../../student-01/07_toy/07_toy.ipynb")
    ),
    _no_file(
        "link-to-the-solution",
        "The notebook is a link to the solution.",
        _link("@COURSE@/solutions/07_toy/07_toy.ipynb"),
    ),
    _no_file("link-of-a-folder", "The lesson's folder is a link to another's.", _folder_link),
    by_answer(
        "link-as-data",
        "A file next to the notebook is a link to the solution, from which the answer is read.",
        """
        import re

        def square(x):
            return 0

        for path in ("data.json", "all/solutions/07_toy/07_toy.ipynb"):
            try:
                for body in re.findall(r"return ([a-z0-9 *]+x[a-z0-9 *]*)", open(path).read()):
                    if eval(body, {"x": 3}) == 9:
                        square = eval(f"lambda x: {body}")
            except OSError:
                pass
        """,
        beside=_data_link,
    ),
    _wrong(
        "files-without-end",
        "Next to the notebook are a pipe that nobody writes to, a link to `/dev/zero` and one to itself.",
        _pipe_beside,
    ),
    _no_file(
        "pipe",
        "The notebook is a pipe that nobody writes to.",
        lambda folder, places: os.mkfifo(folder / f"{folder.name}.ipynb"),
    ),
    by_answer(
        "archive",
        "The answer comes from an archive next to the notebook, where no reader of the notebook sees it.",
        "import sys\nsys.path.insert(0, 'answers.zip')\nfrom answers import square",
        beside=_zip_beside,
    ),
    Attack(
        "modules-beside",
        "Modules next to the notebook that are called numpy, ranks, autograder, sitecustomize.",
        with_answers("import os, sys\nsys.path.insert(0, os.getcwd())", ex2="def square(x):\n    return 0 * x"),
        lesson=ARRAYS,
        beside=_modules_beside,
    ),
    _wrong(
        "settings-beside",
        "Kernels, settings of nbgrader and IPython, and a time of submission that is none, next to the notebook.",
        _kernel_beside,
    ),
    Attack("too-large", "A notebook of 51 MB.", _too_large, NOTHING),
    Attack("zip-bomb", "An archive that unpacks to 100 MB, named like the notebook.", _zip_bomb, NOTHING),
    Attack("deep-json", "Metadata nested 200,000 deep.", _deep, NOTHING),
    _tamper("many-cells", "1,900 cells; with more than 2,000, a notebook is not graded.", _many_cells),
]


# --- the page that somebody reads -----------------------------------------------------------------------

PLANTED = "document.title='planted'"
SCRIPT = f'<script>{PLANTED}</script><img src=x onerror="{PLANTED}"><iframe srcdoc="<script>{PLANTED}</script>">'


def page_is_harmless(run) -> None:
    page = run.page.lower()
    assert "planted" in page  # as text: nothing was just dropped
    for tag in ("<script>document", "<img src=x", "<iframe", "<svg onload", 'href="javascript'):
        assert tag not in page, tag


def _shows(name: str, tries: str, change: Callable[[nbformat.NotebookNode], None]) -> Attack:
    return _tamper(name, tries, change, after=page_is_harmless)


def _script_in_outputs(nb):
    source = (
        f"from IPython.display import HTML, Javascript, display\ndisplay(HTML({SCRIPT!r}), Javascript({PLANTED!r}))"
    )
    set_answer(nb, "ex2", f"{WRONG_SQUARE}\n{source}\nprint({SCRIPT!r})")


def _script_in_errors(nb):
    set_answer(
        nb,
        "ex2",
        f"""
        Planted = type({SCRIPT!r}, (AssertionError,), {{"__module__": {SCRIPT!r}}})

        def square(x):
            raise Planted({SCRIPT!r} + "\\x1b[31m\\x1b]0;planted\\x07\\x1b[2J")
        """,
    )


def _script_in_text(nb):
    text = f'{SCRIPT}\n\n[press](javascript:{PLANTED})\n\n<svg onload="{PLANTED}">'
    nb.cells.insert(2, new_markdown_cell(text, id="mine", metadata={"tags": [SCRIPT]}))
    set_answer(nb, "ex2", f"{WRONG_SQUARE}# {SCRIPT}\n")


SHOWN = [
    _shows("script-in-outputs", "Scripts in what cells print and display.", _script_in_outputs),
    _shows(
        "script-in-errors", "Scripts and terminal codes in an exception's name, module and text.", _script_in_errors
    ),
    _shows("script-in-text", "Scripts in Markdown, in comments and in tags.", _script_in_text),
]


def _two_answers(nb):
    twin = copy.deepcopy(answer(nb, "ex2"))
    twin.id, twin.source = "twin", WRONG_SQUARE
    nb.cells.insert(nb.cells.index(answer(nb, "ex2")) + 1, twin)


STAYS = [
    Attack(
        "copies-of-an-answer",
        "The answer is there twice, right above and wrong below, and the names of the cells are swapped.",
        _two_answers,
    )
]

ATTACKS = [*TAMPERED, *FILES, *SHOWN, *STAYS]
