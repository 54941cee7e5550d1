"""What a GPU computes: matrix multiplications, attention, element-wise kernels, and what recomputing repeats.

Each function gives (forward, backward) seconds on one rank, for one micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from machines.cluster import Cluster
from machines.model import Model, attention_matrices, attention_width, document_tokens, mean_context
from planner.layout import Layout
from planner.software import (
    ATTENTION_HALF,
    ATTENTION_SHARE,
    CONTEXT_BALANCE,
    HOST_BLOCKING,
    HOST_EAGER,
    HOST_MOE,
    HOST_SHARE,
    LORA_RANK,
    MATMUL_SHARE,
    MEMORY_SHARE,
    MOE_2025,
    MOE_2026,
    MOE_LATEST,
    MXFP8_CAST,
    PRECISIONS,
    SAME_SHARE,
    Software,
)

Pair = tuple[float, float]


@dataclass(frozen=True)
class Step:
    """What every term needs: model, machine, layout, software, precision, whether the layer at hand has experts, and
    what is trained: "all" weights, or "lora", adapters of rank `lora_rank` beside frozen weights.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    software: Software
    precision: str = "bf16"
    moe: bool = False
    trained: str = "all"
    lora_rank: int = LORA_RANK

    @property
    def tokens(self) -> float:
        """Tokens of one micro-batch on one rank of context parallelism."""
        return self.layout.micro_batch * self.model.sequence / self.layout.cp

    @property
    def own_tokens(self) -> float:
        """Tokens whose norms and residuals one rank computes: split over tp too with sequence parallelism."""
        return self.tokens / (self.layout.tp if self.layout.sequence_parallel else 1)

    def memory_seconds(self, nbytes: float) -> float:
        """Seconds to move bytes to or from the GPU's memory."""
        return nbytes / (self.cluster.memory_bandwidth * MEMORY_SHARE)


def matmul_share(cluster: Cluster, kind: str) -> float:
    """The part of the peak that matrix multiplications reach in a whole step: "bf16", "fp8" or "nvfp4"."""
    key = (cluster.like or cluster.name, kind)
    return MATMUL_SHARE[SAME_SHARE.get(key, key)][0]


def matmul_rate(step: Step, precision: str) -> float:
    """FLOP/s of matrix multiplications in a whole step: what MFU would be if nothing else took time, times the peak."""
    kind = PRECISIONS[precision][0]
    rate = step.cluster.flops[kind] * matmul_share(step.cluster, kind)
    return rate * (1 - step.software.idle_multiprocessors)


def matmul_seconds(step: Step, rows: float, inner: float, outer: float, precision: str, copies: float = 1) -> float:
    """`copies` products of a matrix (rows × inner) with one (inner × outer): 2 FLOPs per product, or its bytes."""
    itemsize = PRECISIONS[precision][1]
    moved = (rows * inner + inner * outer) * itemsize + rows * outer * 2
    return copies * max(2 * rows * inner * outer / matmul_rate(step, precision), step.memory_seconds(moved))


def linear_seconds(
    step: Step, rows: float, inner: float, outer: float, precision: str | None = None, copies: float = 1
) -> Pair:
    """A linear layer: one product forward, two backward, for the gradients of its input and of its weights.

    Frozen weights need no gradient: one product backward.
    """
    precision = precision or step.precision
    once = matmul_seconds(step, rows, inner, outer, precision, copies)
    return once, once if step.trained == "lora" else 2 * once


def adapters(step: Step) -> Pair:
    """LoRA: beside each linear layer two thin products. What counts is what they move: input, and output twice."""
    if step.trained != "lora":
        return 0.0, 0.0
    moved = sum(rows * (2 * i + 4 * o) * copies for rows, i, o, copies in layer_matrices(step))
    return step.memory_seconds(moved), step.memory_seconds(2 * moved)


def layer_matrices(step: Step) -> list[tuple[float, float, float, float]]:
    """(rows, inputs, outputs, copies) of the linear layers of one transformer layer on one rank."""
    m, t = step.model, step.layout.tp
    found = []
    for inputs, outputs, cut in attention_matrices(m):
        rows = step.tokens / t if cut == "whole" and step.layout.sequence_parallel else step.tokens
        found.append((rows, inputs / (t if cut == "rows" else 1), outputs / (t if cut == "columns" else 1), 1.0))
    wide = 2 if m.gated else 1
    if not step.moe:
        return [*found, (step.tokens, m.hidden, wide * m.ffn / t, 1.0), (step.tokens, m.ffn / t, m.hidden, 1.0)]
    # As many rows as a rank sends arrive for its `local` experts, and for each of the ranks with which it shares them.
    local, width = m.experts / step.layout.ep, m.expert_ffn / step.layout.etp
    visits = step.tokens / t * m.experts_per_token * step.layout.etp
    found += [(visits / local, m.hidden, wide * width, local), (visits / local, width, m.hidden, local)]
    if width := m.shared_experts * m.expert_ffn:
        found += [(step.tokens / t, m.hidden, wide * width, 1.0), (step.tokens / t, width, m.hidden, 1.0)]
    return found


def matmuls(step: Step) -> Pair:
    """Lesson 02, *Compute against communication*: the linear layers of one layer."""
    pairs = [linear_seconds(step, rows, i, o, copies=copies) for rows, i, o, copies in layer_matrices(step)]
    return sum(f for f, _ in pairs), sum(b for _, b in pairs)


def quantizing(step: Step) -> Pair:
    """Lesson 10, *Low precision*: inputs and output gradients of a linear layer are first written in few bits."""
    per_element = PRECISIONS[step.precision][2]
    if per_element is None:
        per_element = MXFP8_CAST[0] if step.precision == "mxfp8" else step.software.cast_bytes
    forward = sum(rows * i * copies for rows, i, _, copies in layer_matrices(step))
    backward = sum(rows * o * copies for rows, _, o, copies in layer_matrices(step))
    return step.memory_seconds(per_element * forward), step.memory_seconds(per_element * backward)


def generation(cluster: Cluster) -> str:
    """The machine whose kernels stand for those of its generation: "A100", "H100" or "B200"."""
    name = cluster.like or cluster.name
    return "A100" if name == "A100" else "H100" if name in ("H100", "H800", "H200", "25 Gb/s") else "B200"


def attention_shares(step: Step) -> Pair:
    """The parts of the bf16 peak that the software's kernel reaches on this machine, or the latest that runs there."""
    family = generation(step.cluster)
    latest = {"A100": "flash 2", "H100": "flash 3", "B200": "flash 3"}[family]
    return ATTENTION_SHARE.get((step.software.attention, family)) or ATTENTION_SHARE[latest, family]


def attention(step: Step) -> Pair:
    """Lesson 13, *Attention in parts*: 4 FLOPs per pair of tokens and entry of a head, 2.5 times as many backward."""
    m, layout = step.model, step.layout
    width = attention_width(m) / layout.tp
    peak = step.cluster.flops["bf16"] * (1 - step.software.idle_multiprocessors)
    if step.software.attention == "unfused":
        # The whole square, at half the rate of the other products; scores move 6 times forward and 8 times back.
        flops, scores = 4 * step.tokens * m.sequence * width, step.tokens * m.sequence * m.heads / layout.tp
        slow = (1 if m.head_dim % 8 == 0 else 3) / (0.5 * matmul_rate(step, "bf16"))
        return flops * slow + step.memory_seconds(12 * scores), 2 * flops * slow + step.memory_seconds(16 * scores)
    forward, backward = attention_shares(step)
    context = mean_context(m)
    # In a ring the kernel sees the keys of one rank at a time, so it runs on short sequences.
    whole = document_tokens(m) if step.software.cuts_documents else m.sequence
    seen = min(2 * context, whole / layout.cp) if layout.context == "ring" else 2 * context
    speed = peak * seen / (seen + ATTENTION_HALF) * (8192 + ATTENTION_HALF) / 8192
    speed *= 0.75 if m.head_dim <= 64 and m.latent is None else 1.0
    balance = CONTEXT_BALANCE if layout.cp > 1 else 1.0
    if m.document and layout.context != "all_to_all" and not step.software.cuts_documents:
        balance *= document_balance(m, layout.cp)
    flops = 4 * step.tokens * context * width / balance
    return flops / (speed * forward), 2.5 * flops / (speed * backward)


def document_balance(model: Model, cp: int) -> float:
    """Lesson 13, *Half of the GPUs wait*: the mean of the ranks' pairs of tokens over those of the busiest.

    A zigzag over the whole sequence is fair for one document, since each of its 2 cp parts has a partner; it is not
    where documents end inside of parts. In a single step of a ring the busiest rank may have more still.
    """
    part, document = model.sequence / (2 * cp), document_tokens(model)
    before = [pairs_before(number * part, document) for number in range(2 * cp + 1)]
    early = [before[rank + 1] - before[rank] for rank in range(cp)]
    late = [before[2 * cp - rank] - before[2 * cp - rank - 1] for rank in range(cp)]
    return before[2 * cp] / cp / max([early[rank] + late[rank] for rank in range(cp)])


def pairs_before(tokens: float, document: int) -> float:
    """Pairs that the mask leaves to the first so many tokens of a sequence of packed documents."""
    return (tokens // document * document**2 + (tokens % document) ** 2) / 2


def elementwise(step: Step) -> Pair:
    """Norms, residuals, rotary embedding and activation: no arithmetic to speak of, only bytes of bf16."""
    m, layout = step.model, step.layout
    heads = (m.heads + m.kv_heads) * m.head_dim / layout.tp * step.tokens
    inner = m.ffn / layout.tp * step.tokens
    extra = 0.0
    if step.moe:
        visits = step.tokens / layout.tp * m.experts_per_token
        inner = m.expert_ffn * (visits + step.tokens / layout.tp * m.shared_experts)
        extra = 6 * visits * m.hidden  # sorted by expert and back
    wide = 2 if m.gated else 1
    forward = 10 * m.hidden * step.own_tokens + 2 * heads + (wide + 1) * inner
    backward = 12 * m.hidden * step.own_tokens + 2 * heads + (2 * wide + 1) * inner
    factor = 2 * step.software.elementwise
    return step.memory_seconds(factor * forward + 2 * extra), step.memory_seconds(factor * backward + 2 * extra)


def logits(step: Step) -> Pair:
    """Lesson 12, *The loss without gathering the logits*: the output layer in bf16, and the loss in float32."""
    m, columns = step.model, step.model.vocab / step.layout.tp
    forward, backward = linear_seconds(step, step.tokens, m.hidden, columns, "bf16")
    heads = 1 + m.predicted_ahead
    entries = step.tokens * columns
    return heads * (forward + step.memory_seconds(16 * entries)), heads * (backward + step.memory_seconds(12 * entries))


def experts_overhead(step: Step, busy: float) -> Pair:
    """What layers with experts take besides `busy` seconds in software of this age (less, if negative).

    No lesson derives it: it is one calibrated factor per age.
    """
    if not step.moe:
        return 0.0, 0.0
    factor = {"2025": MOE_2025, "2026": MOE_2026, "latest": MOE_LATEST}[step.software.moe][0] - 1
    return factor * busy / 3, factor * busy * 2 / 3


def recomputed(step: Step, parts: dict[str, Pair]) -> float:
    """Lesson 10, *What recomputing costs*: what the backward repeats of the forward, given the layer's other terms.

    Full recomputation repeats the forward, messages included. Selective recomputation repeats attention where its
    scores would be kept, else cheap kernels, and the part that the software recomputes besides.
    """
    whole = sum(forward for forward, _ in parts.values())
    layout = step.layout
    if layout.recompute == "full":
        return whole
    if layout.recompute_modules or layout.recompute_layers:
        part = min(1.0, layout.recompute_layers * layout.pp / step.model.layers)
        modules = sum(module_seconds(step, name, parts) for name in layout.recompute_modules)
        return part * whole + (1 - part) * min(modules, whole)
    if layout.recompute == "none":
        return 0.0
    cheap = parts["attention"][0] if step.software.attention == "unfused" else parts["elementwise"][0] / 2
    return cheap + step.software.recomputed * whole


def module_seconds(step: Step, name: str, parts: dict[str, Pair]) -> float:
    """What one module (`planner.layout.MODULES`) costs again in one layer, given the layer's other terms."""
    m, t = step.model, step.layout.tp
    wide, again = 2 if m.gated else 1, 2 * step.software.elementwise
    if name == "core_attn":
        return parts["attention"][0]
    if name == "layernorm":  # two norms, each reads and writes the hidden vector
        return step.memory_seconds(again * 4 * m.hidden * step.own_tokens)
    if name == "mla_up_proj" and m.latent is not None:
        up = [(inputs, outputs) for inputs, outputs, cut in attention_matrices(m) if cut == "columns"]
        return sum(matmul_seconds(step, step.tokens, i, o / t, step.precision) for i, o in up)
    if name == "moe_act" and step.moe:
        inner = step.tokens / t * (m.experts_per_token + m.shared_experts) * m.expert_ffn
        return step.memory_seconds(again * (wide + 1) * inner)
    matrices = layer_matrices(step)[len(attention_matrices(m)) :]
    if (name == "mlp") == step.moe or name not in ("mlp", "moe"):
        return 0.0
    products = sum(matmul_seconds(step, rows, i, o, step.precision, copies) for rows, i, o, copies in matrices)
    return products + parts.get("elementwise", (0.0, 0.0))[0] / 2 + parts.get("experts", (0.0, 0.0))[0]


def offloaded(step: Step, nbytes: float, forward: float, backward: float) -> float:
    """Seconds that a micro-batch's activations, `nbytes` of them, cost on their way to the host and back.

    They travel behind the computation of the whole stage. A copy engine takes no multiprocessor, but the memory's
    bandwidth.
    """
    speed = step.cluster.host_link / step.cluster.host_gpus * HOST_SHARE
    return sum(max(0.0, nbytes / speed - window) + step.memory_seconds(nbytes) for window in (forward, backward))


def host(step: Step, busy: float) -> Pair:
    """What a GPU, busy so many seconds with a layer, waits for its host, which launches one kernel after another.

    A layer with experts has many small kernels, and sizes that the host must learn before it can launch them. A host
    that is faster than its GPU costs nothing, except where the software waits for each kernel.
    """
    if step.software.blocking:
        waits = HOST_BLOCKING[0]
    else:
        moe = HOST_MOE[0] if step.software.moe != "latest" else 0.0
        launching = moe if step.moe else HOST_EAGER[0] if step.software.eager else 0.0
        waits = max(0.0, launching - busy)
    return waits / 3, waits * 2 / 3
