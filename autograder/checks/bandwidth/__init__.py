"""Lesson 07: what cheaper gradients must still be, and what they may cost.

Compression is compared entry for entry with numpy's sorting; error feedback with the sum of all gradients, in
small whole numbers bit for bit; DDP with the hook, with N residuals kept in one process; the loss scaler with
`torch.amp.GradScaler`, step by step. The server's log is replayed, the benchmark's runs are repeated in one process.

Asynchronous runs differ from one to the next, so what is kept as evidence of them is what every run shares:
with one worker everything, and with two workers what a schedule of gates forces.

Every rank imports this module. Therefore scipy and scikit-learn, which take a second, are imported where they are used.
"""

from autograder.checks.bandwidth.benchmark import (
    all_reduce_exchange_is_a_mean,
    benchmark_reports_bytes_and_loss,
    benchmark_trains_as_it_says,
    feedback_ends_nearer,
    top_k_exchange_is_a_mean_of_what_was_sent,
)
from autograder.checks.bandwidth.feedback import (
    feedback_keeps_keys_and_objects_apart,
    feedback_loses_nothing,
)
from autograder.checks.bandwidth.hook import (
    hook_follows_one_process,
    hook_sends_only_what_it_must,
    hook_that_sends_everything_is_plain_ddp,
)
from autograder.checks.bandwidth.scaler import (
    scaler_follows_torch,
    scaler_keeps_small_gradients,
    scaler_passes_none_on,
    scaler_scales_in_fp32,
    scaler_skips_whatever_is_not_finite,
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
    "all_reduce_exchange_is_a_mean",
    "async_log_replays_to_the_weights",
    "async_makes_no_worker_wait_for_another",
    "async_with_one_worker_is_one_process",
    "benchmark_reports_bytes_and_loss",
    "benchmark_trains_as_it_says",
    "decompress_puts_values_back",
    "decompress_refuses_what_does_not_fit",
    "feedback_ends_nearer",
    "feedback_keeps_keys_and_objects_apart",
    "feedback_loses_nothing",
    "hook_follows_one_process",
    "hook_sends_only_what_it_must",
    "hook_that_sends_everything_is_plain_ddp",
    "scaler_follows_torch",
    "scaler_keeps_small_gradients",
    "scaler_passes_none_on",
    "scaler_scales_in_fp32",
    "scaler_skips_whatever_is_not_finite",
    "server_refuses_what_cannot_work",
    "sync_server_is_one_process",
    "top_k_exchange_is_a_mean_of_what_was_sent",
    "top_k_refuses_a_ratio",
    "top_k_takes_the_largest",
]
