"""A graded class on the desk: the report, marks by exercise, frequent mistakes, files for an LMS, `regrade`."""
