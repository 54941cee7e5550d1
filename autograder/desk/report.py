"""`autograder report`: one page on a graded class, for the instructor.

It shows scores, each exercise's success rate, the most frequent mistakes, and the submissions that a person should
look at. The page is one HTML file without scripts, which needs no other file and no network.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from autograder.grade.handed_in import EXPECTED
from autograder.grade.limits import why_no_student
from autograder.lesson import notebook
from autograder.lesson.files import write_whole
from autograder.lesson.notebook import natural

if TYPE_CHECKING:
    from autograder.desk.marks import ClassMarks, Student, Submission
    from autograder.lesson.course_settings import Settings

TEMPLATES = Path(__file__).parent / "templates"

#: A list of more students than this is folded: a click shows the names.
NAMED = 12


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand `report`."""
    parser = subparsers.add_parser("report", help="one page on a graded class; grades for Canvas and Moodle")
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="default: every lesson that was graded")
    parser.add_argument("--course", metavar="DIR", help="the folder with gradebook.db (default: the repository)")
    parser.add_argument("--example", action="store_true", help="the example class, which `grade --example` has graded")
    parser.add_argument("--output", metavar="FILE", help="the page (default: report.html in the course's folder)")
    parser.add_argument("--anonymous", action="store_true", help="no names: notebooks have their numbers in formgrader")
    parser.add_argument("--canvas", metavar="FILE", help="write the scores as CSV for Canvas's gradebook, too")
    parser.add_argument("--moodle", metavar="FILE", help="write the scores as CSV for Moodle's gradebook, too")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status."""
    from autograder.desk import lms, marks
    from autograder.grade.course import Course
    from autograder.grade.example_class import EXAMPLE_COURSE

    folder = EXAMPLE_COURSE if arguments.example else Path(arguments.course or notebook.ROOT).expanduser()
    folder = folder if arguments.course else Path(os.path.relpath(folder))
    if not folder.is_dir():
        how = "grade the example class first: `autograder grade --example`" if arguments.example else ""
        raise ValueError(f"there is no folder {folder}: {how or 'name the one that holds gradebook.db'}")
    course = Course(folder)
    arguments.lessons = course.whole_names(arguments.lessons)
    found = marks.read(course, arguments.lessons)
    if not found.submissions:
        of = f" of {', '.join(arguments.lessons)}" if arguments.lessons else ""
        print(f"Nothing to report: nothing{of} is graded in {folder}; run `autograder grade` there first.")
        return 0
    target = _file(arguments.output or folder / ("report-anonymous.html" if arguments.anonymous else "report.html"))
    write_whole(target, page(marks.without_names(course, found) if arguments.anonymous else found, target))
    print(f"The report on {_count(len(found.submissions), 'submission')} is in {target}.")
    if arguments.canvas:
        _export(found, lms.canvas(found), _file(arguments.canvas), "Canvas")
    if arguments.moodle:
        _export(found, lms.moodle(found), _file(arguments.moodle), "Moodle")
    return 0


def _file(name: str | Path) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file in it")
    return path


def _export(found: ClassMarks, text: str, target: Path, system: str) -> None:
    from autograder.desk import lms

    write_whole(target, text)
    points = ", ".join(f"{lesson} ({found.most(lesson):g})" for lesson in found.lessons)
    print(f"The scores for {system} are in {target}; assignments and their points: {points}.")
    if ids := lms.quoted(found):
        print(
            f"{target}: {', '.join(map(repr, ids))} would be a formula in a spreadsheet and got an apostrophe, with "
            f"which {system} does not find the student: remove it in a text editor before you import",
            file=sys.stderr,
        )


def page(found: ClassMarks, target: Path) -> str:
    """The report on a class as HTML. target: where the page will be, for its links."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,  # names, comments and notes are not trusted
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(points=_points, count=_count)
    return environment.get_template("report.html.j2").render(
        named=NAMED,
        lessons=[_lesson(found, lesson) for lesson in found.lessons],
        students=[_student(found, student, target) for student in found.students],
        most=sum(map(found.most, found.lessons)),
        submissions=len(found.submissions),
        look=look(found, target),
        questions=_questions(found),
        late=_late(found, target),
        late_days=_late_days(found),
        days_each=found.own.late.late_days if found.own.late else 0,
        absent=[(lesson, absent) for lesson in found.lessons if (absent := found.absent(lesson))],
    )


def _student(found: ClassMarks, student: Student, target: Path) -> dict:
    """A row of the table of scores."""
    own = {one.lesson: one for one in found.submissions if one.student == student.id}
    return {
        "id": student.id,
        "name": student.name,
        "scores": [
            (own[lesson].score, link(found.root, target, student.id, lesson), own[lesson].waiting)
            if lesson in own
            else None
            for lesson in found.lessons
        ],
        "total": sum(one.score for one in own.values()),
    }


def _lesson(found: ClassMarks, lesson: str) -> dict:
    """What the page says about one lesson."""
    from autograder.desk import charts, mistakes

    graded, most = found.submissions_of(lesson), found.most(lesson)
    scores = [one.score for one in graded]
    exercises = _exercises(graded)
    known, other = mistakes.of_submissions(lesson, graded)
    return {
        "name": lesson,
        "count": len(graded),
        "waiting": sum(one.waiting > 0 for one in graded),
        "most": most,
        "mean": statistics.fmean(scores),
        "median": statistics.median(scores),
        "full": sum(score >= most for score in scores),
        "scores": charts.scores(lesson, scores, most),
        "exercises": list(exercises.values()),
        "properties": [(_short(exercise), *row) for exercise, *row in mistakes.properties(graded)],
        "solved": charts.solved(
            lesson, [(row["title"], row["solved"], row["count"]) for row in exercises.values() if row["count"]]
        ),
        "lost": sum(mark.lost for one in graded for mark in one.marks),
        "known": [(_title(row.exercise), row.hint, row.students) for row in known],
        "seeds": [
            (one.student, exercise, tried.seed)
            for one in graded
            for exercise, test in one.outcomes.items()
            for tried in [tried for tried in test.lost if tried.seed][:1]
        ],
        "other": [(row.kind, len(row.marks), _who(row.marks)) for row in other],
    }


def _exercises(graded: list[Submission]) -> dict[str, dict]:
    """The exercises of a lesson: title, points, and how many of the submissions graded so far have full points."""
    rows: dict[str, dict] = {}
    for one in graded:
        for mark in one.marks:
            empty = {"title": _title(mark.exercise), "most": mark.most, "solved": 0, "count": 0}
            row = rows.setdefault(mark.exercise, empty)
            row["count"] += not mark.waits
            row["solved"] += not mark.waits and not mark.lost
    return rows


def _questions(found: ClassMarks) -> list[tuple[str, str, list[str]]]:
    """(lesson, question, students) for each question that somebody still has to grade."""
    waiting: dict[tuple[str, str], list[str]] = {}
    for one in itertools.chain(*map(found.submissions_of, found.lessons)):
        for mark in one.marks:
            if mark.waits:
                waiting.setdefault((one.lesson, mark.exercise), []).append(one.student)
    order = sorted(waiting, key=lambda question: (question[0], natural(question[1])))
    return [(lesson, _title(name), waiting[lesson, name]) for lesson, name in order]


def _late(found: ClassMarks, target: Path) -> list[dict]:
    """The submissions that were late, or have a penalty: how late, what that costs, and why."""
    return [
        {
            "lesson": one.lesson,
            "student": one.student,
            "link": link(found.root, target, one.student, one.lesson),
            "late": one.late.words.removesuffix(" (late days)"),
            "penalty": one.penalty,
            "why": _why_penalty(one, found.own),
        }
        for one in sorted(found.submissions, key=lambda one: (one.lesson, natural(one.student)))
        if one.late.days or one.penalty
    ]


def _why_penalty(one: Submission, own: Settings) -> str:
    """Why a late submission has the penalty that it has, in sentences."""
    late, policy, score = one.late, own.late, sum(mark.score for mark in one.marks)
    times = [f"{own.local(time):%Y-%m-%d at %H:%M}" if time else "?" for time in (late.until, late.handed_in)]
    said = f"Due {times[0]}{', with an extension' if late.extended else ''}; handed in {times[1]}."
    if policy is None:
        return f"{said} {'By the late policy of nbgrader.' if one.penalty else 'Nothing says what that costs.'}"
    if abs(late.penalty(score, own) - one.penalty) > 0.005:
        return f"{said} Its penalty is that of an earlier grading: run autograder grade."
    if late.days == late.free:
        return f"{said} All its days are free."
    paid = late.days - late.free
    part = 100 * min(1.0, paid * policy.penalty_per_day)
    each = f" ({_count(paid, 'day')}, {100 * policy.penalty_per_day:g} % each)" if part < 100 else ""
    return f"{said} {part:g} %{each} of {_points(score)} points."


def _late_days(found: ClassMarks) -> list[tuple[str, int, int, str]]:
    """(student, used, left, for which lessons) of everybody who has used late days."""
    each, used = found.own.late.late_days if found.own.late else 0, dict[str, list[tuple[str, int]]]()
    for one in found.submissions:
        if one.late.free:
            used.setdefault(one.student, []).append((one.lesson, one.late.free))
    rows = [(student, sum(free for _, free in lessons), lessons) for student, lessons in used.items()]
    rows.sort(key=lambda row: natural(row[0]))
    return [(who, days, each - days, ", ".join(f"{name} ({free})" for name, free in of)) for who, days, of in rows]


def _who(marks: list[tuple[str, str]]) -> list[str]:
    """Each student once, with the numbers of the exercises: "ada (1, 3)"."""
    exercises: dict[str, list[str]] = {}
    for student, exercise in marks:
        exercises.setdefault(student, []).append(_short(exercise))
    return [f"{student} ({', '.join(numbers)})" for student, numbers in exercises.items()]


def look(found: ClassMarks, target: Path) -> list[dict]:
    """The submissions that a person should look at, each with the reasons and a link to its feedback page."""
    rows = [(one.lesson, one.student, _reasons(one)) for one in found.submissions]
    rows += [("", file, [f"Not graded: {EXPECTED}."]) for file in found.misplaced_files]
    rows += [(lesson, student, [_why_waiting(student)]) for student, lesson in found.waiting]
    return [
        {"lesson": lesson, "student": student, "reasons": why, "link": link(found.root, target, student, lesson)}
        for lesson, student, why in sorted(rows, key=lambda row: row[0])  # within a lesson, students keep their order
        if why
    ]


def _why_waiting(student: str) -> str:
    why = why_no_student(student)
    return f"Not graded: {why}." if why else "Not graded yet, or not completely: run autograder grade."


def _reasons(one: Submission) -> list[str]:
    """Why a person should look at a submission, in one sentence each."""
    from autograder.desk import mistakes

    kinds = {mark.exercise: mistakes.kind(mark, one) for mark in one.marks if mark.lost}
    reasons = []
    if mistakes.FAILED in kinds.values():
        reasons.append("The autograder failed on it, so it has no points for now; .nbgrader.log says more.")
    elif one.problem:
        reasons.append(one.problem)
    else:
        reasons += _together([(note, exercise) for exercise, test in one.outcomes.items() for note in test.notes])
        stopped = (mistakes.ENDLESS, mistakes.DIED)
        reasons += _together([(f"{why}.", exercise) for exercise, why in kinds.items() if why in stopped])
        if not any(mark.score for mark in one.marks) and set(kinds.values()) - {mistakes.UNWRITTEN}:
            reasons.append("No points, although answers are written.")
    reasons += one.beside
    if one.unreadable_time:
        reasons.append("Its timestamp.txt cannot be read: no late penalty was computed.")
    for mark in one.marks:
        if mark.outdated:
            reasons.append(
                f"{_title(mark.exercise)}: {mark.score:g} by hand, for an answer that was handed in anew since."
            )
        elif mark.auto is not None and mark.score != mark.auto:
            reasons.append(f"{_title(mark.exercise)}: {mark.score:g} by hand, {mark.auto:g} from the autograder.")
    return reasons


def _together(found: list[tuple[str, str]]) -> list[str]:
    """(sentence, exercise) pairs as one line per sentence: "Exercises 1, 3: The test cell was missing …"."""
    exercises: dict[str, list[str]] = {}
    for sentence, exercise in found:
        exercises.setdefault(sentence, []).append(_short(exercise))
    lines = []
    for sentence, names in exercises.items():
        first = names[0] if names[0].startswith("Question") else f"Exercise{'s' if len(names) > 1 else ''} {names[0]}"
        lines.append(f"{', '.join([first, *names[1:]])}: {sentence}")
    return lines


def link(root: Path, target: Path, student: str, lesson: str) -> str:
    """The link from the page to a submission's feedback page; "" if there is none."""
    feedback = root / "feedback" / student / lesson / f"{lesson}.html"
    if not feedback.is_file():
        return ""
    return quote(Path(os.path.relpath(feedback, target.resolve().parent)).as_posix())


def _title(exercise: str) -> str:
    from autograder.grade.pages.feedback import title

    return title(exercise)


def _short(exercise: str) -> str:
    """`03-ex3-adam-update` as "3", `03-q1-why` as "Question 1"; any other name unchanged."""
    head = _title(exercise).split(":")[0]
    return head.removeprefix("Exercise ")


def _points(value: float) -> str:
    return f"{round(value, 2):g}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
