"""Lesson 01: what the five collectives must do, and what they may cost.

The numbers that are added are small enough for their sums to be exact in their own dtype. So results are compared
with numpy's bit for bit: every order of addition gives the same sum, and addition in a smaller dtype gives another one.
What was sent is read from the ledger. Bytes and rounds are compared with those of the algorithm or, where chunks are
unequal, with the most that the algorithm needs.
"""

from autograder.checks.collectives.chunks import (
    all_gather_delivers_at_the_price_of_a_ring,
    all_gather_needs_nothing_but_its_messages,
    all_gather_refuses_a_chunk_that_does_not_fit,
    all_to_all_delivers_in_the_order_of_the_ranks,
    all_to_all_needs_nothing_but_its_messages,
    all_to_all_refuses_what_is_not_1d,
    broadcast_delivers_in_logarithmic_rounds,
    broadcast_needs_nothing_but_its_messages,
    broadcast_refuses_a_source_that_is_no_rank,
    reduce_scatter_needs_nothing_but_its_messages,
    reduce_scatter_refuses_what_is_not_1d,
    reduce_scatter_sums_chunks_at_the_price_of_a_ring,
)
from autograder.checks.collectives.sums import (
    all_reduce_needs_nothing_but_its_messages,
    all_reduce_sums_at_the_price_of_a_ring,
    halving_needs_nothing_but_its_messages,
    halving_refuses_other_numbers_of_ranks,
    halving_sums_within_its_budget,
    tree_all_reduce_sums_within_its_budget,
    tree_needs_nothing_but_its_messages,
)

__all__ = [
    "all_gather_delivers_at_the_price_of_a_ring",
    "all_gather_needs_nothing_but_its_messages",
    "all_gather_refuses_a_chunk_that_does_not_fit",
    "all_reduce_needs_nothing_but_its_messages",
    "all_reduce_sums_at_the_price_of_a_ring",
    "all_to_all_delivers_in_the_order_of_the_ranks",
    "all_to_all_needs_nothing_but_its_messages",
    "all_to_all_refuses_what_is_not_1d",
    "broadcast_delivers_in_logarithmic_rounds",
    "broadcast_needs_nothing_but_its_messages",
    "broadcast_refuses_a_source_that_is_no_rank",
    "halving_needs_nothing_but_its_messages",
    "halving_refuses_other_numbers_of_ranks",
    "halving_sums_within_its_budget",
    "reduce_scatter_needs_nothing_but_its_messages",
    "reduce_scatter_refuses_what_is_not_1d",
    "reduce_scatter_sums_chunks_at_the_price_of_a_ring",
    "tree_all_reduce_sums_within_its_budget",
    "tree_needs_nothing_but_its_messages",
]
