"""Hostile submissions, each with what it may get: as data, graded by this repository's grader and by stock nbgrader."""
