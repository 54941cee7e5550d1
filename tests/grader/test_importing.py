"""What Moodle, Canvas and Brightspace deliver lands where it is graded, or is named."""

import datetime
import io
import json
import shutil
import subprocess
import sys
import time
import zipfile
import zoneinfo
from pathlib import Path

import nbformat
import pytest

from autograder.__main__ import main
from autograder.grade import importing, limits, record
from autograder.grade.course import Course
from tests.helpers.toy_course import LESSON, lesson, submission

ROOT = Path(__file__).resolve().parents[2]
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


def packed(files, method=zipfile.ZIP_STORED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def deliver(folder, files, zipped):
    """A download as a zip file or as a folder."""
    if zipped:
        (folder / "download.zip").write_bytes(packed(files))
        return folder / "download.zip"
    for name, content in files.items():
        (folder / "download" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "download" / name).write_text(content)
    return folder / "download"


@pytest.fixture
def course(tmp_path):
    """A course whose gradebook does not exist yet."""
    source = tmp_path / "course" / "solutions" / LESSON
    source.mkdir(parents=True)
    nbformat.write(lesson(), source / f"{LESSON}.ipynb")
    return Course(tmp_path / "course", jail=False)


def handed_in(course):
    """The students who have a notebook."""
    return sorted(path.parent.parent.name for path in course.root.glob(f"submitted/*/*/{LESSON}.ipynb"))


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
        files = dict.fromkeys(older, OLD) | {f"{parts[0]}.zip": packed({parts[2]: NEW})}
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
    file = importing.File("", "", "Eva Sánchez Ruiz", "", 0, None, bytes)
    assert importing.People(table).login(file) == "evasr"


@pytest.mark.parametrize(
    ("settings", "eva", "ben"),
    [
        ("", "2026-10-10 13:22:00.000000 UTC\n", "2026-10-09 00:01:00.000000 UTC\n"),
        ('timezone = "Asia/Tokyo"', "2026-10-10 04:22:00.000000 UTC\n", "2026-10-08 15:01:00.000000 UTC\n"),
    ],
)
def test_a_time_of_brightspace_is_in_the_zone_of_the_course(course, tmp_path, monkeypatch, settings, eva, ben):
    monkeypatch.setenv("TZ", "UTC")
    if settings:
        (course.root / "course.toml").write_text(settings)
    bring(course, deliver(tmp_path, DOWNLOADS["Brightspace"], True), NAMES["by hand"])
    for login, said in (("evasr", eva), ("ben", ben)):
        assert (course.root / "submitted" / login / LESSON / "timestamp.txt").read_text() == said


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


@pytest.mark.parametrize(
    ("names", "said"),
    [("a,b\n1,2\n", "needs a column `login` and a column `name`; its columns: a, b"), ("\n", "its columns: none")],
)
def test_a_table_without_the_columns_is_refused(course, tmp_path, capsys, names, said):
    assert bring(course, deliver(tmp_path, DOWNLOADS["Moodle"], True), names) == 2
    assert said in capsys.readouterr().err


def test_what_is_no_download_is_refused(course, tmp_path, capsys):
    source = deliver(tmp_path, moodle("Ada Lo"), True)
    for content in (b"no zip", source.read_bytes().replace(b"PK\1\2", b"XXXX")):
        source.write_bytes(content)
        assert bring(course, source) == 2
        assert "is neither a zip file nor a folder" in capsys.readouterr().err
    assert main(["import", str(source), "08", "--course", str(course.root)]) == 2


def test_moodle_gets_the_pages_back_under_its_own_names(course, tmp_path, capsys):
    back = ["feedback-zip", "07", str(tmp_path / "pages.zip"), "--course", str(course.root)]
    assert main(back) == 2 and "nothing of 07_toy was imported" in capsys.readouterr().err
    bring(course, deliver(tmp_path, DOWNLOADS["Moodle without folders"], True), NAMES["by hand"])
    assert not course.grade(jobs=1, solutions=False)
    assert main(back) == 0 and "The pages of 2 students are in" in capsys.readouterr().out
    with zipfile.ZipFile(tmp_path / "pages.zip") as archive:
        assert sorted(archive.namelist()) == [
            "Ben O'Neill_678_assignsubmission_file_/07_toy.html",
            "Eva Sánchez Ruiz_12345_assignsubmission_file_/07_toy.html",
        ]
        assert b"6 of 6 points" in archive.read(archive.namelist()[0])


def moodle(*names):
    return {f"{name}_{5000 + at}_assignsubmission_file_/07_toy.ipynb": NEW for at, name in enumerate(names)}


#: Who hands this in cannot be told.
WHOSE = {
    "an attempt": ("HW_7_2026_ada_attempt_2026-10-10-10-22-33_07_toy.ipynb", "does not say who handed it in"),
    "an export": ("export/submission_1001_2002_x/07_toy.ipynb", "does not say who handed it in"),
    "typed in": ("ruizeva_333_text.html", "it is a text or a link that was typed in"),
    "a link": ("LATE_anon_aB3dE_link.html", "it is a text or a link that was typed in"),
    "typed into Moodle": (f"{EVA.replace('file', 'onlinetext')}/onlinetext.html", "a text or a link that was typed in"),
    "a long name": (
        f"{'Eva ' * 70}_1_assignsubmission_file_/x.ipynb",
        "no folder can have a name of more than 255 bytes",
    ),
    "a long path": (f"Eva_1_assignsubmission_file_/{'a/' * 600}07_toy.ipynb", "its name is too long"),
}
#: What is delivered, the table, who has a notebook afterwards, what is said.
STUDENTS = {
    name: ({path: NEW, **moodle("Ada Lo")}, "", ["Ada-Lo"], said) for name, (path, said) in WHOSE.items()
} | {
    "no table": (DOWNLOADS["Moodle"], "", ["Ben-O-Neill", "Eva-Sánchez-Ruiz"], ""),
    "a path as a login": (moodle("Eva Ruiz"), "name,login\nEva Ruiz,x/../../../evil\n", [], "cannot take '/'"),
    "the same letters": (
        moodle("Amy Li", "May Li"), "First name,Last name,Username\nAmy,Li,amy\nMay,Li,may\n", ["amy", "may"], ""
    ),
    "numbers of Canvas in place of names": (
        {"anon_aB3dE_91_07_toy.ipynb": OLD, "LATE_anon_aB3dE_92_07_toy-1.ipynb": NEW, "anon_aB3dF_93_x.ipynb": NEW},
        "", ["anon_aB3dE", "anon_aB3dF"], "",
    ),
    "one name in Canvas": ({"kim_1_91_07_toy.ipynb": NEW, "kim_2_92_07_toy.ipynb": NEW}, "", [], "be one student"),
    "one name in Moodle": (moodle("Min Kim", "Min Kim", "Eva Ruiz"), "", ["Eva-Ruiz"], "'Min Kim' (5001)"),
    "one name in Brightspace": (
        {f"{n}-9 - Min Kim - Oct 10, 2026 122 PM/07_toy.ipynb": NEW for n in (1, 2)}, "", [], "'Min Kim' (2)"
    ),
    "one folder": (moodle("Jean-Luc Roy", "Jean Luc Roy"), "", [], "'Jean-Luc-Roy'"),
    "no names": (moodle("Participant"), "", [], "Moodle was told to hide the names"),
    "one login": (moodle("Min Kim", "Eva Ruiz"), "name,login\nMin Kim,x\nEva Ruiz,x\n", [], "one student, 'x'"),
    "numbers tell": (
        moodle("Min Kim", "Min Kim"), "name,login,id\nMin Kim,k1,5001\nMin Kim,k2,5000\n", ["k1", "k2"], ""
    ),
    "another number than Canvas's": (
        {"kim_1_91_07_toy.ipynb": NEW, "kim_2_92_07_toy.ipynb": NEW}, "name,login,id\nKim,k1,1\n", ["k1"], "'kim' (2)"
    ),
    "no number": (moodle("Eva Ruiz", "Ann Lee"), "name,login,id\nEva Ruiz,eva,\n", ["eva"], "no login for 'Ann Lee'"),
    "accents": (moodle("Ana Peña", "Ana Pena"), "name,login\nAna Peña,p1\nAna Pena,p2\n", ["p1", "p2"], ""),
    "another accent": (moodle("Ádá Honest"), "name,login\nAda Honest,ada\n", [], "no login for 'Ádá Honest'"),
    "vowels that are marks": (moodle("रीम"), "name,login\nराम,ram\n", [], "no login for 'रीम'"),
    "vowels of folders": (moodle("रीम", "राम"), "", ["राम", "रीम"], ""),
    "words": (moodle("Anna Marie"), "name,login\nAnn Amarie,ann\n", [], "no login for 'Anna Marie'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", STUDENTS)
def test_what_each_student_handed_in_lands_in_one_folder_or_is_named(course, tmp_path, capsys, kind):
    delivered, names, there, said = STUDENTS[kind]
    assert bring(course, deliver(tmp_path, delivered, True), names) == (1 if said else 0)
    assert handed_in(course) == there and said in capsys.readouterr().err


def test_two_students_never_become_one_in_two_imports(course, tmp_path, capsys):
    assert bring(course, deliver(tmp_path, {"kim_1_91_07_toy.ipynb": NEW}, True)) == 0
    assert bring(course, deliver(tmp_path, {"kim_2_92_07_toy.ipynb": OLD}, True)) == 1
    assert "'kim' (1) was imported as 'kim' before" in capsys.readouterr().err
    assert (course.root / "submitted/kim" / LESSON / f"{LESSON}.ipynb").read_text() == NEW
    assert bring(course, deliver(tmp_path, {"kim_1_93_07_toy.ipynb": OLD}, True)) == 0
    shutil.copytree(course.solutions / LESSON, course.solutions / "08_more")
    (course.solutions / "08_more" / f"{LESSON}.ipynb").rename(course.solutions / "08_more" / "08_more.ipynb")
    assert bring(course, deliver(tmp_path, moodle("Jean-Luc Roy"), True)) == 0
    roy = "Roy_9_assignsubmission_file_/x.ipynb"
    for path, status in {
        "kim_2_94_x.ipynb": 1,
        "kim_1_94_x.ipynb": 0,
        f"Jean Luc {roy}": 1,
        f"Jean-Luc {roy}": 0,
    }.items():
        source = str(deliver(tmp_path, {path: NEW}, True))
        assert main(["import", source, "08", "--course", str(course.root)]) == status, path


@pytest.mark.parametrize("login", ["1.23457E+11", "12,3E+15", "12345.0"])
def test_a_table_that_has_lost_digits_is_refused(course, tmp_path, capsys, login):
    assert bring(course, deliver(tmp_path, moodle("Ada Lo"), True), f'sep=;\nname;login\nAda Lo;"{login}"\n') == 2
    assert "export the table again" in capsys.readouterr().err and not handed_in(course)


def test_a_login_that_has_lost_its_zeros_is_named(course, tmp_path, capsys):
    source = deliver(tmp_path, moodle("Ada Lo"), True)
    assert bring(course, source, "name,login\nAda Lo,0012345\n") == 0
    assert bring(course, source, "name,login\nAda Lo,12345\n") == 1
    assert "the login 12345 is new, but 0012345 is known" in capsys.readouterr().err
    assert handed_in(course) == ["0012345"]


def damaged(at, new):
    content = bytearray(packed({"a.ipynb": NEW}))
    at = at(content)
    content[at : at + len(new)] = new
    return bytes(content)


BROKEN = {
    "another content": lambda: damaged(lambda z: z.find(b"cells"), b"sells"),
    "an unknown method": lambda: damaged(lambda z: z.find(b"PK\1\2") + 10, b"\x09"),
    "a newer version": lambda: damaged(lambda z: z.find(b"PK\1\2") + 6, b"\x63"),
    "a wrong offset": lambda: damaged(lambda z: z.find(b"PK\1\2") + 42, b"\xff\xff"),
    "no directory": lambda: damaged(lambda z: z.find(b"PK\1\2"), b"XXXX"),
    "encrypted": lambda: damaged(lambda z: z.find(b"PK\1\2") + 8, b"\x01"),
    "too much": lambda: packed({"a.ipynb": bytes(4 * limits.FILE + 1)}, zipfile.ZIP_BZIP2),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_zip_file_that_cannot_be_unpacked_concerns_its_student_alone(course, tmp_path, capsys, kind):
    eve = f"{EVA}/a.zip"
    assert bring(course, deliver(tmp_path, {eve: BROKEN[kind](), **moodle("Ada Lo")}, True)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(eve) and "it cannot be unpacked (" in line and handed_in(course) == ["Ada-Lo"]


def test_only_what_counts_is_unpacked_and_in_linear_time(course, tmp_path, monkeypatch):
    names = [*(f"{'_' * 300}{'.ipynb-' * 90}{at}y" for at in range(20)), LESSON]
    content = packed({f"{name}.ipynb": NEW for name in names}, zipfile.ZIP_DEFLATED)
    source = deliver(tmp_path, {f"{EVA}/a.zip": content}, True)
    unpacked, call = [], importing._unpacker.call
    monkeypatch.setattr(importing._unpacker, "call", lambda *args: unpacked.append(args[0].__name__) or call(*args))
    began = time.process_time()
    assert bring(course, source) == 0 and unpacked == ["_packed", "_unpacked"]
    assert time.process_time() - began < 5
    began = time.process_time()
    importing.File(f"{'_' * 10**6}y", "", "", "", 0, None, bytes).counts(LESSON)
    assert time.process_time() - began < 5


def test_all_targets_are_looked_at_before_the_first_is_written(course, tmp_path, capsys):
    (course.root / "submitted").mkdir()
    (course.root / "submitted/Ben-Roy").write_text("")
    (course.root / "submitted/Cyd-Li").symlink_to(tmp_path)
    (course.root / "submitted/Dan-Wu" / LESSON / f"{LESSON}.ipynb" / "x").mkdir(parents=True)
    assert bring(course, deliver(tmp_path, moodle("Ada Lo", "Ben Roy", "Cyd Li", "Dan Wu", "Eva Ruiz"), True)) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and sum("is no folder: remove it" in line for line in said) == 2
    assert {"Ada-Lo", "Eva-Ruiz"} == record.read(course.root).lessons[LESSON].imported.keys()
    assert not (tmp_path / LESSON).exists()


def test_the_time_of_another_notebook_does_not_stay(course, tmp_path, capsys):
    brightspace = {"1-2 - Ada Lo - Oct 10, 2026 1022 AM/07_toy.ipynb": OLD}
    stamp = course.root / "submitted/Ada-Lo" / LESSON / "timestamp.txt"
    assert bring(course, deliver(tmp_path, brightspace, True)) == 0
    unknown = {path.replace("Oct", "???"): NEW for path in brightspace}
    for files in (dict.fromkeys(unknown, OLD), unknown):
        assert stamp.is_file()
        assert bring(course, deliver(tmp_path, files, True)) == 1
    assert not stamp.exists() and "timestamp.txt was removed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "is_folder"),
    [
        ("1-2 - Bob - Oct 1, 2020 1000 AM - Oct 10, 2026 1022 AM", True),
        ("1-2 - Bob - Oct 1, 2020 1000 AM - Oct 10, 2026 1022 AM - x.ipynb", False),
        ("1-2 - Bob - Oct 10, 2026 1022 AM - notes - Oct 1, 2020 1000 AM - x.ipynb", False),
    ],
)
def test_no_date_in_a_name_makes_a_notebook_older(name, is_folder):
    found = importing._whose(name, is_folder)
    assert str(importing._time(found["time"], zoneinfo.ZoneInfo("Europe/Berlin"))) == "2026-10-10 08:22:00+00:00"
    assert importing._time("Oct 1, 0001 1000 AM - Dec 31, 9999 1159 PM", datetime.timezone.max) is not None


@pytest.mark.thorough
@pytest.mark.apart
def test_a_made_up_class_loses_nothing_on_its_way_through_an_assignment():
    # Seed 9: the exercise that is dropped has points by hand of two, drawn in another order than their names have.
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "term.py", "--students", "10", "--lesson", "03", "--seed", "9"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("(killed)") == 4, done.stdout
