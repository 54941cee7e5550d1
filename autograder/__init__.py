"""Checks, known wrong answers, class grading: everything that turns a notebook into an explained grade."""
