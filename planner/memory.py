"""What a GPU holds at the most (lessons 08 to 11), in bytes, term by term."""

from __future__ import annotations

import math

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

    In a pipeline the fullest stage has one layer more where layers do not divide evenly, and the first or the last one
    a whole embedding. ZeRO-3 also has two gathered layers, and the gradients of one.
    """
    layout, m = step.layout, step.model
    ordinary, routed = rank_parameters(step)
    if layout.pp > 1:
        embeddings = (1 if m.tied else 2) * m.vocab * m.hidden
        layers = ordinary * layout.pp - embeddings / layout.tp
        ordinary = layers / m.layers * layers_of_fullest_stage(step) + m.vocab * m.hidden / layout.tp
        routed *= layers_of_fullest_stage(step) * layout.pp / m.layers
    # Between the micro-batches of a pipeline, ZeRO-3 keeps its weights gathered and its gradients whole.
    stage = 1 if layout.zero_stage == 3 and layout.pp > 1 else layout.zero_stage
    over = layout.shards if layout.zero_stage == 3 else layout.data_ranks
    total = ordinary * state_bytes_per_parameter(stage, over)
    total += routed * state_bytes_per_parameter(stage, layout.expert_data_ranks)
    if stage == 3:
        total += 3 * 2 * parameters(m).total / (m.layers * layout.tp * layout.ep)
    return total


def layers_of_fullest_stage(step: Step) -> int:
    """Layers of the stage with most of them."""
    return math.ceil(step.model.layers / step.layout.pp)


def alive(step: Step, micro_batches: int) -> float:
    """Lesson 11, *What must be remembered*: micro-batches whose activations the first stage keeps at once."""
    p, v = step.layout.pp, step.layout.virtual_stages
    return min(micro_batches, p + (p - 1) / v if v > 1 else p)


def activations(step: Step, micro_batches: float) -> float:
    """Lesson 10, *What a layer keeps*: of all layers of a rank, times so many micro-batches.

    Full recomputation keeps only each layer's input, and one layer while its backward runs.
    """
    m, layout = step.model, step.layout
    layer = activation_bytes_per_token(m, bool(m.experts), layout.tp, layout.sequence_parallel) * step.tokens
    if step.software.attention == "unfused" and layout.recompute == "none":
        layer += 5 * step.tokens * m.sequence * m.heads / layout.tp
    layer *= step.software.kept
    kept = layer
    if layout.recompute == "full":
        kept = 2 * m.hidden * step.own_tokens
    elif layout.recompute == "selective":
        kept *= 1 - step.software.recomputed
    return kept * layers_of_fullest_stage(step) * micro_batches + (layer if layout.recompute != "none" else 0.0)


def logits(step: Step) -> float:
    """Lesson 12, *The loss without the logits*: one micro-batch's, on the last stage."""
    return logits_bytes_per_token(step.model, step.layout.tp, step.software.logits_bytes) * step.tokens


def terms(step: Step, micro_batches: int) -> dict[str, float]:
    """All of them, on the fuller of a pipeline's first stage, which keeps most, and its last, which has the logits."""
    kept = activations(step, alive(step, micro_batches))
    found = {"states": states(step), "activations": kept, "fixed": FIXED_MEMORY}
    last = {**found, "activations": activations(step, 1), "logits": logits(step)}
    return last if step.layout.pp == 1 or sum(last.values()) > sum(found.values()) else found
