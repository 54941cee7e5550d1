"""What ranks send: tensor, context and expert parallelism in every layer, a pipeline between stages, data parallelism.

Times of single collectives are `machines.cluster`'s (lesson 02). Here they are counted, and what travels behind
computation is taken off: a hidden message still costs `OVERLAP_COST` of its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from machines.cluster import Cluster
from machines.model import expert_parameters, parameters
from planner.arithmetic import Pair, Step, matmul_share
from planner.layout import Layout
from planner.software import LEAST_SHARE, OVERLAP_COST, TENSOR_HIDDEN


def exposed(seconds: float, hidden: float) -> float:
    """Seconds that messages cost, of which `hidden` travel behind computation."""
    hidden = min(seconds, max(0.0, hidden))
    return seconds - hidden + OVERLAP_COST * hidden


def tokens_to_hide(
    cluster: Cluster,
    group_size: int,
    stride: int = 1,
    precision: str = "bf16",
    sent: float = 4,
    piece: float = math.inf,
) -> Pair:
    """Lesson 02: tokens per GPU and micro-batch from which a dense model's gradients can hide, at least and at most.

    At least: links at their nominal rate and a GPU at `LEAST_SHARE`. At most: both as fast as they were measured.
    sent: bytes per parameter; 4 for a reduce-scatter in float32. piece: bytes of gradients in one reduce-scatter, whose
    start-ups count in full at both ends; by default there is only one, so long that they do not count.
    """
    peak, reached = cluster.flops[precision], cluster.effective_bandwidth(group_size, stride)
    besides = 0.0  # seconds per byte sent, besides the link's
    if piece < math.inf:
        seconds = cluster.reduce_scatter_seconds(piece, group_size, stride)
        besides = seconds * group_size / (group_size - 1) / piece - 1 / reached
    least = LEAST_SHARE * peak * (1 / cluster.bandwidth(group_size, stride) + besides)
    most = matmul_share(cluster, precision) * peak * (1 / reached + besides)
    return sent / 4 * least, sent / 4 * most


def tensor(step: Step) -> Pair:
    """Lesson 12, *What it costs in time*: each block all-reduces its output forward, and its input's gradient backward.

    With sequence parallelism an all-reduce is an all-gather and a reduce-scatter of the same bytes. A layer has two
    blocks; with experts only attention is split, since experts get their tokens by all-to-all. Where matrix
    multiplications are cut so that pieces travel behind pieces, they do so inside an NVLink domain.
    """
    t = step.layout.tp
    if t == 1:
        return 0.0, 0.0
    nbytes = 2 * step.tokens * step.model.hidden
    if step.layout.sequence_parallel:
        once = 2 * step.cluster.all_gather_seconds(nbytes, t)
    else:
        once = step.cluster.all_reduce_seconds(nbytes, t)
    overlaps = step.software.tensor_overlap and step.cluster.together(t) == t
    shown = exposed(once, TENSOR_HIDDEN * once if overlaps else 0.0)
    blocks = 1 if step.moe else 2
    return blocks * shown, blocks * shown


def context(step: Step, attention: Pair) -> Pair:
    """Lesson 13, *When the ring hides its messages*: keys and values against the attention that they hide behind.

    The backward sends keys, values and their gradients. All-gathers and all-to-alls come before attention and hide
    behind nothing.
    """
    layout = step.layout
    if layout.cp == 1:
        return 0.0, 0.0
    keys, queries = exchanged(step)
    if layout.context == "all_to_all":
        once = step.cluster.all_to_all_seconds(keys + queries, layout.cp, layout.tp)
        return once, once
    if layout.context == "all_gather":
        once = step.cluster.all_gather_seconds(keys * layout.cp, layout.cp, layout.tp)
        return once, 2 * once
    ring = (layout.cp - 1) * step.cluster.send_seconds(keys, layout.tp)
    if step.cluster.together(layout.cp, layout.tp) == layout.cp:
        ring = (layout.cp - 1) * step.cluster.send_seconds(keys)
    return exposed(ring, attention[0]), exposed(2 * ring, attention[1])


def exchanged(step: Step) -> Pair:
    """Bytes of a rank's keys and values in one layer, and of its queries and attention's output."""
    m, size = step.model, 2 * 2 * step.tokens / step.layout.tp
    return size * m.kv_heads * m.head_dim, size * m.heads * m.head_dim


def experts(step: Step, computing: Pair) -> Pair:
    """Lesson 14, *There and back*: two all-to-alls forward and two backward, for the tokens that a rank sends.

    A token crosses to a node once, however many of its experts are there. Ranks that share an expert gather each
    other's rows before it, and reduce-scatter what comes out. computing: seconds that the layer computes, forward and
    backward, behind which software may hide all of this.
    """
    layout = step.layout
    if not step.moe or layout.ep == layout.etp == 1:
        return 0.0, 0.0
    together = step.cluster.together(layout.ep, layout.etp)
    everything, crossing = dispatched(step)
    # Inside a node every visit is a message of its own.
    once = step.cluster.all_to_all_seconds(everything, together, layout.etp) if together > 1 else 0.0
    if together < layout.ep:
        once = max(once, step.cluster.all_to_all_seconds(everything, layout.ep, layout.etp, crossing=crossing))
    once += step.cluster.all_gather_seconds(everything * layout.etp, layout.etp)
    forward, backward = computing if step.software.expert_overlap else (0.0, 0.0)
    return exposed(2 * once, forward), exposed(2 * once, backward)


def dispatched(step: Step) -> Pair:
    """Bytes of all rows that a rank has for experts, one per visit, and those of them that cross to other nodes."""
    layout, m = step.layout, step.model
    nodes, row = layout.ep / step.cluster.together(layout.ep, layout.etp), 2 * step.tokens / layout.tp * m.hidden
    visited = nodes * (1 - (1 - 1 / nodes) ** m.experts_per_token)
    return row * m.experts_per_token, row * min(visited, m.nodes_per_token or visited) * (nodes - 1) / nodes


def bubble(step: Step, forward: float, backward: float, micro_batches: int) -> float:
    """Lesson 11, *The least bubble*: what a rank waits while the pipeline fills and empties.

    forward, backward: seconds of one micro-batch in one stage. 1F1B waits for p - 1 micro-batches, with v virtual
    stages for a v-th of that; a schedule that delays the gradients of weights fills the bubble with them.
    """
    p, v = step.layout.pp, step.layout.virtual_stages
    if p == 1:
        return 0.0
    weights = backward / 2
    if step.layout.schedule == "zero_bubble":
        return (p - 1) * max(0.0, forward + backward - 2 * weights)
    if step.layout.schedule == "dualpipe":
        return (p / 2 - 1) * max(0.0, forward + 2 * backward - 3 * weights)
    return (p - 1) / v * (forward + backward)


def stages(step: Step, micro_batches: int) -> float:
    """Lesson 11, *When messages cost*: activations and their gradients between stages.

    With one chunk per rank they are exposed, and cross p - 1 stages before the last one starts; with more, they travel
    behind the other chunks.
    """
    layout = step.layout
    if layout.pp == 1:
        return 0.0
    nbytes = 2 * step.tokens * step.model.hidden / layout.tp
    hop = step.cluster.send_seconds(nbytes, layout.tp * layout.data_ranks)
    sent = micro_batches * 2 * layout.virtual_stages * hop
    return 2 * (layout.pp - 1) * hop + exposed(sent, 0.0 if layout.virtual_stages == 1 else sent)


def rank_parameters(step: Step) -> Pair:
    """Parameters of one rank before ZeRO shards them: (ordinary ones, experts'), spread evenly over stages."""
    routed = expert_parameters(step.model)
    layout = step.layout
    return (
        (parameters(step.model).total - routed) / (layout.tp * layout.pp),
        routed / (layout.ep * layout.etp * layout.pp),
    )


def data(step: Step, forward: float, backward: float, micro_batches: int) -> float:
    """Lessons 05, 08 and 09: gradients, and parameters where ZeRO shards them.

    forward, backward: seconds of one micro-batch in all layers of a rank, behind which messages travel. Gradients are
    complete only in the last backward pass. A shard of them can be kept only if every micro-batch reduces its own
    (ZeRO-2; `reductions`). ZeRO-3 gathers and reduces in every micro-batch; in a pipeline, which keeps its parameters,
    once per step. Frozen weights have no gradients.
    """
    if step.trained == "lora":
        return frozen(step, forward, backward, micro_batches)
    layout, software = step.layout, step.software
    ordinary, routed = rank_parameters(step)
    layers = max(1.0, step.model.layers / layout.pp)

    def collective(kind: Callable[[float, int, int], float], size: float) -> float:
        """Seconds for all parameters of the rank, `size` bytes each, in one piece per layer or bucket."""
        pieces = max(layers, ordinary * size / software.bucket) if software.bucket else layers
        seconds = pieces * kind(ordinary * size / pieces, layout.shards, layout.tp)
        return seconds + pieces * kind(routed * size / pieces, layout.expert_data_ranks, layout.ep * layout.etp)

    def shown(seconds: float, window: float, overlap: bool) -> float:
        # Lesson 09, *Gathering ahead*: all pieces but one, as long as the computation lasts.
        return exposed(seconds, min(seconds * (1 - 1 / layers), window) if overlap else 0.0)

    cluster = step.cluster
    if layout.zero_stage == 0:
        reduce = collective(cluster.all_reduce_seconds, software.gradient_bytes)
        return shown(reduce, backward, software.data_overlap)
    reduce = collective(cluster.reduce_scatter_seconds, software.gradient_bytes)
    gather = collective(cluster.all_gather_seconds, 2)
    if layout.zero_stage < 3:
        last = shown(reduce, backward, software.data_overlap) + shown(gather, forward, software.gather_overlap)
        # An earlier reduction has the whole next run of micro-batches to travel behind.
        times = reductions(layout, micro_batches)
        run = (forward + backward) * micro_batches / times
        return last + (times - 1) * exposed(reduce, run if software.data_overlap else 0.0)
    again = gather if layout.stage_between == 3 else 0.0
    once = shown(gather, forward, software.data_overlap) + shown(again + reduce, backward, software.data_overlap)
    once += step.memory_seconds(software.copy_bytes * (ordinary + routed))
    seconds = once * (micro_batches if layout.stage_between == 3 else 1)
    if (replicas := layout.data_ranks // layout.shards) > 1:
        # HSDP, lesson 09, *Links of two kinds*: shards are all-reduced over the replicas.
        nbytes = ordinary * software.gradient_bytes / layout.shards
        between = cluster.all_reduce_seconds(nbytes, replicas, layout.tp * layout.shards)
        seconds += shown(between, backward, software.data_overlap)
    return seconds


def reductions(layout: Layout, micro_batches: int) -> int:
    """How often a step reduces gradients: with ZeRO-2 per micro-batch, interleaved once per run of pp of them."""
    if layout.zero_stage != 2:
        return 1
    return math.ceil(micro_batches / layout.pp) if layout.virtual_stages > 1 else micro_batches


def frozen(step: Step, forward: float, backward: float, micro_batches: int) -> float:
    """ZeRO-3's gathers of frozen weights, in both passes of every micro-batch; otherwise nothing to speak of."""
    layout = step.layout
    if layout.stage_between != 3:
        return 0.0
    ordinary, routed = rank_parameters(step)
    layers = max(1.0, step.model.layers / layout.pp)
    once = layers * step.cluster.all_gather_seconds(2 * ordinary / layers, layout.shards, layout.tp)
    once += layers * step.cluster.all_gather_seconds(
        2 * routed / layers, layout.expert_data_ranks, layout.ep * layout.etp
    )
    part = once * (1 - 1 / layers)
    return micro_batches * (exposed(once, min(part, forward)) + exposed(once, min(part, backward)))


def bytes_sent(step: Step, micro_batches: int) -> dict[str, float]:
    """Bytes that one rank sends in a step, by axis, on rings: what the terms of the same names take their time for.

    For an inner stage of a pipeline. Where all of the forward is recomputed, it sends all of its messages again.
    """
    m, layout, gradient = step.model, step.layout, step.software.gradient_bytes
    moe = m.moe_layers + (m.predicted_ahead if m.experts else 0)
    layers = m.layers + m.predicted_ahead
    passes, again = micro_batches / layout.pp, 1 if layout.recompute == "full" else 0
    activation = 2 * step.tokens * m.hidden
    t, cp, n, replicas = layout.tp, layout.cp, layout.shards, layout.data_ranks // layout.shards
    # Each block of a layer all-reduces an activation forward and one backward; with experts only attention is split.
    all_reduces = (2 + again) * (2 * (layers - moe) + moe)
    keys, queries = exchanged(step)
    if layout.context == "all_to_all":
        exchange = (2 + again) * (cp - 1) / cp * (keys + queries)
    else:  # backward, keys and values travel with their gradients
        exchange = (3 + again) * (cp - 1) * keys
    together, (everything, crossing) = step.cluster.together(layout.ep, layout.etp), dispatched(step)
    visits = everything * (together - 1) / together + crossing + everything * (layout.etp - 1)
    # Per parameter: an all-reduce; a reduce-scatter and an all-gather; with ZeRO-3, a gather for each pass.
    per_parameter = 2 * gradient if layout.zero_stage == 0 else gradient * reductions(layout, micro_batches) + 2
    between = 0.0
    if layout.zero_stage == 3:
        per_parameter = (gradient + 4) * micro_batches if layout.stage_between == 3 else gradient + 2
        between = 2 * gradient * (replicas - 1) / replicas / n
    ordinary, routed = rank_parameters(step)
    same = layout.expert_data_ranks
    return {
        "tensor": passes * all_reduces * 2 * (t - 1) / t * activation,
        "context": passes * layers * exchange,
        "experts": passes * moe * 2 * (2 + again) * visits if layout.ep * layout.etp > 1 else 0.0,
        "stages": micro_batches * 2 * layout.virtual_stages * activation / t if layout.pp > 1 else 0.0,
        "data": ordinary * ((n - 1) / n * per_parameter + between) + routed * (same - 1) / same * per_parameter,
    }


def optimizer(step: Step) -> float:
    """Lesson 08: Adam moves 30 bytes per parameter that a rank keeps, clipping and copies 8 per parameter it holds."""
    if step.trained == "lora":
        return 0.0
    layout = step.layout
    ordinary, routed = rank_parameters(step)
    kept = ordinary / {0: 1, 3: layout.shards}.get(layout.zero_stage, layout.data_ranks)
    kept += routed / (layout.expert_data_ranks if layout.zero_stage else 1)
    held = (ordinary + routed) / (layout.shards if layout.stage_between == 3 else 1)
    return step.memory_seconds(30 * kept + 8 * held)
