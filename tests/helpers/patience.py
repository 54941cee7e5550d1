"""How long tests wait for what must happen.

These limits only end a test when something never happens: a busy machine takes ten or twenty times as long as a quiet
one. What a test says about speed, it measures in processor time, by `autograder.grade.running.clock`, or as a ratio.
"""

#: Seconds.
PATIENCE = 900.0
