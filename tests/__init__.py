"""The tests, of the repository as a whole, and in a folder each of `ranks`, of the grader, of the lessons, of the built
book, and of hostile submissions. What several of them use is in `tests.helpers`.
"""
