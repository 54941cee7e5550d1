"""The same physical question has the same answer in every lesson, in the planner and in what is drawn.

A lesson's answer comes from the cells of its chapter or from its solution's functions. Where it approximates on
purpose, the factor that this may cost stands beside it.
"""

from __future__ import annotations

import ast
import functools
import json
import math
import random
import re
import sys
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import planner
import ranks
from autograder.lesson import notebook
from machines.cluster import NETWORK_STEP, NVLINK_STEP, Cluster, find
from machines.model import (
    DEEPSEEK_V3,
    LLAMA3_8B,
    LLAMA3_70B,
    LLAMA3_405B,
    flops_per_token,
    parameters,
    state_bytes_per_parameter,
)
from planner import Layout, communication, memory
from planner.arithmetic import Step
from planner.software import MATMUL_SHARE, MEGATRON, META

sys.path.insert(0, str(notebook.ROOT / "book" / "_ext"))

import live_figure
import running_model

BOOK = notebook.ROOT / "book"
H100 = find("H100")
PEAK = H100.flops["bf16"]
#: The part of it that the planner counts on.
SHARE = MATMUL_SHARE["H100", "bf16"][0]
#: The lessons that speak of GPUs.
LESSONS = ["02_costs", "09_fsdp", "10_memory", "12_tensor", "13_context", "14_experts", "15_layout"]


class Answer(NamedTuple):
    """A lesson's answer; least, most: by what factor it may be off, because of what the lesson leaves out."""

    value: float
    least: float = 0.995
    most: float = 1.005


def disagreements(right: float, answers: dict[str, Answer]) -> list[str]:
    """A line for each answer that is off by more than it may be."""
    return [
        f"{who}: {answer.value:.5g}, {answer.value / right:.2f} times {right:.5g}"
        for who, answer in answers.items()
        if not answer.least <= answer.value / right <= answer.most
    ]


def code_cells(lesson: str) -> list[str]:
    """The code cells of a lesson's chapter, without their options."""
    text = (BOOK / f"{lesson}.md").read_text(encoding="utf-8")
    cells = re.findall(r"^```\{code-cell\} python\n(.*?)^```", text, re.M | re.S)
    return [re.sub(r"\A(:.*\n)+", "", cell) for cell in cells]


@functools.cache
def chapter(lesson: str, words: str) -> dict[str, Any]:
    """The names of a chapter after its setup and the cell with these words; "glued": the numbers in its sentences."""
    setup, *cells = code_cells(lesson)
    names: dict[str, Any] = {"ranks": ranks}
    exec(setup, names)
    names["glued"] = glued = {}
    names["glue"] = lambda name, value, display: glued.update({name: value})
    (cell,) = [cell for cell in cells if words in cell]
    exec(cell, names)
    return names


# How long does an all-reduce over 16 ranks on two H100 nodes take?


def nominal(lesson: dict[str, Any], machine: Cluster = H100) -> Cluster:
    """The machine of lesson 15 on which messages cost their bytes alone."""
    found: Cluster = lesson["BandwidthOnly"](**vars(machine))
    return found


def tensor_seconds(lesson: dict[str, Any], nbytes: int) -> float:
    """What lesson 15 charges for one all-reduce of so many bytes over 16 neighbors."""
    model = replace(LLAMA3_8B, hidden=nbytes // 2, sequence=1)
    layout = {"tp": 16, "dp": 1, "pp": 1, "micro": 1, "chunks": 1, "recompute": False}
    return float(lesson["tensor_seconds"](model, nominal(lesson), layout)) / 4  # a layer has four


def test_an_all_reduce_over_two_nodes_takes_as_long_in_every_lesson():
    """Bandwidth only: 2 GiB, for which no start-up counts. A group that fills its nodes has all their ports."""
    nbytes, n = 2**31, 16
    two, twelve = notebook.functions("02_costs"), chapter("12_tensor", "def tensor_ratio")
    notebook15, fifteen = notebook.functions("15_layout"), chapter("15_layout", "ONE_PORT =")
    (_, inside), (_, port) = two["NVLINK"], two["PORT"]
    width, tokens = twelve["width"], nbytes / 2 / twelve["width"]
    forward = 24 * tokens * width**2 / n / twelve["flops"]  # seconds of one layer's products, on one of n ranks
    critical, h = fifteen["eight_ports"], LLAMA3_405B.hidden
    layer = 72 * h**2 / n * (nbytes / 2 / h) / PEAK  # of forward and backward, which have four all-reduces
    right = 2 * (n - 1) / n * nbytes / H100.bandwidth(n)
    assert not disagreements(
        right,
        {
            "lesson 02, rings through all ports": Answer(two["ring_time"](nbytes, n, 0, port / H100.ports)),
            # One phase after the other: the phases inside the nodes add to those between them.
            "lesson 02, two levels": Answer(two["two_level_time"](nbytes, 2, 8, 8, (0, inside), (0, port)), 1, 2),
            "lesson 12": Answer(twelve["tensor_ratio"](n, H100) * forward / 2),
            "lesson 15, the notebook": Answer(tensor_seconds(notebook15, nbytes)),
            "lesson 15, the critical width": Answer(critical / h * layer / 4),
            # Nominal bandwidths are not quite reached (NVLINK_SHARE, NETWORK_SHARE), and vectors go in chunks.
            "machines.cluster": Answer(H100.all_reduce_seconds(nbytes, n), 1, 1.2),
        },
    )


def test_a_single_port_for_a_node_is_caught():
    """As lessons 09 and 15 once had it: 50 GB/s for a group that fills its nodes; and 400 for one that does not."""
    wrong = replace(H100, ports=1)
    right = 1 / H100.bandwidth(16)
    assert len(disagreements(right, {"one": Answer(1 / wrong.bandwidth(16)), "ours": Answer(right)})) == 1
    assert disagreements(1 / H100.bandwidth(16, stride=8), {"all ports": Answer(right)})


def test_lesson_02_says_how_short_vectors_travel():
    """The steps of a ring on 8 nodes of 8: 112 inside nodes, 14 between them; in the chapter, and in its figure."""
    glued = chapter("02_costs", "steps_{name}")["glued"]
    simple = 112 * NVLINK_STEP.simple + 14 * NETWORK_STEP.simple
    assert glued["steps_simple"] == f"{simple * 1e6:.0f}" == "577" and glued["steps_ll"] == "150"
    assert live_figure.module("race")._times(0)["one ring"] == pytest.approx(simple)


def seventy(lesson: dict[str, Any], machine: Cluster, tp: int) -> float:
    """Seconds of the notebook's step of Llama 3 70B on 512 GPUs with this tp, calibrated as the notebook does it."""
    share = lesson["calibrate"](LLAMA3_405B, H100, lesson["llama3_layout"](64), 8192, 2048, 430)
    layout = {"tp": tp, "dp": 16, "pp": 32 // tp, "micro": 1, "chunks": 4, "recompute": False}
    return float(lesson["cost"](LLAMA3_70B, machine, layout, 512, 512, share)["seconds"])


@pytest.mark.parametrize(("machine", "slower"), [("BandwidthOnly", 0.20), ("Cluster", 0.28), ("HidesInside", 0.47)])
def test_what_lesson_15_says_of_wider_tensor_parallelism(machine, slower):
    """The notebook's answer names the first as a fifth, and the last as by far the largest."""
    lesson = notebook.functions("15_layout")
    links = lesson[machine](**vars(H100))
    assert seventy(lesson, links, 16) / seventy(lesson, links, 8) - 1 == pytest.approx(slower, abs=0.005)


def test_lesson_15_predicts_the_run_that_it_was_not_calibrated_on():
    """Llama 3 405B on 16,384 GPUs reached 400 TFLOP/s per GPU; calibrated on 8,192, the notebook's cost says 396."""
    lesson, machine = notebook.functions("15_layout"), replace(H100, memory=math.inf)
    share = lesson["calibrate"](LLAMA3_405B, H100, lesson["llama3_layout"](64), 8192, 2048, 430)
    found = lesson["cost"](LLAMA3_405B, machine, lesson["llama3_layout"](128), 16384, 2048, share)
    assert found["mfu"] * PEAK / 1e12 == pytest.approx(396, abs=1)


@pytest.mark.parametrize(
    ("kind", "n", "ports", "size"),
    [("tp", 8, 8, 3419), ("tp", 16, 8, 8242), ("tp", 16, 1, 65933), ("fsdp", 512, 8, 2468)],
)
def test_the_critical_sizes_that_lesson_15_names(kind, n, ports, size):
    speed = replace(H100, ports=ports).bandwidth(n)
    assert round(notebook.functions("15_layout")["critical"](kind, n, PEAK, speed)) == size


# How many bytes does a parameter take at each stage of ZeRO?


def state_bytes(lesson: dict[str, Any], ranks: int) -> float:
    """Lesson 15's memory, ZeRO-1: the bytes per parameter that are left when activations are taken away."""
    layout = {"tp": 1, "dp": ranks, "pp": 1, "micro": 1, "chunks": 1, "recompute": False}
    silent = lesson["memory_bytes"](replace(LLAMA3_8B, sequence=0), layout, ranks)
    return float(silent) / parameters(LLAMA3_8B).total


@pytest.mark.parametrize("n", [1, 8, 64])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_parameter_takes_the_same_bytes_in_every_lesson(stage, n):
    """Parameters in bf16; gradients, master weights and moments in float32, as Megatron does."""
    eight, fifteen = notebook.functions("08_zero1"), notebook.functions("15_layout")
    answers = {"lesson 08": Answer(eight["memory_per_rank"](64 * 10**9, n, stage) / (64 * 10**9))}
    if stage < 3:
        step = Step(LLAMA3_8B, H100, Layout(dp=n, zero_stage=stage), MEGATRON)
        answers["the planner"] = Answer(memory.states(step) / parameters(LLAMA3_8B).total)
    if stage == 1:
        answers["lesson 15"] = Answer(state_bytes(fifteen, n))
    assert not disagreements(state_bytes_per_parameter(stage, n), answers)


# How many FLOPs does a token take?


@pytest.mark.parametrize("model", [LLAMA3_8B, LLAMA3_70B, LLAMA3_405B], ids=lambda model: model.name)
@pytest.mark.parametrize("causal", [True, False])
def test_a_token_takes_the_same_flops_in_every_lesson(model, causal):
    """Lesson 02 counts six per parameter, the embedding's and the norms' too, which a token only looks up."""
    two = notebook.functions("02_costs")
    m, total = model, parameters(model).total
    looked_up = 6 * (m.vocab * m.hidden + (2 * m.layers + 1) * m.hidden)
    products, right = flops_per_token(m, "none"), flops_per_token(m, "causal" if causal else "full")
    counted = two["compute_time"](total, 1, PEAK, 1.0) * PEAK
    assert not disagreements(products, {"lesson 02": Answer(counted - looked_up, 1 - 1e-9, 1 + 1e-9)})
    assert looked_up < 0.08 * right  # what the lessons' rule costs; most for the smallest model


def test_attention_adds_to_llama_3_what_lesson_02_says():
    glued = chapter("02_costs", '"attention_8b"')["glued"]
    for name, m in (("attention", LLAMA3_405B), ("attention_8b", LLAMA3_8B)):
        share = flops_per_token(m, "full") - flops_per_token(m, "none")
        assert glued[name] == f"{100 * share / (6 * parameters(m).total):.0f}"


# From how few tokens per GPU on can gradients not hide?


@pytest.mark.parametrize("nodes", [64, 128])
def test_gradients_hide_behind_as_many_tokens_in_every_lesson(nodes):
    """An all-reduce of bf16 gradients behind a backward pass at two fifths of an H100's peak, a port for each GPU."""
    n, size, rate = 8 * nodes, 8e9, 0.4 * PEAK
    two, fifteen = notebook.functions("02_costs"), notebook.functions("15_layout")
    nine, twelve = chapter("09_fsdp", "needed ="), chapter("12_tensor", "def data_ratio")
    assert twelve["flops"] == rate
    right = (n - 1) / n * rate / H100.bandwidth(n)
    step = Step(LLAMA3_8B, H100, Layout(dp=n, zero_stage=0), replace(MEGATRON, gradient_bytes=2, data_overlap=False))
    seconds = communication.data(step, 0.0, 0.0, 1) / parameters(LLAMA3_8B).total
    answers = {
        # It calls N ranks so many that (N - 1) / N is 1.
        "lesson 02": Answer((n - 1) / n * two["tokens_to_hide"](size, size, 4, H100.bandwidth(n), PEAK, 0.4)),
        # A gather of bf16 parameters behind a forward: half the bytes, half the products.
        "lesson 09": Answer((n - 1) / n * nine["eight"][0][0]),
        # Its ratio is that of float32 gradients over a whole step.
        "lesson 12": Answer(16384 * twelve["data_ratio"](n, H100) / 2 / (2 / 3)),
        # Two gathers and a reduce-scatter behind a whole step: the same ratio.
        "lesson 15": Answer(fifteen["critical"]("fsdp", n, rate, H100.bandwidth(n))),
        # Long vectors in buckets do not quite reach the nominal bandwidth.
        "the planner": Answer(seconds * rate / 4, 1, 1.5),
    }
    assert not disagreements(right, answers)


def test_the_band_of_tokens_goes_from_nominal_links_to_measured_ones():
    """Lesson 02's table: the lower end is its formula with the MFU of Llama 3, the upper one has what was measured."""
    two = notebook.functions("02_costs")["tokens_to_hide"]
    for name, stride in (("H100", 1), ("H100", 8), ("B200", 1), ("GB200 NVL72", 1), ("GB300 NVL72", 8)):
        machine = find(name)
        least, most = communication.tokens_to_hide(machine, 512, stride)
        assert two(1e9, 1e9, 4, machine.bandwidth(512, stride), machine.flops["bf16"], 0.4) == pytest.approx(least)
        assert 1.15 * least < most < 2 * least
        fp8 = communication.tokens_to_hide(machine, 512, stride, "fp8")
        assert fp8[0] == pytest.approx(2 * least, rel=1e-3) and fp8[1] > 1.9 * most
    assert communication.tokens_to_hide(H100, 512, sent=8)[0] == pytest.approx(2 * 989, rel=1e-3)


def test_lesson_02_counts_the_tokens_of_one_micro_batch_for_llama_3():
    """Float32 gradients, reduce-scattered over 128 copies, against 8,192 tokens: at the edge, not 17 times inside."""
    glued = chapter("02_costs", "llama_has")["glued"]
    by_the_theorem = 4 * 0.4 * 989e12 / (6 * 2 / 3 * 50e9)
    measured = by_the_theorem * (SHARE / 0.4) / 0.97  # the planner's share of the peak, and a port's
    least, most = (float(f"{tokens:.2g}") for tokens in (by_the_theorem, measured))
    assert (glued["llama_has"], glued["llama_needs"]) == ("8,192", f"{least:,.0f} to {most:,.0f}")
    assert by_the_theorem < 8192 < measured < 2 * 8192  # N sequences of a chunk hide those of the next for N = 2


def test_lesson_02_leaves_the_diagonal_where_its_tokens_no_longer_hide_gradients():
    cell = chapter("02_costs", "counts, counts / 8")
    diagonal, *overlap = (line.get_ydata() for line in cell["ax"].lines[:3])
    for edge, knee in zip(overlap, cell["knees"], strict=True):
        apart = abs(cell["counts"] / knee - 1) > 0.01  # N - 1 of N parts are sent
        assert np.isclose(edge, diagonal)[apart].tolist() == (cell["counts"] <= knee)[apart].tolist()
    assert cell["glued"]["knee_gpus"] == " to ".join(f"{2**19 / tokens:.0f}" for tokens in (3003, 1978))


def test_start_ups_raise_the_tokens_as_the_messages_get_shorter():
    """A reduce-scatter of one layer of Llama 3 8B, by the prices of `machines.cluster`; endless pieces have none."""
    for n in (64, 512, 4096):
        alone, layer = communication.tokens_to_hide(H100, n), communication.tokens_to_hide(H100, n, piece=872e6)
        seconds = H100.reduce_scatter_seconds(872e6, n) * n / (n - 1)
        assert layer[1] == pytest.approx(SHARE * PEAK * seconds / 872e6)
        assert layer[0] - alone[0] == pytest.approx(0.4 / SHARE * (layer[1] - alone[1]))
        assert communication.tokens_to_hide(H100, n, piece=1e15) == pytest.approx(alone, rel=1e-3)


# Nobody types a machine's numbers


#: Bandwidths, rates and start-ups of the machines of `machines.cluster`, as they were once typed.
TYPED = re.compile(r"\b(?:6\.25|3\.125|25|50|63|300|400|450|900)e9\b|\b(?:312|400|989|990|4)e1[24]\b|\b3\.4e-6|\b14e-6")


def typed(code: str) -> list[str]:
    """The numbers of machines that this code types; tests of the answers, in which such numbers are fine, have none."""
    return [] if "BEGIN HIDDEN TESTS" in code else TYPED.findall(code)


@pytest.mark.parametrize("lesson", LESSONS)
def test_no_lesson_types_a_machines_numbers(lesson):
    cells = code_cells(lesson) + [cell.source for cell in notebook.read(lesson).cells if cell.cell_type == "code"]
    assert not {cell.splitlines()[0]: typed(cell) for cell in cells if typed(cell)}


def test_typed_numbers_are_seen():
    assert typed('links = {"NVLink": 450e9, "one port": 50e9}') == ["450e9", "50e9"]
    assert typed("F, port = 4e14, 50e9") and typed("INSIDE = (3.4e-6, 1 / 450e9)")
    assert not typed("w = 4e-3, 1e9")


# Scripts of the page cannot import Python


def test_the_live_figures_have_the_machines_numbers():
    given = json.loads(live_figure.module("layout").data())["machines"]
    for name, machine in given.items():
        one = find(name)
        assert machine["peak"] == one.flops["bf16"] and machine["memory"] == one.memory
        for field in ("nvlink", "port", "ports", "domain"):
            assert machine[field] == getattr(one, field), f"{name}: {field}"
    script = (BOOK / "figures" / "race.js").read_text(encoding="utf-8")
    links = (("INSIDE", NVLINK_STEP, H100.nvlink), ("NETWORK", NETWORK_STEP, H100.port))
    for name, step, speed in links:
        alpha, beta = ast.literal_eval(re.search(rf"const {name} = (.*);", script)[1].replace("1 / ", ""))
        assert (alpha, beta) == (pytest.approx(step.simple), speed)


# The box of the running model


def box(given):
    """The box's table of Llama 3 8B, with plain blanks."""
    return [
        [cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in running_model.rows(LLAMA3_8B, 1024, given)
    ]


def test_the_box_counts_the_bytes_of_the_lessons():
    """ZeRO-3 on 64 GPUs: 16 micro-batches, each with two gathers of bf16 and a reduce-scatter of float32."""
    names = [row[0] for row in box({"zero_stage": 3})]
    assert names == ["8 H100s", "64 H100s", "1,024 H100s", "one NVL72"]
    row = box({"zero_stage": 3})[1]
    assert row[2] == f"{16 * (2 + 2 + 4) * 63 / 64 * parameters(LLAMA3_8B).total / 1e9:,.0f} GB" == "1,012 GB"
    assert row[3].endswith(" s")
    # As chapter 10 says: without recomputation, ZeRO-1 fits no row of H100s.
    assert [row[3] for row in box({})[:3]] == ["does not fit"] * 3
    assert "does not fit" not in [row[3] for row in box({"recompute": "full"})]
    # As chapter 15 says: at most two ranks of tensor parallelism, and no pipeline.
    layouts = [row[4] for row in box(None)]
    assert {*re.findall("[tp]p [0-9]+", " ".join(layouts))} == {"tp 2"}
    # Where two win, one is about a percent slower.
    for name, machine, gpus in running_model.MACHINES:
        plan = planner.plan(LLAMA3_8B, find(machine), gpus, running_model.BATCH)
        alone = next(found for found in plan.fitting if found.layout.tp == found.layout.pp == 1)
        assert alone.seconds < 1.015 * plan.best.seconds, name


@pytest.mark.parametrize(("tp", "pp", "chunks", "recompute"), [(4, 4, 4, False), (8, 1, 1, True), (2, 8, 1, False)])
def test_the_box_and_lesson_15_count_the_same_bytes(tp, pp, chunks, recompute):
    """From the seconds that lesson 15's terms take where every link has the same speed."""
    lesson, dp, m = notebook.functions("15_layout"), 512 // (tp * pp), LLAMA3_70B
    layout = {"tp": tp, "dp": dp, "pp": pp, "micro": 1, "chunks": chunks, "recompute": recompute}
    even = nominal(lesson, replace(H100, nvlink=1e9, port=1e9, domain=1, ports=1, memory=math.inf))
    found = lesson["cost"](m, even, layout, 512, 512, 0.5)["parts"]
    planned = Layout(dp=dp, tp=tp, pp=pp, virtual_stages=chunks, recompute="full" if recompute else "none")
    sent = communication.bytes_sent(Step(m, H100, planned, MEGATRON), planned.micro_batches(512))
    for part in ("tensor", "stages", "data"):
        assert found[part] * 1e9 == pytest.approx(sent[part], rel=1e-6), part


def test_lesson_15_and_the_planner_take_as_long_for_the_same_messages():
    """Nothing hidden, bytes alone: all-reduces, gradients and parameters, the bubble."""
    lesson, m = notebook.functions("15_layout"), LLAMA3_70B
    machine = nominal(lesson)
    layout = {"tp": 8, "dp": 16, "pp": 4, "micro": 1, "chunks": 4, "recompute": False}
    loud = replace(META, data_overlap=False, gather_overlap=False)
    planned = Layout(dp=16, tp=8, pp=4, virtual_stages=4, sequence_parallel=False)
    step = Step(m, machine, planned, loud)
    assert lesson["tensor_seconds"](m, machine, layout) == pytest.approx(sum(communication.tensor(step)))
    assert lesson["data_seconds"](m, machine, layout) == pytest.approx(communication.data(step, 0, 0, 32))
    idle = lesson["bubble_share"](4, 4, 32)
    assert 32 * 3.0 * idle / (1 - idle) == pytest.approx(communication.bubble(step, 1.0, 2.0, 32))


@pytest.mark.parametrize("wrong", ["zero_stag=3", "dp=8", "tp", "zero_stage="])
def test_a_layout_with_a_wrong_field_is_refused(wrong):
    with pytest.raises(ValueError, match=re.escape(wrong)):
        running_model.fields(f"{wrong} recompute=full")


@pytest.mark.parametrize(
    ("model", "layout", "axis", "expected"),
    [
        # 1,024 tokens per rank, keys and values of 8 heads of 128 in bf16: 4 MiB, which go to 7 ranks forward, and with
        # their gradients back; in 32 layers.
        (LLAMA3_8B, Layout(cp=8), "context", 32 * 3 * 7 * 4 * 2**20),
        (LLAMA3_8B, Layout(cp=8, recompute="full"), "context", 32 * 4 * 7 * 4 * 2**20),
        # A head's exchange: 8 + 32 heads, of keys, values, queries and outputs; 7/8 of them leave, there and back.
        (LLAMA3_8B, Layout(cp=8, context="all_to_all"), "context", 32 * 2 * 7 / 8 * 20 * 2**20),
        # 4,096 tokens of 7,168 entries in bf16: 56 MiB, each to 8 experts, 7/8 of them on other GPUs; there and back,
        # forward and backward, in 58 layers.
        (DEEPSEEK_V3, Layout(dp=8, ep=8), "experts", 58 * 4 * 8 * 7 / 8 * 56 * 2**20),
        # On 8 nodes a token's experts lie on at most 4, of which 7/8 are others; there it goes to them one by one.
        (DEEPSEEK_V3, Layout(dp=64, ep=64), "experts", 58 * 4 * (8 * 7 / 8 + 4 * 7 / 8) * 56 * 2**20),
        (DEEPSEEK_V3, Layout(dp=64, ep=64, recompute="full"), "experts", 58 * 6 * (7 + 3.5) * 56 * 2**20),
        # Attention of 61 layers and the MLPs of 3: an all-reduce each, forward and backward, of 7/4 of 56 MiB.
        (DEEPSEEK_V3, Layout(tp=8), "tensor", (61 + 3) * 2 * 7 / 4 * 56 * 2**20),
        # 653,908,770,816 parameters of experts over 8 ranks, each on 8 of 64; 17,117,633,536 others on all 64.
        (DEEPSEEK_V3, Layout(dp=64, ep=8), "data", 6 * (653908770816 / 8 * 7 / 8 + 17117633536 * 63 / 64)),
    ],
)
def test_the_bytes_of_context_and_experts_are_those_of_a_calculation_by_hand(model, layout, axis, expected):
    found = communication.bytes_sent(Step(model, H100, layout, MEGATRON), 1)
    assert found[axis] == pytest.approx(expected, rel=1e-9)


# What does a large cluster lose to failures?


def simulated_loss(between: float, restart: float, save: float, failures: int = 40_000) -> float:
    """The share of time lost if failures come at random, during restarts too; `between` them, on average."""
    draw = random.Random(15)
    now = kept = 0.0
    for _ in range(failures):
        up = draw.expovariate(1 / between)
        now += up
        kept += max(0.0, up - restart) // save * save  # what was saved before this failure
    return 1 - kept / now


@pytest.mark.parametrize(("gpus", "restart", "save"), [(16384, 10, 10), (131072, 14, 2), (131072, 5, 20)])
def test_lesson_15_counts_failures_that_hit_restarts(gpus, restart, save):
    cell = chapter("15_layout", "def lost(")
    assert cell["lost"](gpus, restart, save) == pytest.approx(
        simulated_loss(60 * 50_700 / gpus, restart, save), abs=0.01
    )
    assert cell["glued"] == {"lost_16k": "8", "naive_131k": "65", "lost_131k": "48 to 49"}
