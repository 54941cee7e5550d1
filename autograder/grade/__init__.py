"""Grading a class: submissions run in a jail, their tests outside; marks, reasons and feedback pages."""
