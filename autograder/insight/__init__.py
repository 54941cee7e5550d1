"""What a graded class shows: the report, marks by exercise, frequent mistakes, files for an LMS."""
