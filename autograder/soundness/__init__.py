"""Does the grading hold? Every known answer is graded, and its verdict compared with what it must be."""
