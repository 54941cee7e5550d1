"""Lesson 09: sharded units and their wrapper, seen from outside.

The oracle is the plain module in one process: on the whole batch with torch's own optimizer for float32, on each
rank's part with the parameters cast for bf16. Shards are put together here, by the layout that the statement fixes.
What was sent is read from the ledger, cut at barriers; what is alive is counted inside a rank
(`instruments.memory.LiveBytes`), so it does not matter who holds it.
"""

from autograder.checks.fsdp.ahead import (
    neighbors_are_gathered_ahead,
    one_more_unit_is_whole,
    prefetching_changes_no_number,
)
from autograder.checks.fsdp.backward import (
    backward_frees_what_it_gathers,
    one_forward_is_seen,
    shards_get_the_mean_gradient,
)
from autograder.checks.fsdp.costs import costs_follow_the_formulas
from autograder.checks.fsdp.cut import cut_and_gather_are_inverse
from autograder.checks.fsdp.hybrid import (
    hybrid_shards_are_the_mean_over_all_ranks,
    only_shards_pass_between_copies,
    sizes_that_do_not_divide_are_refused,
)
from autograder.checks.fsdp.state import full_state_is_the_plain_modules
from autograder.checks.fsdp.unit import unit_computes_what_it_did, unit_is_freed_after_its_forward
from autograder.checks.fsdp.wrapper import (
    compute_dtype_halves_the_bytes,
    floating_inputs_are_cast,
    memory_stays_within_a_unit,
    only_what_trains_has_a_trainable_shard,
    steps_follow_one_process,
    wrapper_refuses_what_is_no_partition,
)

__all__ = [
    "backward_frees_what_it_gathers",
    "compute_dtype_halves_the_bytes",
    "costs_follow_the_formulas",
    "cut_and_gather_are_inverse",
    "floating_inputs_are_cast",
    "full_state_is_the_plain_modules",
    "hybrid_shards_are_the_mean_over_all_ranks",
    "memory_stays_within_a_unit",
    "neighbors_are_gathered_ahead",
    "one_forward_is_seen",
    "one_more_unit_is_whole",
    "only_shards_pass_between_copies",
    "only_what_trains_has_a_trainable_shard",
    "prefetching_changes_no_number",
    "shards_get_the_mean_gradient",
    "sizes_that_do_not_divide_are_refused",
    "steps_follow_one_process",
    "unit_computes_what_it_did",
    "unit_is_freed_after_its_forward",
    "wrapper_refuses_what_is_no_partition",
]
