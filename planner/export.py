"""A layout as settings of a training program: flags, overrides, or TOML, as each program's tag has them.

`tests/lessons/program_options.json` says in which file of the program each option stands.
"""

from __future__ import annotations

import math

from machines.cluster import GB
from machines.model import Model
from planner.arithmetic import Step
from planner.layout import EXTRA_LAYERS, Layout, counted, layers_of_fullest_stage, needed
from planner.prediction import Prediction
from planner.software import BRIDGE, MEGATRON, TORCHTITAN

#: Name of a program here → its name and tag, and what it can do.
PROGRAMS = {
    "megatron": ("Megatron-LM core_v0.19.0", MEGATRON), "bridge": ("Megatron-Bridge v0.6.0", BRIDGE),
    "torchtitan": ("torchtitan v0.2.2", TORCHTITAN),
}  # fmt: skip
#: (section of Megatron-Bridge's configuration, option of Megatron Core, value). "false" and "null" are no flags.
Option = tuple[str, str, str]
#: What Megatron-Bridge calls otherwise than Megatron-LM's command line.
BRIDGE_NAMES = {"num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size"}
#: Options whose value is a list.
LISTS = ("recompute_modules",)
#: Precision → Megatron-LM's flags, Megatron-Bridge's `mixed_precision`, torchtitan's converter.
PRECISION: dict[str, tuple[list[tuple[str, str]], str, str]] = {
    "bf16": ([], "bf16_mixed", ""),
    "fp8": (
        [("fp8_format", "hybrid"), ("fp8_recipe", "tensorwise")],
        "bf16_with_fp8_current_scaling_mixed", "quantize.linear.float8",
    ),
    "mxfp8": ([("fp8_format", "e4m3"), ("fp8_recipe", "mxfp8")], "bf16_with_mxfp8_mixed", "quantize.linear.mx"),
    "nvfp4": ([("fp4_format", "e2m1"), ("fp4_recipe", "nvfp4")], "bf16_with_nvfp4_mixed", ""),
}  # fmt: skip
#: torchtitan's own models: name of a model → its name and flavor there.
FLAVORS = {
    "Llama 3 8B": ("llama3", "8B"), "Llama 3 70B": ("llama3", "70B"), "Llama 3 405B": ("llama3", "405B"),
    "DeepSeek-V3": ("deepseek_v3", "671B"),
}  # fmt: skip
#: The routers of DeepSeek-V3 and of those that took it over.
ROUTER = (
    "its router: set --moe-router-score-function sigmoid, --moe-router-enable-expert-bias, "
    "--moe-router-topk-scaling-factor, --moe-router-num-groups, --moe-router-group-topk"
)
GEMMA = "scaled embeddings, GELU in the gate, norms of 1 + weight (--apply-layernorm-1p)"
BIASES = "biases of all linear layers: leave out --disable-bias-linear"
#: Architecture → what of it the flags do not say, and which flags would, if there are any (transformers v4.57.1,
#: `models/*/modeling_*.py`).
UNSAID = {
    "deepseek_v2": "its router: set --moe-router-pre-softmax, --moe-router-topk-scaling-factor",
    "deepseek_v3": ROUTER, "kimi_k2": ROUTER, "glm4_moe": ROUTER, "gemma": GEMMA,
    "gemma2": f"{GEMMA}, norms behind blocks, soft caps",
    "gemma3_text": f"{GEMMA}, norms behind blocks, another rotary base in layers with a window",
    "gpt_neox": f"attention beside the MLP; {BIASES}",
    "gpt_oss": f"attention sinks (--softmax-type learnable), its gate (--quick-geglu); {BIASES}",
    "granite": "factors on embeddings, residuals, attention and logits", "olmo": "norms without weights",
    "olmo2": "norms behind blocks, and of queries and keys across heads",
    "olmo3": "norms behind blocks, and of queries and keys across heads",
    "olmoe": "norms of queries and keys across heads; its router: set --moe-router-pre-softmax",
    "qwen2_moe": "the shared expert's gate (--moe-shared-expert-gate); its router: set --moe-router-pre-softmax",
    "smollm3": "layers without a rotary embedding: set --no-rope-freq", "starcoder2": BIASES,
}  # fmt: skip
#: Architectures whose norms subtract the mean.
LAYER_NORM = ("gpt_neox", "olmo", "starcoder2")


def lines(program: str, step: Step, batch: int, predicted: Prediction | None = None) -> list[str]:
    """The settings for steps of `batch` sequences. ValueError.

    As comments: what the step takes, if `predicted` is given, and where the program differs from the layout.
    """
    if program not in PROGRAMS:
        raise ValueError(f"no program {program!r}; there are {', '.join(PROGRAMS)}")
    if refusal(program, step.trained) != "":
        raise ValueError(refusal(program, step.trained))
    starts = {"megatron": "pretrain_gpt.py", "bridge": f"scripts/training/run_recipe.py --mode {training_mode(step)}"}
    place = starts.get(program) or "--job.config_file"
    head = [f"# {PROGRAMS[program][0]}, {place}: {step.model.name} on {counted(step.layout.gpus, 'GPU')}"]
    if predicted is not None:
        room = step.cluster.memory
        memory = f"{predicted.nbytes / GB:.0f} of {room / GB:.0f} GB per GPU"
        memory += "" if predicted.nbytes <= room else ": DOES NOT FIT"
        head.append(f"# predicted for {step.software.name}: {predicted.seconds:.2f} s per step, {memory}")
    head += [f"# note: {line}" for line in notes(program, step)]
    if program == "torchtitan":
        return [*head, *toml(torchtitan(step, batch))]
    found = megatron(step, batch)
    if program == "bridge":
        bridge = [("mixed_precision", "", PRECISION[step.precision][1]), *found, *bridge_only(step)]
        return [
            *head,
            *[override(section, name, value) for section, name, value in bridge if section != "comm_overlap"],
        ]
    found += [
        ("", name, value) for name, value in [*shape(step.model), *PRECISION[step.precision][0], ("bf16", "true")]
    ]
    return [*head, *[flag(name, value) for _, name, value in found if value not in ("false", "null")]]


def refusal(program: str, trained: str) -> str:
    """Why the program cannot train this ("all" weights or "lora"), in one line; "" if it can."""
    if trained == "lora" and program != "bridge":
        return f"{PROGRAMS[program][0]} has no LoRA; export to Megatron-Bridge (bridge), or train all weights"
    return ""


def training_mode(step: Step) -> str:
    """What Megatron-Bridge calls this kind of training."""
    return "lora" if step.trained == "lora" else "sft" if step.model.document else "pretrain"


def flag(name: str, value: str) -> str:
    """An option of Megatron-LM's command line."""
    option = f"--{name.replace('_', '-')}"
    return option if value == "true" else f"{option} {quoted(value)}"


def override(section: str, name: str, value: str) -> str:
    """An override of Megatron-Bridge's configuration."""
    text = f"[{value.replace(' ', ',')}]" if name in LISTS and value != "null" else value
    return quoted(f"{section}{'.' if name else ''}{BRIDGE_NAMES.get(name, name)}={text}")


def quoted(text: str) -> str:
    """The text as one word of a shell."""
    return f"'{text}'" if any(sign in text for sign in "|*()[]") else text


def notes(program: str, step: Step) -> list[str]:
    """What the program cannot do of this layout or does otherwise, a line each."""
    layout, software = step.layout, PROGRAMS[program][1]
    found = [f"it has no {feature}" for feature, _ in needed(layout) if feature not in software.features]
    if program != "torchtitan":
        if layout.ep > 1 and step.software.expert_overlap and not hides_all_to_alls(layout):
            found.append("it hides experts' all-to-alls only with virtual stages, and without whole layers recomputed")
        if program == "megatron":
            found += unsaid(step.model)
        if program == "bridge" and training_mode(step) == "lora" and layout.cp > 1 and not step.model.document:
            found.append(f"if the recipe packs sequences: set offline_packing_specs.pad_seq_to_mult = {2 * layout.cp}")
        if program == "bridge" and step.software.gradient_bytes < 4 and step.trained == "all":
            found.append("the prediction reduces gradients in bf16: set grad_reduce_in_fp32 = False in the recipe")
        # No overrides: in many recipes `comm_overlap` is None.
        overlaps = [name for section, name, value in megatron(step, 1) if section == "comm_overlap" and value == "true"]
        if program == "bridge" and overlaps:
            given = ", ".join([f"{name}=True" for name in overlaps])
            found.append(f"the prediction hides messages: set comm_overlap = CommOverlapConfig({given}) in the recipe")
        return found
    if step.model.name not in FLAVORS:
        found.append("it does not know this model: add a flavor with its sizes, and set model.name and model.flavor")
    if step.model.document:
        found.append("it has no dataset of packed documents for SFT")
    if layout.pp == 1 and layout.zero_stage == 1:
        found.append("it shards gradients too: this is ZeRO-2, which reduces in every micro-batch")
    if layout.recompute_modules:
        found.append("it recomputes no single modules; the settings recompute nothing of them")
    if layout.recompute_layers and layers_of_fullest_stage(step.model, layout) % layout.recompute_layers:
        found.append("it recomputes every n-th layer; the settings recompute at least as many")
    if layout.cp > 1 and layout.context == "all_to_all":
        found.append("it exchanges no heads; the settings exchange keys and values")
    if layout.shards % layout.cp:
        found.append("ZeRO's shards must be a multiple of cp")
    if step.precision == "nvfp4":
        found.append("it has no NVFP4")
    return found


def unsaid(model: Model) -> list[str]:
    """What of the model Megatron-LM's flags do not say, a line each."""
    m = model
    unknown = [("--rotary-base", m.rotary_base is None), ("--norm-epsilon", m.norm_epsilon is None)]
    unknown += [("--qk-layernorm and --add-qkv-bias, if the model has them", m.architecture == "")]
    found = [f"not known of this model: set {flags}" for flags, is_unknown in unknown if is_unknown]
    if m.architecture in UNSAID:
        found.append(f"of {m.architecture}, the flags leave out {UNSAID[m.architecture]}")
    if m.rotary_scaling == "llama3":
        found.append("the rotary embedding is scaled: set --use-rope-scaling, --rope-scaling-factor")
    elif m.rotary_scaling != "":
        found.append(f"the rotary embedding is scaled ({m.rotary_scaling}): set --rope-type, --rotary-scaling-factor")
    if m.window and 0 < m.windowed < 1:
        found.append("only a part of the layers has the window: set --window-attn-skip-freq")
    if m.experts:
        found.append("nothing balances experts: set --moe-router-load-balancing-type, --moe-aux-loss-coeff")
    return found


def uneven(model: Model, layout: Layout) -> int:
    """How many layers embedding, loss and the last stage stand for, so that chunks are equal; 0 if they are."""
    chunks = layout.pp * layout.virtual_stages
    fits = [extra for extra in range(EXTRA_LAYERS + 1) if (model.layers + model.predicted_ahead + extra) % chunks == 0]
    return fits[0] if fits else 0


def megatron(step: Step, batch: int) -> list[Option]:
    """What Megatron-LM and Megatron-Bridge have in common: sizes, sharding, pipeline, recomputation."""
    x, m, software = step.layout, step.model, step.software
    fsdp = x.zero_stage > 1
    found = [
        ("train", "global_batch_size", f"{batch}"),
        ("train", "micro_batch_size", f"{x.micro_batch}"),
        ("dataset", "seq_length", f"{m.sequence}"),
        ("model", "tensor_model_parallel_size", f"{x.tp}"),
        ("model", "sequence_parallel", yes(x.sequence_parallel and x.tp > 1)),
        ("model", "context_parallel_size", f"{x.cp}"),
        ("model", "pipeline_model_parallel_size", f"{x.pp}"),
        ("ddp", "use_distributed_optimizer", yes(x.zero_stage > 0)),
        ("ddp", "overlap_grad_reduce", yes(software.data_overlap)),
        ("ddp", "overlap_param_gather", yes(software.gather_overlap and x.zero_stage > 0)),
        ("ddp", "use_megatron_fsdp", yes(fsdp)),
    ]
    if x.tp > 1:
        found.append(("comm_overlap", "tp_comm_overlap", yes(software.tensor_overlap and x.sequence_parallel)))
    if x.ep > 1:
        hidden = software.expert_overlap and hides_all_to_alls(x)
        found.append(("comm_overlap", "overlap_moe_expert_parallel_comm", yes(hidden)))
    if x.cp > 1:
        kinds = {"ring": "p2p", "all_gather": "allgather", "all_to_all": "a2a"}
        found.append(("model", "cp_comm_type", kinds[x.context]))
    if m.experts:
        found += [
            ("model", "expert_model_parallel_size", f"{x.ep}"),
            ("model", "expert_tensor_parallel_size", f"{x.etp}"),
            ("model", "moe_token_dispatcher_type", "alltoall"),
            ("model", "moe_grouped_gemm", "true"),
        ]
    if fsdp:
        strategy = "optim_grads_params" if x.zero_stage == 3 else "optim_grads"
        found.append(("ddp", "data_parallel_sharding_strategy", strategy))
        found.append(("checkpoint", "ckpt_format", "fsdp_dtensor"))
    if x.shards < x.data_ranks:
        found.append(("ddp", "num_distributed_optimizer_instances", f"{x.data_ranks // x.shards}"))
    if x.pp > 1:
        found += pipeline(m, x)
    return [*found, *recomputation(step)]


def hides_all_to_alls(x: Layout) -> bool:
    """Whether Megatron Core sends tokens to experts behind computation in this layout (`TransformerConfig`'s rules)."""
    whole = x.recompute == "full" or x.recompute_layers > 0 or "moe" in x.recompute_modules
    return (x.pp == 1 or x.virtual_stages > 1) and not whole


def pipeline(model: Model, layout: Layout) -> list[Option]:
    """How Megatron Core cuts the layers into stages and chunks."""
    v, extra = layout.virtual_stages, uneven(model, layout)
    if model.predicted_ahead or (model.layers + min(extra, 2)) % (layout.pp * v):
        return [("model", "pipeline_model_parallel_layout", stages(model, layout))]
    chunks = [("model", "num_virtual_stages_per_pipeline_rank", f"{v}")] if v > 1 else []
    loss = [("model", "account_for_loss_in_pipeline_split", "true")] if extra > 0 else []
    return chunks + loss + ([("model", "account_for_embedding_in_pipeline_split", "true")] if extra > 1 else [])


def yes(value: bool) -> str:
    """A truth value as programs write it."""
    return "true" if value else "false"


def stages(model: Model, layout: Layout) -> str:
    """Megatron Core's `pipeline_model_parallel_layout`: E is the embedding, t a layer, m one of MTP, L the loss."""
    chunks, extra = layout.pp * layout.virtual_stages, uneven(model, layout)
    everything = model.layers + model.predicted_ahead + extra
    sizes = [everything // chunks + (1 if chunk < everything % chunks else 0) for chunk in range(chunks)]
    sizes[0] -= 1 if extra > 1 else 0
    for _ in range(model.predicted_ahead + (1 if extra > 0 else 0) + (1 if extra > 2 else 0)):
        sizes[[chunk for chunk in range(chunks) if sizes[chunk] > 0][-1]] -= 1
    parts = [f"t*{size}" if size > 1 else "t" if size > 0 else "" for size in sizes]
    ahead = f"m*{model.predicted_ahead}" if model.predicted_ahead else ""
    return "E" + "|".join(parts) + ahead + "L"


def recomputation(step: Step) -> list[Option]:
    """Recomputation and offloading in Megatron Core's words."""
    x = step.layout
    if x.recompute == "full":
        found = [("granularity", "full"), ("method", "uniform"), ("num_layers", "1")]
    elif x.recompute_layers:
        # Megatron counts those of a virtual stage.
        found = [("granularity", "full"), ("method", "block")]
        found += [("num_layers", f"{math.ceil(x.recompute_layers / x.virtual_stages)}")]
    elif x.recompute == "selective" or x.recompute_modules:
        found = [("granularity", "selective"), ("modules", " ".join(x.recompute_modules or ("core_attn",)))]
    else:
        found = [("granularity", "null")]
    options = [("model", f"recompute_{name}", value) for name, value in found]
    if x.offload_layers:
        options.append(("model", "cpu_offloading_num_layers", f"{x.offload_layers}"))
    return options


def bridge_only(step: Step) -> list[Option]:
    """What Megatron-Bridge has besides: offloading's switch, LoRA, the loss of fine-tuning, packed documents."""
    found: list[Option] = []
    if step.layout.offload_layers:
        found.append(("model", "cpu_offloading", "true"))
    if step.trained == "lora":
        found.append(("peft", "dim", f"{step.lora_rank}"))
    cp = step.layout.cp
    # A rank's part of a sequence may have no token that counts (`ConfigContainer.validate`).
    if cp > 1 and training_mode(step) != "pretrain":
        found.append(("model", "calculate_per_token_loss", "true"))
        found.append(("ddp", "average_in_collective", "false"))
    if step.model.document:
        found.append(("dataset", "enable_offline_packing", "true"))
        found.append(("dataset", "offline_packing_specs.packed_sequence_size", f"{step.model.sequence}"))
        found += [("dataset", "offline_packing_specs.pad_seq_to_mult", f"{2 * cp}")] if cp > 1 else []
    return found


def shape(model: Model) -> list[tuple[str, str]]:
    """The model as flags of Megatron-LM; tokenizer, data and learning rate are for the reader to add."""
    m = model
    found = [
        ("num_layers", f"{m.layers}"), ("hidden_size", f"{m.hidden}"), ("ffn_hidden_size", f"{m.ffn}"),
        ("num_attention_heads", f"{m.heads}"), ("max_position_embeddings", f"{m.sequence}"),
        ("vocab_size", f"{m.vocab}"), ("position_embedding_type", "rope"),
        ("normalization", "LayerNorm" if m.architecture in LAYER_NORM else "RMSNorm"),
        ("hidden_dropout", "0"), ("attention_dropout", "0"),  # the prediction keeps nothing for dropout
        ("qk_layernorm", yes(m.query_key_norm or m.latent is not None)), ("add_qkv_bias", yes(m.query_key_value_bias)),
        ("disable_bias_linear", "true"), ("swiglu", yes(m.gated)),
        ("untie_embeddings_and_output_weights", yes(not m.tied)),
    ]  # fmt: skip
    found += [("rotary_base", f"{m.rotary_base}")] if m.rotary_base is not None else []
    found += [("rotary_percent", f"{m.rotary_share}")] if m.rotary_share < 1 else []
    found += [("norm_epsilon", f"{m.norm_epsilon:.8f}")] if m.norm_epsilon is not None else []
    if m.latent is None:
        found += [("kv_channels", f"{m.head_dim}"), ("group_query_attention", yes(m.kv_heads < m.heads))]
        found += [("num_query_groups", f"{m.kv_heads}")] if m.kv_heads < m.heads else []
    else:
        found += [
            ("multi_latent_attention", "true"), ("q_lora_rank", f"{m.latent.query}"),
            ("kv_lora_rank", f"{m.latent.key_value}"), ("qk_head_dim", f"{m.latent.plain}"),
            ("qk_pos_emb_head_dim", f"{m.latent.rotary}"), ("v_head_dim", f"{m.latent.value}"),
        ]  # fmt: skip
        found += [("rope_type", "rope")] if m.rotary_scaling == "" else []  # latent attention's default is YaRN
    if m.experts:
        found += [("num_experts", f"{m.experts}"), ("moe_router_topk", f"{m.experts_per_token}")]
        found += [("moe_ffn_hidden_size", f"{m.expert_ffn}")]
        found += [("moe_layer_freq", f"([0]*{m.dense_layers or 0}+[1]*{m.moe_layers})")]
        shared = m.shared_experts * m.expert_ffn
        found += [("moe_shared_expert_intermediate_size", f"{shared}")] if shared else []
    found += [("mtp_num_layers", f"{m.predicted_ahead}")] if m.predicted_ahead else []
    found += [("window_size", f"({m.window - 1},0)")] if m.window and m.windowed else []
    return [*found, ("sft", yes(bool(m.document)))]


def torchtitan(step: Step, batch: int) -> list[Option]:
    """(table, key, value in TOML) of a torchtitan configuration."""
    x, m = step.layout, step.model
    name, flavor = FLAVORS.get(m.name) or ("", "")
    found = [("model", "name", f'"{name}"'), ("model", "flavor", f'"{flavor}"')] if name else []
    if converter := PRECISION[step.precision][2]:
        found.append(("model", "converters", f'["{converter}"]'))
    # In a pipeline a rank's batch is cut into micro-batches; without, gradients of several batches accumulate.
    local = batch // x.dp if x.pp > 1 else x.micro_batch
    shards = max(1, x.shards // x.cp) if x.zero_stage > 0 else 1
    found += [
        ("training", "seq_len", f"{m.sequence}"),
        ("training", "local_batch_size", f"{local}"),
        ("training", "global_batch_size", f"{batch}"),
        ("parallelism", "data_parallel_replicate_degree", f"{x.dp // shards}"),
        ("parallelism", "data_parallel_shard_degree", f"{shards}"),
        ("parallelism", "fsdp_reshard_after_forward", '"default"' if x.zero_stage == 3 else '"never"'),
        ("parallelism", "tensor_parallel_degree", f"{x.tp}"),
        ("parallelism", "enable_async_tensor_parallel", yes(step.software.tensor_overlap and x.tp > 1)),
        ("parallelism", "context_parallel_degree", f"{x.cp}"),
        ("parallelism", "pipeline_parallel_degree", f"{x.pp}"),
    ]
    if m.experts:
        found.append(("parallelism", "expert_parallel_degree", f"{x.ep}"))
        found.append(("parallelism", "expert_tensor_parallel_degree", f"{x.etp}"))
    if x.cp > 1:
        method = "allgather" if x.context == "all_gather" else "alltoall"
        found.append(("parallelism", "context_parallel_rotate_method", f'"{method}"'))
    if x.pp > 1:
        extra, looped = uneven(m, x), x.virtual_stages > 1
        kinds = {"zero_bubble": "InterleavedZeroBubble" if looped else "ZBVZeroBubble"}
        kind = kinds.get(x.schedule) or ("Interleaved1F1B" if looped else "1F1B")
        layers = math.ceil((m.layers + extra) / (x.pp * x.virtual_stages))
        found += [
            ("parallelism", "pipeline_parallel_schedule", f'"{kind}"'),
            ("parallelism", "pipeline_parallel_microbatch_size", f"{x.micro_batch}"),
            ("parallelism", "pipeline_parallel_layers_per_stage", f"{layers}"),
            ("parallelism", "pipeline_parallel_first_stage_less_layers", "1" if extra > 1 else "0"),
            ("parallelism", "pipeline_parallel_last_stage_less_layers", f"{extra - 1 if extra > 1 else extra}"),
        ]
    mode = "selective" if x.recompute_layers else "none" if x.recompute_modules else x.recompute
    found.append(("activation_checkpoint", "mode", f'"{mode}"'))
    if mode == "selective":
        option = f"{layers_of_fullest_stage(m, x) // x.recompute_layers}" if x.recompute_layers else "op"
        found.append(("activation_checkpoint", "selective_ac_option", f'"{option}"'))
    return [*found, ("compile", "enable", yes(step.software.name != "torchtitan eager"))]


def toml(options: list[Option]) -> list[str]:
    """The options as lines of TOML, in the order in which their tables come."""
    found: list[str] = []
    table = ""
    for section, key, value in options:
        found += [] if section == table else [f"[{section}]"]
        found.append(f"{key} = {value}")
        table = section
    return found
