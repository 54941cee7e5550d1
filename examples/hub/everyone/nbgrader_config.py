"""nbgrader's settings for everybody on the hub: where the exchange is, and which course it holds."""

import os

c = get_config()  # noqa: F821 (nbgrader defines it)

c.CourseDirectory.course_id = "distributed-training"  # as in the course's own nbgrader_config.py
c.Exchange.root = os.environ.get("NBGRADER_EXCHANGE", "/srv/class/exchange")
if student := os.environ.get("NBGRADER_STUDENT"):
    c.CourseDirectory.student_id = student  # where all servers have the same account: in a trial, in containers
