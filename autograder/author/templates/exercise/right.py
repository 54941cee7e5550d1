from autograder.answers.right import answer_to


@answer_to("NN-ex0-new-function")
def new_function_by_the_time_of_one_byte():
    """Replace this. Divides the seconds among the bytes first."""

    def new_function(nbytes, seconds):
        return 1 / (seconds / nbytes) if nbytes else 0.0
