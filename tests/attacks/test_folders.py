"""What a student can leave in the folder that is handed in, besides a notebook: modes, names, and folders in folders.

Archives keep modes, so that a file which nobody may read arrives as one. One such file used to stop the whole class.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.grading import handed_in, limits
from autograder.grading.nbgrader import submission_files
from ranks.stopwatch import Stopwatch
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

    def digest() -> str:
        return submission_files.taken(folder, ["*.csv"]).digest()

    seen = [digest()]

    def changed() -> bool:
        seen.append(digest())
        return seen.count(seen[-1]) == 1 and seen[-1] == digest()

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


# --- what changes while it is read ------------------------------------------------------------------------

#: Exchanges two names in a folder until it is killed: `RENAME_EXCHANGE` of `renameat2`, which is one step.
EXCHANGE = """
import ctypes, sys
call, at = ctypes.CDLL(None).syscall, -100
while True:
    call(316, at, sys.argv[1].encode(), at, sys.argv[2].encode(), 2)
"""
linux = pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="renameat2's number")


def of_zoe(root: Path) -> Path:
    """Another student's folder; what is in it must never be read for eve."""
    folder = root / "submitted" / "zoe" / LESSON
    folder.mkdir(parents=True)
    (folder / f"{LESSON}.ipynb").write_text("of zoe")
    (folder / "numbers.csv").write_text("of zoe")
    return folder


def link_to_a_notebook(folder: Path, zoe: Path) -> tuple[Path, Path]:
    (folder / "other").symlink_to(zoe / f"{LESSON}.ipynb")
    return folder / f"{LESSON}.ipynb", folder / "other"


def pipe(folder: Path, zoe: Path) -> tuple[Path, Path]:
    os.mkfifo(folder / "other")
    return folder / f"{LESSON}.ipynb", folder / "other"


def link_to_a_folder(folder: Path, zoe: Path) -> tuple[Path, Path]:
    (folder.parent / "other").symlink_to(zoe)
    return folder, folder.parent / "other"


def link_to_a_student(folder: Path, zoe: Path) -> tuple[Path, Path]:
    (zoe.parent.parent / "other").symlink_to(zoe.parent)
    return folder.parent, zoe.parent.parent / "other"


def link_to_data(folder: Path, zoe: Path) -> tuple[Path, Path]:
    (folder / "other").symlink_to(zoe)
    return folder / "data", folder / "other"


@linux
@pytest.mark.slow
@pytest.mark.parametrize("prepare", [link_to_a_notebook, pipe, link_to_a_folder, link_to_a_student, link_to_data])
def test_what_is_exchanged_while_it_is_read_is_the_students_own_or_refused(tmp_path, prepare):
    zoe, eve = of_zoe(tmp_path), tmp_path / "submitted" / "eve" / LESSON
    (eve / "data").mkdir(parents=True)
    (eve / f"{LESSON}.ipynb").write_text("of eve")
    (eve / "data" / "numbers.csv").write_text("of eve")
    names = prepare(eve, zoe)
    exchanging = subprocess.Popen([sys.executable, "-c", EXCHANGE, *map(str, names)])
    read, refused = 0, 0
    try:
        for _ in range(2_000):
            found = submission_files.taken(eve, ["*.csv"])
            assert found.notebook in (b"of eve", None) and set(found.files.values()) <= {b"of eve"}
            read, refused = read + (found.notebook is not None), refused + (found.notebook is None)
    finally:
        exchanging.kill()
        exchanging.wait()
    assert read and (refused or prepare is link_to_data), "the names were exchanged"


@pytest.mark.skipif(not ROOT, reason="only root can give files to others")
def test_a_second_name_for_a_file_of_another_student_is_refused(tmp_path):
    zoe, eve = of_zoe(tmp_path), tmp_path / "submitted" / "eve" / LESSON
    eve.mkdir(parents=True)
    for path, owner in ((zoe.parent, 1001), (zoe, 1001), (zoe / f"{LESSON}.ipynb", 1001), (eve.parent, 1002)):
        os.chown(path, owner, -1)
    os.link(zoe / f"{LESSON}.ipynb", eve / f"{LESSON}.ipynb")
    found = submission_files.taken(eve, [])
    assert found.notebook is None and "belongs to another student" in found.problem
    os.chown(eve / f"{LESSON}.ipynb", 1003, -1)  # an assistant's copy, in a folder that is not the assistant's
    assert submission_files.taken(eve, []).notebook == b"of zoe"


def test_the_notebook_is_seen_among_thousands_of_files_and_files_without_blocks_cost_nothing(tmp_path):
    folder = tmp_path / "submitted" / "eve" / LESSON
    folder.mkdir(parents=True)
    for number in range(8_000):
        (folder / f"000_{number:05}.csv").write_text("1")
    for number in range(1_000):
        with open(folder / f"f{number}", "wb") as file:
            file.truncate(49_900_000)  # takes no room on the disk
    (folder / f"{LESSON}.ipynb").write_text("1")
    (folder / "timestamp.txt").write_text("2026-11-22 10:00:00 UTC")
    before, watch = submission_files.taken(folder, ["mine.csv"]), Stopwatch(lambda: [os.getpid()])
    (folder / f"{LESSON}.ipynb").write_text("2")
    (folder / "mine.csv").write_text("3")
    after = submission_files.taken(folder, ["mine.csv"])
    assert watch.seconds() < 5, "50 GB were read"
    assert before.digest() != after.digest() and after.files == {"mine.csv": b"3"}
    assert before.exchange == after.exchange != {} and len(after.left_out) == limits.NAMES + 1


def test_folders_that_are_no_lessons_are_named_up_to_a_number(tmp_path):
    for number in range(3_000):
        (tmp_path / "submitted" / "eve" / f"junk{number:04}").mkdir(parents=True)
    said = list(handed_in.complaints(tmp_path, [LESSON]))
    assert len(said) == handed_in.MOST_NAMED + 1 and said[-1].startswith("… and 2,990 more folders in submitted/eve")
