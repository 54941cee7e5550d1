"""nbgrader's settings for this course: our folders under its names, what a released notebook looks like, and
our own steps where nbgrader's own would give a wrong grade (docs of each are in the classes)."""

import os
import sys
from pathlib import Path

from nbgrader.preprocessors import AssignLatePenalties, GetGrades, LimitOutput

from autograder.grading.feedback import FeedbackExporter
from autograder.grading.restore import RestoreCells, SubmissionExporter
from autograder.grading.safe import SafeCells
from autograder.grading.scoring import SaveScores
from autograder.grading.steps import RunCells

c = get_config()  # noqa: F821 (nbgrader defines it)

c.CourseDirectory.root = str(Path(__file__).resolve().parent)
c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"

# A stub says what it is waiting for; our checks take the error for "not written yet".
c.ClearSolutions.code_stub = {"python": 'raise NotImplementedError("write this function")'}

# Grading. A test cell gets full points if and only if it runs to its end; whatever state a submission is in,
# every exercise gets a score and a reason.
c.Autograde.exporter_class = SubmissionExporter
c.Autograde.sanitize_preprocessors = [RestoreCells]
c.Autograde.autograde_preprocessors = [RunCells, LimitOutput, SaveScores, AssignLatePenalties]
# Submissions run in a jail (c.RunCells.jail = False: with your own rights); of the files beside a notebook only those
# are taken that c.RunCells.data_files names, a list of patterns.
c.RunCells.timeout = 60  # seconds a cell
c.RunCells.test_timeout = 240  # seconds a test cell: that of lesson 06 launches torchrun and kills one of its ranks

# Feedback shows no hidden test; neither it nor the formgrader page runs a script from a submission.
c.GenerateFeedback.preprocessors = [GetGrades]
c.GenerateFeedback.exporter_class = FeedbackExporter
c.HTMLExporter.preprocessors = [SafeCells]

# nbgrader starts `alembic` by name, which an environment that is not activated does not find.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
