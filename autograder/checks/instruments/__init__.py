"""What checks watch answers with: memory, calls, files.

An instrument travels into the jail by value, next to the submission that it watches.
"""
