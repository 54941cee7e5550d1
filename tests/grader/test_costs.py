"""Lesson 02: its oracles agree with numpy and with published numbers, and chance never decides a mark."""

import math
import random
from fractions import Fraction

import pytest

import ranks
from autograder.answers import wrong
from autograder.checks import module
from autograder.lesson import notebook
from tests.helpers import right_answers

common, diagnosis, steps = (module("02_costs", name) for name in ("common", "diagnosis", "steps"))

LESSON = "02_costs"
NVLINK, PORT = (3.4e-6, 1 / 450e9), (14e-6, 1 / 50e9)


def close(value):
    return pytest.approx(float(value), rel=1e-9)


@pytest.fixture(scope="module")
def lesson():
    return notebook.functions(LESSON)


def test_the_rounds_are_those_of_lesson_01(lesson):
    """2(N−1) rounds of the ring and, as the notebook shows it, 2⌈log2 N⌉ of the tree, for every N up to 130."""
    for n in range(1, 131):
        assert common.ring_seconds(0, n, 1, 0) == common.ring_seconds(n, n, 0, 1) == 2 * (n - 1)
        assert lesson["tree_time"](0, n, 1, 0) == 2 * math.ceil(math.log2(n))
        assert lesson["tree_time"](n, n, 0, 1) == 2 * math.ceil(math.log2(n)) * n


@pytest.mark.parametrize("n", [1, 2, 4, 8, 64, 1024])
def test_halving_has_the_rounds_of_the_tree_and_the_bytes_of_the_ring(lesson, n):
    assert common.halving_seconds(7, n, 1, 0) == lesson["tree_time"](7, n, 1, 0)
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
        ("halving_all_reduce", "halving_begins_with_far_partners", 4 * 2 * 1 / 2),
        ("halving_all_reduce", None, 2 * 1 / 2),
    ],
)
def test_what_leaves_a_node_depends_on_the_order_of_the_partners(name, answer, vectors):
    """Two nodes of four, as lesson 01 counts them: a ring 2(N−1)/N · T, far partners first 2g(n−1)/n · T, near ones
    2(n−1)/n · T."""
    pytest.importorskip("torch")
    swap = {v.cell: v.source for v in wrong.load_wrong("01_collectives") if v.name == answer}
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


@pytest.mark.parametrize("batches", [1, 2, 16])
def test_only_the_last_backward_of_several_hides_gradients(lesson, batches):
    """Played: gradients travel from where two thirds of the last micro-batch are left, and the step ends with both."""
    for communication in (0.0, 0.1, 0.5, 2.0):
        last_backward_begins = (batches - 1) * 1.0 + 1 / 3
        played = max(batches, last_backward_begins + communication)
        assert lesson["step_time"](batches, communication, batches) == close(played)


@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize(("total", "active"), [(8e9, 8e9), (671e9, 37e9)])
def test_from_the_threshold_on_gradients_cost_nothing(lesson, total, active, batches):
    """The theorem by the step: with so many tokens in each micro-batch nothing is exposed, with fewer something is."""
    machine = (400e9, 989e12, 0.4)
    tokens = lesson["tokens_to_hide"](total, active, 4, *machine)
    assert tokens == close(total / active * 0.4 * 989e12 / 400e9)
    for part, exposed in ((1.001, False), (0.999, True)):
        compute = lesson["compute_time"](active, part * tokens * batches, *machine[1:])
        assert (lesson["step_time"](compute, 4 * total / machine[0], batches) > compute) == exposed


@pytest.mark.parametrize("shape", [(4096, 14336), (4096, 1792), (7168, 2048)])
def test_the_roofline_has_its_knee_where_both_take_as_long(lesson, shape):
    peak, memory = 989e12, 3.35e12
    knee = lesson["compute_bound_rows"](*shape, peak, memory)
    seconds = [lesson["matmul_time"](rows, *shape, peak, memory) for rows in (knee / 2, knee)]
    least = 2 * knee * math.prod(shape) / peak
    assert 0.8 * least < seconds[0] < least and seconds[1] == close(least)


def test_the_practice_cluster_is_the_graded_one(lesson):
    """The faults of the notebook's cluster cost in every experiment what those of the grader's do."""
    rng = random.Random(3)
    for fault in (None, "cards", "ports", "switches", 3):
        word, node = ("node", fault) if isinstance(fault, int) else (fault, 0)
        practice = lesson["Cluster"](6, word, 2.5, node)
        for _ in range(20):
            messages = [tuple(rng.sample(range(48), 2)) for _ in range(rng.choice((1, 3, 40)))]
            graded = diagnosis._Cluster(6, fault, 2.5, 0, 1).seconds(messages, 1e9)
            assert practice.seconds(messages, 1e9) == pytest.approx(graded, rel=0.06), (fault, messages)


def test_the_practice_job_is_the_graded_one(lesson):
    """Each slow part costs in the notebook's job what it does in the grader's; links hide, as the notebook says."""
    for slow in (None, *steps.HEALTHY):
        practice, graded = lesson["Job"](slow, 4.0), steps._Job(slow, 4.0, 0, 1)
        for tokens, piece in ((1, 1e6), (1, 4e9), (8192, 25e6), (1e6, 4e9), (3000, 1e7)):
            assert practice.seconds(tokens, piece) == pytest.approx(graded.seconds(tokens, piece) * 1.025, rel=0.026)
    took = [steps._Job(slow, 4.0, 0, 1).seconds(8192, 25e6) for slow in (None, "links")]
    assert took[0] == took[1] == pytest.approx(0.124, abs=5e-4)


@pytest.mark.parametrize("name", right_answers.right_answers(LESSON))
def test_chance_takes_no_mark(name):
    right_answers.keeps_all_marks(LESSON, name)
