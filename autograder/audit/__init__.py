"""Is the grading right? Every known answer is graded, and the result compared with the expected one."""
