"""The figures that move: driven in a browser, and compared with the functions that the lessons teach."""

from __future__ import annotations

import copy
import itertools
import json
import random
import re
import statistics
import sys

import pytest
import torch
import torch.distributed as dist
from playwright.sync_api import expect

import ranks
from autograder.lesson import notebook
from machines.model import MODELS
from ranks import playable
from tests.helpers.browser import DRAWN, Tab

sys.path.insert(0, str(notebook.ROOT / "book" / "_ext"))

import live_figure

pytestmark = pytest.mark.browser

RINGS, PIPELINES, STACKS, RACES, BUCKETS, SHARDED, LAYOUTS = 2, 10, 10, 5, 5, 8, 3


def page_of(lesson):
    """A fixture: the lesson's chapter, opened once."""

    @pytest.fixture(scope="module")
    def chapter(chromium, book):
        return opened(chromium, book, lesson)

    return chapter


chapter_01 = page_of("01_collectives")
chapter_02 = page_of("02_costs")
chapter_05 = page_of("05_ddp")
chapter_07 = page_of("07_bandwidth")
chapter_08 = page_of("08_zero1")
chapter_09 = page_of("09_fsdp")
chapter_10 = page_of("10_memory")
chapter_11 = page_of("11_pipeline")
chapter_12 = page_of("12_tensor")
chapter_13 = page_of("13_context")
chapter_14 = page_of("14_experts")
chapter_15 = page_of("15_layout")
chapter_16 = page_of("16_checkpoints")
chapter_17 = page_of("17_capstone")


def opened(chromium, book, lesson) -> Tab:
    tab = Tab(chromium)
    tab.page.goto((book / "book" / f"{lesson}.html").as_uri())
    tab.wait("document.querySelector('.figure-box')")
    return tab


def choose(tab: Tab, figure: str, **settings) -> None:
    """Move a figure's controls as a reader does."""
    for name, value in settings.items():
        control = tab.page.locator(f"figure-{figure} [name={name}]").first
        if control.evaluate("e => e.localName") == "select":
            control.select_option(str(value))
        else:
            control.fill(str(value))


def to_the_end(tab: Tab, figure: str) -> str:
    """Go to the last step; what it says."""
    tab.page.locator(f"figure-{figure} .figure-box").first.focus()
    tab.page.keyboard.press("End")
    return said(tab, figure)


def said(tab: Tab, figure: str) -> str:
    tab.drawn()
    return tab.page.locator(f"figure-{figure} .figure-says").first.inner_text()


# The ring


def reduce_and_return(rank, world_size, lesson_functions, vectors):
    """The chunk after a reduce-scatter, and the vector after an all-reduce, which alone is in a marked stretch."""
    reduce_scatter, all_reduce = lesson_functions
    chunk = reduce_scatter(vectors[rank].clone())
    with torch.profiler.record_function("all-reduce"):
        all_reduce(x := vectors[rank].clone())
    return chunk.tolist(), x.tolist()


def test_the_ring_sends_and_holds_what_the_lessons_ring_does(chapter_01):
    lesson = notebook.functions("01_collectives")
    draw = random.Random()
    for _ in range(RINGS):
        n, numel = draw.randint(2, 8), draw.randint(1, 40)
        vectors = torch.randint(-50, 50, (n, numel)).float()
        results = ranks.run(reduce_and_return, n, ((lesson["reduce_scatter"], lesson["all_reduce"]), vectors))
        ledger = results.ledger.within("all-reduce")
        frames, buffers = chapter_01.evaluate(f"""(() => {{
          const logic = figures.ring.logic;
          const frames = logic.frames({{ranks: {n}, numel: {numel}, start: 'before'}});
          return [frames, frames.map(frame => logic.buffers(frame, {vectors.tolist()}))];
        }})()""")
        where = f"{n} ranks, {numel} numbers"
        assert [sorted(m["from"] for m in f["moves"]) for f in frames[1:]] == [list(range(n))] * (2 * n - 2), where
        assert frames[-1]["sent"] == ledger.bytes_sent(), where
        assert buffers[-1] == [mine for _, mine in results], where
        for rank in range(n):
            sends = sorted(ledger.of(rank).sends(), key=lambda m: m.posted)
            assert [frame["moves"][rank]["bytes"] for frame in frames[1:]] == [m.bytes for m in sends], where
            begin = sum(size // 4 for size in frames[0]["size"][:rank])
            chunk = results[rank][0]
            assert buffers[n - 1][rank][begin : begin + len(chunk)] == chunk, where


def test_the_ring_on_the_page_shows_what_its_logic_says(chapter_01):
    below = 0
    for n in (7, *random.Random().sample((2, 3, 4, 5, 6, 8), 2)):
        choose(chapter_01, "ring", ranks=n, numel=10)
        words = to_the_end(chapter_01, "ring")
        frame = chapter_01.evaluate(
            f"figures.ring.logic.frames({{ranks: {n}, numel: 10, start: 'before'}}).at(-1)",
        )
        shown = chapter_01.page.locator("figure-ring .ring-number").all_inner_texts()
        assert [int(text.replace(",", "")) for text in shown] == frame["sent"]
        assert words == frame["says"] and "All ranks hold the whole sum" in words
        least, key = frame["bound"], chapter_01.page.locator("figure-ring .figure-key").inner_text()
        assert max(frame["sent"]) >= least and "the least that the busiest rank can send" in key
        below += min(frame["sent"]) < least
        assert chapter_01.page.locator("figure-ring .ring-done").count() == n * n
    assert below, "some ranks send less than the bound, which is one for the busiest"


def test_the_stills_ring_is_the_pages(chapter_01):
    parts_by_round = live_figure.module("ring").parts_by_round
    for n in range(2, 9):
        parts = chapter_01.evaluate(
            f"figures.ring.logic.frames({{ranks: {n}, numel: 8, start: 'before'}}).map(frame => frame.parts)"
        )
        assert [[[set(chunk) for chunk in rank] for rank in frame] for frame in parts] == parts_by_round(n)


def test_a_ring_that_begins_with_the_own_chunk_is_shifted_by_one(chapter_01):
    choose(chapter_01, "ring", ranks=5, start="own")
    chapter_01.page.locator("figure-ring .figure-box").focus()
    for _ in range(4):
        chapter_01.page.keyboard.press("ArrowRight")
    assert "rank r holds the finished chunk r + 1" in said(chapter_01, "ring")
    choose(chapter_01, "ring", start="before")


# The deadlock


def _pass_on(rank, world_size, orders, sends):
    """Send to the right and receive from the left, in this rank's order; the rank that was received from."""
    x, got, waiting = torch.full((3,), float(rank)), torch.empty(3), []
    for call in orders[rank]:
        if call == "recv":
            dist.recv(got, src=(rank - 1) % world_size)
        elif sends == "waits":
            dist.send(x, dst=(rank + 1) % world_size)
        else:
            waiting.append(dist.isend(x, dst=(rank + 1) % world_size))
    for work in waiting:
        work.wait()
    return int(got[0])


@pytest.mark.parametrize("sends", ["waits", "at-once"])
@pytest.mark.parametrize("order", ["receive", "send", "one-receives", "one-sends", "even"])
def test_a_ring_hangs_on_the_page_when_it_hangs_in_a_run(chapter_01, order, sends):
    n = random.randint(2, 6)
    settings = {"order": order, "sends": sends, "ranks": n}
    frames = chapter_01.evaluate(f"figures.deadlock.logic.frames({json.dumps(settings)})")
    choose(chapter_01, "deadlock", **settings)
    words = to_the_end(chapter_01, "deadlock")
    try:
        assert list(ranks.run(_pass_on, n, (frames[0]["lists"], sends))) == [(rank - 1) % n for rank in range(n)]
        assert frames[-1]["done"] and words.endswith("All ranks are done."), settings
    except ranks.HangError as error:
        assert frames[-1]["stuck"] and "none can go on" in words, settings
        cycle = re.search(r"cycle (0.*)\.$", words).group(1)
        assert cycle in str(error), (settings, words, str(error))


def test_the_deadlock_opens_with_something_to_play(chromium, book, chapter_01):
    for order, sends, n in itertools.product(("receive", "send", "one-sends"), ("waits", "at-once"), (2, 3, 8)):
        settings = json.dumps({"order": order, "sends": sends, "ranks": n})
        frames = chapter_01.evaluate(f"figures.deadlock.logic.frames({settings})")
        assert len(frames) > 1 and frames[0]["waits"] == [None] * n and not frames[0].get("stuck"), settings
    figure = opened(chromium, book, "01_collectives").page.locator("figure-deadlock").first
    figure.locator("button[aria-label=Step]").click()
    assert "none can go on" in figure.locator(".figure-says").inner_text()
    assert figure.locator(".deadlock-stuck").count() == 4


def test_what_the_chapter_says_of_the_steps_until_all_messages_arrive(chapter_01):
    for n in range(2, 9):
        for order, steps in (("one-receives", n), ("one-sends", n), ("even", 2 + n % 2)):
            settings = json.dumps({"order": order, "sends": "waits", "ranks": n})
            frames = chapter_01.evaluate(f"figures.deadlock.logic.frames({settings})")
            assert frames[-1]["done"] and len(frames) - 1 == steps, settings


# The pipeline


def test_the_pipeline_is_that_of_the_lesson(chapter_11):
    lesson = notebook.functions("11_pipeline")
    make = {"gpipe": lesson["gpipe_schedule"], "1f1b": lesson["one_f_one_b_schedule"]}
    draw = random.Random()
    for _ in range(PIPELINES):
        name, n, m, ratio = draw.choice(list(make)), draw.randint(1, 8), draw.randint(1, 12), draw.randint(1, 3)
        schedule = make[name](n, m)
        frame = chapter_11.evaluate(
            f"figures.pipeline.logic.frames({{stages: {n}, micro: {m}, order: '{name}', ratio: {ratio}}}).at(-1)"
        )
        where = f"{name}, {n} stages, {m} micro-batches, ratio {ratio}"
        assert [[tuple(entry) for entry in mine] for mine in frame["order"]] == schedule, where
        assert [[tuple(span) for span in mine] for mine in frame["spans"]] == lesson["simulate"](schedule, 1, ratio)
        assert frame["bubble"] == pytest.approx(lesson["bubble_fraction"](schedule, 1, ratio)), where
        assert frame["peaks"] == lesson["peak_activations"](schedule), where
        choose(chapter_11, "pipeline", order=name, stages=n, micro=m, ratio=ratio)
        sums = chapter_11.page.locator("figure-pipeline .pipe-sums dd").all_inner_texts()
        assert sums[0] == str(frame["makespan"]), where
        assert float(sums[1].removesuffix(" %")) == pytest.approx(100 * frame["bubble"], abs=0.051), where


# The race of algorithms


def test_the_race_is_timed_by_the_lessons_formulas(chapter_02):
    lesson, draw = notebook.functions("02_costs"), random.Random()
    ring, tree, halving, two_level = (lesson[f"{name}_time"] for name in ("ring", "tree", "halving", "two_level"))
    network, inside = lesson["PORT"], lesson["NVLINK"]
    alpha, beta = network
    settings = [(draw.randint(1, 64), draw.choice([1, 2, 4, 8]), draw.randint(1, 8)) for _ in range(RACES)]
    for (nodes, gpus, ports), order in itertools.product([*settings, (8, 8, 1)], ("far", "near")):
        n, where = nodes * gpus, f"{nodes} nodes of {gpus} GPUs and {ports} ports, {order} partners first"
        shared = (alpha, beta * max(1, gpus / ports))
        frames = chapter_02.evaluate(f"figures.race.logic.frames({race(nodes, gpus, ports, order)})")
        for frame in frames:
            size = frame["bytes"]
            if order == "far":  # all GPUs of a node send out at once, and the node has what its GPUs have left
                up = tree(size, nodes, *shared) + tree(size, gpus, *inside)
                by_halves = halving(size, nodes, *shared) + halving(size / nodes, gpus, *inside) if two(n) else None
            else:  # one GPU of a node holds its sum; or each a part of it
                up = tree(size, gpus, *inside) + tree(size, nodes, *network)
                by_halves = halving(size, gpus, *inside) + halving(size / gpus, nodes, *shared) if two(n) else None
            between = 2 * (nodes - 1)  # of the steps of a ring; the others are inside nodes
            one_ring = ring(size, n, 0, (network if between else inside)[1])
            want = [one_ring + between * alpha + (2 * (n - 1) - between) * inside[0], up, by_halves]
            want.append(two_level(size, nodes, gpus, min(ports, gpus), inside, network))
            for got, seconds in zip(frame["seconds"], want, strict=True):
                assert got == (None if seconds is None else pytest.approx(seconds)), where
            best = min(seconds for seconds in want if seconds is not None)
            assert n == 1 or want[frame["first"]] == pytest.approx(best), where
        choose(chapter_02, "race", nodes=nodes, gpus=gpus, ports=ports, order=order)
        words = to_the_end(chapter_02, "race")
        assert f"on {n} GPU" in words, where


def two(n):
    """Is it a power of two?"""
    return n & (n - 1) == 0


def race(nodes, gpus, ports, order):
    """The settings of a race, as JSON."""
    return json.dumps({"nodes": nodes, "gpus": gpus, "ports": ports, "order": order})


def test_what_the_chapter_says_of_the_race(chapter_02):
    for ports, order, ahead_from in ((8, "far", 16.384e6), (1, "far", 1.024e6), (8, "near", None), (1, "near", None)):
        frames = chapter_02.evaluate(f"figures.race.logic.frames({race(8, 8, ports, order)})")
        first = {frame["bytes"]: frame["first"] for frame in frames}
        halving, two_levels = 2, 3
        expected = {size: two_levels if ahead_from and size >= ahead_from else halving for size in first}
        assert first == expected and (not ahead_from or ahead_from in first), (ports, order)


def _add_up(rank, world_size, function):
    function(torch.ones(64 * world_size))


def test_the_partners_of_the_race_are_those_of_lesson_01(chapter_02):
    lesson = notebook.functions("01_collectives")
    rounds = {
        (name, order, n): chapter_02.evaluate(f"figures.race.logic.{name}Rounds({n}, '{order}')")
        for name, order, n in (("halving", "near", 8), ("tree", "near", 6), ("tree", "far", 6))
    }
    sends = [(m.rank, m.peer, m.bytes) for m in ranks.run(_add_up, 8, (lesson["halving_all_reduce"],)).ledger.sends()]
    up = [(a, b, 2048 // 2 ** (k + 1)) for k, messages in enumerate(rounds["halving", "near", 8]) for a, b in messages]
    assert sorted(sends) == sorted([*up, *((b, a, nbytes) for a, b, nbytes in up)])
    # Its tree adds up with near partners first, and spreads the sum with near ones first, too.
    sends = [(m.rank, m.peer) for m in ranks.run(_add_up, 6, (lesson["tree_all_reduce"],)).ledger.sends()]
    up, down = ([ends for messages in rounds["tree", order, 6] for ends in messages] for order in ("near", "far"))
    assert sorted(sends) == sorted([*map(tuple, up), *((a, b) for b, a in down)])
    # What leaves a node of 4 on the way up, in vectors. Lesson 01 counts as much again on the way down: 4 and 1 in all.
    for order, out in (("far", 4 * (1 / 2)), ("near", 4 * (1 / 8))):
        messages = chapter_02.evaluate(f"figures.race.logic.halvingRounds(8, '{order}')")
        leaving = [sum(a < 4 <= b for a, b in one) / 2 ** (k + 1) for k, one in enumerate(messages)]
        assert sum(leaving) == out
        crowds = [chapter_02.evaluate(f"figures.race.logic.crowd({json.dumps(one)}, 4)") for one in messages]
        assert crowds == ([4, 0, 0] if order == "far" else [0, 0, 4])


# The buckets


def test_the_buckets_end_as_in_the_lesson(chapter_05):
    end_of, draw = notebook.functions("05_ddp")["end_of"], random.Random()
    ready = [1.2e-3 * (j + 1) for j in range(24)]
    for _ in range(BUCKETS):
        n, alpha, speed = draw.randint(2, 64), draw.randint(0, 100), draw.choice([50, 10, 7, 5])
        where = f"{n} ranks, {alpha} µs, {speed} GB/s"

        network = (2 * (n - 1) * alpha * 1e-6, 2 * (n - 1) / n * 4e6 / (speed * 1e9))

        frames = chapter_05.evaluate(f"figures.buckets.logic.frames({{ranks: {n}, alpha: {alpha}, speed: {speed}}})")
        for frame in frames:
            split = [bucket["count"] for bucket in frame["buckets"]]
            assert sum(split) == 24 and frame["end"] == pytest.approx(end_of(split, ready, *network)), where
            k = frame["critical"]
            decides = frame["buckets"][k]["ready"] + sum(network[0] + network[1] * count for count in split[k:])
            assert frame["end"] == pytest.approx(decides), f"{where}: bucket {k} does not decide"
        choose(chapter_05, "buckets", ranks=n, alpha=alpha, speed=speed)
        words = to_the_end(chapter_05, "buckets")
        exposed = float(re.search(r"([\d.]+) ms are exposed", words).group(1))
        assert exposed == pytest.approx(1e3 * frames[-1]["exposed"], abs=0.051), where


# Error feedback


def _two_weights(rank, world_size, mean_of, disturbance, rate):
    """The weights after each of 40 steps, and what this rank owes after each, exchanged by the lesson's functions."""
    w, goal = torch.tensor([2.0, 0.0], dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    own = torch.tensor([disturbance if rank == 0 else -disturbance, 0.0], dtype=torch.float64)
    weights, owed = [w.tolist()], [[0.0, 0.0]]
    for _ in range(40):
        w = w - rate * mean_of.mean(w - goal + own)
        weights.append(w.tolist())
        owed.append(mean_of.feedback.residual[0].tolist() if mean_of.feedback else [0.0, 0.0])
    return weights, owed


@pytest.mark.parametrize("send", ["one", "feedback", "all"])
def test_two_weights_go_where_the_lessons_compressor_sends_them(chapter_07, send):
    top_k, draw = notebook.functions("07_bandwidth")["TopK"], random.Random()
    for rate in (0.05, 0.1, 0.3):
        settings = {"send": send, "disturbance": draw.choice([0, 2, 5, 8]), "rate": rate}
        exchange = top_k(1 if send == "all" else 0.5, send == "feedback")
        results = ranks.run(_two_weights, 2, (exchange, settings["disturbance"], rate))
        frames = chapter_07.evaluate(f"figures.feedback.logic.frames({json.dumps(settings)})")
        for step, frame in enumerate(frames):
            for rank, (weights, owed) in enumerate(results):
                assert frame["w"] == pytest.approx(weights[step], abs=1e-12), f"{settings}, step {step}"
                assert frame["owed"][rank] == pytest.approx(owed[step], abs=1e-12), f"{settings}, step {step}"
        choose(chapter_07, "feedback", **settings)
        words = to_the_end(chapter_07, "feedback").replace("−", "-")
        shown = re.search(r"weights are \((.*?), (.*?)\)", words).groups()
        assert [float(one) for one in shown] == pytest.approx(results[0][0][-1], abs=0.0051), settings


# The byte stack


def test_the_byte_stack_is_the_lessons_memory(chapter_08):
    memory_per_rank = notebook.functions("08_zero1")["memory_per_rank"]
    draw = random.Random()
    for _ in range(STACKS):
        billions, n = draw.randint(1, 100), draw.randint(1, 64)
        frames = chapter_08.evaluate(f"figures.stack.logic.frames({{billions: {billions}, ranks: {n}}})")
        parameters, where = billions * 10**9, f"{billions} billion, {n} ranks"
        assert [frame["total"] for frame in frames] == [memory_per_rank(parameters, n, stage) for stage in range(4)], (
            where
        )
        for stage, frame in enumerate(frames):
            least = frame["fewest"]
            if least is None:
                assert memory_per_rank(parameters, parameters, stage) > 80 * 2**30, where
            else:
                assert memory_per_rank(parameters, least, stage) <= 80 * 2**30, where
                assert least == 1 or memory_per_rank(parameters, least - 1, stage) > 80 * 2**30, where
        choose(chapter_08, "stack", billions=billions, ranks=n)
        sums = chapter_08.page.locator("figure-stack .stack-sum").all_inner_texts()
        shown = [float(text.split()[0]) for text in sums]  # three digits; a half is rounded up in JavaScript
        assert shown == pytest.approx([frame["total"] / 1e9 for frame in frames], rel=0.0051), where


# The accumulator

#: Exponent and mantissa bits; no sum comes near the largest number of its format.
FEW_BITS = {"bf16": (8, 7), "fp16": (5, 10), "e4m3": (4, 3), "e5m2": (5, 2)}


@pytest.mark.parametrize("name", FEW_BITS)
def test_the_accumulator_rounds_as_the_lesson_does(chapter_10, name):
    round_to, draw = notebook.functions("10_memory")["round_to"], random.Random()
    numbers = [draw.uniform(0, 1) * 2.0 ** draw.randint(-6, 3) for _ in range(200)]
    rounded = chapter_10.evaluate(
        f"{numbers}.map(x => figures.accumulator.logic.round(Math.fround(x), {list(FEW_BITS[name])}))"
    )
    assert rounded == round_to(torch.tensor(numbers), *FEW_BITS[name]).tolist()
    for addend in (1, 0.3, 0.1):
        settings, term = f"{{format: '{name}', addend: {addend}}}", round_to(torch.tensor([addend]), *FEW_BITS[name])
        total, sums = torch.zeros(1), [0.0]
        for _ in range(4000):
            total = round_to(total + term, *FEW_BITS[name])
            sums.append(total.item())
        assert chapter_10.evaluate(f"figures.accumulator.logic.sums({settings})") == sums, addend
        choose(chapter_10, "accumulator", format=name, addend=addend)
        stops = next(n for n in range(1, 4000) if sums[n + 1] == sums[n])
        assert to_the_end(chapter_10, "accumulator").endswith(f"since addition {stops:,}."), addend


# The fully sharded step


def _step_of_units(rank, world_size, unit_class, chain, count):
    units = [unit_class(torch.nn.Linear(4, 4)) for _ in range(count)]
    chain(units)
    x = torch.randn(2, 4, requires_grad=True)
    torch.distributed.barrier()
    for unit in units:
        x = unit.forward(x)
    x.sum().backward()
    torch.distributed.barrier()


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_sharded_step_asks_in_the_order_of_the_lessons_units(chapter_09, ahead):
    lesson = notebook.functions("09_fsdp")
    unit_class = lesson["PrefetchingUnit" if ahead else "TrainableUnit"]
    results = ranks.run(_step_of_units, 2, (unit_class, lesson["chain"], 4))
    calls = results.ledger.of(0).between_barriers()[1]
    real = ["gather" if m.call.startswith("all_gather") else "reduce" for m in calls]
    settings = f"{{ahead: {ahead}, keep: 0, layers: 2, gather: 1, ranks: 2}}"
    jobs = chapter_09.evaluate(f"figures.fsdp.logic.timeline({settings})")
    assert [job["kind"] for job in jobs if job["where"] == "network"] == real
    still = live_figure.module("fsdp").timeline(bool(ahead))
    assert [(job["kind"], job["unit"], job["start"], job["end"]) for job in jobs] == still


def test_the_sharded_step_holds_and_takes_what_the_lesson_says(chapter_09):
    lesson, draw = notebook.functions("09_fsdp"), random.Random()
    for _ in range(SHARDED):
        ahead, layers, gather = draw.randint(0, 1), draw.choice([1, 2, 4, 8]), draw.choice([0.5, 1, 2])
        n = draw.randint(2, 64)
        settings = {"ahead": ahead, "keep": 0, "layers": layers, "gather": gather, "ranks": n}
        where, units, each = str(settings), 8 // layers, layers * 64 * n  # which the ranks divide
        last = chapter_09.evaluate(f"figures.fsdp.logic.frames({json.dumps(settings)})")[-1]
        held, peak = (nbytes / (4 * 64 * n) for nbytes in lesson["memory_bytes"]([each] * units, n))
        peak -= layers  # the figure counts no copy for the reduce-scatter
        if not ahead:
            assert last["peak"] == pytest.approx(peak), where
        elif units > 1:  # one unit more, at a moment when the last unit's gradient is not there yet
            assert last["peak"] == pytest.approx(max(peak, peak + layers - layers / n)), where
        forward = max(job["end"] for job in last["jobs"] if job["kind"] == "forward")
        g, c = gather * layers, layers
        assert forward == (g + (units - 1) * max(g, c) + c if ahead else units * (g + c)), where
        kept = chapter_09.evaluate(f"figures.fsdp.logic.frames({json.dumps(settings | {'keep': 1})})")[-1]
        assert len([job for job in kept["jobs"] if job["kind"] == "gather"]) == units, where
        assert kept["peak"] == pytest.approx(held + 8 + layers + layers / n), f"{where}, kept"
        choose(chapter_09, "fsdp", **settings)
        words = to_the_end(chapter_09, "fsdp")
        assert "At the peak a rank held" in words, where


# Two layers, cut


def _two_layers(rank, world_size, layers, first, second):
    """An MLP of width 24 on 4 positions, its layers cut in two ways; is the output whole and right?"""
    torch.manual_seed(0)
    fc, out, x = torch.nn.Linear(24, 96), torch.nn.Linear(96, 24), torch.randn(4, 24)

    def own(whole):
        return whole.chunk(world_size, dim=1)[rank].contiguous()

    def gathered(part):
        parts = [torch.empty_like(part) for _ in range(world_size)]
        torch.distributed.all_gather(parts, part)
        return torch.cat(parts, dim=1)

    def scattered(terms):
        part = torch.empty_like(own(terms))
        torch.distributed.reduce_scatter_single(part, torch.cat(terms.chunk(world_size, dim=1)))
        return part

    cut_fc, cut_out = layers[first](fc), layers[second](out)
    with torch.no_grad():
        torch.distributed.barrier()
        if first == second == "inputs":  # each rank needs its own columns only
            h = scattered(torch.nn.functional.linear(own(x), own(fc.weight))) + own(fc.bias[None])
        else:
            h = cut_fc(x if first == "outputs" else own(x))
        h = torch.nn.functional.gelu(h)
        if first == second == "outputs":
            h = gathered(h)
        y = cut_out(h)
        y = gathered(y) if second == "outputs" else y
        torch.distributed.barrier()
        return torch.allclose(y, out(torch.nn.functional.gelu(fc(x))), atol=1e-5)


@pytest.mark.parametrize("first", ["outputs", "inputs"])
@pytest.mark.parametrize("second", ["outputs", "inputs"])
def test_cut_layers_send_what_the_lessons_layers_send(chapter_12, first, second):
    lesson = notebook.functions("12_tensor")
    layers = {"outputs": lesson["ColumnParallelLinear"], "inputs": lesson["RowParallelLinear"]}
    for n in (2, 3):
        results = ranks.run(_two_layers, n, (layers, first, second))
        assert all(results)
        calls = results.ledger.of(0).between_barriers()[1]
        counts = [m.bytes * (n if m.call == "all_gather" else 1) / (4 * 4 * 24) for m in calls]
        names = [m.call.removesuffix("_single").replace("_", "-") for m in calls]
        real = [[name, count] for name, count in zip(names, counts, strict=True)]
        frames = chapter_12.evaluate(f"figures.cut.logic.frames({{first: '{first}', second: '{second}', ranks: {n}}})")
        assert [[one["call"], one["numbers"]] for one in frames[-1]["sent"]] == real
        choose(chapter_12, "cut", first=first, second=second, ranks=n)
        to_the_end(chapter_12, "cut")
        on_a_ring = sum((2 if call == "all-reduce" else 1) * count * (n - 1) / n for call, count in real)
        key = chapter_12.page.locator("figure-cut .figure-key").inner_text()
        assert float(key.split("so far:")[1].split("·")[0]) == pytest.approx(on_a_ring, abs=0.006)


# Causal attention


def test_causal_attention_counts_the_lessons_pairs(chapter_13):
    lesson, draw = notebook.functions("13_context"), random.Random()
    for layout in ("contiguous", "striped", "zigzag"):
        for n in draw.sample(range(2, 9), 3):
            length = draw.choice([8, 16, 24, 32])
            settings = {"layout": layout, "ranks": n, "length": length}
            counts = lesson["pair_counts"]([lesson["shard_positions"](length, rank, n, layout) for rank in range(n)])
            frames = chapter_13.evaluate(f"figures.causal.logic.frames({json.dumps(settings)})")
            assert frames[-1]["counts"] == counts.tolist(), settings
            assert frames[-1]["idle"] == pytest.approx(lesson["idle_fraction"](counts)), settings
            choose(chapter_13, "causal", **settings)
            words = to_the_end(chapter_13, "causal")
            waits = [float(share) for share in re.findall(r"([\d.]+) %", words)]
            by_rule = live_figure.module("causal").waiting(counts)
            assert by_rule[0] == pytest.approx(lesson["idle_fraction"](counts)), settings
            assert by_rule == pytest.approx(frames[-1]["rules"], abs=1e-6), settings
            assert waits == pytest.approx([100 * share for share in by_rule], abs=0.051), settings
            drawn = chapter_13.page.locator("figure-causal .causal-count").all_inner_texts()
            assert [int(text) for text in drawn] == counts.sum(dim=0).tolist(), settings


# The experts


def _layer_of_experts(rank, world_size, parallel, scores, k, factor):
    """The rows that a forward of the lesson's layer sends, without those that stay: there, and back."""
    router = torch.nn.Linear(world_size, world_size, bias=False)
    router.weight.data = torch.eye(world_size)
    layer = parallel(router, [torch.nn.Identity()], k, factor)
    with torch.no_grad(), torch.profiler.record_function("layer"):
        y, _, chosen = layer(torch.tensor(scores[rank]) / 1e4)
    return chosen.tolist(), (y == 0).all(dim=1).sum().item()


def test_the_experts_get_the_rows_that_the_lessons_layer_sends(chapter_14):
    lesson, draw = notebook.functions("14_experts"), random.Random()
    for router in ("chance", "favorite"):
        for factor in draw.sample([0, 1, 1.5, 2], 2):
            settings = {"router": router, "ranks": draw.randint(2, 5), "k": draw.randint(1, 2), "factor": factor}
            n, k, given = settings["ranks"], settings["k"], json.dumps(settings)
            scores = chapter_14.evaluate(f"figures.experts.logic.scores({given})")
            frame = chapter_14.evaluate(f"figures.experts.logic.frames({given}).at(-1)")
            results = ranks.run(_layer_of_experts, n, (lesson["ExpertParallel"], scores, k, factor or None))
            assert [chosen for chosen, _ in results] == frame["chosen"], settings
            most = lesson["capacity"](16, n, k, factor) if factor else None
            for own, served, counts in zip(frame["chosen"], frame["served"], frame["counts"], strict=True):
                order, each = lesson["plan"](torch.tensor(own), n, most)
                assert [place for places in served for place in places] == order.tolist(), settings
                assert counts == each.tolist(), settings
            assert sum(lost for _, lost in results) == frame["lost"], settings
            exchanges = results.ledger.within("layer").collectives()
            rows = (sum(m.bytes for m in exchanges) - n * n * 8) // (2 * n * 4)  # there and back, besides the counts
            own = sum(counts[rank] for rank, counts in enumerate(frame["counts"]))
            assert rows == sum(map(sum, frame["counts"])) == sum(frame["sent"]) + own, settings
            choose(chapter_14, "experts", **settings)
            back = re.search(r"the same (\d+) rows", to_the_end(chapter_14, "experts"))
            assert int(back.group(1)) == sum(frame["sent"]), settings


def test_page_and_paper_draw_the_same_scores(chapter_14):
    figure = live_figure.module("experts")
    for router, preference in (("chance", 0), ("favorite", 5000)):
        settings = json.dumps({"router": router, "ranks": figure.RANKS})
        assert chapter_14.evaluate(f"figures.experts.logic.scores({settings})") == figure.scores(preference)


# The layouts


def test_the_layouts_are_those_of_the_lessons_planner(chapter_15):
    lesson, draw, figure = notebook.functions("15_layout"), random.Random(), live_figure.module("layout")
    names = ["Llama 3 8B", "Llama 3 70B", "Llama 3 405B"]
    cases = [("H100", "Llama 3 70B", 512, 512), ("H100", "Llama 3 405B", 16, 2048)]  # the chapter's; one without a fit
    sizes = {
        "machine": ["H100", "GB200 NVL72"], "model": names, "gpus": [64, 256, 512, 1024, 4096],
        "batch": [256, 512, 1024, 2048],
    }  # fmt: skip
    cases += [tuple(draw.choice(choices) for choices in sizes.values()) for _ in range(LAYOUTS)]
    for machine, model, gpus, batch in cases:
        settings = dict(zip(sizes, (machine, model, gpus, batch), strict=True))
        fit, _ = lesson["plan"](MODELS[model], figure.machine(machine), gpus, batch, figure.share())
        want = {}
        for one in fit:  # the fastest first
            if one["tp"] <= 16 and one["pp"] <= 16:
                want.setdefault((one["tp"], one["pp"]), one)
        frames = chapter_15.evaluate(f"figures.layout.logic.frames({json.dumps(settings)}, {figure.data()})")
        got = [frame["chosen"] for frame in frames if frame["chosen"]]
        assert {(one["tp"], one["pp"]) for one in got} == want.keys(), settings
        for one in got:
            for name in ("seconds", "mfu", "memory"):
                assert one[name] == pytest.approx(want[one["tp"], one["pp"]][name]), f"{settings}: {name}"
        assert [one["seconds"] for one in got] == sorted(one["seconds"] for one in got)
        choose(chapter_15, "layout", **settings)
        words = said(chapter_15, "layout")
        assert words.startswith(f"Number 1 of {len(got)}:" if got else "None of these layouts fits"), settings


# The crash during a save


@pytest.fixture(scope="module")
def crashes():
    """The lesson's own saves, on a disk whose every state after a crash the lesson's `load_sharded` has loaded."""
    return live_figure.module("crash").study()


@pytest.mark.parametrize("left", ["none", "files", "folders", "both"])
def test_a_crash_leaves_what_the_lesson_then_finds(chapter_16, crashes, left):
    for crash in ("kill", "power"):
        frames = chapter_16.evaluate(f"figures.crash.logic.frames({{crash: '{crash}', left: '{left}'}})")
        assert frames[0]["finds"] == ["step 10"] and frames[-1]["finds"] == frames[-2]["finds"]
        for frame, moment in zip(frames[1:-1], crashes[left], strict=True):
            call, where = frame["call"], f"{crash}, without fsyncs: {left}, {moment.kind} {moment.name}"
            kind = "left" if frame["left"] else call["kind"]
            assert (kind, call["rank"] or 0, call["name"]) == (moment.kind, moment.rank, moment.name), where
            loaded = {found for found in frame["finds"] if found != "a damaged step 20"}
            assert len(frame["finds"]) - len(loaded) == bool(frame["noticed"]), where
            assert loaded | set(frame["noticed"]) == ({moment.killed} if crash == "kill" else moment.cut), where
            held = dict(moment.here[1])  # what the page cache shows
            assert frame["entry"] == moment.here[0], where
            assert {name: file["written"] for name, file in frame["files"].items()} == {
                name: data != b"" for name, data in held.items()
            }, where


def test_a_crash_is_shown_as_the_logic_says(chapter_16):
    figure = chapter_16.page.locator("figure-crash")
    to_the_end(chapter_16, "crash")
    chapter_16.page.keyboard.press("ArrowLeft")
    chapter_16.page.keyboard.press("ArrowLeft")
    for crash in ("kill", "power"):
        for left in ("none", "files", "folders", "both"):
            choose(chapter_16, "crash", crash=crash, left=left)  # the reader stays at the moment
            frame = chapter_16.evaluate(f"figures.crash.logic.frames({{crash: '{crash}', left: '{left}'}}).at(-3)")
            assert said(chapter_16, "crash") == frame["says"]
            assert figure.locator(".crash-found").all_inner_texts() == frame["finds"]
            maybe = figure.locator("td:last-child .crash-maybe").all_inner_texts()
            unsure = [file[key] for file in frame["files"].values() for key in ("named", "synced")]
            assert len(maybe) == unsure.count(False) + (len(frame["entries"]) > 1)


# The runs with a fault

#: What the page carries.
RECORDED = "JSON.parse(document.querySelector('figure-faults').dataset.recorded)"
MADE_UP = 8
FAULTS = ("bit", "batch", "gradient", "moments", "rate", "copy")


@pytest.fixture(scope="module")
def runs_with_faults():
    """The seven runs, recorded anew; one process's; and what the lesson's own functions, on four ranks, say of them."""
    return live_figure.module("faults").study()


def _lamps(seen, names, step) -> list:
    """What each lamp shows after a step, as the page says it."""
    found = {name: {"step": when, "rank": rank} for name, (when, rank) in seen.items() if when <= step}
    return [found.get(name) for name in names]


@pytest.mark.parametrize("fault", ["none", *FAULTS])
def test_a_faulty_run_is_what_the_lessons_functions_record_and_see(chapter_17, runs_with_faults, fault):
    logs, _, seen = runs_with_faults
    names = chapter_17.evaluate("figures.faults.logic.names")
    assert names == list(live_figure.module("faults").DETECTORS) and seen[fault].keys() <= set(names)
    frames = chapter_17.evaluate(f"figures.faults.logic.frames({{fault: '{fault}'}}, {RECORDED})")
    digests = chapter_17.evaluate(f"{RECORDED}.digests").split()
    groups = f"figures.faults.logic.frames({{fault: '{fault}'}}, {RECORDED}).slice(1)"
    groups = chapter_17.evaluate(f"{groups}.map(frame => [frame.start, frame.end].map(figures.faults.logic.groups))")
    assert len(frames) == 21
    losses = [statistics.mean(row["loss"] for row in rows) for rows in zip(*logs[fault], strict=True)]
    for step, frame in enumerate(frames):
        (run,) = frame["runs"]
        assert run["losses"] == pytest.approx(losses[:step], abs=1e-7), f"step {step}"
        assert run["lamps"] == _lamps(seen[fault], names, step), f"step {step}"
        for k, what in enumerate(("parameters_in", "parameters_out") if step else ()):
            held = [rows[step - 1][what] for rows in logs[fault]]
            assert groups[step - 1][k] == [held.index(own) for own in held], f"step {step}, {what}"
            shown = [digests[place] for place in frame[("start", "end")[k]]]
            assert shown == [digest[:6] for digest in held], f"step {step}, {what}"
        assert ("rises" in frame["says"]) is (step > 1 and not losses[step - 1] < losses[step - 2]), frame["says"]


def test_what_the_chapter_says_of_the_six_runs(runs_with_faults):
    """No loss rises, the ranks end equal, and of the detectors without a reference exactly one sees each fault."""
    logs, _, seen = runs_with_faults
    assert seen["none"] == {}
    without = {kind: {name for name in seen[kind] if "one process" not in name} for kind in FAULTS}
    assert without == {
        "bit": {"(b) before forward"}, "moments": {"state before the step"}, "copy": {"(b) after the step"},
        "batch": {"batches, all ranks"}, "gradient": {"local norm, all ranks"}, "rate": {"update, own past"},
    }  # fmt: skip
    with_losses = [kind for kind in FAULTS if "losses, one process" in seen[kind]]
    assert with_losses == [kind for kind in FAULTS if "norms, one process" in seen[kind]] == list(FAULTS[:-1])
    assert all(len({rows[-1]["parameters_out"] for rows in logs[kind]}) == 1 for kind in FAULTS)
    apart = [t for t in range(20) if len({rows[t]["parameters_out"] for rows in logs["copy"]}) > 1]
    assert len(apart) == 1, "the copy is repaired by the next all-gather"


def test_the_lamps_light_for_made_up_runs_as_the_lessons_checks_do(chapter_17, runs_with_faults):
    """The healthy run with an entry changed, or with noise near the limits of the guard and of the norm rule."""
    figure, draw, lit = live_figure.module("faults"), random.Random(17), set()
    logs, reference, _ = runs_with_faults
    changed = {}
    for number, what in enumerate(("loss", "gradient", *figure.DIGESTS, "update", *["noise"] * MADE_UP)):
        log = changed[f"{number}"] = copy.deepcopy(logs["none"])
        if what == "noise":
            for t, rank in itertools.product(range(20), range(4)):
                log[rank][t] |= {"loss": draw.uniform(0.4, 2), "gradient": draw.uniform(1, 3.5) if rank else 1.0}
        else:
            t = draw.randrange(2, 20)
            row = log[draw.randrange(4)][t]
            others = "0" * 12 if what != "batch" else next(r[t]["batch"] for r in log if r[t] is not row)
            row[what] = others if isinstance(row[what], str) else 9 * row[what]
    data, verdicts = figure.pack(changed, reference), figure.judge(list(changed.values()), reference)
    names = chapter_17.evaluate("figures.faults.logic.names")
    lamps = chapter_17.evaluate(
        f"(data => Object.values(data.runs).map(run => figures.faults.logic.lamps(run, data.reference)))({data})"
    )
    for number, (shown, seen) in enumerate(zip(lamps, verdicts, strict=True)):
        assert shown == _lamps(seen, names, 20), f"made-up run {number}: {seen}"
        lit |= seen.keys()
    assert lit == set(names)


def _words(step: int, rank: int | None) -> str:
    return f"step {step}" if rank is None else f"step {step}, rank {rank}"


def test_the_lamps_are_shown_as_the_logic_says(chapter_17, runs_with_faults):
    figure, seen = chapter_17.page.locator("figure-faults"), runs_with_faults[2]
    to_the_end(chapter_17, "faults")
    for fault in FAULTS:
        choose(chapter_17, "faults", fault=fault)  # the reader stays at the last step
        words = said(chapter_17, "faults")
        assert f"At the end {len(seen[fault])} of 11 lamp" in words
        lit = [figure.locator(f".faults-seen {cell}").all_inner_texts() for cell in ("th", "td")]
        assert dict(zip(*lit, strict=True)) == {name: _words(*where) for name, where in seen[fault].items()}
        assert figure.locator(".faults-held").count() == 8
    choose(chapter_17, "faults", fault="none")
    assert said(chapter_17, "faults").endswith("At the end none of 11 lamps is lit.")
    choose(chapter_17, "faults", fault="all")
    rows = figure.locator(".faults-matrix tbody tr")
    for row, name in zip(rows.all(), live_figure.module("faults").DETECTORS, strict=True):
        steps = [text.strip() for text in row.locator("td").all_inner_texts()]
        assert steps == [str(seen[fault][name][0]) if name in seen[fault] else "" for fault in FAULTS], name
    choose(chapter_17, "faults", fault="bit")


# The player of ledgers


def test_the_deadlock_plays_until_nothing_moves(chapter_01):
    player = chapter_01.page.locator("figure-ledger").first
    words = to_the_end(chapter_01, "ledger")
    assert words.startswith("From here on nothing moves. Every rank waits forever.") and "cycle" in words
    assert player.locator(".ledger-stuck").count() == 4
    now = player.locator("td:last-child")
    assert now.all_inner_texts() == [f"waits in recv from rank {(r - 1) % 4}" for r in range(4)]
    chapter_01.page.keyboard.press("Home")
    assert player.locator(".ledger-stuck").count() == 0
    assert set(now.all_inner_texts()) == {"computes"}


def test_a_message_is_on_its_way_and_arrives(chapter_01):
    """The second recorded run of the chapter: each rank sends to its right neighbor."""
    chapter_01.page.locator(".ledger-player summary").nth(1).click()
    player = chapter_01.page.locator("figure-ledger").nth(1)
    player.locator(".figure-box").focus()
    moved, arrived = set(), []
    for step in range(1, 17):
        chapter_01.page.keyboard.press("ArrowRight")
        chapter_01.drawn()
        assert player.locator(".figure-count").inner_text() == f"{step} / 16"
        moved.add(player.locator("path.ledger-moving").count())
        if player.locator("path.ledger-arrived").count():
            arrived.append(player.locator(".figure-says").inner_text().split(": ")[1])
    assert max(moved) >= 1
    assert sorted(arrived) == [f"rank {r} has received 12 bytes from rank {(r - 1) % 4}." for r in range(4)]
    assert set(player.locator("td:last-child").all_inner_texts()) == {"is done"}


def test_the_player_ends_with_the_ledgers_sums(chapter_01):
    def pass_on(rank, world_size):
        x, got = torch.full((3,), float(rank)), torch.empty(3)
        work = torch.distributed.isend(x, dst=(rank + 1) % world_size)
        torch.distributed.recv(got, src=(rank - 1) % world_size)
        work.wait()

    ledger = ranks.run(pass_on, 3).ledger
    data = playable.to_json(ledger, 3)
    frames = f"figures.ledger.logic.frames({{}}, {data})"
    counts = chapter_01.evaluate(f"[0, 1, 2].map(rank => figures.ledger.logic.counts({frames}.at(-1), rank))")
    assert [count["sentBytes"] for count in counts] == ledger.bytes_sent() == [12, 12, 12]
    assert [count["receivedBytes"] for count in counts] == [12, 12, 12]
    assert chapter_01.evaluate(f"{frames}.length") == 1 + 2 * len(ledger)
    for send, receive in ((c, json.loads(data)["calls"][c[6]]) for c in json.loads(data)["calls"] if c[1] == "isend"):
        assert (receive[1], receive[0], receive[2]) == ("recv", send[2], send[0])


def test_a_long_run_carries_no_ledger():
    messages = [ranks.Message(0, "send", 1, 4, k * 1e-3) for k in range(playable.MOST + 1)]
    assert playable.to_json(ranks.Ledger(messages[:-1]), 2)
    assert playable.to_json(ranks.Ledger(messages), 2) == ""


# All of them


def test_a_page_loads_only_the_scripts_of_its_figures(book):
    def scripts(name):
        page = (book / "book" / f"{name}.html").read_text()
        return {path.name for path in live_figure.FIGURES.glob("*.js") if f"figures/{path.name}" in page}

    assert scripts("bibliography") == set()
    assert scripts("index") == {"stepper.js", "ring.js", "ledger.js"}
    assert scripts("01_collectives") == {"stepper.js", "deadlock.js", "ring.js", "ledger.js"}
    assert {"stepper.js", "pipeline.js"} <= scripts("11_pipeline") and "ring.js" not in scripts("11_pipeline")


@pytest.mark.parametrize("width", [1280, 390])
def test_keys_play_and_step_on_a_still_page(chromium, book, width):
    context = chromium.new_context(viewport={"width": width, "height": 800}, reduced_motion="reduce")
    page = context.new_page()
    page.goto((book / "book" / "01_collectives.html").as_uri())
    box = page.locator("figure-ring .figure-box")
    box.focus()
    page.keyboard.press("ArrowRight")
    count = page.locator("figure-ring .figure-count")
    assert count.inner_text() == "1 / 6"
    moving = "e => getComputedStyle(e).animationName"
    assert page.locator("figure-ring .ring-arrives").first.evaluate(moving) == "none"
    page.keyboard.press(" ")
    assert page.locator("figure-ring button[aria-label=Pause]").count() == 1
    page.keyboard.press(" ")
    page.keyboard.press("Home")
    page.evaluate(DRAWN)
    assert count.inner_text() == "0 / 6"
    context.close()


def test_every_figure_is_moved_with_keys_and_says_what_it_shows(chromium, book):
    tab, moved = Tab(chromium), set()
    for path in sorted((book / "book").glob("*.html")):
        if "/figures/stepper.js" not in path.read_text():
            continue
        tab.open(path.as_uri())
        for box in tab.page.locator(".figure-box:visible").all():
            name = box.evaluate("e => e.parentElement.localName")
            count, says = box.locator(".figure-count"), box.locator(".figure-says")
            box.focus()
            tab.page.keyboard.press("End")
            tab.drawn()
            step, last = count.inner_text().split(" / ")
            end = says.inner_text()
            assert step == last and len(end) > 20, f"{path.name}: {name}"
            tab.page.keyboard.press("Home")
            tab.drawn()
            assert count.inner_text() == f"0 / {last}", f"{path.name}: {name}"
            assert says.inner_text() != end, f"{path.name}: {name} says the same at both ends"
            moved.add(name)
        assert not tab.errors, path.name
    assert moved == {f"figure-{file.stem}" for file in live_figure.FIGURES.glob("*.js")} - {"figure-stepper"}


def test_no_setting_of_a_figure_is_cut_on_a_phone(chromium, book):
    tab = Tab(chromium, 390)
    for path in sorted((book / "book").glob("*.html")):
        if "/figures/stepper.js" not in path.read_text():
            continue
        tab.open(path.as_uri())
        wide = """boxes => boxes.flatMap(box => [...box.querySelectorAll('.figure-setting :is(select, input)')]
          .filter(e => e.getBoundingClientRect().right > box.getBoundingClientRect().right - 8)
          .map(e => `${box.parentElement.localName}: ${e.name}`))"""
        assert tab.page.locator(".figure-box:visible").evaluate_all(wide) == [], path.name


def test_the_ring_at_home_runs_once_unless_less_motion_is_wanted(chromium, book):
    for motion, step in (("no-preference", "6 / 6"), ("reduce", "0 / 6")):
        page = chromium.new_context(reduced_motion=motion).new_page()
        page.goto((book / "book" / "index.html").as_uri())
        page.wait_for_timeout(7500 if motion == "reduce" else 0)
        expect(page.locator("figure-ring .figure-count")).to_have_text(step)
        expect(page.locator("figure-ring button[aria-label=Play]"), "it does not rest").to_have_count(1)
        page.context.close()


@pytest.mark.parametrize("script", [True, False])
def test_paper_and_pages_without_scripts_show_the_still(chromium, book, script):
    context = chromium.new_context(java_script_enabled=script)
    page = context.new_page()
    page.goto((book / "book" / "01_collectives.html").as_uri(), wait_until="load")
    still = page.locator(".live-still svg").first
    assert still.is_visible() is not script
    page.emulate_media(media="print")
    assert still.is_visible() and len(still.get_attribute("aria-label")) > 40
    assert page.locator(".figure-box:visible").count() == 0
    context.close()
