"""`autograder import DOWNLOAD 03 --names students.csv`: put what an LMS delivers where it is graded.

DOWNLOAD is the zip file, or its unpacked folder, that Moodle, Canvas or Brightspace gives for one assignment. Who has
handed in a file stands in its path:

    Eva Ruiz_12345_assignsubmission_file_/03_step.ipynb              Moodle; without folders the name follows at once
    ruizeva_LATE_678_91011_03_step-1.ipynb                           Canvas: sortable name, user, attachment
    39786-640693 - Eva Ruiz - Oct 10, 2026 1022 AM/03_step.ipynb     Brightspace

Of several notebooks of a student the newest counts: by Brightspace's time, else by the number at the end of the name.
`autograder feedback-zip 03 PAGES.zip` makes the zip of feedback pages that Moodle takes back.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import csv
import datetime
import functools
import io
import json
import re
import sys
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from autograder.grading import command as grade
from autograder.grading import limits
from autograder.grading.limits import printable
from autograder.lessons.files import write_whole

PATTERNS = (
    re.compile(r"(?P<name>[^/]+?)_\d+_assignsubmission_(file|onlinetext)_(?P<rest>[^/]*)$"),
    re.compile(r"\d+-\d+ - (?P<name>[^/]+?) - (?P<time>[^/]*\b\d{4}\b[^/]*)$"),
    re.compile(r"(?P<name>[^/]+?)(_LATE)?_(?P<user>\d+)_(?P<number>\d+)_(?P<rest>[^/]+)$"),
)
_CLOCK = r" (?P<year>\d{4}),? (?P<hour>\d{1,2}?)[:.]?(?P<minute>\d{2}) ?(?P<half>[AP]M)?(?= - |$)"
#: Brightspace's times, with the month or the day first; its months in English and German.
TIMES = (
    re.compile(r"(?P<month>[^\W\d]{3,})\.? (?P<day>\d{1,2}),?" + _CLOCK),
    re.compile(r"(?P<day>\d{1,2})\.? (?P<month>[^\W\d]{3,})\.?,?" + _CLOCK),
)
MONTHS = ("jan", "feb", "mar mär", "apr", "may mai", "jun", "jul", "aug", "sep", "oct okt", "nov", "dec dez")
#: Columns of a list of names, in lower case: those of Moodle's, Canvas's and Brightspace's exports among them.
LOGIN = ("login", "username", "sis login id", "student_id", "orgdefinedid")
NAMES = (("name",), ("student",), ("full name",), ("first name", "last name"), ("first name", "surname"))
#: Canvas's own number of a student, which is in the names of its files.
USER = "id"
#: Below `submitted/`: login → the name under which the LMS knows a submission to this lesson.
RECORD = ".imported-{lesson}.json"


class File(NamedTuple):
    """A notebook in a download. place: its path there. owner: the part of the path that names who handed it in.

    number: Canvas's of this file, which grows with time.
    """

    place: str
    owner: str
    name: str
    user: str
    number: int
    time: datetime.datetime | None
    content: bytes

    @property
    def age(self) -> tuple[float, int, int]:
        """How new it is: by time, Canvas's number, and the number at the end of the name, as in `x (2)` and `x-2`."""
        copy = _COPY.search(self._stem)
        return self.time.timestamp() if self.time else 0.0, self.number, int(copy[1]) if copy else 0

    def counts(self, lesson: str) -> tuple:
        """Sorts the one that counts last: of those that bear the lesson's name, if any do, the newest."""
        stem = _COPY.sub("", self._stem)
        return self.age[0], stem.endswith(lesson), self.age, -len(stem), self.place

    @property
    def _stem(self) -> str:
        return re.sub(r"\.ipynb.*$", "", self.place.rsplit("/", 1)[-1], flags=re.IGNORECASE)


_COPY = re.compile(r"[ _-]*\(?(\d{1,3})\)?$")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommands `import` and `feedback-zip`."""
    parser = subparsers.add_parser("import", help="put what Moodle, Canvas or Brightspace delivers into submitted/")
    parser.add_argument("download", metavar="DOWNLOAD", help="the zip file, or its unpacked folder")
    parser.add_argument("lessons", nargs=1, metavar="LESSON", help="the lesson of this assignment")
    parser.add_argument("--names", metavar="CSV", help="a table with names and logins, such as the LMS exports")
    parser.set_defaults(run=command)
    back = subparsers.add_parser("feedback-zip", help="write the feedback pages as a zip that Moodle takes back")
    back.add_argument("lessons", nargs=1, metavar="LESSON")
    back.add_argument("zip", metavar="ZIP", help="the file to write")
    back.set_defaults(run=write_feedback)
    for one in (parser, back):
        one.add_argument("--course", metavar="DIR", help="the folder with submitted/ (default: the repository)")
        one.set_defaults(timeout=None, no_jail=True)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand `import`; its exit status: 1 if there is a file that was not imported."""
    from autograder.grading.nbgrader import lock

    course, source = grade.course_of(arguments), Path(arguments.download).expanduser()
    lesson = arguments.lessons[0]
    people = People(Path(arguments.names).expanduser()) if arguments.names else None
    owners: dict[str, list[File]] = {}
    problems, older_ones = list[str](), list[str]()
    for file in files_of(source, problems):
        login = people.login(file) if people else _as_folder(file.name)
        if wrong := limits.why_no_student(login):
            why = f"{arguments.names} has no login for {file.name!r}" if people and not login else wrong
            problems.append(f"{file.place} was not imported: {why}")
        else:
            owners.setdefault(login, []).append(file)
    with lock.held(course.root, "autograder import"):
        for login, files in owners.items():
            *older, newest = files = sorted(files, key=lambda file: file.counts(lesson))
            put(course.root, lesson, login, newest)
            for file in older:
                named = newest.counts(lesson)[1] > file.counts(lesson)[1]
                why = "is newer" if file.age < newest.age else "bears the lesson's name" if named else "was taken"
                older_ones.append(f"{file.place} was not imported: {newest.place} {why}")
            owners[login] = files
        _remember(course.root, lesson, {login: files[-1].owner for login, files in owners.items()})
    for line in (*older_ones, *problems):
        print(printable(line), file=sys.stderr)
    print(f"Imported for {lesson}: {len(owners)} submissions. To grade them: autograder grade {lesson[:2]}")
    return 1 if problems else 0


def put(root: Path, lesson: str, login: str, file: File) -> None:
    """Write a notebook, and its time if it is known, where it is graded; an older one there is replaced."""
    folder = root / "submitted" / login / lesson
    write_whole(folder / f"{lesson}.ipynb", file.content)
    if file.time is not None:
        write_whole(folder / "timestamp.txt", f"{file.time.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S.%f} UTC\n")


def files_of(source: Path, problems: list[str]) -> Iterator[File]:
    """The notebooks in a download. A line is added to `problems` for each file that could be work and is none of them.

    ValueError if it is neither a zip file nor a folder.
    """
    from autograder.grading.nbgrader.submission_files import LIKE_A_NOTEBOOK

    for place, read in _entries(source):
        parts = place.split("/")
        if any(part.startswith(limits.OF_A_SYSTEM) for part in parts) or not limits.COULD_BE_WORK.search(place):
            continue
        # From the outside in: a folder tells whose a file is, and the file's own name may look as if it did.
        found = next(((part, match) for part in parts for one in PATTERNS if (match := one.match(part))), None)
        if found is None:
            if parts[-1].lower() != "index.html":  # Brightspace's list of contents
                problems.append(f"{place} was not imported: its path does not say who handed it in")
            continue
        groups = found[1].groupdict()
        time = _time(groups.get("time"))
        if groups.get("time") and time is None:
            problems.append(f"{place}: the time {groups['time']!r} cannot be read: no late penalty will be computed")
        inside = [(place, read)] if LIKE_A_NOTEBOOK.search(place) else _zipped_notebooks(place, read)
        if not inside:
            problems.append(f"{place} was not imported: it is not a notebook")
        for name, content in inside:
            more = groups.get("user", ""), int(groups.get("number") or 0), time
            yield File(name, found[0], groups["name"], *more, content())


def _entries(source: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """(path, what reads it) of the files in a zip file or below a folder, in order. Links are not followed."""
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(source).as_posix(), path.read_bytes
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
                if not entry.is_dir() and entry.file_size <= 4 * limits.FILE:
                    yield entry.filename, functools.partial(archive.read, entry)
    else:
        raise ValueError(f"{source} is neither a zip file nor a folder: name what the LMS delivers for one assignment")


def _zipped_notebooks(place: str, read: Callable[[], bytes]) -> list[tuple[str, Callable[[], bytes]]]:
    """(path, what reads it) of the notebooks in a zip file that a student handed in; none if it is no such file."""
    from autograder.grading.nbgrader.submission_files import LIKE_A_NOTEBOOK

    if not place.lower().endswith(".zip"):
        return []
    try:
        archive = zipfile.ZipFile(io.BytesIO(read()))
    except zipfile.BadZipFile:
        return []
    return [
        (f"{place}/{entry.filename}", functools.partial(archive.read, entry))
        for entry in archive.infolist()[: limits.NAMES]
        if LIKE_A_NOTEBOOK.search(entry.filename)
        and entry.file_size <= 4 * limits.FILE
        and not entry.flag_bits & 1  # encrypted
        and not any(part.startswith(limits.OF_A_SYSTEM) for part in entry.filename.split("/"))
    ]


def _time(text: str | None) -> datetime.datetime | None:
    """Brightspace's time, in the time zone of this machine; None if it cannot be read."""
    match = next((found for one in TIMES if (found := one.match(text or ""))), None)
    month = next((n for n, names in enumerate(MONTHS, 1) if match and match["month"][:3].lower() in names.split()), 0)
    if match is None or not month:
        return None
    hour = int(match["hour"])
    if match["half"]:
        hour = hour % 12 + 12 * (match["half"] == "PM")
    try:
        return datetime.datetime(int(match["year"]), month, int(match["day"]), hour, int(match["minute"])).astimezone()
    except ValueError:
        return None


class People:
    """A table of names and logins: the columns that LMSs export are known, others can be named `name` and `login`."""

    def __init__(self, file: Path):
        rows = [{(key or "").strip().lower(): value for key, value in row.items()} for row in _table(file)]
        columns = rows[0].keys() if rows else set()
        login = next((column for column in LOGIN if column in columns), None)
        names = [parts for parts in NAMES if columns >= set(parts)]
        if login is None or not names:
            there = ", ".join(columns) or "none"
            raise ValueError(f"{file} needs a column `login` and a column `name`; its columns: {there}")
        self.known: dict[str, set[str]] = {}
        for row in rows:
            keys = {key for parts in names for key in _keys(" ".join(row[column] or "" for column in parts))}
            for key in (*keys, f"#{row.get(USER)}"):
                self.known.setdefault(key, set()).add((row[login] or "").strip())

    def login(self, file: File) -> str:
        """Whose file it is; '' for somebody who is not in the table, or for a name that several have."""
        for key in (f"#{file.user}", _key(file.name)):
            found = self.known.get(key, set()) - {""}
            if len(found) == 1:
                return next(iter(found))
        return ""


def _table(file: Path) -> csv.DictReader:
    """A table as a spreadsheet saves it: with commas, semicolons or tabs, in UTF-8, UTF-16 or Windows's encoding."""
    content = file.read_bytes()
    text = ""
    for encoding in ("utf-16" if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):
            text = content.decode(encoding).lstrip()
            break
    head = text.split("\n", 1)[0]
    return csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count))


def _key(name: str) -> str:
    """A name without accents, signs and spaces."""
    plain = unicodedata.normalize("NFKD", name.casefold())
    return "".join(sign for sign in plain if sign.isalnum())


def _keys(name: str) -> set[str]:
    """The keys of a name that begins with any of its words: Canvas puts the family name first, and joins the words."""
    words = name.split()
    return {_key("".join(words[at:] + words[:at])) for at in range(len(words))}


def _as_folder(name: str) -> str:
    """A name as a student's folder, where there is no table of logins."""
    return re.sub(r"[^\w.-]+", "-", unicodedata.normalize("NFC", name)).strip("-.")


def _remember(root: Path, lesson: str, owners: dict[str, str]) -> None:
    path = root / "submitted" / RECORD.format(lesson=lesson)
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    write_whole(path, json.dumps({**before, **owners}, indent=1, sort_keys=True, ensure_ascii=False))


def write_feedback(arguments: argparse.Namespace) -> int:
    """Run the subcommand `feedback-zip`; its exit status: 1 if a page is missing."""
    course, lesson = grade.course_of(arguments), arguments.lessons[0]
    record = course.root / "submitted" / RECORD.format(lesson=lesson)
    if not record.is_file():
        raise ValueError(f"nothing of {lesson} was imported, so its names in Moodle are not known")
    written, missing, target = 0, list[str](), Path(arguments.zip).expanduser()
    content, owners = io.BytesIO(), json.loads(record.read_text(encoding="utf-8"))
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for login, owner in owners.items():
            page = course.root / "feedback" / login / lesson / f"{lesson}.html"
            if page.is_file():
                # Moodle knows a student by the beginning of this name.
                folder = re.sub(r"(_assignsubmission_(file|onlinetext)_).*$", r"\1", owner)
                archive.write(page, f"{folder}/{lesson}.html")
                written += 1
            else:
                missing.append(login)
    write_whole(target, content.getvalue())
    for login in missing:
        print(f"{printable(login)} has no page for {lesson} yet: grade it first", file=sys.stderr)
    for (login, _), whose in sorted(course.handed_in_by([lesson]).items()):
        if login != whose and login not in owners:
            why = f"Moodle's name for the hand-in is not known; {printable(whose)} has the page of the group"
            print(f"{printable(login)} has handed in nothing, so {why}", file=sys.stderr)
    print(f"The pages of {written} students are in {target}, under Moodle's names.")
    return 1 if missing else 0
