"""The figures that move: driven in a browser, and compared with the functions that the lessons teach."""

from __future__ import annotations

import json
import random
import sys
from decimal import ROUND_HALF_UP, Context, Decimal

import pytest
import torch

import ranks
from autograder.lessons import notebook
from ranks import playable
from tests.helpers import browser
from tests.helpers.browser import Tab

sys.path.insert(0, str(notebook.ROOT / "book" / "_ext"))

import live_figure

pytestmark = pytest.mark.browser

RINGS, PIPELINES, STACKS, RACES, BUCKETS = 2, 10, 10, 5, 5


@pytest.fixture(scope="module")
def chromium():
    with browser.chromium() as started:
        yield started


@pytest.fixture(scope="module")
def chapter_01(chromium, book):
    return opened(chromium, book, "01_collectives")


@pytest.fixture(scope="module")
def chapter_02(chromium, book):
    return opened(chromium, book, "02_costs")


@pytest.fixture(scope="module")
def chapter_05(chromium, book):
    return opened(chromium, book, "05_ddp")


@pytest.fixture(scope="module")
def chapter_08(chromium, book):
    return opened(chromium, book, "08_zero1")


@pytest.fixture(scope="module")
def chapter_11(chromium, book):
    return opened(chromium, book, "11_pipeline")


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
    tab.page.wait_for_timeout(50)
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
    draw = random.Random()
    for n in draw.sample(range(2, 9), 3):
        choose(chapter_01, "ring", ranks=n, numel=10)
        words = to_the_end(chapter_01, "ring")
        frame = chapter_01.evaluate(
            f"figures.ring.logic.frames({{ranks: {n}, numel: 10, start: 'before'}}).at(-1)",
        )
        shown = chapter_01.page.locator("figure-ring .ring-number").all_inner_texts()
        assert [int(text.replace(",", "")) for text in shown] == frame["sent"]
        assert words == frame["says"] and "All ranks hold the whole sum" in words
        assert chapter_01.page.locator("figure-ring .ring-done").count() == n * n


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
        assert sums[0] == str(frame["makespan"]) and sums[1] == f"{100 * frame['bubble']:.1f} %", where


# The race of algorithms


def test_the_race_is_timed_by_the_lessons_formulas(chapter_02):
    lesson, draw = notebook.functions("02_costs"), random.Random()
    inside, network = (3.4e-6, 1 / 450e9), (14e-6, 1 / 50e9)
    for _ in range(RACES):
        nodes, gpus, ports = draw.randint(1, 64), draw.randint(1, 8), draw.randint(1, 8)
        n, where = nodes * gpus, f"{nodes} nodes of {gpus} GPUs and {ports} ports"
        frames = chapter_02.evaluate(f"figures.race.logic.frames({{nodes: {nodes}, gpus: {gpus}, ports: {ports}}})")
        for frame in frames:
            size = frame["bytes"]
            want = [lesson["ring_time"](size, n, *network), lesson["tree_time"](size, n, *network)]
            want.append(lesson["halving_time"](size, n, *network) if n & (n - 1) == 0 else None)
            want.append(lesson["two_level_time"](size, nodes, gpus, min(ports, gpus), inside, network))
            for got, seconds in zip(frame["seconds"], want, strict=True):
                assert got == (None if seconds is None else pytest.approx(seconds)), where
        choose(chapter_02, "race", nodes=nodes, gpus=gpus, ports=ports)
        words = to_the_end(chapter_02, "race")
        assert f"on {n} GPU" in words, where


# The buckets


def test_the_buckets_end_as_in_the_lesson(chapter_05):
    end_of, draw = notebook.functions("05_ddp")["end_of"], random.Random()
    ready = [1.2e-3 * (j + 1) for j in range(24)]
    for _ in range(BUCKETS):
        n, alpha, speed = draw.randint(2, 64), draw.randint(0, 100), draw.choice([50, 10, 7, 5])
        where = f"{n} ranks, {alpha} µs, {speed} GB/s"

        def cost(count, n=n, alpha=alpha, speed=speed):
            return 2 * (n - 1) * (alpha * 1e-6 + 4e6 * count / (n * speed * 1e9))

        frames = chapter_05.evaluate(f"figures.buckets.logic.frames({{ranks: {n}, alpha: {alpha}, speed: {speed}}})")
        for frame in frames:
            split = [bucket["count"] for bucket in frame["buckets"]]
            assert sum(split) == 24 and frame["end"] == pytest.approx(end_of(split, ready, cost)), where
            k = frame["critical"]
            decides = frame["buckets"][k]["ready"] + sum(cost(count) for count in split[k:])
            assert frame["end"] == pytest.approx(decides), f"{where}: bucket {k} does not decide"
        choose(chapter_05, "buckets", ranks=n, alpha=alpha, speed=speed)
        words = to_the_end(chapter_05, "buckets")
        assert f"{1e3 * frames[-1]['exposed']:.1f} ms are exposed" in words, where


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
                assert memory_per_rank(parameters, parameters, stage) > 80e9, where
            else:
                assert memory_per_rank(parameters, least, stage) <= 80e9, where
                assert least == 1 or memory_per_rank(parameters, least - 1, stage) > 80e9, where
        choose(chapter_08, "stack", billions=billions, ranks=n)
        sums = chapter_08.page.locator("figure-stack .stack-sum").all_inner_texts()
        assert [float(text.split()[0]) for text in sums] == [three_digits(f["total"]) for f in frames], where


def three_digits(number):
    """Bytes in GB to three digits; JavaScript rounds 14.25 up, Python to the even digit."""
    return float(Context(prec=3, rounding=ROUND_HALF_UP).create_decimal(Decimal(number) / 10**9))


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
        chapter_01.page.wait_for_timeout(30)
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

    assert scripts("index") == set()
    assert scripts("01_collectives") == {"stepper.js", "ring.js", "ledger.js"}
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
    page.wait_for_timeout(50)
    assert count.inner_text() == "0 / 6"
    context.close()


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
