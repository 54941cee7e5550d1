"""Grades as CSV files that Canvas and Moodle import.

Canvas (Grades, Import) finds a student by `ID`, its own number; else by `SIS User ID`, `SIS Login ID`, or name, and
asks when it finds none. The row below the header gives each assignment's points; an assignment that is not there
yet is offered as a new one. (instructure/canvas-lms, lib/gradebook_importer.rb.)

Moodle (Grades, Import, CSV file) asks which column identifies the students (`username`, `email` or `id` here) and
to which grade item each of the others belongs. It stops at the first student whom it does not find. New items get
100 points, so they are better made by hand first. (moodle/moodle, grade/import/csv/classes/load_data.php.)

A student id is the name of a folder in `submitted/`: the login of Canvas, the user name of Moodle. Whoever keeps
names, addresses and the LMS's own ids in the gradebook (`nbgrader db student import`) finds them here too. A lesson
of which nothing was handed in stays empty: whether that is a 0 is for the instructor to say.
"""

from __future__ import annotations

import csv
import io
import re

from autograder.insight.marks import ClassMarks, Student

FORMULA = re.compile(r"'*\s*[=+\-@\t\r]")


def canvas(marks: ClassMarks) -> str:
    """The file for Canvas's gradebook."""
    lessons = marks.lessons
    header = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *map(cell, lessons)]
    points = ["    Points Possible", "", "", "", "", *(number(marks.most(lesson)) for lesson in lessons)]
    rows = [[*_canvas_student(student), *_scores(marks, student, "")] for student in marks.students]
    return _csv([header, points, *rows])


def _canvas_student(student: Student) -> list[str]:
    # Canvas sorts by "Last, First" and takes an ID for a number, whatever comes behind its digits.
    name = ", ".join(filter(None, (one_line(student.last_name), one_line(student.first_name))))
    own = one_line(student.lms_user_id)
    ids = [own, ""] if own.isascii() and own.isdigit() else ["", own]
    return [cell(name or student.id), *map(cell, ids), cell(student.id), ""]


def moodle(marks: ClassMarks) -> str:
    """The file for Moodle's gradebook; `-` is Moodle's own sign for no grade."""
    columns = {
        "username": [cell(student.id) for student in marks.students],
        "email": [cell(one_line(student.email)) for student in marks.students],
        "id": [cell(one_line(student.lms_user_id)) for student in marks.students],
    }
    columns = {name: values for name, values in columns.items() if any(values)}
    header = [*columns, *map(cell, marks.lessons)]
    scores = [_scores(marks, student, "-") for student in marks.students]
    return _csv([header, *([*ids, *row] for *ids, row in zip(*columns.values(), scores, strict=True))])


def quoted(marks: ClassMarks) -> list[str]:
    """The ids that are written with an apostrophe, under which no LMS finds them."""
    return [student.id for student in marks.students if cell(student.id) != student.id]


def cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula: where one might, with an apostrophe in front.

    To get it back, take one apostrophe away where a text begins with some and then one of = + - @: one more is
    written in front of those that a text has itself.
    """
    return f"'{text}" if FORMULA.match(text) else text


def number(value: float) -> str:
    """Points without needless zeros."""
    return f"{value:.10g}"


def one_line(text: str) -> str:
    """A name as both can read it: they look for the end of a row at line breaks, also inside of quotes."""
    return " ".join(text.split())


def _scores(marks: ClassMarks, student: Student, nothing: str) -> list[str]:
    found = {
        one.lesson: one.score
        for one in marks.submissions
        if one.student == student.id and (one.student, one.lesson) not in marks.waiting
    }
    return [number(found[lesson]) if lesson in found else nothing for lesson in marks.lessons]


def _csv(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
