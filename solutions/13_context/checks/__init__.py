"""Lesson 13: a sequence that is dealt out to ranks must be the sequence in one process.

Attention is compared with a loop over queries in float64, its gradients with torch's own attention on the whole
sequence, losses with sums over tokens. What was sent is read from the ledger, between barriers; that a block is
computed while the next one travels, from stretches that mark each product of matrices; what is alive, by a count of
storages.
"""

from autograder.checks.context.blocks import (
    a_block_is_attention_over_its_keys,
    a_part_without_keys_changes_nothing,
    merged_parts_are_the_whole,
)
from autograder.checks.context.exchange import (
    heads_are_exchanged_for_positions,
    one_all_to_all_for_each_tensor,
    parts_go_to_their_ranks_and_back,
    what_cannot_be_shared_is_refused,
)
from autograder.checks.context.layouts import (
    layouts_deal_out_every_position,
    other_ranks_and_layouts_are_refused,
    pairs_are_those_that_causality_allows,
    the_busiest_rank_sets_the_time,
)
from autograder.checks.context.loss import (
    a_batch_without_targets_is_refused,
    targets_are_the_next_tokens,
    the_loss_is_that_of_one_process,
    two_numbers_are_all_reduced,
)
from autograder.checks.context.ring import (
    blocks_travel_between_neighbors,
    gradients_come_home,
    gradients_travel_with_their_blocks,
    no_rank_holds_all_blocks,
    the_next_block_is_on_its_way,
    the_ring_sees_all_keys,
)

__all__ = [
    "a_batch_without_targets_is_refused",
    "a_block_is_attention_over_its_keys",
    "a_part_without_keys_changes_nothing",
    "blocks_travel_between_neighbors",
    "gradients_come_home",
    "gradients_travel_with_their_blocks",
    "heads_are_exchanged_for_positions",
    "layouts_deal_out_every_position",
    "merged_parts_are_the_whole",
    "no_rank_holds_all_blocks",
    "one_all_to_all_for_each_tensor",
    "other_ranks_and_layouts_are_refused",
    "pairs_are_those_that_causality_allows",
    "parts_go_to_their_ranks_and_back",
    "targets_are_the_next_tokens",
    "the_busiest_rank_sets_the_time",
    "the_loss_is_that_of_one_process",
    "the_next_block_is_on_its_way",
    "the_ring_sees_all_keys",
    "two_numbers_are_all_reduced",
    "what_cannot_be_shared_is_refused",
]
