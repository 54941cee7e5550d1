"""nbgrader's settings for this course: the names of our folders, what a released notebook looks like, and our own steps
where nbgrader's would give a wrong grade (each class has a docstring)."""

import os
import sys
from pathlib import Path

from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import LimitOutput

from autograder.grade.course import Course
from autograder.grade.nbgrader.converters import copy_only_what_is_listed, grade_with, one_at_a_time
from autograder.grade.nbgrader.exchange import Collect, ReleaseFeedback
from autograder.grade.nbgrader.formgrader import DrawnFormulas, use_own_page
from autograder.grade.nbgrader.preprocessors import AdaptLesson, ClearAttachments, ListChecks
from autograder.grade.nbgrader.scoring import ReadGrades, SaveScores
from autograder.grade.pages.feedback import FeedbackExporter
from autograder.grade.pages.safe_html import SafeCells
from autograder.lesson import course_settings

c = get_config()  # noqa: F821 (nbgrader defines it)

c.CourseDirectory.root = str(Path(__file__).resolve().parent)
c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.source_directory = "solutions"
# A course with settings of its own (course.toml) leaves `notebooks/` as it is: updates meet no changes there.
c.CourseDirectory.release_directory = course_settings.released_to(c.CourseDirectory.root)

# solutions/NN_topic also holds checks and answers. Students get its notebook and what is in its files/.
copy_only_what_is_listed()

# Two commands that write grades at once would spoil each other's.
one_at_a_time()

# The stub of an answer. Checks read its error as "not written yet".
c.ClearSolutions.code_stub = {"python": 'raise NotImplementedError("write this function")'}

# The course's own points and exercises. Under each statement stands what its checks try. nbgrader's own steps follow.
c.GenerateAssignment.preprocessors = [
    AdaptLesson,
    ListChecks,
    *GenerateAssignment.class_traits()["preprocessors"].default(),
    ClearAttachments,
]

# Grading. A test cell gets the points of the properties that hold. Whatever state a submission is in, every exercise
# gets a score and a reason.
grade_with(Course.grade_for_nbgrader)
c.Autograde.autograde_preprocessors = [LimitOutput, SaveScores]  # of a notebook that was run
# Submissions run in a jail (c.RunCells.jail = False: with your own rights). Of the other files in a submission's
# folder, only those are used whose names match a pattern in the list c.RunCells.data_files.
c.RunCells.timeout = 60  # seconds for a cell
c.RunCells.test_timeout = 240  # seconds for a test cell: lesson 06's starts torchrun and kills one of its ranks

# Feedback shows no hidden test; neither it nor the formgrader page runs a script from a submission.
c.GenerateFeedback.preprocessors = [ReadGrades]
c.GenerateFeedback.exporter_class = FeedbackExporter
c.HTMLExporter.preprocessors = [SafeCells, DrawnFormulas]
use_own_page()

# `nbgrader export` would write its table over the one that `grade` writes.
c.ExportPlugin.to = "nbgrader-grades.csv"

# In the exchange, no submission reads, replaces or stops another one.
c.ExchangeFactory.collect = Collect
c.ExchangeFactory.release_feedback = ReleaseFeedback

# nbgrader starts `alembic` by name, which is not on the PATH if the environment is not activated.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
