"""A model from its Hugging Face configuration, `config.json` as a dictionary: names as in transformers v4.57.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from machines.model import Latent, Model

#: `model_type` → what its configuration leaves out: the embedding is the output layer, the MLP is gated.
DENSE = {
    "gemma": (True, True), "gemma2": (True, True), "gemma3_text": (True, True), "gpt_neox": (False, False),
    "granite": (False, True), "llama": (False, True), "ministral": (False, True), "mistral": (False, True),
    "olmo": (False, True), "olmo2": (False, True), "olmo3": (False, True), "phi3": (False, True),
    "qwen2": (False, True), "qwen3": (False, True), "seed_oss": (False, True), "smollm3": (True, True),
    "starcoder2": (True, False),
}  # fmt: skip
#: `model_type` of a mixture of experts → the names of its number of experts and of an expert's inner width.
EXPERTS = {
    "deepseek_v2": ("n_routed_experts", "moe_intermediate_size"),
    "deepseek_v3": ("n_routed_experts", "moe_intermediate_size"),
    "glm4_moe": ("n_routed_experts", "moe_intermediate_size"),
    "gpt_oss": ("num_local_experts", "intermediate_size"), "kimi_k2": ("n_routed_experts", "moe_intermediate_size"),
    "mixtral": ("num_local_experts", "intermediate_size"), "olmoe": ("num_experts", "intermediate_size"),
    "qwen2_moe": ("num_experts", "moe_intermediate_size"), "qwen3_moe": ("num_experts", "moe_intermediate_size"),
}  # fmt: skip
#: Those whose attention is latent.
LATENT = ("deepseek_v2", "deepseek_v3", "kimi_k2")
#: Those that normalize each head's queries and keys, and those with biases, where the configuration does not say.
QUERY_KEY_NORM = ("gemma3_text", "qwen3", "qwen3_moe")
QUERY_KEY_VALUE_BIAS = ("gpt_neox", "gpt_oss", "qwen2", "qwen2_moe", "seed_oss", "starcoder2")
#: Tokens per sequence, where none are given and the model takes as many.
SEQUENCE = 8192


def model_of(config: Mapping[str, Any], name: str = "", sequence: int | None = None) -> Model:
    """The model of a configuration. ValueError, in one line, for what is unknown or missing.

    sequence: tokens per sequence; None for `SEQUENCE`, or fewer if the model takes no more. Of a model of images and
    text, the part for text (`text_config`).
    """
    given: Mapping[str, Any] = config.get("text_config") or config
    kind = given.get("model_type") or ""
    if kind == "":
        raise ValueError("the configuration's field 'model_type' is missing")
    if kind not in DENSE and kind not in EXPERTS:
        known = ", ".join(sorted([*DENSE, *EXPERTS]))
        raise ValueError(f"the architecture {kind!r} (model_type) is not known; known are {known}")
    tied, gated = DENSE.get(kind) or (False, True)
    layers, hidden, heads = [
        whole(given, field) for field in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    ]
    tied = given.get("tie_word_embeddings", tied)
    counts, width = EXPERTS.get(kind) or ("", "intermediate_size")
    experts = whole(given, counts) if counts else 0
    dense = dense_layers(given, kind, layers) if experts else 0
    expert_ffn = whole(given, width) if experts else 0
    compressed = latent(given) if kind in LATENT else None
    window, windowed = windows(given, layers)
    most = whole(given, "max_position_embeddings", SEQUENCE)
    nodes = given.get("topk_group") or 1
    rotary = given.get("rope_parameters") or given  # a table of its own since transformers 5
    base = rotary.get("rope_theta") or given.get("rotary_emb_base")
    scaling = given.get("rope_scaling") or given.get("rope_parameters") or {}
    scaled = scaling.get("rope_type") or scaling.get("type") or "default"
    return Model(
        name or config.get("_name_or_path") or kind,
        layers,
        hidden,
        heads,
        whole(given, "num_key_value_heads", heads),
        compressed.plain if compressed else whole(given, "head_dim", hidden // heads),
        whole(given, "intermediate_size"),
        whole(given, "vocab_size"),
        sequence or min(SEQUENCE, most),
        gated,
        tied,
        experts,
        visited(given) if experts else 0,
        expert_ffn,
        shared_experts(given, expert_ffn) if experts else 0,
        dense if experts else None,
        given.get("num_nextn_predict_layers") or 0,
        compressed,
        window,
        windowed,
        nodes if nodes > 1 else None,
        architecture=kind,
        rotary_base=round(base) if base else None,
        rotary_share=given.get("partial_rotary_factor") or given.get("rotary_pct") or 1.0,
        rotary_scaling="" if scaled == "default" else scaled,
        norm_epsilon=given.get("rms_norm_eps") or given.get("layer_norm_eps") or given.get("norm_epsilon"),
        query_key_norm=bool(given.get("use_qk_norm", kind in QUERY_KEY_NORM)),
        query_key_value_bias=bool(given.get("attention_bias", kind in QUERY_KEY_VALUE_BIAS)),
    )


def whole(given: Mapping[str, Any], field: str, default: int | None = None) -> int:
    """A number of the configuration, at least 1. ValueError."""
    value = given.get(field)
    if value is None and default is not None:
        return default
    if value is None:
        raise ValueError(f"the configuration's field {field!r} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"the configuration's field {field!r} is {value!r}; it must be a whole number of at least 1")
    number: int = value
    return number


def visited(given: Mapping[str, Any]) -> int:
    """Experts that a token visits."""
    return whole(given, "experts_per_token" if "num_experts_per_tok" not in given else "num_experts_per_tok")


def shared_experts(given: Mapping[str, Any], expert_ffn: int) -> int:
    """Experts that all tokens visit; Qwen2's one is as wide as several."""
    if "shared_expert_intermediate_size" in given:
        return whole(given, "shared_expert_intermediate_size") // expert_ffn
    return given.get("n_shared_experts") or 0


def dense_layers(given: Mapping[str, Any], kind: str, layers: int) -> int:
    """Layers without experts: DeepSeek's first ones, or those that Qwen's step leaves out or names."""
    step, named = given.get("decoder_sparse_step") or 1, given.get("mlp_only_layers") or []
    first = given.get("first_k_dense_replace") or 0
    return first + sum([(layer + 1) % step > 0 or layer in named for layer in range(layers)])


def windows(given: Mapping[str, Any], layers: int) -> tuple[int | None, float]:
    """Tokens that a token looks back at most, and the part of the layers where it does."""
    window = given.get("sliding_window")
    if not window or ("use_sliding_window" in given and not given["use_sliding_window"]):
        return None, 0.0
    if kinds := given.get("layer_types"):
        return window, sum([kind == "sliding_attention" for kind in kinds]) / layers
    if "use_sliding_window" in given:  # Qwen's layers from `max_window_layers` on
        return window, max(0, layers - whole(given, "max_window_layers", layers)) / layers
    # Gemma 2 alternates, and Gemma 3 names the period of its full layers.
    period = given.get("sliding_window_pattern") or {"gemma2": 2, "gemma3_text": 6}.get(given["model_type"])
    return window, (layers - layers // period) / layers if period else 1.0


def latent(given: Mapping[str, Any]) -> Latent:
    """The sizes of latent attention."""
    fields = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    query, key_value, plain, rotary, value = [whole(given, field) for field in fields]
    return Latent(query, key_value, plain, rotary, value)
