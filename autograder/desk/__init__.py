"""Views of a graded class: the report, marks by exercise, frequent mistakes, files for an LMS."""
