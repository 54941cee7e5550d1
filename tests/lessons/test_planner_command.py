"""The planner's command, and what its page has of it: packed documents, own machines, configurations, exports."""

from __future__ import annotations

import email
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import planner.__main__ as command
from machines.cluster import MAY_OWN, OWN, find, own
from machines.model import (
    DEEPSEEK_V3,
    LLAMA3_8B,
    LLAMA3_70B,
    LLAMA3_405B,
    attention_flops_per_token,
    mean_context,
    parameters,
)
from planner import Layout, accuracy, huggingface, memory, plan, predict
from planner.arithmetic import Step, attention, document_balance
from planner.export import PROGRAMS, lines, stages
from planner.search import FILLED, warnings
from planner.software import BRIDGE, MEGATRON, META, SOFTWARE, TORCHTITAN

ROOT = Path(command.__file__).resolve().parents[1]
H100 = find("H100")
LONG = replace(LLAMA3_70B, sequence=32768)


# Packed documents


def pairs(tokens, document):
    """Pairs of tokens that the mask leaves, counted one by one."""
    return sum(token % document + 1 for token in tokens)


def test_documents_have_the_pairs_that_their_triangles_have():
    model = replace(LLAMA3_8B, sequence=4096, document=512)
    assert mean_context(model) == 256 == pytest.approx(pairs(range(4096), 512) / 4096, rel=0.01)
    ratio = attention_flops_per_token(model) / attention_flops_per_token(replace(model, document=None))
    assert ratio == 1 / 8
    assert mean_context(replace(model, document=10**6)) == 2048
    assert mean_context(replace(model, window=128, windowed=1.0)) == 128 - 128**2 / (2 * 512)


@pytest.mark.parametrize("cp", [2, 4, 8])
@pytest.mark.parametrize("document", [4096, 1024, 1000, 700, 96])
def test_the_balance_of_documents_is_that_of_a_zigzag(cp, document):
    sequence = 4096
    part = sequence // (2 * cp)
    parts = [pairs(range(start, start + part), document) for start in range(0, sequence, part)]
    work = [parts[rank] + parts[-1 - rank] for rank in range(cp)]
    found = document_balance(replace(LLAMA3_8B, sequence=sequence, document=document), cp)
    assert found == pytest.approx(sum(work) / cp / max(work), rel=0.02)


def test_documents_make_attention_cheaper_and_their_cut_may_be_unfair():
    layout = Layout(dp=2, tp=8, cp=4)
    whole, some = (attention(Step(model, H100, layout, MEGATRON))[0] for model in (LONG, replace(LONG, document=5000)))
    assert whole / 32768 * 5000 < some < whole
    # Megatron cuts each document, which is fair, but its kernel sees shorter pieces; Meta's cuts the sequence.
    cut = attention(Step(replace(LONG, document=5000), H100, layout, META))[0]
    balance = document_balance(replace(LONG, document=5000), 4)
    assert 0.6 < balance < 0.9
    assert cut * balance / some == pytest.approx((1250 / 1950) / (5000 / 5700))
    plain = [attention(Step(LONG, H100, layout, software)) for software in (MEGATRON, META)]
    assert plain[0] == plain[1]
    heads = replace(layout, tp=2, context="all_to_all")
    both = [attention(Step(replace(LONG, document=5000), H100, heads, software)) for software in (MEGATRON, META)]
    assert both[0] == both[1]


def test_adapters_of_a_larger_rank_hold_more():
    found = [predict(LLAMA3_70B, H100, Layout(tp=8), 8, trained="lora", lora_rank=rank).nbytes for rank in (16, 64)]
    layer = memory.lora_parameters(replace(LLAMA3_70B, layers=1), 1)
    assert layer == sum((8192 + 80 * 128, 64 * 128 + 8192, 8192 + 2 * 28672, 28672 + 8192))
    assert found[1] - found[0] == pytest.approx(48 * 80 * layer * 18 / 8)
    best = plan(LLAMA3_70B, H100, 8, 8, trained="lora", lora_rank=64).best
    assert best.nbytes == predict(LLAMA3_70B, H100, best.layout, 8, trained="lora", lora_rank=64).nbytes
    assert best.nbytes > predict(LLAMA3_70B, H100, best.layout, 8, trained="lora", lora_rank=16).nbytes


# A machine of one's own


MACHINE = {
    "name": "my H100", "like": "H100", "tflops": {"bf16": 989, "fp8": 1979}, "memory_gb": 96,
    "memory_bandwidth_gb_s": 2400, "domain": 8, "nvlink_gb_s": 450, "ports": 4, "port_gb_s": 25,
}  # fmt: skip


def test_an_own_machine_is_what_its_fields_say():
    found = own(MACHINE)
    assert (found.name, found.like, found.memory, found.port, found.ports) == ("my H100", "H100", 96e9, 25e9, 4)
    assert found.flops == {"bf16": 989e12, "fp8": 1979e12} and found.host_link == H100.host_link
    assert found.bandwidth(16) == 4 * 25e9
    same = {
        "like": "H100", "tflops": {"bf16": 989, "fp8": 1979}, "memory_gb": H100.memory / 1e9,
        "memory_bandwidth_gb_s": 3350, "domain": 8, "nvlink_gb_s": 450, "ports": 8, "port_gb_s": 50,
    }  # fmt: skip
    layout = Layout(dp=8, tp=8)
    assert predict(LLAMA3_8B, own(same), layout, 64).time == predict(LLAMA3_8B, H100, layout, 64).time
    assert own({**MACHINE, "host_link_gb_s": 450, "host_gpus": 2, "host_memory_gb": 240}).host_link == 450e9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({name: None}, f"the machine's field {name!r} is missing: {unit}") for name, unit in OWN.items()
    ] + [
        ({"colour": 1, "ports": None}, f"a machine has no field 'colour'; it has {', '.join([*OWN, *MAY_OWN])}"),
        ({"memory_gb": "96 GB"}, "memory_gb is '96 GB'; it must be a number above 0"),
        ({"ports": 0}, "ports is 0; it must be a number above 0"),
        ({"domain": 7.5}, "domain is 7.5; it must be a whole number"),
        ({"like": "TPU v9"}, "no cluster 'TPU v9'; there are: A100"),
        ({"tflops": {"fp8": 1979}}, "tflops has no bf16: dense 10¹² FLOP/s per GPU"),
        ({"tflops": {"bf16": 989, "nvfp4": 9}}, "tflops has nvfp4, and H100 has bf16, fp8; choose another 'like'"),
        ({"tflops": {"bf16": True}}, "tflops of bf16 is True; it must be a number above 0"),
    ],
)  # fmt: skip
def test_a_machine_that_cannot_be_is_refused_in_one_line(change, message):
    with pytest.raises(ValueError) as caught:
        own({**MACHINE, **change})
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


# Hugging Face configurations: what counts of the files that are named, and the published numbers of parameters.


LLAMA2 = {  # FlagPerf @1b5a030, training/benchmarks/llama2_7b/deepspeed/llama2_7b_hf/config.json
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "tie_word_embeddings": False,
    "vocab_size": 32000,
}  # fmt: skip
QWEN3 = {  # mlc-ai/pith-train @889a408, examples/pretrain_lm/qwen3-30b-a3b/config.json
    "model_type": "qwen3_moe", "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144, "max_window_layers": 48,
    "moe_intermediate_size": 768, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "sliding_window": None, "tie_word_embeddings": False,
    "vocab_size": 151936,
}  # fmt: skip
GPT_OSS = {  # the same, gpt-oss-120b
    "model_type": "gpt_oss", "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880,
    "layer_types": 18 * ["sliding_attention", "full_attention"], "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 36, "num_key_value_heads": 8, "num_local_experts": 128, "sliding_window": 128,
    "tie_word_embeddings": False, "vocab_size": 201088,
}  # fmt: skip
DEEPSEEK = {  # Megatron-Bridge v0.6.0, tests/unit_tests/models/deepseek/test_deepseek_bridges.py
    "model_type": "deepseek_v3", "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432,
    "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "tie_word_embeddings": False, "topk_group": 4, "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (LLAMA2, 6_738_415_616, 6_738_415_616),  # safetensors' own count at huggingface.co/meta-llama/Llama-2-7b-hf
        (QWEN3, 30.5e9, 3.3e9),  # Qwen3's report (arXiv 2505.09388), table 2 and the model's card
        (GPT_OSS, 116.83e9, 5.71e9),  # its card (arXiv 2508.10925), table 1; active there without embedding: 5.13
        (DEEPSEEK, 671e9, 37.6e9),  # its report (arXiv 2412.19437): 671B and 37B; 0.9B of an embedding counted here
    ],
)
def test_a_configuration_has_the_published_number_of_parameters(config, total, active):
    found = parameters(huggingface.model_of(config))
    assert found.total == pytest.approx(total, rel=0.002) and found.active == pytest.approx(active, rel=0.02)


def test_a_configuration_is_the_model_that_the_course_knows():
    found = huggingface.model_of(DEEPSEEK, "DeepSeek-V3", 4096)
    assert found == replace(DEEPSEEK_V3, predicted_ahead=1)
    assert huggingface.model_of(LLAMA2).sequence == 4096 and huggingface.model_of(QWEN3).sequence == 8192


def test_windows_ties_and_parts_of_a_configuration():
    assert huggingface.model_of(GPT_OSS).windowed == 0.5
    dense = {key: value for key, value in LLAMA2.items() if key not in ("tie_word_embeddings", "num_key_value_heads")}
    for changes, field, value in (
        ({"model_type": "mistral", "sliding_window": 4096}, "windowed", 1.0),
        ({"model_type": "gemma2", "sliding_window": 4096}, "windowed", 0.5),
        ({"model_type": "gemma3_text", "sliding_window": 1024, "sliding_window_pattern": 6}, "windowed", 27 / 32),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, "windowed", 0.0),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 24},
         "windowed", 0.25),
        ({"model_type": "gemma"}, "tied", True), ({"model_type": "llama"}, "tied", False),
        ({"model_type": "gpt_neox"}, "gated", False), ({"model_type": "llama"}, "kv_heads", 32),
        ({"model_type": "olmo2", "head_dim": None}, "head_dim", 128),
    ):  # fmt: skip
        assert getattr(huggingface.model_of({**dense, **changes}), field) == value, changes
    text = {"model_type": "gemma3", "text_config": {**dense, "model_type": "gemma3_text"}, "vision_config": {}}
    assert huggingface.model_of(text).tied
    shared = {**QWEN3, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 3072, "decoder_sparse_step": 2}
    found = huggingface.model_of({**shared, "mlp_only_layers": [1]})
    assert (found.shared_experts, found.dense_layers) == (4, 25)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LLAMA2, "model_type": "mamba2"}, "the architecture 'mamba2' (model_type) is not known; known are deepseek"),
        ({}, "the configuration's field 'model_type' is missing"),
        ({**LLAMA2, "vocab_size": None}, "the configuration's field 'vocab_size' is missing"),
        ({**LLAMA2, "hidden_size": "wide"}, "the configuration's field 'hidden_size' is 'wide'; it must be a whole"),
        (
            {**DEEPSEEK, "model_type": "deepseek_v2", "q_lora_rank": None},
            "the configuration's field 'q_lora_rank' is m",
        ),
        ({**GPT_OSS, "num_local_experts": None}, "the configuration's field 'num_local_experts' is missing"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_refused_in_one_line(config, message):
    with pytest.raises(ValueError) as caught:
        huggingface.model_of(config)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


# Export


OPTIONS = json.loads(Path(__file__).with_name("program_options.json").read_text(encoding="utf-8"))


def named(program, text):
    """The options that are set, as `program_options.json` writes them."""
    if program == "torchtitan":
        tables = tomllib.loads("\n".join(text))
        return {f"{table}.{key}" for table, options in tables.items() for key in options}
    split = " " if program == "megatron" else "="
    return {line.strip("'").split(split)[0] for line in text if not line.startswith("#")}


CASES = [
    Step(replace(LLAMA3_70B, document=512), H100, Layout(dp=64, tp=4, pp=2, virtual_stages=20), BRIDGE, "fp8"),
    Step(LLAMA3_405B, H100, Layout(dp=4, tp=4, pp=16, cp=4, virtual_stages=4), MEGATRON),
    Step(replace(LLAMA3_8B, document=512), H100, Layout(dp=4, cp=2), BRIDGE),
    Step(LLAMA3_8B, H100, Layout(dp=16, cp=2, zero_stage=3, shard=8, offload_layers=3), MEGATRON, trained="lora"),
    Step(replace(DEEPSEEK_V3, predicted_ahead=1), find("GB200"), Layout(dp=16, pp=16, ep=8, recompute="full"), BRIDGE,
         "mxfp8"),
    Step(replace(LLAMA3_8B, tied=True, window=512, windowed=0.5), find("B200"), Layout(recompute_modules=("layernorm",),
         dp=8), MEGATRON, "nvfp4"),
    Step(LLAMA3_8B, H100, Layout(dp=8, pp=2, recompute_layers=4, zero_stage=3, schedule="zero_bubble"), TORCHTITAN),
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_exported_option_is_in_the_programs_own_list(program):
    """`program_options.json` was made from the sources at these tags: who adds an option looks it up there."""
    listed = {option for options in OPTIONS[program]["files"].values() for option in options}
    assert PROGRAMS[program][0].split()[1] in OPTIONS[program]["tag"]
    steps = [step for step in CASES if program == "bridge" or step.trained == "all"]
    found = set().union(*(named(program, lines(program, step, 256)) for step in steps))
    assert found <= listed and len(found) >= 20


def test_megatrons_flags_are_the_layout():
    text = lines("megatron", CASES[1], 256)
    flags = dict(([*line.removeprefix("--").split(" ", 1), "true"])[:2] for line in text[1:])
    assert flags["tensor-model-parallel-size"] == "4" and flags["context-parallel-size"] == "4"
    assert flags["num-virtual-stages-per-pipeline-rank"] == "4" and flags["seq-length"] == "8192"
    # 126 layers on 64 chunks of two: embedding and loss stand for a layer each.
    assert {"account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"} <= flags.keys()
    assert flags["num-query-groups"] == "8" and flags["sequence-parallel"] == "true" and "fp8-format" not in flags
    assert "recompute-granularity" not in flags and "use-megatron-fsdp" not in flags
    assert flags["tp-comm-overlap"] == "true" and "overlap-moe-expert-parallel-comm" not in flags
    for layout, hides in (({}, True), ({"pp": 2, "virtual_stages": 2}, True), ({"pp": 2}, False),
                          ({"recompute": "full"}, False)):  # fmt: skip
        step = Step(DEEPSEEK_V3, H100, Layout(dp=64, ep=8, **layout), MEGATRON)
        assert ("--overlap-moe-expert-parallel-comm" in lines("megatron", step, 256)) is hides
        assert any("hides experts' all-to-alls only" in line for line in lines("megatron", step, 256)) is not hides


def flags_of(model):
    """Megatron-LM's flags for this model, with their values."""
    text = lines("megatron", Step(model, H100, Layout(dp=8), MEGATRON), 64)
    return dict([*line.split(" ", 1), "true"][:2] for line in text if line.startswith("--"))


def test_megatrons_flags_are_the_model():
    """Megatron-LM's own defaults are a rotary base of 10,000, dropouts of 0.1, and no such norms."""
    llama = flags_of(LLAMA3_8B)
    assert llama["--rotary-base"] == "500000" and float(llama["--norm-epsilon"]) == 1e-5
    assert llama["--hidden-dropout"] == llama["--attention-dropout"] == "0"
    assert "--qk-layernorm" not in llama and "--add-qkv-bias" not in llama and "--rotary-percent" not in llama
    qwen = flags_of(huggingface.model_of({**QWEN3, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6}))
    assert (qwen["--rotary-base"], float(qwen["--norm-epsilon"]), qwen["--qk-layernorm"]) == ("1000000", 1e-6, "true")
    table = {"rope_theta": 500000.0, "rope_type": "default"}
    new = huggingface.model_of({**LLAMA2, "rope_parameters": table})
    assert (new.rotary_base, new.rotary_scaling) == (500000, "")
    assert huggingface.model_of({**LLAMA2, "rope_parameters": {**table, "rope_type": "yarn"}}).rotary_scaling == "yarn"
    old = flags_of(huggingface.model_of({**LLAMA2, "model_type": "qwen2"}))
    assert old["--add-qkv-bias"] == "true" and "--rotary-base" not in old
    assert flags_of(DEEPSEEK_V3)["--qk-layernorm"] == "true" and flags_of(DEEPSEEK_V3)["--rope-type"] == "rope"
    neox = {**LLAMA2, "model_type": "gpt_neox", "rotary_pct": 0.25, "rotary_emb_base": 10000, "layer_norm_eps": 1e-5}
    neox = flags_of(huggingface.model_of(neox))
    assert (neox["--normalization"], neox["--rotary-percent"], neox["--rotary-base"]) == ("LayerNorm", "0.25", "10000")


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"rope_theta": None}, "--rotary-base"), ({"rms_norm_eps": None}, "--norm-epsilon"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "--rope-scaling-factor"),
        ({"rope_scaling": {"type": "yarn"}}, "--rotary-scaling-factor"),
        ({"model_type": "smollm3"}, "--no-rope-freq"), ({"model_type": "gemma"}, "--apply-layernorm-1p"),
        ({"model_type": "gemma2", "sliding_window": 4096}, "--window-attn-skip-freq"),
        ({**DEEPSEEK, "model_type": "kimi_k2"}, "--moe-router-enable-expert-bias"),
        ({**QWEN3}, "--moe-aux-loss-coeff"),
    ],
)  # fmt: skip
def test_what_flags_do_not_say_of_a_model_is_a_note_with_the_flag_to_set(changes, flag):
    known = {**LLAMA2, "rope_theta": 10000, "rms_norm_eps": 1e-5}
    found = [], []
    for config, said in zip((known, {**known, **changes}), found, strict=True):
        text = lines("megatron", Step(huggingface.model_of(config), H100, Layout(dp=8), MEGATRON), 64)
        said += [line for line in text if line.startswith("# note: ")]
    assert not found[0] and flag in " ".join(found[1])
    listed = {option for options in OPTIONS["megatron"]["files"].values() for option in options}
    assert set(re.findall(r"--[\w-]+", " ".join(found[1]))) <= listed


@pytest.mark.parametrize("layers", [32, 61, 62, 80, 126])
@pytest.mark.parametrize("chunks", [(2, 1), (4, 2), (16, 1), (16, 2), (64, 1)])
@pytest.mark.parametrize("ahead", [0, 1])
def test_stages_have_all_layers_in_order(layers, chunks, ahead):
    model = replace(LLAMA3_8B, layers=layers, predicted_ahead=ahead)
    text = re.sub(
        r"(.)\*(\d+)",
        lambda found: found[1] * int(found[2]),
        stages(model, Layout(pp=chunks[0], virtual_stages=chunks[1])),
    )
    assert text.count("|") == chunks[0] * chunks[1] - 1
    assert text.replace("|", "") == "E" + "t" * layers + "m" * ahead + "L"
    sizes = [len(part) for part in text.split("|")]
    assert max(sizes) - min(sizes[1:-1] or sizes) <= 3


def test_bridges_overrides_and_torchtitans_tables_are_the_layout():
    bridge = lines("bridge", CASES[0], 1024)
    for expected in (
        "mixed_precision=bf16_with_fp8_current_scaling_mixed", "model.virtual_pipeline_model_parallel_size=20",
        "train.global_batch_size=1024", "dataset.enable_offline_packing=true", "model.recompute_granularity=null",
    ):  # fmt: skip
        assert expected in bridge
    assert "--mode sft:" in bridge[0] and "--mode lora:" in lines("bridge", CASES[3], 1024)[0]
    assert "peft.dim=32" in lines("bridge", CASES[3], 1024) and "--sft" in lines("megatron", CASES[0], 1024)
    assert "'model.recompute_modules=[layernorm]'" in lines("bridge", CASES[5], 8)
    tables = tomllib.loads("\n".join(lines("torchtitan", CASES[6], 64)))
    assert tables["model"] == {"name": "llama3", "flavor": "8B"}
    assert tables["training"]["local_batch_size"] == 8 and tables["training"]["global_batch_size"] == 64
    assert tables["parallelism"]["pipeline_parallel_schedule"] == "ZBVZeroBubble"
    assert tables["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "4"}
    hybrid = tomllib.loads("\n".join(lines("torchtitan", replace(CASES[3], trained="all"), 64)))["parallelism"]
    assert (hybrid["data_parallel_replicate_degree"], hybrid["data_parallel_shard_degree"]) == (4, 4)


def test_fine_tuning_with_context_parallelism_has_what_bridge_asserts():
    """A loss per token, no mean in the collective, and documents padded to 2 cp (v0.6.0, training/config.py:1443)."""
    asserted = ["model.calculate_per_token_loss=true", "ddp.average_in_collective=false"]
    padded = "dataset.offline_packing_specs.pad_seq_to_mult=8"
    note = "# note: if the recipe packs sequences: set offline_packing_specs.pad_seq_to_mult = 8"
    for document, trained, cp, has in (
        (512, "all", 4, [*asserted, padded]), (512, "lora", 4, [*asserted, padded]),
        (None, "lora", 4, [*asserted, note]), (None, "all", 4, []), (512, "all", 1, []),
    ):  # fmt: skip
        step = Step(replace(LLAMA3_70B, document=document), H100, Layout(tp=8, cp=cp), BRIDGE, trained=trained)
        text = lines("bridge", step, 64)
        assert [line for line in [*asserted, padded, note] if line in text] == has


@pytest.mark.parametrize(
    ("program", "changes", "note"),
    [
        ("megatron", {"zero_stage": 2}, "it has no ZeRO-2"),
        ("bridge", {}, "the prediction reduces gradients in bf16"),
        ("bridge", {"tp": 2}, "the prediction hides messages: set comm_overlap = CommOverlapConfig(tp_c"),
        ("torchtitan", {}, "it shards gradients too: this is ZeRO-2"),
        ("torchtitan", {"schedule": "dualpipe", "pp": 2}, "it has no dualpipe"),
        ("torchtitan", {"recompute_modules": ("mlp",)}, "it recomputes no single modules"),
        ("torchtitan", {"zero_stage": 3, "cp": 4, "shard": 2}, "ZeRO's shards must be a multiple of cp"),
    ],
)  # fmt: skip
def test_what_a_program_cannot_do_is_one_line(program, changes, note):
    text = lines(program, Step(LLAMA3_8B, H100, replace(Layout(dp=8), **changes), BRIDGE), 64)
    assert any(line.startswith(f"# note: {note}") for line in text), text[:4]
    plain = lines("megatron", Step(LLAMA3_8B, H100, Layout(dp=8), MEGATRON), 64)
    assert not any(line.startswith("# note") for line in plain)
    for program in ("megatron", "torchtitan"):
        with pytest.raises(ValueError, match=f"^{PROGRAMS[program][0]} has no LoRA; export to Megatron-Bridge"):
            lines(program, Step(LLAMA3_8B, H100, Layout(dp=8), MEGATRON, trained="lora"), 64)
    text = lines("torchtitan", Step(huggingface.model_of(LLAMA2), H100, Layout(dp=8, zero_stage=3), TORCHTITAN), 64)
    assert (
        "# note: it does not know this model: add a flavor with its sizes, and set model.name and model.flavor" in text
    )
    with pytest.raises(ValueError, match="no program 'jax'; there are megatron, bridge, torchtitan"):
        lines("jax", CASES[0], 64)


# The command


def said(capsys, *arguments):
    """What the command prints as JSON."""
    assert command.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


SMALL = ("Llama 3 8B", "--gpus", "64", "--batch", "256")


def test_the_command_says_what_the_planner_finds(capsys):
    found = said(capsys, *SMALL, "--machine", "H200")
    best = plan(LLAMA3_8B, find("H200"), 64, 256).best
    assert found["layout"] == {**asdict(best.layout), "recompute_modules": list(best.layout.recompute_modules)}
    assert (found["seconds"], found["time"], found["memory"]) == (best.seconds, dict(best.time), dict(best.memory))
    assert found["margin"]["error"] == accuracy.margin(best, "bf16", MEGATRON).error and found["margin"]["unlike"] == []
    assert len(found["others"]) >= 4 and all("slower" in other["why"] for other in found["others"])
    # The next layout, given back as it was printed, takes what was said of it.
    other = found["others"][0]
    again = said(capsys, *SMALL, "--machine", "H200", "--layout", other["layout_text"])
    assert again["seconds"] == other["seconds"] and again["layout_words"] == other["layout_words"]
    assert again["layout_text"] == other["layout_text"] and again["others"] == []


def test_a_layout_that_is_faster_within_the_tie_is_called_faster():
    found = plan(LLAMA3_8B, H100, 64, 256)
    simple, complex_ = found.best, replace(found.best, layout=replace(found.best.layout, virtual_stages=4, pp=2))
    faster = replace(complex_, time={**simple.time, "matmuls": simple.time["matmuls"] - 0.004 * simple.seconds})
    tied = replace(found, fitting=(faster, simple))
    assert tied.best == simple and tied.why_not(faster) == "0.4% faster, a tie: less simple"
    same = replace(complex_, time={**simple.time, "matmuls": simple.time["matmuls"] - 1e-4 * simple.seconds})
    assert (
        tied.why_not(same) == "hardly faster, a tie: less simple" and tied.why_not(simple) == "hardly slower: the same"
    )


def test_what_the_planner_is_known_to_get_wrong_is_a_note(capsys):
    (wide,) = said(capsys, *SMALL, "--fix", "tp=8")["warnings"]
    assert wide.startswith("tp 8, or tp over a whole node, may cost more than predicted")
    assert said(capsys, *SMALL, "--layout", "dp=64,zero_stage=3")["warnings"] == []
    # Of the layouts within ±, too: here the best has tp 4.
    found = said(capsys, "Llama 3 70B", "--gpus", "512", "--batch", "1024")
    assert found["layout"]["tp"] == 4 and found["warnings"] == [wide]
    assert command.main([*SMALL, "--layout", "dp=64,zero_stage=3", "--sequence", "8191"]) == 0
    odd = "8191 tokens per sequence are odd, so neither tp nor cp can split them"
    assert f"\nnote     {odd}\n" in capsys.readouterr().out
    racks = find("GB200 NVL72"), replace(H100, domain=4)
    assert [len(warnings(LLAMA3_8B, rack, MEGATRON, [Layout(tp=4)])) for rack in racks] == [0, 1]


def test_a_configuration_is_named_as_on_the_page(tmp_path, capsys):
    for config, name in (
        (LLAMA2, "llama"),
        ({**LLAMA2, "_name_or_path": "meta-llama/Llama-2-7b"}, "meta-llama/Llama-2-7b"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        found = said(capsys, "--config", str(tmp_path / "config.json"), "--gpus", "8", "--batch", "8")
        assert found["model"] == huggingface.model_of(config).name == name


def test_the_table_has_every_term_and_the_others(capsys):
    assert command.main(list(SMALL)) == 0
    text = capsys.readouterr().out
    found = plan(LLAMA3_8B, H100, 64, 256)
    best = found.best
    for term, seconds in best.time.items():
        assert re.search(
            rf"^{re.escape(term)} +{re.escape(f'{seconds:.3g}')} +{seconds / best.seconds:.1%}", text, re.M
        )
    for term, nbytes in best.memory.items():
        assert re.search(rf"   {term} +{nbytes / 1e9:.1f}$", text, re.M)
    assert f"layout   {best.layout}\n" in text and "more do not fit" in text and " slower: " in text
    margin = accuracy.margin(best, "bf16", MEGATRON)
    assert f"± {margin.error:.1%}, the median error of {margin.runs} published runs ({margin.family})" in text
    close = [one for one in found.alternatives() if one.seconds <= best.seconds * (1 + margin.error)]
    assert close and f"\nothers, {len(close)} of them within ±: measure these, too, before you choose\n" in text


def test_days_hours_and_cost_by_hand(capsys):
    layout = ("--layout", "dp=8,tp=8")
    found = said(
        capsys, "Llama 3 70B", "--batch", "64", *layout, "--tokens", "1e12", "--price", "2.5", "--currency", "EUR"
    )
    steps = 1e12 / (64 * 8192)
    run, seconds = found["run"], steps * found["seconds"] / 0.9
    assert run["steps"] == pytest.approx(steps) and run["days"] == pytest.approx(seconds / 86400)
    assert run["gpu_hours"] == pytest.approx(64 * seconds / 3600) and run["cost"] == pytest.approx(
        2.5 * run["gpu_hours"]
    )
    assert run["currency"] == "EUR" and "2407.21783" in run["goodput_source"]
    all_of_it = said(capsys, "Llama 3 70B", "--batch", "64", *layout, "--tokens", "1e12", "--goodput", "1")["run"]
    assert all_of_it["days"] == pytest.approx(0.9 * run["days"])
    assert all_of_it["goodput_source"] is None and all_of_it["cost"] is None


def test_fine_tuning_has_its_model_and_its_doubts(capsys):
    whole = said(capsys, "Llama 3 70B", "--gpus", "64", "--batch", "64", "--sequence", "32768")
    packed = said(capsys, "Llama 3 70B", "--gpus", "64", "--batch", "64", "--sequence", "32768", "--documents", "2000")
    assert packed["time"]["attention"] < whole["time"]["attention"] / 4 and packed["document"] == 2000
    adapters = said(capsys, "Llama 3 70B", "--gpus", "8", "--batch", "8", "--lora", "64")
    assert "adapters" in adapters["time"] and "optimizer" not in adapters["time"] and adapters["lora_rank"] == 64
    assert packed["margin"]["unlike"] == ["packed documents"] and adapters["margin"]["unlike"] == []


def test_a_machine_of_ones_own_is_doubted_even_under_a_known_name():
    layout, known, mine = Layout(dp=8, tp=8), find("H100"), own({**MACHINE, "name": "H100"})
    found = [predict(LLAMA3_8B, machine, layout, 64) for machine in (known, mine)]
    margins = [accuracy.margin(prediction, "bf16", MEGATRON) for prediction in found]
    assert [margin.unlike for margin in margins] == [(), ("this machine",)]
    runs = f"{margins[0].runs} published runs (megatron, dense models, Hopper, bf16"
    assert [margin.words for margin in margins] == [
        f"the median error of {runs})",
        f"the median error of {runs}; none with this machine)",
    ]


def test_a_layout_that_does_not_fit_says_so(capsys):
    assert said(capsys, "Llama 3 70B", "--batch", "8", "--layout", "dp=8")["fits"] is False
    assert command.main(["Llama 3 70B", "--batch", "8", "--layout", "dp=8"]) == 0
    assert ": DOES NOT FIT\n" in capsys.readouterr().out


def test_what_is_fixed_stays_and_the_rest_is_searched(capsys):
    free, fixed = said(capsys, *SMALL), said(capsys, *SMALL, "--fix", "tp=4,micro_batch=2")
    assert free["layout"]["tp"] != 4 and (fixed["layout"]["tp"], fixed["layout"]["micro_batch"]) == (4, 2)
    assert fixed["seconds"] > free["seconds"] and fixed["fits"]
    assert all(
        "tp 4 " in other["layout_words"] and "micro-batch 2," in other["layout_words"] for other in fixed["others"]
    )
    # To fix what the free search found changes nothing.
    again = said(capsys, *SMALL, "--fix", free["layout_text"].split(",")[0])
    assert again["seconds"] == free["seconds"]


def test_an_export_is_its_lines_alone_with_step_and_memory(capsys):
    best = plan(LLAMA3_8B, H100, 64, 256, software=BRIDGE).best
    step = Step(LLAMA3_8B, H100, best.layout, BRIDGE)
    takes = f"{best.seconds:.2f} s per step, {best.nbytes / 1e9:.0f} of {H100.memory / 1e9:.0f} GB per GPU"
    settings = [line for line in lines("bridge", step, 256) if not line.startswith("#")]
    for named in ([], ["--software", "megatron bridge"]):
        assert command.main([*SMALL, "--export", "bridge", *named]) == 0
        text = capsys.readouterr().out.splitlines()
        searched = [line for line in text[:3] if line.startswith("# searched with megatron bridge's own formats")]
        assert len(searched) == (not named) and f"# predicted for megatron bridge: {takes}" in text[:3]
        assert [line for line in text if not line.startswith("#")] == settings
    layout = ["--layout", "dp=64", "--software", "megatron", "--export", "bridge"]
    assert command.main([*SMALL, *layout]) == 0
    second = capsys.readouterr().out.splitlines()[1]
    assert second.startswith("# predicted for megatron: ") and second.endswith(" of 86 GB per GPU: DOES NOT FIT")


def test_the_list_names_what_is_known(capsys):
    assert command.main(["--list"]) == 0
    text = capsys.readouterr().out
    for name in ("Llama 3 405B", "GB300 NVL72", "torchtitan v0.2.2", "qwen3_moe"):
        assert name in text
    assert list(SOFTWARE) == re.findall(r"^  (.*?): .+", text.split("software\n")[1].split("--export")[0], re.MULTILINE)
    assert "  bridge 26.06: the same, containers 26.06 and 26.08\n" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'Llama 3 71B' --gpus 8 --batch 8", "no model 'Llama 3 71B'; there are Llama 3 8B"),
        ("--gpus 8 --batch 8", "name one model, known or by --config"),
        ("'Llama 3 8B' --gpus 8", "--batch is missing"),
        ("'Llama 3 8B' --batch 8", "--gpus is missing"),
        ("'Llama 3 8B' --gpus 0 --batch 8", "argument --gpus: '0' is no whole number above 0"),
        ("'Llama 3 8B' --gpus 8 --batch 8.5", "argument --batch: '8.5' is no whole number above 0"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --machine H101", "no cluster 'H101'; there are: A100"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --machine no.toml", "no.toml: No such file or directory; name a file"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --precision nvfp4", "H100 has no 'nvfp4'; it has bf16, fp8, mxfp8"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --software jax", "no software 'jax'; there are megatron"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --export jax", "argument --export: invalid choice: 'jax'"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --fix tq=4", "--fix has 'tq=4'; it may have whole numbers for dp, tp, pp"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --fix tp=two", "--fix has 'tp=two'; it may have whole numbers for dp, tp"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --fix tp=3", "no layout of 8 GPUs and 8 sequences has tp=3; fix other"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --fix tp=4 --layout dp=8", "--layout predicts one layout, and --fix"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --lora --export megatron", "Megatron-LM core_v0.19.0 has no LoRA; export to"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --layout dp=8,tq=4", "--layout has 'tq'; it may have dp, tp, pp"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --layout dp=8,tp=two", "--layout has 'tp=two'; tp must be a whole number"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --layout tp=3", "dp 1 x tp 3 x pp 1 x cp 1 = 3 ranks, but there are 8 GPUs"),
        ("'Llama 3 8B' --gpus 8 --batch 9 --layout pp=1", "dp x micro_batch = 8 does not divide 9 sequences"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --layout zero_stage=2", "megatron has no ZeRO-2; choose another layout"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --layout recompute_modules=mlp,recompute_layers=4",
         "recompute_modules and recompute_layers are both set: programs recompute one or the other"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --layout recompute=full,recompute_layers=10",
         "recompute is 'full', which leaves nothing to recompute_layers; set one alone"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --layout recompute=full,recompute_modules=mlp",
         "recompute is 'full', which leaves nothing to recompute_modules; set one alone"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --layout recompute=full,offload_layers=4",
         "recompute is 'full', which leaves nothing to offload_layers; set one alone"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --layout recompute=selective,recompute_layers=4",
         "recompute is 'selective', which leaves nothing to recompute_layers; set one alone"),
        ("'Llama 3 405B' --gpus 8 --batch 8", "Llama 3 405B does not fit 8 GPUs: dp 1 tp 4 pp 2"),
        ("'Llama 3 70B' --gpus 1 --batch 1", "Llama 3 70B does not fit 1 GPU: dp 1 tp 1 pp 1 cp 1 ep 1, micro-batch 1, "
         "1 virtual stage, ZeRO-0 needs 1270 GB, and a plan may fill 82, 95 percent of a GPU's 86; use more GPUs"),
        ("'Llama 3 8B' --gpus 1 --batch 8 --layout tp=8", "dp 1 x tp 8 x pp 1 x cp 1 = 8 ranks, but there is 1 GPU; "),
        ("'Llama 3 8B' --gpus 8 --batch 8 --documents 10000", "documents of 10000 tokens are longer than sequences of "
         "8192; choose shorter documents"),
        ("'Llama 3 8B' --gpus 64 --batch 7 --sequence 17", "no layout of 64 GPUs divides a batch of 7 sequences; "
         "choose another, as 64"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --price 2", "--price and --goodput need --tokens"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --tokens 1e9 --goodput 90", "--goodput is 90; it is a part of the time"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --tokens many", "argument --tokens: 'many' is no number above 0"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --colour", "unrecognized arguments: --colour"),
        ("--config no.json --gpus 8 --batch 8", "no.json: No such file or directory; name a file with configuration"),
        ("--config list.json --gpus 8 --batch 8", "list.json has no configuration in JSON: it is no table"),
        ("--config half.json --gpus 8 --batch 8", "half.json has no configuration in JSON: Expecting"),
        ("--config mamba.json --gpus 8 --batch 8", "the architecture 'mamba2' (model_type) is not known; known are"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --machine half.toml", "the machine's field 'memory_gb' is missing: 10⁹"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --machine typo.toml", "typo.toml: nvlink_gbs is no field; did you mean "
         "nvlink_gb_s?"),
        ("'Llama 3 8B' --gpus 8 --batch 8 --machine flat.toml", "flat.toml: tflops must be a table"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_one_line_and_status_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in (
        ("list.json", "[1]"), ("half.json", "{"), ("mamba.json", '{"model_type": "mamba2"}'),
        ("half.toml", 'like = "H100"\ntflops = { bf16 = 989 }\n'),
        ("typo.toml", TOML.replace("nvlink_gb_s", "nvlink_gbs")),
        ("flat.toml", TOML.replace("{ bf16 = 840, fp8 = 1680 }", "840")),
    ):  # fmt: skip
        Path(name).write_text(text, encoding="utf-8")
    try:
        status = command.main(shlex.split(arguments))
    except SystemExit as stop:
        status = stop.code
    printed = capsys.readouterr()
    assert status == 2 and printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith(f"planner: {message}"), printed.err


# Its README, and its package


README = (ROOT / "planner" / "README.md").read_text(encoding="utf-8")
TOML = re.search(r"```toml\n(.*?)```", README, re.DOTALL)[1]


def test_the_examples_of_the_readme_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(LLAMA2), encoding="utf-8")
    Path("mine.toml").write_text(TOML, encoding="utf-8")
    examples = re.findall(r"^\$ python -m planner (.*)", README, re.MULTILINE)
    assert len(examples) >= 6
    for example in examples:
        assert command.main(shlex.split(example)) == 0, example
    capsys.readouterr()
    assert said(capsys, *SMALL, "--machine", "mine.toml")["machine"] == "mine"
    assert own(tomllib.loads(TOML)).memory == 96e9
    assert f"the 141 of an H200 are {find('H200').memory / 1e9:.0f} here" in TOML
    assert f"at most {FILLED:.0%} of the memory".replace("%", " %") in README


def test_the_planner_installs_by_itself(tmp_path):
    """A wheel, made in a copy of the repository, runs in a Python without any other package."""
    for path in ("planner", "machines", "benchmarks/published_runs.json"):
        copy = shutil.copytree if (ROOT / path).is_dir() else shutil.copy
        (tmp_path / path).parent.mkdir(exist_ok=True)
        copy(ROOT / path, tmp_path / path)
    build = "from setuptools import build_meta; build_meta.build_wheel('made')"
    subprocess.run(
        [sys.executable, "-c", build], cwd=tmp_path / "planner", check=True, capture_output=True, timeout=300
    )
    (wheel,) = (tmp_path / "planner" / "made").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        about = email.message_from_bytes(archive.read(metadata))
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    project = tomllib.loads((ROOT / "planner" / "pyproject.toml").read_text())["project"]
    assert about["Version"] == project["version"] and about.get_all("Requires-Dist") is None
    ours = {f"planner/{path.name}" for path in (ROOT / "planner").glob("*.py") if path.name != "setup.py"}
    described = {f"machines/{path.name}" for path in (ROOT / "machines").glob("*.py")}
    assert names == ours | described | {"planner/published_runs.json"}
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    code = [sys.executable, "-S", "-m", "planner", *SMALL, "--json"]
    done = subprocess.run(
        code, cwd=tmp_path / "installed", env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["seconds"] == plan(LLAMA3_8B, H100, 64, 256).best.seconds
