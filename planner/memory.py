"""What a GPU holds at the most (lessons 08 to 11), in bytes, term by term."""

from __future__ import annotations

from planner.arithmetic import Step
from planner.communication import rank_parameters
from planner.software import FIXED_MEMORY
from ranks.model import (
    activation_bytes_per_token,
    logits_bytes_per_token,
    parameters,
    state_bytes_per_parameter,
)


def states(step: Step) -> float:
    """Lessons 08 and 09: weights, gradients, master weights and moments of one rank.

    In a pipeline the first or the last stage has a whole embedding. ZeRO-3 also has two gathered layers, and the
    gradients of one.
    """
    layout, m = step.layout, step.model
    ordinary, routed = rank_parameters(step)
    if layout.pp > 1:
        ordinary += m.vocab * m.hidden / layout.tp * max(0.0, 1 - (1 if m.tied else 2) / layout.pp)
    gradient = 4.0
    over = layout.shards if layout.zero_stage == 3 else layout.data_ranks
    total = ordinary * state_bytes_per_parameter(layout.zero_stage, over, gradient=gradient)
    total += routed * state_bytes_per_parameter(layout.zero_stage, layout.expert_data_ranks, gradient=gradient)
    if layout.zero_stage == 3:
        total += 3 * 2 * parameters(m).total / (m.layers * layout.tp * layout.ep)
    return total


def alive(step: Step, micro_batches: int) -> float:
    """Lesson 11, *What must be remembered*: micro-batches whose activations the first stage keeps at once."""
    p, v = step.layout.pp, step.layout.virtual_stages
    return min(micro_batches, p + (p - 1) / v if v > 1 else p)


def activations(step: Step, micro_batches: int) -> float:
    """Lesson 10, *What a layer keeps*: of all layers of a rank, times the micro-batches that are alive.

    Full recomputation keeps only each layer's input, and one layer while its backward runs.
    """
    m, layout = step.model, step.layout
    layer = activation_bytes_per_token(m, bool(m.experts), layout.tp, layout.sequence_parallel) * step.tokens
    if step.software.attention == "unfused" and layout.recompute == "none":
        layer += 5 * step.tokens * m.sequence * m.heads / layout.tp
    kept = layer
    if layout.recompute == "full":
        kept = 2 * m.hidden * step.own_tokens
    elif layout.recompute == "selective":
        kept *= 1 - step.software.recomputed
    return kept * m.layers / layout.pp * alive(step, micro_batches) + (layer if layout.recompute != "none" else 0.0)


def logits(step: Step) -> float:
    """Lesson 12, *The loss without the logits*: one micro-batch's, on the last stage."""
    return logits_bytes_per_token(step.model, step.layout.tp) * step.tokens


def terms(step: Step, micro_batches: int) -> dict[str, float]:
    """All of them, on the fullest rank: the first stage has the activations, the last one the logits."""
    found = {"states": states(step), "activations": activations(step, micro_batches), "logits": logits(step)}
    return {**found, "fixed": FIXED_MEMORY}
