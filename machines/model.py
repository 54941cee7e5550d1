"""The models that the course computes with, and what follows from their shapes: parameters, FLOPs, bytes.

    from machines.model import LLAMA3_8B, flops_per_token, parameters

    parameters(LLAMA3_8B).total             # 8,030,261,248
    flops_per_token(LLAMA3_8B)              # forward and backward, attention counted causally

Precision, unless an argument says otherwise: parameters and activations in bf16 (2 bytes), gradients, master weights
and both moments of Adam in float32 (4 bytes each).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: the sizes of its compressed queries and keys, and of a head's parts."""

    query: int
    key_value: int
    plain: int
    rotary: int
    value: int


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer.

    layers; hidden: the width. heads, kv_heads: query heads, and heads of keys and values. head_dim: the size of a head.
    ffn: the inner width of a dense MLP; gated: it has a third matrix (SwiGLU). vocab: tokens in the vocabulary; tied:
    the output layer is the embedding. sequence: tokens per sequence. experts: routed experts per layer, 0 for a dense
    model; experts_per_token: how many of them a token visits; expert_ffn: an expert's inner width; shared_experts:
    experts that all tokens visit; dense_layers: layers with a dense MLP (all of them without experts). predicted_ahead:
    extra layers that predict further tokens (multi-token prediction); parameters do not count them. latent: None for
    ordinary attention. window, windowed: in this part of the layers a token looks back at most `window` tokens.
    nodes_per_token: a token goes to experts on at most so many nodes, None for any number. document: tokens of each of
    the documents that are packed into a sequence, None for a single one; a token attends to its own document alone.

    What follows has no effect on what is computed here; exports need it. architecture: Hugging Face's `model_type`, ""
    if not known. rotary_base: θ of the rotary embedding; rotary_share: the part of a head that it turns;
    rotary_scaling: the kind of its scaling to longer sequences, "" for none. norm_epsilon: what norms add to the
    variance. rotary_base and norm_epsilon are None if not known. query_key_norm: each head's queries and keys are
    normalized. query_key_value_bias: the linear layers before attention have biases.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    sequence: int
    gated: bool = True
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    dense_layers: int | None = None
    predicted_ahead: int = 0
    latent: Latent | None = None
    window: int | None = None
    windowed: float = 0.0
    nodes_per_token: int | None = None
    document: int | None = None
    architecture: str = ""
    rotary_base: int | None = None
    rotary_share: float = 1.0
    rotary_scaling: str = ""
    norm_epsilon: float | None = None
    query_key_norm: bool = False
    query_key_value_bias: bool = False

    @property
    def moe_layers(self) -> int:
        """Layers whose MLP is a mixture of experts, without those of multi-token prediction."""
        return self.layers - (self.dense_layers or 0) if self.experts else 0


@dataclass(frozen=True)
class Parameters:
    """total: all parameters. active: those that a token is multiplied with or looked up in, so fewer with experts."""

    total: int
    active: int


def attention_matrices(model: Model) -> list[tuple[int, int, str]]:
    """(inputs, outputs, how tensor parallelism cuts it) of each linear layer of an attention block.

    Cut by "columns" or by "rows", or "whole" on every rank.
    """
    m, h = model, model.hidden
    if m.latent is None:
        return [(h, (m.heads + 2 * m.kv_heads) * m.head_dim, "columns"), (m.heads * m.head_dim, h, "rows")]
    c = m.latent
    return [
        (h, c.query + c.key_value + c.rotary, "whole"),
        (c.query, m.heads * (c.plain + c.rotary), "columns"),
        (c.key_value, m.heads * (c.plain + c.value), "columns"),
        (m.heads * c.value, h, "rows"),
    ]


def attention_parameters(model: Model) -> int:
    """Parameters of the linear layers of one attention block."""
    return sum(inputs * outputs for inputs, outputs, _ in attention_matrices(model))


def mlp_parameters(model: Model, width: int) -> int:
    """Parameters of one MLP, dense or an expert's, of this inner width."""
    return (3 if model.gated else 2) * model.hidden * width


@lru_cache(maxsize=64)
def expert_parameters(model: Model) -> int:
    """Parameters of all routed experts of all layers: what expert parallelism divides."""
    return model.moe_layers * model.experts * mlp_parameters(model, model.expert_ffn)


@lru_cache(maxsize=64)
def parameters(model: Model) -> Parameters:
    """All parameters, norms included (one weight per entry, no biases), and those that one token uses."""
    m = model
    latent = m.latent.query + m.latent.key_value if m.latent else 0
    norms = m.layers * (2 * m.hidden + latent) + m.hidden
    always = m.layers * attention_parameters(m) + (m.layers - m.moe_layers) * mlp_parameters(m, m.ffn) + norms
    always += m.moe_layers * (m.shared_experts * mlp_parameters(m, m.expert_ffn) + m.hidden * m.experts)
    always += (1 if m.tied else 2) * m.vocab * m.hidden
    chosen = m.moe_layers * m.experts_per_token * mlp_parameters(m, m.expert_ffn)
    return Parameters(always + expert_parameters(m), always + chosen)


def matmul_parameters(model: Model, logits: bool = True) -> int:
    """Parameters that a token is multiplied with: the active ones without embedding and norms.

    logits: with the output layer. Layers of multi-token prediction count, with an output layer each.
    """
    m = model
    moe, dense = m.moe_layers, m.layers - m.moe_layers
    ahead_moe, ahead_dense = (m.predicted_ahead, 0) if m.experts else (0, m.predicted_ahead)
    count = (m.layers + m.predicted_ahead) * attention_parameters(m) + (dense + ahead_dense) * mlp_parameters(m, m.ffn)
    visited = (m.experts_per_token + m.shared_experts) * mlp_parameters(m, m.expert_ffn) + m.hidden * m.experts
    return count + (moe + ahead_moe) * visited + (logits * (1 + m.predicted_ahead) * m.vocab * m.hidden)


def attention_width(model: Model) -> float:
    """Products per pair of tokens in one layer's attention, halved: the width that stands in 4 · s · width FLOPs."""
    if model.latent is None:
        return model.heads * model.head_dim
    return model.heads * (model.latent.plain + model.latent.rotary + model.latent.value) / 2


def document_tokens(model: Model) -> int:
    """Tokens of a document, which is the whole sequence unless several are packed into one."""
    return min(model.document or model.sequence, model.sequence)


def mean_context(model: Model) -> float:
    """Tokens that a token attends to on average under the causal mask: half its document, fewer where layers look back
    only `window` tokens."""
    s = document_tokens(model)
    window = min(model.window or s, s)
    return (1 - model.windowed) * s / 2 + model.windowed * (window - window**2 / (2 * s))


def attention_flops_per_token(model: Model, causal: bool = True) -> float:
    """FLOPs of scores and weighted sums in all layers, forward and backward. causal: of pairs that the mask leaves."""
    pairs = mean_context(model) if causal else 2 * mean_context(model)
    return 12 * (model.layers + model.predicted_ahead) * attention_width(model) * pairs


def flops_per_token(model: Model, attention: str = "causal", logits: bool = True) -> float:
    """FLOPs of the model per token, forward and backward, nothing computed twice.

    Six per parameter that the token is multiplied with, and attention: "causal" counts the pairs that the mask leaves,
    "full" the whole square, as PaLM's definition of MFU does, "none" no pair.
    """
    if attention not in ("causal", "full", "none"):
        raise ValueError(f"attention is {attention!r}; it must be 'causal', 'full' or 'none'")
    flops = 6.0 * matmul_parameters(model, logits)
    return flops if attention == "none" else flops + attention_flops_per_token(model, attention == "causal")


def state_bytes_per_parameter(
    stage: int, ranks: int = 1, weight: float = 2, gradient: float = 4, optimizer: float = 12
) -> float:
    """Bytes per parameter on each of `ranks` data-parallel ranks, at ZeRO stage 0 to 3 (lessons 08 and 09).

    weight, gradient, optimizer: bytes of a weight, of its gradient, and of master weight and moments.
    """
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage is {stage}; ZeRO has stages 0 to 3")
    parts = [optimizer, gradient, weight]  # in the order in which the stages shard them
    return sum(part / (ranks if number < stage else 1) for number, part in enumerate(parts))


def activation_bytes_per_token(
    model: Model, moe: bool = False, tensor: int = 1, sequence_parallel: bool = True
) -> float:
    """Bytes that one layer keeps until backward for one token, without recomputation (lesson 10, for a layer of today).

    No dropout; attention keeps its inputs and its output but no scores (FlashAttention). In the order of the forward:
    both norms and the linear layers after them keep their inputs (8 h); attention keeps queries, keys, values and its
    output; a gated MLP keeps both inputs of its product and the product (6 bytes per inner entry, 4 without a gate). As
    one kernel, that is: in PyTorch's own operations an H100 kept SiLU's result as well, 8 bytes. A layer with experts
    keeps this for each expert that the token visits, and the token twice more, as it was sent and as it came back
    (once where the router's weight is applied inside the expert).
    tensor: ranks of tensor parallelism. Without sequence parallelism, each has the 8 h whole.
    """
    m = model
    if m.latent is None:
        mixed = 2 * (2 * m.heads + 2 * m.kv_heads) * m.head_dim
    else:
        c = m.latent
        mixed = 2 * (2 * m.heads * (c.plain + c.rotary + c.value) + 2 * (c.query + c.key_value + c.rotary))
    inner = (m.experts_per_token + m.shared_experts) * m.expert_ffn if moe else m.ffn
    split = mixed + (6 if m.gated else 4) * inner + (4 * m.experts_per_token * m.hidden if moe else 0)
    return split / tensor + 8 * m.hidden / (tensor if sequence_parallel else 1)


def logits_bytes_per_token(model: Model, tensor: int = 1, per_entry: float = 12) -> float:
    """Bytes of the logits of one token while the loss is computed.

    Without kernels that fuse the loss, 12 per entry: in backward the log-probabilities, their gradient and the logits'
    gradient, each in float32. An H100 counted as many.
    """
    return per_entry * model.vocab / tensor


#: Sizes and rotary base: Table 3 of the Llama 3 report (arXiv 2407.21783); vocabulary, epsilon: their configurations.
LLAMA3_8B = Model(
    "Llama 3 8B", 32, 4096, 32, 8, 128, 14336, 128256, 8192,
    architecture="llama", rotary_base=500000, norm_epsilon=1e-5,
)  # fmt: skip
LLAMA3_70B = replace(LLAMA3_8B, name="Llama 3 70B", layers=80, hidden=8192, heads=64, ffn=28672)
LLAMA3_405B = replace(LLAMA3_8B, name="Llama 3 405B", layers=126, hidden=16384, heads=128, ffn=53248)
#: deepseek-ai/DeepSeek-V3, inference/configs/config_671B.json, rotary base and epsilon: inference/model.py; pre-trained
#: on sequences of 4,096 tokens.
DEEPSEEK_V3 = Model(
    "DeepSeek-V3", 61, 7168, 128, 128, 128, 18432, 129280, 4096,
    experts=256, experts_per_token=8, expert_ffn=2048, shared_experts=1, dense_layers=3, nodes_per_token=4,
    latent=Latent(query=1536, key_value=512, plain=128, rotary=64, value=128),
    architecture="deepseek_v3", rotary_base=10000, norm_epsilon=1e-6,
)  # fmt: skip

#: Name → model.
MODELS = {model.name: model for model in (LLAMA3_8B, LLAMA3_70B, LLAMA3_405B, DEEPSEEK_V3)}
