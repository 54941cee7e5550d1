"""Lesson 02: its oracles agree with numpy and with published numbers, and chance never decides a mark."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest

import ranks
from autograder.answers import right
from autograder.checks.costs import common
from autograder.lessons import notebook
from tests.helpers import right_answers

LESSON = "02_costs"
NVLINK, PORT = (3.4e-6, 1 / 450e9), (14e-6, 1 / 50e9)


def close(value):
    return pytest.approx(float(value), rel=1e-9)


@pytest.fixture(scope="module")
def lesson():
    return notebook.functions(LESSON)


@pytest.fixture(scope="module")
def glued():
    """The numbers that the chapter's hidden cells put into its sentences, by name."""
    chapter = (notebook.ROOT / "book" / f"{LESSON}.md").read_text()
    cells = re.findall(r"```\{code-cell\} python\n:tags: \[remove-cell\]\n(.*?)```", chapter, re.DOTALL)
    numbers = {}
    space = {"glue": lambda name, value, display: numbers.update({name: value})}
    for cell in cells:
        exec(cell.replace("from myst_nb import glue\n", ""), space)
    return numbers


def test_the_played_rounds_are_those_of_lesson_01():
    """2(N−1) rounds of the ring and 2⌈log2 N⌉ of the tree, for every N up to 130."""
    for n in range(1, 131):
        assert common.ring_seconds(0, n, 1, 0) == 2 * (n - 1)
        assert common.tree_seconds(0, n, 1, 0) == 2 * math.ceil(math.log2(n))
        assert common.ring_seconds(n, n, 0, 1) == 2 * (n - 1)
        assert common.tree_seconds(n, n, 0, 1) == 2 * math.ceil(math.log2(n)) * n


@pytest.mark.parametrize("n", [1, 2, 4, 8, 64, 1024])
def test_halving_has_the_rounds_of_the_tree_and_the_bytes_of_the_ring(n):
    assert common.halving_seconds(7, n, 1, 0) == common.tree_seconds(7, n, 1, 0)
    assert common.halving_seconds(7, n, 0, 1) == common.ring_seconds(7, n, 0, 1)


def test_two_levels_with_a_port_for_each_gpu_move_what_one_ring_of_all_gpus_moves():
    """With equal prices per byte everywhere and a port for each GPU, no byte more leaves a GPU than in one ring."""
    for nodes, gpus in ((2, 4), (8, 8), (3, 5)):
        two = common.two_level_seconds(1000, nodes, gpus, gpus, (0, 1), (0, 1))
        assert two == common.ring_seconds(1000, nodes * gpus, 0, 1)


def _all_reduce_ones(rank, world_size, all_reduce):
    import torch

    all_reduce(torch.ones(800))


@pytest.mark.parametrize(
    ("name", "answer", "vectors"),
    [
        ("all_reduce", None, 2 * 7 / 8),
        ("halving_all_reduce", None, 4 * 2 * 1 / 2),
        ("halving_all_reduce", "halving_with_near_partners_first", 2 * 1 / 2),
    ],
)
def test_what_leaves_a_node_depends_on_the_order_of_the_partners(name, answer, vectors):
    """Two nodes of four, as lesson 01 counts them: a ring 2(N−1)/N · T, far partners first 2g(n−1)/n · T, near ones
    2(n−1)/n · T."""
    pytest.importorskip("torch")
    swap = {v.cell: v.source for v in right.of_lesson("01_collectives") if v.name == answer}
    assert bool(swap) == bool(answer)
    function = notebook.functions("01_collectives", swap)[name]
    sends = ranks.run(_all_reduce_ones, 8, (function,)).ledger.sends()
    assert sum(m.bytes for m in sends if m.rank < 4 <= m.peer) == vectors * 3200


def test_one_port_carries_all_bytes_of_its_node():
    assert common.two_level_seconds(1000, 2, 8, 1, (0, 0), (0, 1)) == 1000
    assert common.two_level_seconds(1000, 2, 8, 3, (0, 0), (0, 1)) == Fraction(1000, 3)


@pytest.mark.parametrize(("gpus", "seconds"), [(1, 0.27), (2, 0.13), (4, 0.067)])
def test_two_levels_predict_what_was_reported(lesson, gpus, seconds):
    """NVIDIA/nccl#1250: 1 GB on two nodes, with 1, 2 and 4 GPUs of each."""
    port = (14e-6, 0.27 / 1e9)
    assert lesson["two_level_time"](1e9, 2, gpus, gpus, NVLINK, port) == pytest.approx(seconds, rel=0.06)


def test_the_threshold_hardly_depends_on_the_model_or_on_the_nodes(lesson):
    thresholds = []
    for parameters in (1e9, 70e9):
        for nodes in (8, 64):
            seconds = lesson["two_level_time"](2 * parameters, nodes, 8, 8, NVLINK, PORT)
            thresholds.append(lesson["tokens_to_hide"](parameters, seconds, 989e12, 0.4, 2 / 3))
    assert max(thresholds) < 1.4 * min(thresholds)


@pytest.mark.parametrize("batches", [1, 2, 16])
def test_only_the_last_backward_of_several_hides_messages(lesson, batches):
    """The part 2/(3M) of M micro-batches is what is left of the step when the last backward begins."""
    for communication in (0.0, 0.1, 0.5, 2.0):
        last_backward_begins = (batches - 1) * 1.0 + 1 / 3
        played = max(batches, last_backward_begins + communication)
        assert lesson["step_time"](batches, communication, 2 / (3 * batches)) == close(played)
    one, all_of_them = (lesson["tokens_to_hide"](1e9, 0.1, 989e12, 0.4, 2 / (3 * m)) for m in (1, batches))
    assert batches * (one - 1) < all_of_them <= batches * one


def test_the_chapter_counts_the_tokens_of_one_micro_batch_for_llama_3(glued):
    """Float32 gradients, reduce-scattered over 128 copies, against 8,192 tokens: at the edge, not 17 times inside."""
    assert glued["llama_has"] == "8,192"
    needs = int(glued["llama_needs"].replace(",", ""))
    by_the_theorem = 4 * 0.4 * 989e12 / (6 * 2 / 3 * 50e9) * 127 / 128  # without start-ups
    assert by_the_theorem < needs < 1.01 * by_the_theorem
    assert glued["llama_share"] == f"{100 * needs / 8192:.0f}"


def test_short_vectors_are_priced_five_times_too_high_by_simple(glued):
    """126 steps over 8 nodes of 8, 14 of them between nodes, by the latencies of NCCL 2.30.7's tuning.cc."""
    assert (glued["steps_simple"], glued["steps_ll"]) == ("577", "150")


def test_the_straight_line_is_that_of_torch(lesson):
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=3.2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1 / 3.2, total_iters=5)
    for step in range(8):
        assert lesson["scaled_lr"](0.1, 256, 8192, step, 5) == close(np.float64(schedule.get_last_lr()[0]))
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("name", right_answers.right_answers(LESSON))
def test_chance_takes_no_mark(name):
    right_answers.keeps_all_marks(LESSON, name)
