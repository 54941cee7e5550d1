"""One module a lesson, one function a property: see `autograder.check` for what a check is."""
