"""What a GPU holds at the most (lessons 08 to 11), in bytes, term by term."""

from __future__ import annotations

from machines.model import Model, attention_matrices, logits_bytes_per_token, parameters, state_bytes_per_parameter
from planner.arithmetic import Pair, Step
from planner.communication import rank_parameters
from planner.layout import layers_of_fullest_stage
from planner.software import FIXED_MEMORY, PRECISIONS


def states(step: Step) -> float:
    """Lessons 08 and 09: weights, gradients, master weights and moments of one rank.

    ZeRO-3 also has two gathered layers, and the gradients of one: where they are largest, of the output layer. Frozen
    weights are weights alone; their adapters are not sharded.
    """
    layout, m, software = step.layout, step.model, step.software
    stage, shards = layout.stage_between, layout.shards if layout.zero_stage == 3 else layout.data_ranks
    if step.trained == "lora":
        kinds = (2.0, 0.0, 0.0)
        besides = lora_parameters(m, step.lora_rank) / (layout.tp * layout.pp) * state_bytes_per_parameter(0)
    else:
        weight = 0.0 if stage == 3 and not software.keeps_weights else 2.0
        master = 2.0 if software.remainders and step.precision == "bf16" and stage < 3 else 4.0
        kinds = (weight, software.gradient_held, master + 2 * software.moment_bytes)
        besides = 0.0
    ordinary, routed = fullest_parameters(step)
    if layout.schedule == "dualpipe":  # each rank holds two stages, whose optimizer is shared
        besides += (ordinary + routed) * (kinds[0] + kinds[1])
    if stage == 3:
        layer = parameters(m).total / (m.layers * layout.ep * layout.etp)
        besides += 3 * 2 * max(layer, m.vocab * m.hidden) / layout.tp
    total = besides + ordinary * state_bytes_per_parameter(stage, shards, *kinds)
    total += routed * state_bytes_per_parameter(stage, layout.expert_data_ranks, *kinds)
    return total


def fullest_parameters(step: Step) -> Pair:
    """(ordinary, experts') parameters of a rank of the fullest stage, before ZeRO shards them.

    It has one layer more where layers do not divide evenly, and a whole embedding: the first stage or the last one.
    """
    layout, m = step.layout, step.model
    ordinary, routed = rank_parameters(step)
    if layout.pp == 1:
        return ordinary, routed
    embedding = m.vocab * m.hidden / layout.tp
    share = layers_of_fullest_stage(m, layout) / m.layers  # of all layers
    layers = ordinary * layout.pp - (1 if m.tied else 2) * embedding
    return share * layers + embedding, share * routed * layout.pp


def lora_parameters(m: Model, rank: int) -> float:
    """Parameters of the adapters of this rank of all linear layers outside routed experts."""
    widths = [(inputs, outputs) for inputs, outputs, _ in attention_matrices(m)]
    if not m.experts:
        widths += [(m.hidden, (2 if m.gated else 1) * m.ffn), (m.ffn, m.hidden)]
    return m.layers * rank * sum(inputs + outputs for inputs, outputs in widths)


def alive(step: Step, micro_batches: int) -> float:
    """Lesson 11, *How many activations a stage keeps*: the first stage's, in micro-batches."""
    p, v = step.layout.pp, step.layout.virtual_stages
    if step.layout.schedule == "dualpipe":
        return min(micro_batches, p + 1)
    return min(micro_batches, p + (p - 1) / v if v > 1 else p)


def pieces(step: Step) -> dict[str, float]:
    """Lesson 10, *What a layer keeps*: bytes that one layer keeps of one micro-batch until backward, piece by piece.

    In bf16 they add up to `machines.model.activation_bytes_per_token`. In FP8 a linear layer keeps its input quantized,
    in one byte; what attention and the activation function keep stays in bf16 (Transformer Engine).
    """
    m, software = step.model, step.software
    size, own_tokens, own = PRECISIONS[step.precision][1], step.own_tokens, step.tokens / step.layout.tp
    moe, h = bool(m.experts), m.hidden * own_tokens
    inner = (m.experts_per_token + m.shared_experts if moe else 1) * (m.expert_ffn if moe else m.ffn) * own
    found = {"norm inputs": 4 * h, "norms": 2 * h * (size if not moe else 1 + size / 2)}
    if m.latent is None:
        found["queries, keys, values"] = 2 * (m.heads + 2 * m.kv_heads) * m.head_dim * own
        out = m.heads * m.head_dim
    else:
        c = m.latent
        found["latent"] = 4 * (c.query + c.key_value + c.rotary) * own
        found["expanded"] = 2 * m.heads * (2 * (c.plain + c.rotary) + c.value) * own
        out = m.heads * c.value
    found["attention's output"] = (2 + (size if size < 2 else 0)) * out * own
    found["gates"] = (2 if m.gated else 1) * software.gate_bytes * inner
    found["products"] = size * inner
    if moe:
        row = m.experts_per_token * m.hidden * own
        found["sent"] = size * row * step.layout.etp
        found["returned"] = 0.0 if software.probabilities_inside else 2 * row
    if software.attention == "unfused":
        found["scores"] = 5 * own * m.sequence * m.heads
    return {name: nbytes * software.kept for name, nbytes in found.items()}


#: Module → pieces that need not be kept if it is recomputed. Fused attention keeps nothing that recomputing it frees.
FREED = {
    "layernorm": ("norms",), "moe_act": ("products",), "mla_up_proj": ("expanded",),
    "moe": ("gates", "products", "sent", "returned"), "mlp": ("gates", "products"), "core_attn": ("scores",),
}  # fmt: skip


def kept(step: Step) -> float:
    """Bytes of one layer and micro-batch that are kept, after what the layout recomputes in every layer."""
    layout, found = step.layout, pieces(step)
    everything = sum(found.values())
    if layout.recompute == "selective" and not layout.recompute_modules:
        scores = found.get("scores", 0.0)
        return (everything - scores) * (1 - step.software.recomputed)
    moe = bool(step.model.experts)
    names = [name for name in layout.recompute_modules if name != ("mlp" if moe else "moe")]
    freed = {piece for name in names for piece in FREED[name]}
    return everything - sum(found.get(piece, 0.0) for piece in freed)


def activations(step: Step, micro_batches: float) -> float:
    """Of all layers of a rank, times so many micro-batches.

    A layer that is recomputed in full keeps its input, one that is offloaded nothing. Where anything is recomputed or
    comes back, one layer is there as a whole while its backward runs.
    """
    layout, layers = step.layout, layers_of_fullest_stage(step.model, step.layout)
    whole = sum(pieces(step).values())
    start = 2 * step.model.hidden * step.own_tokens
    if layout.recompute == "full":
        return layers * start * micro_batches + whole
    full, off = min(layout.recompute_layers, layers), min(layout.offload_layers, layers)
    rest = max(0, layers - full - off)
    total = (full * start + rest * kept(step)) * micro_batches
    if layout.recompute != "none" or layout.recompute_modules or full or off:
        total += whole * (2 if off else 1)
    return total


def offloaded_bytes(step: Step) -> float:
    """Bytes of one micro-batch that go to the host."""
    return min(step.layout.offload_layers, layers_of_fullest_stage(step.model, step.layout)) * kept(step)


def logits(step: Step) -> float:
    """Lesson 12, *The loss without gathering the logits*: one micro-batch's, on the last stage."""
    return logits_bytes_per_token(step.model, step.layout.tp, step.software.logits_bytes) * step.tokens


def terms(step: Step, micro_batches: int) -> dict[str, float]:
    """All of them, on the fuller of a pipeline's first stage, which keeps most, and its last, which has the logits."""
    kept = activations(step, alive(step, micro_batches))
    found = {"states": states(step), "activations": kept, "fixed": FIXED_MEMORY}
    last = {**found, "activations": activations(step, 1), "logits": logits(step)}
    return last if step.layout.pp == 1 or sum(last.values()) > sum(found.values()) else found
