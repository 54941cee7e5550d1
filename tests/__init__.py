"""The tests. What several of them use is in `tests.helpers`; hostile submissions are in `tests.attacks`."""
