"""The running models: published totals, and numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from machines.model import (
    DEEPSEEK_V3,
    LLAMA3_8B,
    LLAMA3_70B,
    LLAMA3_405B,
    Model,
    activation_bytes_per_token,
    attention_parameters,
    flops_per_token,
    logits_bytes_per_token,
    matmul_parameters,
    parameters,
    state_bytes_per_parameter,
)

#: A GPT as in 2021: four times the width in the MLP, no gate, as many heads of keys and values as of queries.
GPT = Model("GPT", 96, 12288, 96, 96, 128, 4 * 12288, 51200, 2048, gated=False, tied=True)


@pytest.mark.parametrize(
    ("model", "total", "active"),
    [(LLAMA3_8B, 8.03e9, 8.03e9), (LLAMA3_70B, 70.6e9, 70.6e9), (LLAMA3_405B, 405.9e9, 405.9e9),
     (DEEPSEEK_V3, 671e9, 37e9)],
    ids=lambda value: getattr(value, "name", None),
)  # fmt: skip
def test_the_totals_are_the_published_ones(model, total, active):
    """Model cards of Llama 3.1; README of DeepSeek-V3 ("671B total parameters with 37B activated")."""
    assert parameters(model).total == pytest.approx(total, rel=1e-3)
    # DeepSeek counts neither embedding nor, it seems, output layer with the 37; both are 0.93 billion.
    assert parameters(model).active == pytest.approx(active, rel=0.02)


def test_the_parameters_of_llama_by_hand():
    """As Megatron-LM's theoretical_memory_usage.py counts a layer: 2 h² (1 + kv/heads) + 2 h (1.5 ffn) + two norms."""
    attention = 2 * 4096 * 4096 * (1 + 8 / 32)
    assert attention_parameters(LLAMA3_8B) == attention == 41_943_040
    layer = attention + 2 * 4096 * (1.5 * 14336 + 1)
    assert parameters(LLAMA3_8B).total == 32 * layer + 4096 + 2 * 128256 * 4096 == 8_030_261_248


def test_the_flops_of_a_token_by_hand():
    """Six per weight, and per layer 12 · heads · head size · tokens, of which a causal mask leaves half."""
    weights = 8_030_261_248 - 128256 * 4096 - 65 * 4096
    attention = 12 * 32 * 4096 * 8192
    assert matmul_parameters(LLAMA3_8B) == weights
    assert flops_per_token(LLAMA3_8B, "none") == 6 * weights
    assert flops_per_token(LLAMA3_8B, "full") == 6 * weights + attention
    assert flops_per_token(LLAMA3_8B) == 6 * weights + attention / 2 == pytest.approx(51.47e9, rel=1e-4)
    assert flops_per_token(LLAMA3_8B, "none", logits=False) == 6 * (weights - 128256 * 4096)
    # The FLOPs per token that Megatron-Bridge's tables imply (TFLOP/s over tokens per second).
    assert flops_per_token(LLAMA3_70B) == pytest.approx(449.1e9, rel=2e-3)
    assert flops_per_token(LLAMA3_405B) == pytest.approx(2524e9, rel=2e-3)
    with pytest.raises(ValueError, match="attention is 'half'; it must be 'causal', 'full' or 'none'"):
        flops_per_token(LLAMA3_8B, "half")


def test_a_window_leaves_a_token_fewer_pairs():
    whole = flops_per_token(LLAMA3_8B)
    windows = [flops_per_token(replace(LLAMA3_8B, window=w, windowed=0.5)) for w in (128, 1024, 8192, 10**6)]
    assert windows == sorted(windows) and windows[0] < windows[1] < windows[2] == windows[3] == whole


@pytest.mark.parametrize(("stage", "expected"), [(0, 18), (1, 6 + 12 / 8), (2, 2 + 16 / 8), (3, 18 / 8)])
def test_the_bytes_of_a_parameter_by_stage(stage, expected):
    """Megatron-LM's theoretical_memory_usage.py: 18, or 6 + 12/dp with its distributed optimizer, which is stage 1."""
    assert state_bytes_per_parameter(stage, 8) == expected
    assert state_bytes_per_parameter(stage, 1) == 18
    assert state_bytes_per_parameter(stage, 16) <= state_bytes_per_parameter(stage, 8)


def test_gradients_in_two_bytes_and_a_stage_that_does_not_exist():
    assert state_bytes_per_parameter(1, 8, gradient=2) == 4 + 12 / 8
    with pytest.raises(ValueError, match="stage is 4; ZeRO has stages 0 to 3"):
        state_bytes_per_parameter(4)


def test_the_bytes_of_a_layer_by_hand():
    """Megatron-LM and lesson 10 count 34 h per token of a GPT's layer without its scores; 2 h are masks of dropout."""
    assert activation_bytes_per_token(GPT) == (34 - 2) * 12288
    # On 8 ranks with sequence parallelism an eighth; without it, the 8 h before and after the split layers stay whole.
    assert activation_bytes_per_token(GPT, tensor=8) == 32 * 12288 / 8
    assert activation_bytes_per_token(GPT, tensor=8, sequence_parallel=False) == (8 + 24 / 8) * 12288
    # A layer of Llama: 8 h, queries and output 4 h, eight of 32 heads for keys and values h, three inner entries 6 f.
    assert activation_bytes_per_token(LLAMA3_8B) == 8 * 4096 + 4 * 4096 + 4096 + 6 * 14336 == 34 * 4096
    assert logits_bytes_per_token(LLAMA3_8B, tensor=8) == 12 * 128256 / 8


def test_a_token_is_kept_for_each_expert_that_it_visits():
    dense, moe = (activation_bytes_per_token(DEEPSEEK_V3, moe) for moe in (False, True))
    assert moe - dense == 6 * (9 * 2048 - 18432) + 4 * 8 * 7168
