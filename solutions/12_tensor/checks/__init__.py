"""Lesson 12: a layer that is split over ranks must be the unsplit one, in numbers, memory and communication.

The oracles run in this process: formulas over all ranks' inputs for the operators, torch's own autograd through an
unsplit block for the layers. The unsplit blocks are this package's own and have only the attributes that the
statements name; their attention goes head by head. Numbers of the operators are multiples of 1/8, so their sums
are exact. What was sent is read from the ledger between barriers: while a module is built, forward, backward.
"""

from autograder.checks.tensor.blocks import attention_equals_the_unsplit_block, mlp_equals_the_unsplit_block
from autograder.checks.tensor.linear import column_layer_equals_the_unsplit_one, row_layer_equals_the_unsplit_one
from autograder.checks.tensor.loss import (
    loss_equals_the_unsplit_one,
    loss_sends_a_few_numbers_a_token,
    loss_stays_finite,
)
from autograder.checks.tensor.operators import operators_are_conjugate, positions_are_joined_and_summed

__all__ = [
    "attention_equals_the_unsplit_block",
    "column_layer_equals_the_unsplit_one",
    "loss_equals_the_unsplit_one",
    "loss_sends_a_few_numbers_a_token",
    "loss_stays_finite",
    "mlp_equals_the_unsplit_block",
    "operators_are_conjugate",
    "positions_are_joined_and_summed",
    "row_layer_equals_the_unsplit_one",
]
