"""The tests of the lessons: their solutions, known answers, numbers and rules."""
