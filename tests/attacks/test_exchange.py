"""What somebody puts into the exchange's folder `inbound`, where everybody can write under any name.

nbgrader's own collector follows links with the instructor's rights, believes the names of folders, and stops at the
first thing that is broken.
"""

import logging
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange import ExchangeError

from autograder.grade.nbgrader import exchange, library, submission_files
from tests.helpers import toy_course
from tests.helpers.toy_course import LESSON

COURSE_ID = "distributed-training"
EARLY, LATE = "2026-11-22 10:00:00.000000 UTC", "2026-11-23 10:00:00.000000 UTC"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand in for other accounts")


class Exchange:
    """A course, its exchange, and the folder in which everybody can put something."""

    def __init__(self, root: Path):
        self.course, self.root = root / "course", root / "exchange"
        self.inbound = self.root / COURSE_ID / "inbound"
        self.inbound.mkdir(parents=True)
        self.solution = self.course / "solutions" / LESSON / f"{LESSON}.ipynb"
        self.solution.parent.mkdir(parents=True)
        self.solution.write_text("the solution")
        (self.course / "gradebook.db").write_bytes(toy_course._prepared()["gradebook.db"])
        self.said: list[str] = []

    def hand_in(self, student: str, time: str = EARLY, content: str = "honest", owner: int | None = None) -> Path:
        """What `nbgrader submit` leaves; the folder."""
        folder = self.inbound / f"{student}+{LESSON}+{time}+{len(list(self.inbound.iterdir()))}"
        folder.mkdir()
        (folder / f"{LESSON}.ipynb").write_text(content)
        (folder / "timestamp.txt").write_text(time)
        (folder / "submission_secret.txt").write_text(f"secret of {student}")
        for path in (*folder.iterdir(), folder) if owner is not None else ():
            os.chown(path, owner, -1)
        return folder

    def _use(self, kind: type, **options) -> None:
        config = library.settings()
        config.CourseDirectory.update(root=str(self.course), assignment_id=LESSON)
        config.CourseDirectory.db_url = f"sqlite:///{self.course}/gradebook.db"
        config.Exchange.root = str(self.root)
        log = logging.Logger("exchange", level=logging.INFO)
        log.addHandler(logging.NullHandler())
        log.handlers[0].handle = lambda record: self.said.append(record.getMessage())
        running = kind(coursedir=CourseDirectory(config=config, log=log), config=config, log=log)
        for name, value in options.items():
            setattr(running, name, value)
        running.start()

    def collect(self, **options) -> dict[str, str]:
        """Collect; (student → notebook) of what is in `submitted/` then."""
        self._use(exchange.Collect, **options)
        found = (self.course / "submitted").glob(f"*/{LESSON}/{LESSON}.ipynb")
        return {path.parts[-3]: path.read_text() for path in found}

    def release(self) -> list[str]:
        """Give back feedback; the pages that students find."""
        self._use(exchange.ReleaseFeedback)
        return sorted(path.read_text() for path in (self.root / COURSE_ID / "feedback").glob("*.html"))


@pytest.fixture
def place(tmp_path):
    return Exchange(tmp_path)


@pytest.fixture
def free(monkeypatch):
    """Names of students are no accounts here, as in a container."""
    monkeypatch.setattr(exchange, "_account", lambda name: None)


def test_the_course_collects_this_way():
    factory = library.settings().ExchangeFactory
    assert factory.collect is exchange.Collect and factory.release_feedback is exchange.ReleaseFeedback


def test_a_link_is_not_followed(place, free):
    folder = place.hand_in("eve")
    (folder / f"{LESSON}.ipynb").unlink()
    (folder / f"{LESSON}.ipynb").symlink_to(place.solution)
    (folder / "data").symlink_to(place.course / "solutions")
    (folder / "endless.csv").symlink_to("/dev/zero")
    (place.inbound / f"mia+{LESSON}+{EARLY}+1").symlink_to(place.solution.parent)
    assert place.collect() == {}
    collected = [path for path in (place.course / "submitted").rglob("*") if path.is_file()]
    assert sorted(path.name for path in collected) == ["submission_secret.txt", "timestamp.txt"]


def test_no_file_keeps_a_name_by_which_a_program_would_run_it(place, free):
    """Whoever calls `nbgrader` in the folder of a submission takes modules and settings from there."""
    folder = place.hand_in("eve")
    (folder / "json").mkdir()
    names = ["json.py", "nbgrader_config.py", "nbgrader_config.json", "torch.SO", "json/__init__.py", "data.csv"]
    for name in names:
        (folder / name).write_text("raise SystemExit")
    place.collect()
    top = place.course / "submitted" / "eve" / LESSON
    kept = {path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file()}
    own = {f"{LESSON}.ipynb", "timestamp.txt", "submission_secret.txt"}
    assert kept == own | {f"{name}.txt" for name in names[:-1]} | {"data.csv"}


def test_what_cannot_be_read_stops_nobody_else(place, free):
    folder = place.hand_in("ben", content="ben's")
    os.mkfifo(folder / "pipe")
    (folder / "sub").mkdir()
    (folder / "sub" / "data.csv").write_text("1")
    place.hand_in("cyd").chmod(0)
    (place.inbound / f"dan+{LESSON}+no time+1").mkdir()
    (place.inbound / f"+{LESSON}+{EARLY}+1").mkdir()
    place.hand_in("..")
    place.hand_in(".")
    deep = place.hand_in("fay", content="fay's")
    os.makedirs(deep / "/".join("d" * 30))
    place.hand_in("zoe", content="zoe's")
    found = place.collect()
    assert {name: found[name] for name in ("ben", "fay", "zoe")} == {"ben": "ben's", "fay": "fay's", "zoe": "zoe's"}
    assert not {"dan", ""} & found.keys()
    assert {path.name for path in place.course.iterdir()} == {"submitted", "solutions", "gradebook.db", ".grading.lock"}
    assert (place.course / "submitted" / "ben" / LESSON / "sub" / "data.csv").read_text() == "1"
    assert not (place.course / "submitted" / "ben" / LESSON / "pipe").exists()


def test_a_broken_time_in_one_submission_does_not_stop_the_next_collection(place, free):
    (place.hand_in("ada") / "timestamp.txt").write_text("never")
    place.hand_in("ben", content="first")
    assert place.collect()["ben"] == "first"
    place.hand_in("ada", LATE)
    place.hand_in("ben", LATE, content="second")
    assert place.collect(update=True) == {"ada": "honest", "ben": "second"}
    times = [path.read_text() for path in (place.course / "submitted").glob("*/*/timestamp.txt")]
    assert len(times) == 2 and "never" not in times, "nbgrader stops at a time that it cannot read"


#: Blanks at the ends, which nbgrader strips, and signs that would act in a page or a script of the formgrader.
BAD_NAMES = ("ada ", " ada", "<img src=x onerror=stop()>", '";stop();"', "a&b", "a'b", "a`b", "a\\b")
FOR_A_TERMINAL = "\x1b[2J\x1b]0;planted\x07"


@pytest.mark.parametrize("name", [*BAD_NAMES, FOR_A_TERMINAL])
def test_a_name_that_somebody_would_read_as_another_or_run_is_not_collected(place, free, name):
    place.hand_in("ada", content="ada's")
    place.hand_in(name, LATE, content="another's")
    assert place.collect() == {"ada": "ada's"}
    assert any("its name is not a student's" in said for said in place.said)
    assert not any("\x1b" in said for said in place.said)


def test_where_everybody_can_replace_the_course_nothing_is_collected(place, free):
    """In a folder that is open to all and not sticky, anybody can rename the course and make one of their own."""
    place.hand_in("ada")
    place.root.chmod(0o777)
    for use in (place.collect, place.release):
        with pytest.raises(ExchangeError):
            use()
    assert "chmod +t" in place.said[-1] and not (place.course / "submitted").exists()
    place.root.chmod(0o1777)
    assert place.collect() == {"ada": "honest"}


@as_root
def test_nobody_hands_in_for_another_account(place, monkeypatch):
    monkeypatch.setattr(exchange, "_account", {"ada": 20_001, "eve": 20_002}.get)
    place.hand_in("ada", content="ada's", owner=20_001)
    place.hand_in("ada", LATE, content="eve's", owner=20_002)
    linked = place.hand_in("eve", content="eve's", owner=20_002) / "linked.csv"
    os.link(place.solution, linked)  # a hard link keeps its owner
    assert place.collect() == {"ada": "ada's", "eve": "eve's"}
    assert not (place.course / "submitted" / "eve" / LESSON / "linked.csv").exists()


@as_root
def test_two_accounts_under_one_name_are_left_to_the_instructor(place, free):
    place.hand_in("ada", content="ada's", owner=20_001)
    place.hand_in("ada", LATE, content="eve's", owner=20_002)
    place.hand_in("ben", content="ben's", owner=20_003)
    assert place.collect() == {"ben": "ben's"}
    assert any("Nothing of ada is collected: the accounts 20001, 20002" in said for said in place.said)
    assert place.collect(check_owner=False)["ada"] == "eve's"


def test_feedback_of_one_student_does_not_wait_for_another(place):
    for student, secret in (("ada", b"\xff\xfe"), ("ben", None), ("cyd", b"secret of cyd")):
        folder = place.course / "feedback" / student / LESSON
        folder.mkdir(parents=True)
        (folder / f"{LESSON}.html").write_text(f"page of {student}")
        (folder / "timestamp.txt").write_text(EARLY)
        if secret:
            (folder / "submission_secret.txt").write_bytes(secret)
    assert place.release() == ["page of cyd"]
    told = [said.split(":")[0] for said in place.said if "not released" in said]
    assert told == ["ada is not released", "ben is not released"]


@pytest.mark.parametrize("forged", ["name", "file", "both"])
def test_of_three_times_the_latest_counts_and_the_instructor_is_told(place, free, forged):
    """A folder and a file that say 2020 were collected as handed in in 2020."""
    now, past = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f} UTC", "2020-01-01 00:00:00.000000 UTC"
    folder = place.hand_in("eve", past if forged != "file" else now)
    (folder / "timestamp.txt").write_text(past if forged != "name" else now)
    place.hand_in("ada", now)
    assert place.collect() == {"eve": "honest", "ada": "honest"}
    said = [line for line in place.said if "the times differ" in line]
    assert len(said) == 1 and said[0].startswith("eve: ") and "2020-01-01" in said[0]
    for student in ("ada", "eve"):
        collected = place.course / "submitted" / student / LESSON
        assert submission_files.submitted_at(submission_files.exchange_files(collected)).year == datetime.now(UTC).year
