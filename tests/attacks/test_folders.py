"""What a student can leave in the folder that is handed in, besides a notebook: modes, names, and folders in folders.

Archives keep modes, so that a file which nobody may read arrives as one. One such file used to stop the whole class.
"""

import os
from pathlib import Path

import pytest

from autograder.grading.nbgrader import submission_files
from tests.helpers.toy_course import LESSON, Toy, submission

FULL, NOTHING = {"ex1": 1.0, "ex2": 2.0, "ex3": 3.0}, dict.fromkeys(("ex1", "ex2", "ex3"), 0.0)
#: As root, no mode forbids anything.
ROOT = os.geteuid() == 0


def unreadable_file(folder: Path) -> None:
    (folder / "notes.txt").write_text("1")
    (folder / "notes.txt").chmod(0)


def unreadable_notebook(folder: Path) -> None:
    (folder / f"{LESSON}.ipynb").chmod(0)


def unreadable_time(folder: Path) -> None:
    (folder / "timestamp.txt").write_text("2026-11-22 10:00:00.000000 UTC")
    (folder / "timestamp.txt").chmod(0)


def unsearchable_folder(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "numbers.csv").write_text("1")
    (folder / "data").chmod(0o444)


def unsearchable_lesson(folder: Path) -> None:
    folder.chmod(0o444)


def unsearchable_student(folder: Path) -> None:
    folder.parent.chmod(0o444)


def closed_lesson(folder: Path) -> None:
    folder.chmod(0)


def closed_student(folder: Path) -> None:
    folder.parent.chmod(0)


def odd_names(folder: Path) -> None:
    for name in (b"\xff\xfe.csv", b"a\x1b[2Jb.csv", b"line\nbreak.csv", b"`$(touch planted)`.csv", b"-rf.csv"):
        (folder / os.fsdecode(name)).write_text("1")
    (folder.parent / "\x1b[2Jlesson").mkdir()


def many_folders(folder: Path) -> None:
    (folder / "/".join(["d"] * 500)).mkdir(parents=True)


#: What is wrong with a submission, and what its student gets where modes count.
SPOILED = {
    unreadable_file: FULL,
    unreadable_notebook: NOTHING,
    unreadable_time: FULL,
    unsearchable_folder: FULL,
    unsearchable_lesson: NOTHING,
    unsearchable_student: NOTHING,
    closed_lesson: NOTHING,
    odd_names: FULL,
    many_folders: FULL,
}


@pytest.mark.jail
@pytest.mark.slow
def test_nothing_in_a_folder_stops_the_grading_of_others(tmp_path, capsys):
    toy = Toy(tmp_path / "course")
    toy.course.settings.RunCells.data_files = ["*.csv"]
    places = {student: toy.hand_in(student, submission()).parent for student in ("ada", "eve", "zoe")}
    for spoil in SPOILED:
        spoil(toy.hand_in(spoil.__name__, submission()).parent)
    closed_student(places["eve"])
    try:
        assert toy.course.grade(jobs=1, solutions=False) == []
        assert toy.points("ada") == toy.points("zoe") == FULL
        for spoil, points in SPOILED.items():
            assert toy.points(spoil.__name__) == (FULL if ROOT else points), spoil.__name__
            assert points == FULL or ROOT or "cannot be read" in toy.comment("ex1", spoil.__name__)
        said = capsys.readouterr().err
        assert "\x1b[2J" not in said and "lesson is not a lesson" in said
        assert ROOT or "submitted/eve cannot be read" in said
    finally:
        for folder in (tmp_path / "course" / "submitted").iterdir():
            folder.chmod(0o755)
            for path in folder.iterdir():
                path.chmod(0o755)
                (path / "data").is_dir() and (path / "data").chmod(0o755)


def test_a_digest_sees_every_change_and_follows_no_link(tmp_path):
    folder = tmp_path / LESSON
    seen = [submission_files.digest(folder)]

    def changed() -> bool:
        seen.append(submission_files.digest(folder))
        return seen.count(seen[-1]) == 1 and seen[-1] == submission_files.digest(folder)

    folder.mkdir()
    (folder / f"{LESSON}.ipynb").write_text("1")
    assert changed()
    (folder / f"{LESSON}.ipynb").write_text("2")
    assert changed()
    (folder / "data").mkdir()
    (folder / "data" / "x.csv").write_text("2")
    assert changed()
    (folder / "data" / "x.csv").rename(folder / "data" / "y.csv")
    assert changed()
    os.mkfifo(folder / "pipe")
    assert changed()
    (folder / "endless").symlink_to("/dev/zero")
    (folder / "up").symlink_to(tmp_path)
    assert changed()
    (tmp_path / "beside").write_text("3")
    (folder / ".hidden").write_text("4")
    assert not changed()
