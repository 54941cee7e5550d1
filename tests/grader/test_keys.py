"""A change in one lesson runs, grades and audits that lesson, and no other."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from autograder.__main__ import main
from autograder.answers.verdicts import Losses
from autograder.audit import audit
from autograder.grade import record
from autograder.grade.course import Course
from autograder.lesson import chapters, executing, keys, notebook, run_solutions

ROOT = Path(__file__).resolve().parents[2]
LESSONS = notebook.lessons()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A copy of the repository's sources."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("ranks", "machines", "autograder", "solutions", "book", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_vendor", "*.png"))
    for name in ("requirements.lock", "nbgrader_config.py"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture
def copy(whole, monkeypatch):
    """This copy, of which all keys are taken. A test changes files with `append` alone."""
    monkeypatch.setattr(notebook, "ROOT", whole)
    monkeypatch.setattr(notebook, "SOLUTIONS", whole / "solutions")
    return whole


def all_keys():
    return {
        "executed": {lesson: keys.lesson_key(lesson) for lesson in LESSONS},
        "graded": {lesson: keys.lesson_key(lesson, more=keys.GRADING) for lesson in LESSONS},
        "audited": {lesson: keys.lesson_key(lesson, more=keys.AUDIT, verdicts=False) for lesson in LESSONS},
        "chapters": {path.stem: keys.of_chapter(path) for path in (notebook.ROOT / "book").glob("*.md")},
    }


def changed(before):
    """What each kind of key says has changed since."""
    now = all_keys()
    return {kind: sorted(name for name in now[kind] if now[kind][name] != before[kind][name]) for kind in now}


@pytest.fixture
def append(copy):
    """A function that appends an empty line to a file of the copy, which has its text again after the test."""
    texts = {}

    def change(file):
        if not (copy / file).is_file():
            pytest.fail(f"{file} has moved: name another file here")
        texts[copy / file] = (copy / file).read_text()
        (copy / file).write_text(texts[copy / file] + "\n")

    yield change
    for path, text in texts.items():
        path.write_text(text)


OWN = ["08_zero1"]
HINTS = "solutions/08_zero1/wrong.md"
#: The pages whose cells try checks: a test on the home page, kills of saves in chapter 16.
TRYING = ["16_checkpoints", "index"]
#: A file, and whose executed notebooks, grades and verdicts a change in it voids; then those pages that run again.
CHANGES = [
    ("solutions/08_zero1/checks/__init__.py", OWN, OWN, OWN, []),
    ("solutions/08_zero1/wrong.md", OWN, OWN, OWN, []),
    ("solutions/08_zero1/right.py", OWN, OWN, OWN, []),
    ("solutions/08_zero1/verdicts.txt", OWN, OWN, [], []),
    ("solutions/16_checkpoints/checks/saves_killed.py", *[["16_checkpoints"]] * 3, ["16_checkpoints"]),
    ("solutions/01_collectives/wrong.md", *[["01_collectives"]] * 3, ["index"]),
    ("solutions/01_collectives/checks/__init__.py", *[["01_collectives"]] * 3, ["index"]),
    ("benchmarks/measured/h100_ddp_trace.json", [], [], [], ["05_ddp"]),
    ("autograder/grade/nbgrader/scoring.py", [], LESSONS, LESSONS, []),
    ("nbgrader_config.py", [], LESSONS, [], []),
    ("autograder/audit/audit.py", [], [], LESSONS, []),
    ("autograder/desk/report.py", [], [], [], []),
    ("autograder/checks/expect.py", LESSONS, LESSONS, LESSONS, TRYING),
    ("requirements.lock", LESSONS, LESSONS, LESSONS, TRYING),
    ("ranks/ledger.py", LESSONS, LESSONS, LESSONS, sorted(path.stem for path in (ROOT / "book").glob("*.md"))),
    ("machines/model.py", LESSONS, LESSONS, LESSONS, sorted(path.stem for path in (ROOT / "book").glob("*.md"))),
    ("book/index.md", [], [], [], []),
]


@pytest.mark.parametrize(("file", "executed", "graded", "audited", "chapters"), CHANGES)
def test_a_change_voids_what_depends_on_it(append, file, executed, graded, audited, chapters):
    before = all_keys()
    append(file)
    assert changed(before) == {"executed": executed, "graded": graded, "audited": audited, "chapters": chapters}


def test_a_solution_is_part_of_its_lesson_and_of_the_chapters_that_use_it(append):
    before = all_keys()
    append("solutions/08_zero1/08_zero1.ipynb")
    found = changed(before)
    assert found["executed"] == found["graded"] == found["audited"] == [*OWN, "17_capstone"], "which has pieces of it"
    assert "08_zero1" in found["chapters"] and "03_step" not in found["chapters"]


@pytest.mark.parametrize("file", ["ranks/__pycache__/ledger.pyc", "solutions/08_zero1/.ipynb_checkpoints/x.ipynb"])
def test_what_does_not_count_changes_no_key(copy, file):
    before = all_keys()
    (copy / file).parent.mkdir()
    (copy / file).write_text("{}")
    assert not any(changed(before).values())


def test_a_hint_runs_one_solution_again(tmp_path, append, monkeypatch, capsys):
    monkeypatch.setattr(run_solutions, "EXECUTED", tmp_path)
    for lesson in LESSONS:
        (tmp_path / f"{lesson}.ipynb").write_text("{}")
        (tmp_path / f"{lesson}.sha256").write_text(keys.lesson_key(lesson))
    ran = []
    monkeypatch.setattr(run_solutions, "run_all", lambda todo, *_, **__: ran.extend(name for name, _ in todo) or [])
    assert main(["run"]) == 0 and ran == []
    append(HINTS)
    assert main(["run"]) == 0 and ran == OWN
    assert capsys.readouterr().out.count("unchanged since it last ran") == 2 * len(LESSONS) - 1


def test_a_hint_grades_one_lesson_again(copy, append):
    """Its solution, and submissions of it, whose fingerprints are others: test_grading.py."""
    course = Course(copy, jail=False)
    before, known = {lesson: course._fingerprint("ada", lesson) for lesson in LESSONS}, record.Record()
    for lesson in LESSONS:
        known.at(lesson).tried = course._fingerprint("", lesson)
    record.save(course.root, known)
    assert not course._untried(LESSONS)
    append(HINTS)
    assert list(course._untried(LESSONS)) == OWN
    assert [lesson for lesson in LESSONS if course._fingerprint("ada", lesson) != before[lesson]] == OWN


def test_a_hint_runs_no_chapter_and_audits_one_lesson_again(copy, tmp_path, append, monkeypatch):
    monkeypatch.setattr(chapters, "BOOK", copy / "book")
    monkeypatch.setattr(audit, "VERDICTS", tmp_path / "verdicts")
    chapters.forget_stale(tmp_path / "cache")
    cases = {lesson: next(case for case in audit.cases(lesson) if case.kind == "wrong") for lesson in LESSONS}
    for lesson, case in cases.items():
        recorded = Losses(case.answer().breaks, case.answer().fails)
        audit.Held(lesson, "batch").add(audit.Verdict(case, (), recorded), thorough=True)
    append(HINTS)
    record = json.loads((tmp_path / "cache.json").read_text())
    assert chapters.forget_stale(tmp_path / "cache") == []
    assert json.loads((tmp_path / "cache.json").read_text()) == record
    void = [lesson for lesson, case in cases.items() if not audit.Held(lesson, "batch").losses(case, thorough=False)]
    assert void == OWN


# Whatever fails in a chapter


def start_no_kernel(source, output, work):
    """In place of `executing.execute`, what papermill raises for a kernel that does not answer."""
    raise RuntimeError("Kernel didn't respond in 3600 seconds\nmore")


def run_a_chapter(path):
    """`chapters.execute`; but the kernel of the chapter `fails` does not start, and the process of `ends` ends."""
    if path.stem == "ends":
        os._exit(1)
    with pytest.MonkeyPatch.context() as patch:
        if path.stem == "fails":
            patch.setattr(executing, "execute", start_no_kernel)
        return EXECUTE(path)


EXECUTE = chapters.execute


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "last", "says"),
    [
        ("fails", "good", "book/fails.md: its kernel failed: RuntimeError: Kernel didn't respond in 3600 seconds"),
        ("good", "ends", "book/ends.md: the process that ran it ended: BrokenProcessPool: A process in the "),
    ],
)
def test_a_chapter_that_fails_is_a_line_and_the_others_are_stored(tmp_path, monkeypatch, capfd, first, last, says):
    (tmp_path / "book").mkdir()
    for name, text in ((first, "A longer text comes first.\n"), (last, "")):
        head = "---\nfile_format: mystnb\nkernelspec: {name: python3, display_name: Python 3}\n---\n"
        page = f"{head}\n# A\n\n{text}\n```{{code-cell}} python\nprint({name!r})\n```\n"
        (tmp_path / "book" / f"{name}.md").write_text(page)
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    monkeypatch.setattr(chapters, "BOOK", tmp_path / "book")
    monkeypatch.setattr(chapters, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(chapters, "execute", run_a_chapter)
    assert main(["chapters", "--jobs", "1"]) == 0
    (line,) = (line for line in capfd.readouterr().err.splitlines() if line.startswith("book/"))
    assert line.startswith(says), line
    without_outputs = [path.stem for path in chapters.uncached(tmp_path / "cache")]
    assert without_outputs == [name for name in (first, last) if name != "good"]
