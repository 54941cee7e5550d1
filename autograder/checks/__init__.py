"""One module a lesson, one function a property: see `autograder.checking.check` for what a check is."""
