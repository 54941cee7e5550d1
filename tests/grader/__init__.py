"""The tests of the grader."""
