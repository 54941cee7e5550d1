"""A change in one lesson runs, grades and audits that lesson, and no other."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from autograder.__main__ import main
from autograder.answers.verdicts import Losses
from autograder.grading.course import Course
from autograder.grading.running import workers
from autograder.lessons import chapters, executing, keys, notebook, run_solutions
from autograder.soundness import audit

ROOT = Path(__file__).resolve().parent.parent
LESSONS = notebook.lessons()


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the repository's sources, of which all keys are taken."""
    for name in ("ranks", "autograder", "solutions", "book", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "_vendor", "*.png"))
    for name in ("requirements.lock", "nbgrader_config.py"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    monkeypatch.setattr(notebook, "SOLUTIONS", tmp_path / "solutions")
    return tmp_path


def all_keys():
    return {
        "executed": {lesson: keys.of_lesson(lesson) for lesson in LESSONS},
        "graded": {lesson: keys.of_lesson(lesson, more=keys.GRADING) for lesson in LESSONS},
        "audited": {lesson: keys.of_lesson(lesson, more=keys.SOUNDNESS, verdicts=False) for lesson in LESSONS},
        "chapters": {path.stem: keys.of_chapter(path) for path in (notebook.ROOT / "book").glob("*.md")},
    }


def changed(before):
    """What each kind of key says has changed since."""
    now = all_keys()
    return {kind: sorted(name for name in now[kind] if now[kind][name] != before[kind][name]) for kind in now}


def append(path, text="\n# a change\n"):
    path.write_text(path.read_text() + text)


OWN = ["08_zero1"]
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
    ("autograder/grading/nbgrader/scoring.py", [], LESSONS, LESSONS, []),
    ("nbgrader_config.py", [], LESSONS, [], []),
    ("autograder/soundness/audit.py", [], [], LESSONS, []),
    ("autograder/insight/report.py", [], [], [], []),
    ("autograder/checking/expect.py", LESSONS, LESSONS, LESSONS, TRYING),
    ("requirements.lock", LESSONS, LESSONS, LESSONS, TRYING),
    ("book/index.md", [], [], [], []),
]


@pytest.mark.parametrize(("file", "executed", "graded", "audited", "chapters"), CHANGES)
def test_a_change_voids_what_depends_on_it(copy, file, executed, graded, audited, chapters):
    before = all_keys()
    if not (copy / file).is_file():
        pytest.fail(f"{file} has moved: name another file here")
    append(copy / file)
    assert changed(before) == {"executed": executed, "graded": graded, "audited": audited, "chapters": chapters}


def test_a_solution_is_part_of_its_lesson_and_of_the_chapters_that_use_it(copy):
    before = all_keys()
    append(copy / "solutions" / "08_zero1" / "08_zero1.ipynb", "\n")
    found = changed(before)
    assert found["executed"] == found["graded"] == found["audited"] == [*OWN, "17_capstone"], "which has pieces of it"
    assert "08_zero1" in found["chapters"] and "03_step" not in found["chapters"]


def test_the_runtime_is_part_of_everything(copy):
    before = all_keys()
    append(copy / "ranks" / "ledger.py")
    assert changed(before) == {
        **dict.fromkeys(("executed", "graded", "audited"), LESSONS),
        "chapters": sorted(path.stem for path in (copy / "book").glob("*.md")),
    }


def test_what_does_not_count_changes_no_key(copy):
    before = all_keys()
    (copy / "ranks" / "__pycache__").mkdir()
    (copy / "ranks" / "__pycache__" / "ledger.pyc").write_text("compiled")
    (copy / "solutions" / "08_zero1" / ".ipynb_checkpoints").mkdir()
    (copy / "solutions" / "08_zero1" / ".ipynb_checkpoints" / "x.ipynb").write_text("{}")
    assert not any(changed(before).values())


def edit_a_hint(copy):
    """Another wording of one known mistake of lesson 08."""
    path = copy / "solutions" / "08_zero1" / "wrong.md"
    text = path.read_text()
    assert "reduce-scatter" in text
    path.write_text(text.replace("reduce-scatter", "reduce scatter", 1))


def test_a_hint_runs_one_solution_again(copy, monkeypatch, capsys):
    executed = copy / "executed"
    executed.mkdir()
    monkeypatch.setattr(run_solutions, "EXECUTED", executed)
    for lesson in LESSONS:
        (executed / f"{lesson}.ipynb").write_text("{}")
        (executed / f"{lesson}.sha256").write_text(keys.of_lesson(lesson))
    ran = []
    monkeypatch.setattr(run_solutions, "run_all", lambda todo, *_, **__: ran.extend(name for name, _ in todo) or [])
    assert main(["run"]) == 0 and ran == []
    edit_a_hint(copy)
    assert main(["run"]) == 0 and ran == OWN
    assert capsys.readouterr().out.count("unchanged since it last ran") == 2 * len(LESSONS) - 1


def test_a_hint_grades_one_lesson_again(copy, monkeypatch):
    for student in ("ada", "bob"):
        for lesson in ("03_step", "08_zero1"):
            (copy / "submitted" / student / lesson).mkdir(parents=True)
    course = Course(copy, jail=False)
    done = {"/".join(job): course._fingerprint(*job, course._take(*job)) for job in course.jobs()}
    done |= {f"/{lesson}": course._fingerprint("", lesson) for lesson in ("03_step", "08_zero1")}
    course.graded.parent.mkdir()
    course.graded.write_text(json.dumps(done))
    graded, tried = [], []
    monkeypatch.setattr(course, "prepare", lambda lesson: None)
    monkeypatch.setattr(course, "final", lambda: set(course.jobs()))
    monkeypatch.setattr(course, "rows", lambda: [])
    monkeypatch.setattr(course, "try_solutions", lambda states, pool, bar: tried.extend(states))
    monkeypatch.setattr(course, "_grade", lambda todo, tasks, pool, bar: graded.extend(todo) or [])
    pool = SimpleNamespace(prepared=lambda tasks: tasks)
    monkeypatch.setattr(workers, "Workers", lambda *_: contextlib.nullcontext(pool))
    course.grade()
    assert graded == tried == []
    edit_a_hint(copy)
    course.grade()
    assert graded == [("ada", "08_zero1"), ("bob", "08_zero1")] and tried == OWN


def recorded(case):
    return Losses(case.answer().breaks, case.answer().fails)


def test_a_hint_runs_no_chapter_and_audits_one_lesson_again(copy, monkeypatch):
    monkeypatch.setattr(chapters, "BOOK", copy / "book")
    monkeypatch.setattr(audit, "VERDICTS", copy / "verdicts")
    chapters.forget_stale(copy / "cache")
    cases = {lesson: next(case for case in audit.cases(lesson) if case.kind == "wrong") for lesson in LESSONS}
    for lesson, case in cases.items():
        audit.Held(lesson, "batch").add(audit.Verdict(case, (), recorded(case)), thorough=True)
    edit_a_hint(copy)
    record = json.loads((copy / "cache.json").read_text())
    assert chapters.forget_stale(copy / "cache") == [] and json.loads((copy / "cache.json").read_text()) == record
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
