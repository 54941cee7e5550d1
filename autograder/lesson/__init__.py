"""Lessons: find them, read their cells, adapt them to a course, run them, and extract the capstone's pieces."""
