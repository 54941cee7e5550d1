"""Lessons: find them, read their cells, run them, release them, and extract the capstone's pieces."""
