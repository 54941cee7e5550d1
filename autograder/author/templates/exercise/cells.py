# The cells of a new exercise. Each begins with its id: the statement, as a comment; the answer; the example; the test.

# %% NN-ex0
# ### Exercise 0 · `new_function(nbytes, seconds)` (1 point)
#
# Replace this. Return how many bytes per second pass, a float, when `nbytes` bytes take `seconds` seconds.
#
# - `nbytes` is a whole number, 0 or more; `seconds` is a number above 0.


# %% NN-ex0-new-function
def new_function(nbytes: int, seconds: float) -> float:
    """Replace this. Bytes per second, a float, where `nbytes` bytes take `seconds` seconds."""
    ### BEGIN SOLUTION
    return nbytes / seconds
    ### END SOLUTION


# %% NN-ex0-try
# Replace this. An example.
print(new_function(3000, 1.5), "bytes per second")


# %% NN-ex0-new-function-test
"""Replace this. The bytes divided by the seconds."""

for nbytes, seconds, expected in [(8, 2, 4.0), (0, 5, 0.0)]:
    got = new_function(nbytes, seconds)
    assert got == expected, f"{nbytes} bytes in {seconds} s: got {got}, expected {expected}"
