"""nbgrader's own steps for one submission, made to work whatever state the submission is in."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from autograder.grading import submission_files


def exactly_one(converter: type) -> type:
    """nbgrader's converter for one student and lesson; it also works if the notebook is missing."""

    class One(converter):
        def init_notebooks(self) -> None:
            lesson, student = self.coursedir.assignment_id, self.coursedir.student_id
            folder = self._format_source(lesson, student)
            self.assignments = {folder: [os.path.join(folder, f"{lesson}.ipynb")]}

        def start(self) -> None:
            """As nbgrader's, but a time of submission that cannot be read counts as missing."""
            read = self.coursedir.get_existing_timestamp

            def timestamp(path: str) -> datetime.datetime | None:
                try:
                    return read(path)
                except Exception:
                    return None

            self.coursedir.get_existing_timestamp = timestamp
            super().start()

        def init_assignment(self, assignment_id: str, student_id: str) -> None:
            """As nbgrader's, but of the files next to the notebook only those of the exchange are copied.

            Links could lead anywhere.
            """
            ignored = self.coursedir.ignore
            self.coursedir.ignore = [*ignored, "*"]
            try:
                super().init_assignment(assignment_id, student_id)
            finally:
                self.coursedir.ignore = ignored
            target = Path(self._format_dest(assignment_id, student_id))
            target.mkdir(parents=True, exist_ok=True)
            ours = submission_files.exchange_files(Path(self._format_source(assignment_id, student_id)))
            for name, content in ours.items():
                (target / name).write_bytes(content)

    return One
