"""What a student can leave in the folder that is handed in, besides a notebook: modes, names, and folders in folders.

Archives keep modes, so that a file which nobody may read arrives as one. One such file used to stop the whole class.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.grade import handed_in, limits
from autograder.grade.nbgrader import submission_files
from ranks.stopwatch import Stopwatch
from tests.attacks.attack import FULL, NOTHING
from tests.helpers.toy_course import LESSON, Toy, submission

#: As root, no mode forbids anything.
ROOT = os.geteuid() == 0

#: A file or folder of a submission with this mode, and what its student gets where modes count.
MODES = {
    "unreadable_file": (f"{LESSON}/notes.txt", 0, FULL),
    "unreadable_notebook": (f"{LESSON}/{LESSON}.ipynb", 0, NOTHING),
    "unreadable_time": (f"{LESSON}/timestamp.txt", 0, FULL),
    "unsearchable_folder": (f"{LESSON}/data", 0o444, FULL),
    "unsearchable_lesson": (LESSON, 0o444, NOTHING),
    "unsearchable_student": ("", 0o444, NOTHING),
    "closed_lesson": (LESSON, 0, NOTHING),
}
ODD_NAMES = (b"\xff\xfe.csv", b"a\x1b[2Jb.csv", b"line\nbreak.csv", b"`$(touch planted)`.csv", b"-rf.csv")


@pytest.mark.jail
@pytest.mark.slow
def test_nothing_in_a_folder_stops_the_grading_of_others(tmp_path, capsys):
    toy = Toy(tmp_path / "course")
    toy.course.settings.RunCells.data_files = ["*.csv"]
    expected = {student: points for student, (_, _, points) in MODES.items()}
    expected |= {"odd_names": FULL, "many_folders": FULL}
    folders = {student: toy.hand_in(student, submission()).parent for student in ("ada", "eve", "zoe", *expected)}
    for name in ODD_NAMES:
        (folders["odd_names"] / os.fsdecode(name)).write_text("1")
    (folders["odd_names"].parent / "\x1b[2Jlesson").mkdir()
    (folders["many_folders"] / "/".join(["d"] * 500)).mkdir(parents=True)
    (folders["unreadable_file"] / "notes.txt").write_text("1")
    (folders["unreadable_time"] / "timestamp.txt").write_text("2026-11-22 10:00:00.000000 UTC")
    (folders["unsearchable_folder"] / "data").mkdir()
    (folders["unsearchable_folder"] / "data" / "numbers.csv").write_text("1")
    modes = {folders[student].parent / place: mode for student, (place, mode, _) in MODES.items()}
    modes[folders["eve"].parent] = 0
    for path, mode in modes.items():
        path.chmod(mode)
    try:
        assert toy.course.grade(jobs=1, solutions=False) == []
        assert toy.points("ada") == toy.points("zoe") == FULL
        for student, points in expected.items():
            assert toy.points(student) == (FULL if ROOT else points), student
            assert points == FULL or ROOT or "cannot be read" in toy.comment("ex1", student)
        said = capsys.readouterr().err
        assert "\x1b[2J" not in said and "lesson is not a lesson" in said
        assert ROOT or "submitted/eve cannot be read" in said
    finally:
        for path in modes:
            path.chmod(0o755)


def test_a_digest_sees_every_change_and_follows_no_link(tmp_path):
    folder = tmp_path / LESSON

    def digest() -> str:
        return submission_files.read_folder(folder, ["*.csv"]).digest()

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

#: A name below `submitted/`, one that it is exchanged with, and what that leads to: None is a pipe.
EXCHANGED = {
    "link_to_a_notebook": (f"eve/{LESSON}/{LESSON}.ipynb", f"eve/{LESSON}/other", f"zoe/{LESSON}/{LESSON}.ipynb"),
    "pipe": (f"eve/{LESSON}/{LESSON}.ipynb", f"eve/{LESSON}/other", None),
    "link_to_a_folder": (f"eve/{LESSON}", "eve/other", f"zoe/{LESSON}"),
    "link_to_a_student": ("eve", "other", "zoe"),
    "link_to_data": (f"eve/{LESSON}/data", f"eve/{LESSON}/other", f"zoe/{LESSON}"),
}


@pytest.fixture
def zoe(tmp_path) -> Path:
    """Another student's folder; what is in it must never be read for eve."""
    folder = tmp_path / "submitted" / "zoe" / LESSON
    folder.mkdir(parents=True)
    (folder / f"{LESSON}.ipynb").write_text("of zoe")
    (folder / "numbers.csv").write_text("of zoe")
    return folder


@pytest.fixture
def eve(tmp_path) -> Path:
    folder = tmp_path / "submitted" / "eve" / LESSON
    folder.mkdir(parents=True)
    return folder


@linux
@pytest.mark.slow
@pytest.mark.parametrize("case", EXCHANGED)
def test_what_is_exchanged_while_it_is_read_is_the_students_own_or_refused(tmp_path, eve, zoe, case):
    (eve / "data").mkdir()
    (eve / f"{LESSON}.ipynb").write_text("of eve")
    (eve / "data" / "numbers.csv").write_text("of eve")
    top = tmp_path / "submitted"
    name, other, target = EXCHANGED[case]
    if target is None:
        os.mkfifo(top / other)
    else:
        (top / other).symlink_to(top / target)
    exchanging = subprocess.Popen([sys.executable, "-c", EXCHANGE, str(top / name), str(top / other)])
    read, refused = 0, 0
    try:
        for _ in range(2_000):
            found = submission_files.read_folder(eve, ["*.csv"])
            assert found.notebook in (b"of eve", None) and set(found.files.values()) <= {b"of eve"}
            read, refused = read + (found.notebook is not None), refused + (found.notebook is None)
    finally:
        exchanging.kill()
        exchanging.wait()
    assert read and (refused or case == "link_to_data"), "the names were exchanged"


@pytest.mark.skipif(not ROOT, reason="only root can give files to others")
def test_a_second_name_for_a_file_of_another_student_is_refused(eve, zoe):
    for path, owner in ((zoe.parent, 1001), (zoe, 1001), (zoe / f"{LESSON}.ipynb", 1001), (eve.parent, 1002)):
        os.chown(path, owner, -1)
    os.link(zoe / f"{LESSON}.ipynb", eve / f"{LESSON}.ipynb")
    found = submission_files.read_folder(eve, [])
    assert found.notebook is None and "belongs to another student" in found.problem
    os.chown(eve / f"{LESSON}.ipynb", 1003, -1)  # an assistant's copy, in a folder that is not the assistant's
    assert submission_files.read_folder(eve, []).notebook == b"of zoe"


def test_the_notebook_is_seen_among_thousands_of_files_and_files_without_blocks_cost_nothing(eve):
    for number in range(8_000):
        (eve / f"000_{number:05}.csv").write_text("1")
    for number in range(1_000):
        with open(eve / f"f{number}", "wb") as file:
            file.truncate(49_900_000)  # takes no room on the disk
    (eve / f"{LESSON}.ipynb").write_text("1")
    (eve / "timestamp.txt").write_text("2026-11-22 10:00:00 UTC")
    before, watch = submission_files.read_folder(eve, ["mine.csv"]), Stopwatch(lambda: [os.getpid()])
    (eve / f"{LESSON}.ipynb").write_text("2")
    (eve / "mine.csv").write_text("3")
    after = submission_files.read_folder(eve, ["mine.csv"])
    assert watch.seconds() < 5, "50 GB were read"
    assert before.digest() != after.digest() and after.files == {"mine.csv": b"3"}
    assert before.exchange == after.exchange != {} and len(after.left_out) == limits.NAMES + 1


def test_folders_that_are_no_lessons_are_named_up_to_a_number(tmp_path, eve):
    for number in range(3_000):
        (eve.parent / f"junk{number:04}").mkdir()
    said = list(handed_in.problems(tmp_path, [LESSON]))
    assert len(said) == handed_in.MOST_NAMED + 1 and said[-1].startswith("… and 2,990 more folders in submitted/eve")
