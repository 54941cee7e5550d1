"""Students who hand in together: one notebook counts for all of a group (`groups` in `course.toml`).

The newest hand-in of a group counts. It is graded under the student in whose folder it lies, and formgrader shows it
once. In the gradebook, which knows no groups, the others get the same grades and comments, each with a late penalty of
their own. What a person enters for one member counts for all.
"""

from __future__ import annotations

import contextlib
import copy
import filecmp
import json
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import nbformat

from autograder.grading import limits
from autograder.grading.nbgrader import reading, submission_files
from autograder.lessons import course_settings
from autograder.lessons.course_settings import Settings
from autograder.lessons.files import write_whole

if TYPE_CHECKING:
    from nbgrader.api import Gradebook

#: In `autograded/`: lesson → student → what people had entered when it was last the same for the whole group.
RECORD = ".groups.json"

Job = tuple[str, str]


class Cell(NamedTuple):
    """What the gradebook has on one cell of a submission. entered: by a person. waits: is it listed for one?"""

    automatic: Any
    entered: Any
    waits: bool = False


def counting(root: Path, own: Settings, found: Iterable[Job]) -> dict[Job, str]:
    """(student, lesson) → in whose folder the hand-in lies that counts, for all who have one or whose group has one.

    found: the folders in `submitted/`.
    """
    who = {job: job[0] for job in found}
    for lesson in {lesson for _, lesson in who}:
        for members in own.of(lesson).groups:
            known = [student for student in members if limits.is_students_name(student)]
            if there := [student for student in known if (student, lesson) in who]:
                newest = max(there, key=lambda student: _age(root, student, lesson))
                who |= {(student, lesson): newest for student in known}
    return who


def _age(root: Path, student: str, lesson: str) -> tuple[bool, float, str]:
    """Sorts hand-ins: those without a notebook first, then by `timestamp.txt`, or else by the time of the file."""
    folder = root / "submitted" / student / lesson
    when = submission_files.submitted_at(submission_files.exchange_files(folder))
    files = []
    with contextlib.suppress(OSError):  # of a folder that cannot be entered, nothing counts
        names = [name for name in os.listdir(folder) if submission_files.LIKE_A_NOTEBOOK.search(name)]
        files = [(folder / name).lstat().st_mtime for name in names]
    return bool(files), when.timestamp() if when else max(files, default=0.0), student


def others(root: Path, who: dict[Job, str]) -> Iterator[tuple[str, str, str]]:
    """(student, lesson, whose counts) for each hand-in that does not count, unless it is the same notebook."""
    for (student, lesson), newest in sorted(who.items()):
        folder = root / "submitted" / student / lesson
        if student != newest and os.path.isdir(folder):
            own, counts = (root / "submitted" / one / lesson / f"{lesson}.ipynb" for one in (student, newest))
            same = all(os.path.isfile(path) and not os.path.islink(path) for path in (own, counts))
            with contextlib.suppress(OSError):  # what cannot be read is not compared
                same = same and filecmp.cmp(own, counts, shallow=False)
            if not same:
                yield student, lesson, newest


def others_of(root: Path, student: str, lesson: str) -> list[str]:
    """The students for whom this one has handed in a lesson, too; none if another one's is newer."""
    own = course_settings.of(root)
    who = _counting_of(root, own, own.group(student, lesson), lesson)
    return [one for (one, _), newest in who.items() if newest == student != one]


def words(root: Path, own: Settings, student: str, lesson: str) -> str:
    """What a page says of a group; '' for a student who works alone."""
    members = own.group(student, lesson)
    if len(members) == 1:
        return ""
    who = _counting_of(root, own, members, lesson)
    newest = who.get((student, lesson), student)
    older = [one for one, *_ in others(root, who)]
    told = f"What {limits.listed(older)} handed in is older and does not count." if older else ""
    return f"Handed in by {newest}; it counts for {limits.listed(members)}. {told}".strip()


def _counting_in(root: Path, own: Settings, lesson: str) -> dict[Job, str]:
    """`counting` of one lesson, for those who are in a group."""
    return _counting_of(root, own, (one for members in own.of(lesson).groups for one in members), lesson)


def _counting_of(root: Path, own: Settings, members: Iterable[str], lesson: str) -> dict[Job, str]:
    return counting(root, own, [(one, lesson) for one in members if os.path.isdir(root / "submitted" / one / lesson)])


def graded_as(root: Path, own: Settings, student: str, lesson: str) -> str:
    """Under whose name the notebook was graded that counts for a student."""
    return next((one for one in (student, *own.group(student, lesson)) if _path(root, one, lesson).is_file()), student)


def has_any(root: Path) -> bool:
    """Are there groups in a course, or were there when it was last graded?"""
    return bool(course_settings.of(root).in_groups() or _record(root))


def share(gradebook: Gradebook, root: Path, only: Job | None = None) -> list[str]:
    """Give each member of a group the same in the gradebook; a line for each group of which that cannot be done.

    What people have entered since the last time for any of them counts for all. only: the group of this hand-in.
    """
    own, record = course_settings.of(root), _record(root)
    if not (own.in_groups() or record):
        return []
    before = copy.deepcopy(record)
    lessons = own.names() if only is None else [only[1]]
    who = {job: whose for lesson in lessons for job, whose in _counting_in(root, own, lesson).items()}
    cells, lines = _cells(gradebook, only and (own.group(*only), only[1])), list[str]()
    if only is None:
        _take_apart(gradebook, root, own, record, cells)
    for lesson in sorted({lesson for _, lesson in who}):
        for members in own.of(lesson).groups:
            newest = who.get((members[0], lesson)) or who.get((members[-1], lesson))
            if newest is not None and only in (None, (newest, lesson)):
                group = _Group(root, lesson, members, newest, record.setdefault(lesson, {}), cells)
                lines += group.share(gradebook)
    if record != before:
        write_whole(root / "autograded" / RECORD, json.dumps(record, indent=1, sort_keys=True))
    return lines


class _Group:
    """The members of a group whose hand-in of a lesson counts for all of them.

    newest: who has handed it in. source: whose graded notebook that is, another member's until the newer one is graded.
    """

    def __init__(self, root: Path, lesson: str, members: tuple[str, ...], newest: str, record: dict, cells: dict):
        self.root, self.lesson, self.newest, self.record = root, lesson, newest, record
        self.members = [one for one in members if limits.is_students_name(one)]
        self.cells: dict[str, dict[str, Cell]] = {
            one: cells[one, lesson] for one in self.members if (one, lesson) in cells
        }
        self.graded = [one for one in self.members if _path(root, one, lesson).is_file()]
        self.source = newest if newest in self.graded or not self.graded else self.graded[0]

    def share(self, gradebook: Gradebook) -> list[str]:
        """Make it the same for all members. A line if people have entered different things, which then stay."""
        if self.source not in self.cells:
            return []  # nothing is graded yet
        merged, torn = self._entered()
        if torn:
            values = ", ".join(f"{one}: {_said(self.cells[one][torn].entered)}" for one in self.cells)
            exercise = torn.split("/", 1)[1].removesuffix("-test")
            return [
                f"{self.lesson}: {limits.listed(self.members)} are a group, and what was entered by hand for "
                f"{exercise} differs ({values}): enter the same for both in formgrader, or take it back for one"
            ]
        waits = self._waiting(merged)
        for one in self.members:
            wanted = {
                name: Cell(cell.automatic, merged[name], one == self.newest and waits[name])
                for name, cell in self.cells[self.source].items()
            }
            if self.cells.get(one) != wanted:
                self._write(gradebook, one, wanted)
            # Another notebook can be worth the same.
            when = gradebook.find_submission(self.lesson, self.source).timestamp
            gradebook.find_submission(self.lesson, one).timestamp = when
        gradebook.db.commit()
        if self.source != self.newest:  # from now on, it is an earlier version of what the other one has handed in
            target = _path(self.root, self.newest, self.lesson).parent
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            _path(self.root, self.source, self.lesson).parent.rename(target)
        for one in self.graded:
            if one not in (self.source, self.newest):
                shutil.rmtree(_path(self.root, one, self.lesson).parent)
        about = {"group": sorted(self.members), "of": self.newest, "entered": merged}
        self.record.update(dict.fromkeys(self.members, about))
        return []

    def _entered(self) -> tuple[dict[str, Any], str]:
        """What people have entered for any member, by cell; and a cell of which they have entered different things."""
        same = all(self.record.get(one, {}).get("group") == sorted(self.members) for one in self.members)
        before = self.record[self.members[0]]["entered"] if same else {}
        merged = {}
        for name in self.cells[self.source]:
            old = before.get(name)
            now = [self._value(one, name, same) for one in self.cells if name in self.cells[one]]
            new = [value for number, value in enumerate(now) if value != old and value not in now[:number]]
            if len(new) > 1:
                return {}, name
            merged[name] = new[0] if new else old
        return merged, ""

    def _value(self, student: str, name: str, same: bool) -> Any:
        """What was entered for a student, but not what another group has left there."""
        value, record = self.cells[student][name].entered, self.record.get(student, {})
        copied = not same and record.get("of", student) != student and record["entered"].get(name) == value
        return None if copied else value

    def _waiting(self, merged: dict[str, Any]) -> dict[str, bool]:
        """Which cells a person has to look at: also those with points for the answer of another notebook."""
        changed = dict[str, list[str]]()
        waits = {}
        for name, cell in self.cells[self.source].items():
            waits[name] = cell.waits
            if merged[name] != cell.entered and name.startswith("grade/"):
                giver = next(one for one in self.cells if self.cells[one][name].entered == merged[name])
                if giver in self.graded and giver not in changed:
                    notebooks = (nbformat.read(_path(self.root, one, self.lesson), 4) for one in (giver, self.source))
                    changed[giver] = reading.changed_answers(*notebooks)
                by_hand = merged[name] is not None and merged[name][0] is not None
                waits[name] = name[6:] in changed.get(giver, ()) if by_hand else cell.automatic is None
        return waits

    def _write(self, gradebook: Gradebook, student: str, wanted: dict[str, Cell]) -> None:
        from sqlalchemy.exc import SAWarning

        gradebook.update_or_create_student(student)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SAWarning)  # nbgrader's, about its own queries
            gradebook.update_or_create_submission(self.lesson, student)
        found = gradebook.find_submission_notebook(self.lesson, self.lesson, student)
        for grade in found.grades:
            new = wanted[f"grade/{grade.name}"]
            grade.auto_score, grade.needs_manual_grade = new.automatic, new.waits
            grade.manual_score, grade.extra_credit = new.entered or (None, None)
        for comment in found.comments:
            new = wanted[f"comment/{comment.name}"]
            comment.auto_comment, comment.manual_comment = new.automatic, new.entered


def _take_apart(gradebook: Gradebook, root: Path, own: Settings, record: dict, cells: dict[Job, dict]) -> None:
    """Take what a group has left from those who are alone now: its grades, or what was entered for its notebook."""
    for lesson, students in record.items():
        for student in [one for one in students if own.group(one, lesson) == (one,)]:
            before = students.pop(student)
            if before["of"] == student or (student, lesson) not in cells:
                continue
            has_own = os.path.isdir(root / "submitted" / student / lesson)
            if not has_own and not gradebook.find_submission(lesson, student).extension:
                gradebook.remove_submission(lesson, student)
                shutil.rmtree(root / "feedback" / student / lesson, ignore_errors=True)
                continue
            nb = gradebook.find_submission_notebook(lesson, lesson, student)
            for grade in nb.grades:
                if before["entered"].get(f"grade/{grade.name}") == [grade.manual_score, grade.extra_credit]:
                    grade.manual_score = grade.extra_credit = None
            for comment in nb.comments:
                if before["entered"].get(f"comment/{comment.name}") == comment.manual_comment:
                    comment.manual_comment = None
            gradebook.db.commit()


def _cells(gradebook: Gradebook, only: tuple[tuple[str, ...], str] | None) -> dict[Job, dict[str, Cell]]:
    """(student, lesson) → what the gradebook has on each cell. only: of these students and this lesson."""
    from nbgrader import api

    found: dict[Job, dict[str, Cell]] = {}
    of_job = api.SubmittedAssignment.student_id, api.Assignment.name, api.BaseCell.name
    grade, comment = api.Grade, api.Comment
    columns = {
        grade: (grade.auto_score, grade.needs_manual_grade, grade.manual_score, grade.extra_credit),
        comment: (comment.auto_comment, comment.manual_comment),
    }
    for kind, values in columns.items():
        query = (
            gradebook.db.query(*of_job, *values)
            .select_from(kind)
            .join(api.BaseCell, kind.cell_id == api.BaseCell.id)
            .join(api.SubmittedNotebook, kind.notebook_id == api.SubmittedNotebook.id)
            .join(api.SubmittedAssignment, api.SubmittedNotebook.assignment_id == api.SubmittedAssignment.id)
            .join(api.Assignment, api.SubmittedAssignment.assignment_id == api.Assignment.id)
        )
        if only is not None:
            query = query.filter(api.SubmittedAssignment.student_id.in_(only[0]), api.Assignment.name == only[1])
        for student, lesson, name, automatic, *more in query:
            if kind is grade:
                entered = [more[1], more[2] or None]
                cell = Cell(automatic, entered if entered != [None, None] else None, bool(more[0]))
            else:
                cell = Cell(automatic, more[0] or None)
            found.setdefault((student, lesson), {})[f"{kind.__tablename__}/{name}"] = cell
    return found


def _said(entered: Any) -> str:
    if entered is None:
        return "nothing"
    return repr(entered) if isinstance(entered, str) else " + ".join(f"{one:g}" for one in entered if one is not None)


def _path(root: Path, student: str, lesson: str) -> Path:
    return root / "autograded" / student / lesson / f"{lesson}.ipynb"


def _record(root: Path) -> dict[str, dict[str, Any]]:
    path = root / "autograded" / RECORD
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
