"""Lesson 07: what cheaper gradients must still be, and what they may cost.

Compression is compared entry for entry with numpy's sorting; error feedback with the sum of all gradients, in
small whole numbers bit for bit; PowerSGD with one process that projects the ranks' mean by a singular value
decomposition; eight-bit sums with the same rounding in float64; DiLoCo with a copy of the weights for each rank in one
process and the momentum summed anew in each round. The server's log is replayed. Bytes are the ledger's.

Asynchronous runs differ from one to the next, so what is kept as evidence of them is what every run shares:
with one worker everything, and with two workers what a schedule of gates forces.
"""

from autograder.checks.bandwidth.eight_bits import (
    int8_mean_follows_one_process,
    int8_sends_bytes,
    quantize_is_within_half_a_step,
)
from autograder.checks.bandwidth.feedback import (
    feedback_keeps_keys_and_objects_apart,
    feedback_loses_nothing,
)
from autograder.checks.bandwidth.local import (
    one_all_reduce_a_round,
    outer_steps_are_nesterov,
    rounds_follow_one_process,
    start_stays_as_it_was,
)
from autograder.checks.bandwidth.low_rank import (
    low_rank_follows_one_process,
    low_rank_leaves_inputs_alone,
    low_rank_sends_thin_matrices,
)
from autograder.checks.bandwidth.server import (
    async_log_replays_to_the_weights,
    async_makes_no_worker_wait_for_another,
    async_with_one_worker_is_one_process,
    server_refuses_what_cannot_work,
    sync_server_is_one_process,
)
from autograder.checks.bandwidth.top_k import (
    decompress_puts_values_back,
    decompress_refuses_what_does_not_fit,
    top_k_refuses_a_ratio,
    top_k_takes_the_largest,
)

__all__ = [
    "async_log_replays_to_the_weights",
    "async_makes_no_worker_wait_for_another",
    "async_with_one_worker_is_one_process",
    "decompress_puts_values_back",
    "decompress_refuses_what_does_not_fit",
    "feedback_keeps_keys_and_objects_apart",
    "feedback_loses_nothing",
    "int8_mean_follows_one_process",
    "int8_sends_bytes",
    "low_rank_follows_one_process",
    "low_rank_leaves_inputs_alone",
    "low_rank_sends_thin_matrices",
    "one_all_reduce_a_round",
    "outer_steps_are_nesterov",
    "quantize_is_within_half_a_step",
    "rounds_follow_one_process",
    "server_refuses_what_cannot_work",
    "start_stays_as_it_was",
    "sync_server_is_one_process",
    "top_k_refuses_a_ratio",
    "top_k_takes_the_largest",
]
