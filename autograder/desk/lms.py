"""Grades as CSV files that Canvas and Moodle import.

Canvas (Grades, Import) finds a student by `ID`, which is Canvas's own number, else by `SIS User ID`, `SIS Login ID` or
name, and asks if it finds none. The row below the header gives each assignment's points; Canvas offers to create an
assignment that it does not have yet. (instructure/canvas-lms, lib/gradebook_importer.rb.)

Moodle (Grades, Import, CSV file) asks which column identifies the students (in these files `username`, `email` or `id`)
and which grade item each other column belongs to. It stops at the first student that it does not find. New items get
100 points, so it is better to make them by hand first. (moodle/moodle, grade/import/csv/classes/load_data.php.)

A student id is the name of a folder in `submitted/`: the login in Canvas, the user name in Moodle. Names, addresses and
the LMS's own ids are in the files if they are in the gradebook (`nbgrader db student import`). The score of a lesson
that a student has not handed in is left empty: the instructor decides whether it is a 0. So is one with a question that
nobody has graded yet.
"""

from __future__ import annotations

from autograder.desk.marks import ClassMarks, Student
from autograder.grade.limits import csv_cell, csv_text


def canvas(marks: ClassMarks) -> str:
    """The file for Canvas's gradebook."""
    lessons = marks.lessons
    header = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *map(cell, lessons)]
    points = ["    Points Possible", "", "", "", "", *(number(marks.most(lesson)) for lesson in lessons)]
    rows = [[*_canvas_student(student), *_scores(marks, student, "")] for student in marks.students]
    return csv_text([header, points, *rows])


def _canvas_student(student: Student) -> list[str]:
    # Canvas sorts by "Last, First", and reads an ID as a number even if other characters follow its digits.
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
    return csv_text([header, *([*ids, *row] for *ids, row in zip(*columns.values(), scores, strict=True))])


def quoted(marks: ClassMarks) -> list[str]:
    """The ids that are written with an apostrophe in front, so that no LMS finds them."""
    return [student.id for student in marks.students if cell(student.id) != student.id]


def cell(text: str) -> str:
    """A text as grades.csv has it: one that might be a formula is quoted (`limits.csv_cell`)."""
    return csv_cell(text)


def number(value: float) -> str:
    """Points without needless zeros."""
    return f"{value:.10g}"


def one_line(text: str) -> str:
    """A name without line breaks: both systems end a row at a line break, even inside quotes."""
    return " ".join(text.split())


def _scores(marks: ClassMarks, student: Student, nothing: str) -> list[str]:
    found = {
        one.lesson: one.score
        for one in marks.submissions
        if one.student == student.id and (one.student, one.lesson) not in marks.waiting and not one.waiting
    }
    return [number(found[lesson]) if lesson in found else nothing for lesson in marks.lessons]
