"""What Moodle, Canvas and Brightspace deliver lands where it is graded, or is named."""

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from autograder.__main__ import main
from autograder.grading import importing
from tests.helpers.toy_course import LESSON, Toy, submission

ROOT = Path(__file__).resolve().parent.parent
NAMES = {
    "Moodle": "First name,Last name,Username,Email address\nEva,Sánchez Ruiz,evasr,e@x.org\nBen,O'Neill,ben,b@x.org\n",
    "Canvas": 'Student,ID,SIS Login ID\n"Sánchez Ruiz, Eva",678,evasr\n"O\'Neill, Ben",679,ben\n',
    "by hand": "name,login\nEva Sánchez Ruiz,evasr\nBen O'Neill,ben\n",
}
EVA = "Eva Ruiz_12345_assignsubmission_file_"
OLD, NEW = json.dumps(submission(ex1=None)), json.dumps(submission())

DOWNLOADS = {
    "Moodle": {
        "Eva Sánchez Ruiz_12345_assignsubmission_file_/07_toy.ipynb": OLD,
        "Eva Sánchez Ruiz_12345_assignsubmission_file_/07_toy (1).ipynb": NEW,
        "Ben O'Neill_678_assignsubmission_file_/deep/07_toy.ipynb": NEW,
    },
    "Moodle without folders": {
        "Eva Sánchez Ruiz_12345_assignsubmission_file_07_toy.ipynb": OLD,
        "Eva Sánchez Ruiz_12345_assignsubmission_file_07_toy (2).ipynb": NEW,
        "Ben O'Neill_678_assignsubmission_file_solution.ipynb.txt": NEW,
    },
    "Canvas": {
        "sánchezruizeva_LATE_678_1001_07_toy.ipynb": OLD,
        "sánchezruizeva_LATE_678_1002_07_toy-1.ipynb": NEW,
        "oneillben_679_1003_my solution.ipynb": NEW,
    },
    "Brightspace": {
        "Lesson 7/39786-640693 - Eva Sánchez Ruiz - Oct 10, 2026 1022 AM/07_toy (9).ipynb": OLD,
        "Lesson 7/39786-640693 - Eva Sánchez Ruiz - Oct 10, 2026 122 PM/07_toy.ipynb": NEW,
        "Lesson 7/39787-640694 - Ben O'Neill - Oct 9, 2026 1201 AM/07_toy.ipynb": NEW,
        "Lesson 7/index.html": "<html>",
    },
}


def deliver(folder, files, zipped):
    """A download as a zip file or as a folder."""
    if zipped:
        with zipfile.ZipFile(folder / "download.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return folder / "download.zip"
    for name, content in files.items():
        (folder / "download" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "download" / name).write_text(content)
    return folder / "download"


@pytest.fixture
def course(tmp_path):
    (tmp_path / "course").mkdir()
    toy = Toy(tmp_path / "course")
    toy.course.jail = False
    return toy


def bring(course, source, names="", *more):
    table = source.parent / "names.csv"
    table.write_text(names, encoding="utf-8-sig")
    given = ["--names", str(table)] if names else []
    return main(["import", str(source), "07", "--course", str(course.root), *given, *more])


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "folder"])
@pytest.mark.parametrize("system", DOWNLOADS)
def test_the_newest_notebook_of_each_student_is_imported(course, tmp_path, capsys, system, zipped):
    source = deliver(tmp_path, DOWNLOADS[system], zipped)
    for table in NAMES.values():
        assert bring(course, source, table) == 0
        said = capsys.readouterr()
        assert "Imported for 07_toy: 2 submissions" in said.out and said.err.count("is newer") == 1
        for login in ("evasr", "ben"):
            assert (course.root / "submitted" / login / LESSON / f"{LESSON}.ipynb").read_text() == NEW
        assert sorted(path.name for path in (course.root / "submitted").iterdir() if path.is_dir()) == ["ben", "evasr"]
    time = course.root / "submitted" / "evasr" / LESSON / "timestamp.txt"
    assert time.is_file() == (system == "Brightspace")


CHOICES = {
    "the lesson's name": [f"{EVA}/zzz.ipynb", f"{EVA}/a_07_toy.ipynb", f"{EVA}/07_toy.ipynb"],
    "Canvas's number": [
        "ruizeva_678_999_07_toy-10.ipynb",
        "ruizeva_678_1001_07_toy.ipynb",
        "ruizeva_678_1002_07_toy-1.ipynb",
    ],
    "a zip file in the zip file": [f"{EVA}/other.ipynb", f"{EVA}/my.zip/07_toy/07_toy.ipynb"],
    "a time with 24 hours": [
        "1-2 - Eva Ruiz - Oct 9, 2026 2210/a.ipynb",
        "1-2 - Eva Ruiz - 10. Okt. 2026 09:05/b.ipynb",
    ],
}


@pytest.mark.parametrize("choice", CHOICES)
def test_of_several_the_one_that_counts_is_imported(course, tmp_path, capsys, choice):
    *older, newest = CHOICES[choice]
    files = dict.fromkeys(older, OLD) | {newest: NEW}
    if (parts := newest.partition(".zip/"))[1]:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr(parts[2], NEW)
        files = dict.fromkeys(older, OLD) | {f"{parts[0]}.zip": content.getvalue()}
    source = deliver(tmp_path, files, True)
    assert bring(course, source, "name,login,ID\nEva Ruiz,evasr,678\n") == 0, capsys.readouterr().err
    assert (course.root / "submitted" / "evasr" / LESSON / f"{LESSON}.ipynb").read_text() == NEW
    assert capsys.readouterr().err.count("was not imported") == len(older)


def test_a_time_that_cannot_be_read_is_told_and_the_notebook_imported(course, tmp_path, capsys):
    source = deliver(tmp_path, {"1-2 - Eva Ruiz - 10 листопада 2026/07_toy.ipynb": NEW}, True)
    assert bring(course, source) == 1
    assert "the time '10 листопада 2026' cannot be read" in capsys.readouterr().err
    assert [path.name for path in (course.root / "submitted" / "Eva-Ruiz" / LESSON).iterdir()] == [f"{LESSON}.ipynb"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
def test_a_table_is_read_as_a_spreadsheet_saves_it(tmp_path, encoding, delimiter):
    table = tmp_path / "names.csv"
    table.write_bytes(f"\n{NAMES['Moodle'].replace(',', delimiter)}".encode(encoding))
    file = importing.File("", "", "Eva Sánchez Ruiz", "", 0, None, b"")
    assert importing.People(table).login(file) == "evasr"


def test_a_login_that_is_a_path_is_refused(course, tmp_path, capsys):
    source = deliver(tmp_path, {f"{EVA}/07_toy.ipynb": NEW}, True)
    assert bring(course, source, "name,login\nEva Ruiz,x/../../../evil\n") == 1
    assert "cannot take '/'" in capsys.readouterr().err


def test_a_time_of_brightspace_counts_for_the_due_date(course, tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    bring(course, deliver(tmp_path, DOWNLOADS["Brightspace"], True), NAMES["by hand"])
    times = {
        login: (course.root / "submitted" / login / LESSON / "timestamp.txt").read_text() for login in ("evasr", "ben")
    }
    assert times == {"evasr": "2026-10-10 13:22:00.000000 UTC\n", "ben": "2026-10-09 00:01:00.000000 UTC\n"}


def test_what_is_not_imported_is_named(course, tmp_path, capsys):
    files = {
        "Eva Sánchez Ruiz_1_assignsubmission_file_/07_toy.ipynb": NEW,
        "Nobody Known_2_assignsubmission_file_/07_toy.ipynb": NEW,
        "Ben O'Neill_3_assignsubmission_file_/07_toy.zip": "PK",
        "Li Wei_5_assignsubmission_file_/07_toy.ipynb": NEW,
        "loose.ipynb": NEW,
        "__MACOSX/Eva_1_assignsubmission_file_/._07_toy.ipynb": "x",
    }
    table = NAMES["by hand"] + "Li Wei,li1\nWei Li,li2\n"
    assert bring(course, deliver(tmp_path, files, True), table) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    for place, why in (
        ("Nobody Known_2_assignsubmission_file_/07_toy.ipynb", "has no login for 'Nobody Known'"),
        ("Ben O'Neill_3_assignsubmission_file_/07_toy.zip", "it is not a notebook"),
        ("Li Wei_5_assignsubmission_file_/07_toy.ipynb", "has no login for 'Li Wei'"),
        ("loose.ipynb", "its path does not say who handed it in"),
    ):
        assert any(line.startswith(f"{place} was not imported: ") and why in line for line in lines), place


def test_without_a_table_the_folders_bear_the_names(course, tmp_path):
    assert bring(course, deliver(tmp_path, DOWNLOADS["Moodle"], True)) == 0
    found = sorted(path.name for path in (course.root / "submitted").iterdir() if path.is_dir())
    assert found == ["Ben-O-Neill", "Eva-Sánchez-Ruiz"]


@pytest.mark.parametrize(
    ("names", "said"),
    [("a,b\n1,2\n", "needs a column `login` and a column `name`; its columns: a, b"), ("\n", "its columns: none")],
)
def test_a_table_without_the_columns_is_refused(course, tmp_path, capsys, names, said):
    assert bring(course, deliver(tmp_path, DOWNLOADS["Moodle"], True), names) == 2
    assert said in capsys.readouterr().err


def test_what_is_no_download_is_refused(course, tmp_path, capsys):
    (tmp_path / "x.zip").write_text("no zip")
    assert bring(course, tmp_path / "x.zip") == 2
    assert "is neither a zip file nor a folder" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "x.zip"), "08", "--course", str(course.root)]) == 2


def test_moodle_gets_the_pages_back_under_its_own_names(course, tmp_path, capsys):
    back = ["feedback-zip", "07", str(tmp_path / "pages.zip"), "--course", str(course.root)]
    assert main(back) == 2 and "nothing of 07_toy was imported" in capsys.readouterr().err
    bring(course, deliver(tmp_path, DOWNLOADS["Moodle without folders"], True), NAMES["by hand"])
    assert not course.course.grade(jobs=1, solutions=False)
    assert main(back) == 0 and "The pages of 2 students are in" in capsys.readouterr().out
    with zipfile.ZipFile(tmp_path / "pages.zip") as archive:
        assert sorted(archive.namelist()) == [
            "Ben O'Neill_678_assignsubmission_file_/07_toy.html",
            "Eva Sánchez Ruiz_12345_assignsubmission_file_/07_toy.html",
        ]
        assert b"6 of 6 points" in archive.read(archive.namelist()[0])
    (course.root / "course.toml").write_text(f'groups = "{next(iter(course.course.students()))} zoe"')
    assert main(back) == 0 and "zoe has handed in nothing, so Moodle's name for the hand-in" in capsys.readouterr().err


def test_names_of_the_same_letters_are_two_students(course, tmp_path, capsys):
    delivered = {
        f"{name}_{at}_assignsubmission_file_/07_toy.ipynb": NEW for at, name in enumerate(("Amy Li", "May Li"))
    }
    names = "First name,Last name,Username\nAmy,Li,amy\nMay,Li,may\n"
    assert bring(course, deliver(tmp_path, delivered, True), names) == 0, capsys.readouterr().err
    assert all((course.root / "submitted" / login / LESSON).is_dir() for login in ("amy", "may"))


@pytest.mark.thorough
@pytest.mark.apart
def test_a_made_up_class_loses_nothing_on_its_way_through_an_assignment():
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "term.py", "--students", "10", "--lesson", "03"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("(killed)") == 3, done.stdout
