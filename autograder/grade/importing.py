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
import re
import sys
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from autograder.grade import command as grade
from autograder.grade import limits
from autograder.grade import record as records
from autograder.grade.limits import printable
from autograder.lesson.files import write_whole

if TYPE_CHECKING:
    from autograder.grade.course import Course

_MOODLE = re.compile(r"(?P<name>[^/]+?)_(?P<user>\d+)_assignsubmission_(file|onlinetext)_(?P<rest>[^/]*)$")
#: What the name of a folder, or of a file, says about whose it is; user: the LMS's number of the student. In a folder
#: of Brightspace's the last date is the time, since a student can write one into the name; a file goes on behind it.
FOLDERS = (_MOODLE, re.compile(r"(?P<user>\d+)-\d+ - (?P<name>[^/]+) - (?P<time>[^/]*?\b\d{4}\b[^/]*)$"))
FILES = (
    _MOODLE,
    re.compile(r"(?P<user>\d+)-\d+ - (?P<name>[^/]+?) - (?P<time>[^/]*\b\d{4}\b[^/]*)$"),
    re.compile(r"(LATE_)?(?P<name>anon_[^_/]+)(_LATE)?_(?P<number>\d+)_(?P<rest>[^/]+)$"),
    # Canvas. Blackboard's files can look like its own, but for the time of the attempt.
    re.compile(
        r"(?!.*_attempt_\d{4}-\d\d-)(?P<name>[^/ .-]+?)(_LATE)?_(?P<user>\d+)_(?P<number>\d+)_(?P<rest>[^/]+)$", re.I
    ),
)
#: What a student has typed into Canvas or Moodle.
TYPED = re.compile(r"_(\d+|anon_[^_/]+)_(text|link)\.html$|_assignsubmission_onlinetext_")
_CLOCK = r" (?P<year>\d{4}),? (?P<hour>\d{1,2}?)[:.]?(?P<minute>\d{2}) ?(?P<half>[AP]M)?$"
#: Brightspace's times, with the month or the day first; its months in English and German.
TIMES = (
    re.compile(r"(?P<month>[^\W\d]{3,})\.? (?P<day>\d{1,2}),?" + _CLOCK),
    re.compile(r"(?P<day>\d{1,2})\.? (?P<month>[^\W\d]{3,})\.?,?" + _CLOCK),
)
MONTHS = ("jan", "feb", "mar mär", "apr", "may mai", "jun", "jul", "aug", "sep", "oct okt", "nov", "dec dez")
#: Columns of a list of names, in lower case: those of Moodle's, Canvas's and Brightspace's exports among them.
LOGIN = ("login", "username", "sis login id", "student_id", "orgdefinedid")
NAMES = (("name",), ("student",), ("full name",), ("first name", "last name"), ("first name", "surname"))
#: The LMS's own number of a student, which is in the names of its files.
USER = "id"
#: Signs of a path in a download.
LONGEST = 1000

#: A path in a download, its bytes, and what reads it.
Entry = tuple[str, int, Callable[[], bytes]]


class File(NamedTuple):
    """A notebook in a download. place: its path there. owner: the part of the path that names who handed it in.

    user: the LMS's number of that student. number: Canvas's of this file, which grows with time. read: its content.
    """

    place: str
    owner: str
    name: str
    user: str
    number: int
    time: datetime.datetime | None
    read: Callable[[], bytes]

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


_COPY = re.compile(r"(?<![ _-])[ _-]*+\(?(\d{1,3})\)?$")


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
    from autograder.grade.nbgrader import lock

    course, lesson = grade.course_of(arguments), arguments.lessons[0]
    people = People(Path(arguments.names).expanduser()) if arguments.names else None
    owners: dict[str, list[File]] = {}
    problems, notes, imported = list[str](), list[str](), dict[str, str]()
    with lock.held(course.root, "autograder import"), _entries(Path(arguments.download).expanduser()) as entries:
        for file in files_of(entries, course.own.zone, problems):
            try:
                owners.setdefault(people.login(file) if people else _as_folder(file.name), []).append(file)
            except ValueError as error:
                problems.append(_not_imported(file.place, error))
        refused = {
            login: why for login, files in owners.items() if (why := _refused(course, lesson, login, files, people))
        }
        problems += [_not_imported(file.place, why) for login, why in refused.items() for file in owners[login]]
        try:
            for login in sorted(owners.keys() - refused.keys()):
                *older, newest = sorted(owners[login], key=lambda file: file.counts(lesson))
                for file in older:
                    named = newest.counts(lesson)[1] > file.counts(lesson)[1]
                    why = "is newer" if file.age < newest.age else "bears the lesson's name" if named else "was taken"
                    notes.append(_not_imported(file.place, f"{newest.place} {why}"))
                try:
                    notes += put(course.root, lesson, login, newest)
                    imported[login] = newest.owner
                except Exception as error:  # whatever it is, it concerns this student alone
                    problems.append(_not_imported(newest.place, error))
        finally:
            records.of(course.root).at(lesson).imported.update(imported)
            records.save(course.root, records.of(course.root))
    for line in (*notes, *problems):
        print(printable(line), file=sys.stderr)
    print(f"Imported for {lesson}: {len(imported)} submissions. To grade them: autograder grade {lesson[:2]}")
    return 1 if problems else 0


def _not_imported(place: str, why: str | Exception) -> str:
    """The line about a file."""
    if isinstance(why, limits.OutOfLimitsError):
        why = f"it cannot be unpacked ({why}): ask for the notebook itself"
    return f"{place} was not imported: {str(why) or type(why).__name__}"


def _refused(course: Course, lesson: str, login: str, files: list[File], people: People | None) -> str:
    """Why nothing is imported under this login, before anything is written; '' if these files can be."""
    folder, own = course.root / "submitted" / login / lesson, files[0]
    if why := limits.why_no_student(login):
        return why
    if len({(file.name, file.user) for file in files}) > 1:
        both = limits.listed(sorted({f"{file.name!r} ({file.user})" for file in files}))
        needs = f"{people.file if people else 'a table for --names'} must have a login for each"
        return f"{both} would be one student, {login!r}: {needs}, and their numbers in a column `id` if names are equal"
    if not people and own.name.endswith("Participant"):
        return "Moodle was told to hide the names: download again without that, or name a table with --names"
    for other in (one for one in course.lessons() if (folder.parent / one).is_dir()):
        before = _whose(records.of(course.root).at(other).imported.get(login, ""), is_folder=False)
        number = before.groupdict().get("user") if before else None
        if not (before and number and own.user):
            continue
        # Moodle numbers the students of each assignment anew.
        comparable, renamed = other == lesson or before.re is not _MOODLE, own.name != before["name"]
        if (number != own.user if comparable else renamed) and not (people and not (comparable and renamed)):
            who = f"{before['name']!r} ({number}) was imported as {login!r} before"
            return f"{who}: if it is the same student, remove submitted/{login}/{other}, else give them another login"
    for path in (folder.parent, folder):
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            return f"{path.relative_to(course.root)} is no folder: remove it"
    if login.isdigit() and not folder.parent.is_dir():
        known = set(course.students()) | (people.logins if people else set())
        for other in sorted(known - {login}):
            if other.lstrip("0") == login.lstrip("0"):
                return f"the login {login} is new, but {other} is known: has a spreadsheet dropped zeros in front?"
    return ""


def put(root: Path, lesson: str, login: str, file: File) -> list[str]:
    """Write a notebook, and its time if it is known, where it is graded; an older one there is replaced.

    The time of another notebook is removed, and named in a line.
    """
    folder, content, lines = root / "submitted" / login / lesson, file.read(), list[str]()
    notebook, time = folder / f"{lesson}.ipynb", folder / "timestamp.txt"
    if file.time is not None:
        write_whole(time, f"{file.time:%Y-%m-%d %H:%M:%S.%f} UTC\n")
    elif time.is_file() and not (notebook.is_file() and notebook.read_bytes() == content):
        time.unlink()
        lines = [f"{time.relative_to(root)} was removed: {file.place} replaces its notebook, and came without a time"]
    write_whole(notebook, content)
    return lines


def files_of(entries: list[Entry], zone: datetime.tzinfo | None, problems: list[str]) -> Iterator[File]:
    """The notebooks in a download. A line is added to `problems` for each file that could be work and is none of them.

    zone: that of Brightspace's times.
    """
    from autograder.grade.nbgrader.submission_files import LIKE_A_NOTEBOOK

    for place, size, read in entries:
        if len(place) > LONGEST:
            problems.append(f"{place[:80]}… was not imported: its name is too long")
            continue
        parts = unicodedata.normalize("NFC", place).split("/")
        if any(part.startswith(limits.OF_A_SYSTEM) for part in parts) or not limits.COULD_BE_WORK.search(place):
            continue
        # From the outside in: a folder tells whose a file is, and the file's own name may look as if it did.
        whose = ((part, _whose(part, number < len(parts))) for number, part in enumerate(parts, start=1))
        owner, match = next((found for found in whose if found[1]), ("", None))
        why = "it is a text or a link that was typed in, not a file" if TYPED.search(place) else ""
        if match is None:
            if parts[-1].lower() != "index.html":  # Brightspace's list of contents
                problems.append(_not_imported(place, why or "its path does not say who handed it in"))
            continue
        groups = match.groupdict()
        time = _time(groups.get("time"), zone)
        if groups.get("time") and time is None:
            problems.append(f"{place}: the time {groups['time']!r} cannot be read: no late penalty will be computed")
        try:
            if size > 4 * limits.FILE:
                raise ValueError("it is too large")
            inside = [(place, read)] if LIKE_A_NOTEBOOK.search(place) else _in_zip(place, read)
            if not inside:
                raise ValueError(why or "it is not a notebook")
        except Exception as error:  # whatever it is, it concerns this student alone
            problems.append(_not_imported(place, error))
            continue
        for name, content in inside:
            more = groups.get("user") or "", int(groups.get("number") or 0), time
            yield File(name, owner, groups["name"], *more, content)


def _whose(part: str, is_folder: bool) -> re.Match[str] | None:
    """What a part of a path says about who has handed in what lies there."""
    return next((match for one in (FOLDERS if is_folder else FILES) if (match := one.match(part))), None)


@contextlib.contextmanager
def _entries(source: Path) -> Iterator[list[Entry]]:
    """(path, bytes, what reads it) of the files in a zip file or below a folder, in order. Links are not followed.

    ValueError if it is neither a zip file nor a folder.
    """
    with contextlib.ExitStack() as stack:
        if source.is_dir():
            paths = [path for path in sorted(source.rglob("*")) if path.is_file() and not path.is_symlink()]
            found = [(path.relative_to(source).as_posix(), path.stat().st_size, path.read_bytes) for path in paths]
        else:
            try:
                archive = stack.enter_context(zipfile.ZipFile(source))
            except (OSError, zipfile.BadZipFile):
                what = "name what the LMS delivers for one assignment"
                raise ValueError(f"{source} is neither a zip file nor a folder: {what}") from None
            infos = sorted(archive.infolist(), key=lambda entry: entry.filename)
            found = [(i.filename, i.file_size, functools.partial(archive.read, i)) for i in infos if not i.is_dir()]
        yield found


#: Unpacks what students have packed: one file at a time, in a process that may die of it.
_unpacker = limits.Helper(limits.UNPACK_MEMORY, limits.UNPACK_SECONDS)


def _in_zip(place: str, read: Callable[[], bytes]) -> list[tuple[str, Callable[[], bytes]]]:
    """(path, what reads it) of the notebooks in a zip file that a student handed in; none if it is no such file."""
    content = read() if place.lower().endswith(".zip") else b""
    found = _unpacker.call(_packed, content) if zipfile.is_zipfile(io.BytesIO(content)) else []
    return [(f"{place}/{name}", functools.partial(_from_zip, read, number)) for number, name in found]


def _from_zip(read: Callable[[], bytes], number: int) -> bytes:
    return bytes(_unpacker.call(_unpacked, read(), number))


def _packed(content: bytes) -> list[tuple[int, str]]:
    """The places and names of the notebooks in a zip file."""
    from autograder.grade.nbgrader.submission_files import LIKE_A_NOTEBOOK

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = [entry.filename for entry in archive.infolist()[: limits.NAMES]]
    return [
        (number, name)
        for number, name in enumerate(names)
        if len(name) <= LONGEST
        and LIKE_A_NOTEBOOK.search(name)
        and not any(part.startswith(limits.OF_A_SYSTEM) for part in name.split("/"))
    ]


def _unpacked(content: bytes, number: int) -> bytes:
    """One file of a zip file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entry = archive.infolist()[number]
        if entry.file_size > 4 * limits.FILE:
            raise ValueError("it is too large")
        return archive.read(entry)


def _time(text: str | None, zone: datetime.tzinfo | None) -> datetime.datetime | None:
    """Brightspace's time, in the course's time zone, else this machine's; None if it cannot be read.

    Of several the last: a student can write one more into a name.
    """
    return max(filter(None, (_one_time(part, zone) for part in (text or "").split(" - "))), default=None)


def _one_time(text: str, zone: datetime.tzinfo | None) -> datetime.datetime | None:
    match = next((found for one in TIMES if (found := one.match(text))), None)
    month = next((n for n, names in enumerate(MONTHS, 1) if match and match["month"][:3].lower() in names.split()), 0)
    if match is None or not month:
        return None
    hour = int(match["hour"])
    if match["half"]:
        hour = hour % 12 + 12 * (match["half"] == "PM")
    try:
        time = datetime.datetime(int(match["year"]), month, int(match["day"]), hour, int(match["minute"]))
        return (time.replace(tzinfo=zone) if zone else time).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None


class People:
    """A table of names and logins: the columns that LMSs export are known, others can be named `name` and `login`.

    known: the key of a name (`_keys`), or the LMS's number after `#` → (login, number) of the students who have it.
    """

    def __init__(self, file: Path):
        self.file = file
        rows = [{(key or "").strip().lower(): value for key, value in row.items()} for row in _table(file)]
        columns = rows[0].keys() if rows else set()
        login = next((column for column in LOGIN if column in columns), None)
        names = [parts for parts in NAMES if columns >= set(parts)]
        if login is None or not names:
            there = ", ".join(columns) or "none"
            how = "call the one with the logins `login`, and the one with the names `name`"
            raise ValueError(f"{file} needs a column `login` and a column `name`; its columns: {there}: {how}")
        self.known: dict[str, set[tuple[str, str]]] = {}
        for row in rows:
            keys = {key for parts in names for key in _keys(" ".join(row[column] or "" for column in parts))}
            found = (row[login] or "").strip(), (row.get(USER) or "").strip()
            if spoiled := next(filter(re.compile(r"\d+([.,]\d+)?E\+\d+$|\d+\.0$", re.IGNORECASE).match, found), ""):
                why = f"a spreadsheet has written a number as {spoiled!r}, and its digits may be lost"
                raise ValueError(f"{file}: {why}: export the table again, and do not save it from a spreadsheet")
            for key in (*keys, *([f"#{found[1]}"] if found[1] else [])):
                self.known.setdefault(key, set()).add(found)
        self.logins = {login for found in self.known.values() for login, _ in found if login}

    def login(self, file: File) -> str:
        """Whose file it is. ValueError for somebody who is not in the table, or for a name that several have.

        Canvas's number decides where the table has it; another system's only between students of one name, since the
        column may hold numbers of another kind.
        """
        words = _words(file.name)
        named = self.known.get("/" + "".join(words).replace("-", "") if file.number else " ".join(words), set())
        numbered = self.known.get(f"#{file.user}", set())
        if file.number:
            found = numbered or {row for row in named if not row[1]}
        else:
            found = named & numbered if len(named) > 1 else named
        logins = {login for login, _ in found} - {""}
        if len(logins) != 1:
            several = limits.listed(sorted(login for login, _ in named)) if len(named) > 1 else ""
            how = f": of {several}, give this one the `id` {file.user}" if several else ""
            raise ValueError(f"{self.file} has no login for {file.name!r}{f' ({file.user})' if file.user else ''}{how}")
        return logins.pop()


def _table(file: Path) -> csv.DictReader:
    """A table as a spreadsheet saves it: with commas, semicolons or tabs, in UTF-8, UTF-16 or Windows's encoding."""
    content = file.read_bytes()
    text = ""
    for encoding in ("utf-16" if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):
            text = content.decode(encoding).lstrip()
            break
    text = re.sub(r"^sep=.\s+", "", text)  # a line of Excel's own
    head = text.split("\n", 1)[0]
    return csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count))


def _words(name: str) -> list[str]:
    """The words of a name, in small letters. Accents and hyphens tell people apart; Moodle removes apostrophes."""
    signs = re.sub(r"[\u2010-\u2015]", "-", re.sub(r"[\s,]+", " ", unicodedata.normalize("NFKC", name).lower()))
    return "".join(sign for sign in signs if sign in " -" or unicodedata.category(sign)[0] in "LMN").split()


def _keys(name: str) -> set[str]:
    """The keys of a name that begins with any of its words; behind a slash as Canvas writes it, in one word."""
    words = _words(name)
    turned = [words[at:] + words[:at] for at in range(len(words))]
    return {*map(" ".join, turned), *("/" + "".join(one).replace("-", "") for one in turned)}


def _as_folder(name: str) -> str:
    """A name as a student's folder, where there is no table of logins."""
    kinds = ((sign, unicodedata.category(sign)[0]) for sign in unicodedata.normalize("NFC", name))
    words = "".join(sign if sign in "_.-" or kind in "LMN" else " " for sign, kind in kinds).split()
    return re.sub("-+", "-", "-".join(words)).strip("-.")


def write_feedback(arguments: argparse.Namespace) -> int:
    """Run the subcommand `feedback-zip`; its exit status: 1 if a page is missing."""
    course, lesson = grade.course_of(arguments), arguments.lessons[0]
    owners = records.read(course.root).at(lesson).imported
    if not owners:
        raise ValueError(f"nothing of {lesson} was imported, so its names in Moodle are not known")
    written, missing, target = 0, list[str](), Path(arguments.zip).expanduser()
    content = io.BytesIO()
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
    print(f"The pages of {written} students are in {target}, under Moodle's names.")
    return 1 if missing else 0
