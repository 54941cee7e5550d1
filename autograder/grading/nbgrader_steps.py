"""nbgrader's own steps for one submission, made to hold whatever state the submission is in."""

from __future__ import annotations

import os


def exactly_one(converter: type) -> type:
    """nbgrader's converter for one student and lesson, also when the notebook is missing."""

    class One(converter):
        def init_notebooks(self) -> None:
            lesson, student = self.coursedir.assignment_id, self.coursedir.student_id
            folder = self._format_source(lesson, student)
            self.assignments = {folder: [os.path.join(folder, f"{lesson}.ipynb")]}

        def start(self) -> None:
            """As nbgrader's; a time of submission that is none counts as none."""
            read = self.coursedir.get_existing_timestamp

            def timestamp(path: str):
                try:
                    return read(path)
                except Exception:
                    return None

            self.coursedir.get_existing_timestamp = timestamp
            super().start()

        def init_assignment(self, assignment_id: str, student_id: str) -> None:
            """As nbgrader's, but nothing is copied beside the notebook: links could lead anywhere."""
            ignored = self.coursedir.ignore
            self.coursedir.ignore = [*ignored, "*"]
            try:
                super().init_assignment(assignment_id, student_id)
            finally:
                self.coursedir.ignore = ignored

    return One
