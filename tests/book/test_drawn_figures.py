"""The figures that never move: what they show, and the directive that puts them on a page."""

from __future__ import annotations

import itertools
import re
import sys

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import directives

import ranks
from autograder.lesson import notebook
from machines.cluster import GB, find
from ranks.figure import LEGIBLE

sys.path.insert(0, str(notebook.ROOT / "book" / "_ext"))

import live_figure

nodes_of, trees_of = live_figure.module("two_nodes"), live_figure.module("two_trees")


@pytest.fixture
def shown(monkeypatch):
    """The doctree of a page with a figure: its directive's argument and options → the page."""
    directives.register_directive("drawn-figure", live_figure.DrawnFigure)
    yield lambda text: publish_doctree(f".. drawn-figure:: {text}\n", settings_overrides={"report_level": 5})
    directives._directives.pop("drawn-figure")


def test_no_label_of_a_drawn_figure_is_too_small_to_read():
    fig = ranks.Figure(alt="Two labels")
    small, large = fig.text(0, 0, "small", fontsize=5), fig.text(0, 1, "large", fontsize=14)
    fig.svg()
    assert (small.get_fontsize(), large.get_fontsize()) == (LEGIBLE, 14)


@pytest.mark.parametrize("machine", ["H100", "B200"])
def test_two_nodes_have_the_machines_bandwidths(machine):
    cluster = find(machine)
    picture, alt = nodes_of.still(machine=machine)
    for rate in (cluster.nvlink, cluster.port):
        assert f"{rate / GB:.0f} GB/s" in picture and f"{rate / GB:.0f} GB/s" in alt
    assert re.findall(r">(\d+)</text>", picture) == [str(gpu) for gpu in range(16)]


def test_a_group_stands_out_with_its_ports():
    assert nodes_of.members("3,11") == {3, 11} and nodes_of.members("0-7,12") == {*range(8), 12}
    picture, alt = nodes_of.still(group="3,11")
    assert picture.count('class="node-gpu"') == picture.count('class="node-port"') == 2
    assert picture.count('class="node-gpu node-faint"') == 14 and "3, 11" in alt


@pytest.mark.parametrize("n", [2, 6, 8, 14, 16])
def test_no_rank_of_two_trees_sends_more_than_two_vectors(n):
    first = trees_of.parents(n)
    second = trees_of.mirrored(first)
    both = [(trees_of.sends(first, rank) + trees_of.sends(second, rank)) / 2 for rank in range(n)]
    assert sum(both) == 2 * (n - 1) and max(both) <= 2
    assert n < 8 or max(trees_of.sends(first, rank) for rank in range(n)) == 3


def test_a_gradient_is_added_in_two_places():
    picture, alt = live_figure.module("two_dtypes").still()
    assert picture.count("<rect") == 2 * 3 + 2 + 1 and ">1</text>" in picture and ">2</text>" in picture
    boxes = re.findall(r'<rect[^>]* x="(\d+)"[^>]* width="(\d+)"', picture)
    wide = int(re.search(r'viewBox="0 0 (\d+)', picture)[1])
    assert all(int(x) + int(width) <= wide for x, width in boxes) and "accumulate" in alt and "reduce" in alt


def test_a_page_gets_the_picture_its_alternative_and_its_caption(shown):
    (raw,) = shown("two_nodes group=0-7\n   :caption: The first node").findall(nodes.raw)
    assert raw["caption"] == "The first node" and 'role="img" aria-label="Two nodes' in raw.astext()
    (raw,) = shown("two_nodes").findall(nodes.raw)
    assert raw["caption"] == nodes_of.CAPTION


def test_only_the_hung_rank_of_a_hang_does_not_wait_in_the_all_reduce():
    hang = live_figure.module("hang")
    picture, alt = hang.still(budget="20")
    assert picture.count("called, not completed") == hang.RANKS - 1 and picture.count("stuck: has not called") == 1
    assert re.findall(r">([\d:]+) to restart<", picture) == ["8:30", "16:50"] and "leaves 16:50" in alt
    assert picture.count(">dump<") == hang.RANKS  # of all that live
    bars = [
        float(x)
        for x in re.findall(r'width="([\d.]+)" height="20"[^>]*/><text[^>]*>[^<]*(?:wait|to restart)<', picture)
    ]
    assert bars[0] * 8.5 == pytest.approx(bars[1] * 10, abs=0.1)  # to scale
    assert bars[2] * (16 + 5 / 6) == pytest.approx(bars[3] * (1 + 2 / 3), abs=0.1)


def test_every_rank_of_a_job_has_watchdogs_and_every_node_an_agent():
    picture, alt = live_figure.module("launch_parts").still()
    assert re.findall(r">rank (\d)<", picture) == list("0123")
    assert picture.count(">watchdogs<") == picture.count(">monitor<") == 4
    assert picture.count(">end<") == 4  # each their own rank
    assert picture.count(">agent (torchrun)<") == 2 and picture.count(">store<") == 1 and "watchdog" in alt
    (store,) = re.findall(r'x="([\d.]+)"[^>]*>store<', picture)
    arrows = re.findall(r'd="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"[^>]*#store-tip', picture)
    left, right, below = sorted(arrows, key=lambda arrow: (arrow[1] != arrow[3], float(arrow[0])))  # two are level
    assert float(left[0]) < float(left[2]) < float(store) < float(right[2]) < float(right[0])
    assert below[0] == below[2] == store  # from the line that joins the four ranks
    (line,) = re.findall(r'd="M([\d.]+) ([\d.]+)H([\d.]+)"', picture)
    joined = [float(x) for x in re.findall(rf'd="M([\d.]+) {line[1]}V', picture)]
    assert below[1] == line[1] and len(joined) == 4 and (joined[0], joined[-1]) == (float(line[0]), float(line[2]))
    assert all(setting in picture for setting in ("--log-dir", "TORCH_FR_DUMP_TEMP_FILE"))


@pytest.mark.parametrize("wrong", ["two_nods", "two_nodes grup=3", "two_nodes group=x", "two_nodes machine=H1"])
def test_a_figure_that_cannot_be_drawn_is_a_warning(shown, wrong):
    page = shown(wrong)
    assert not list(page.findall(nodes.raw))
    (message,) = page.findall(nodes.system_message)
    assert message.astext().split("drawn-figure", 1)[1].startswith(f" {wrong.split()[0]}: ")


def test_a_step_of_zero1_has_every_element_once_in_the_state():
    picture, alt = live_figure.module("zero1_step").still()
    for name in "mv":
        assert re.findall(rf">{name}([₀-₅])<", picture) == list("₀₁₂₃₄₅")
    assert "12 bytes" in alt and "6 bytes" in alt


def test_the_steps_of_zero1_are_drawn_to_scale_and_named_on_each_rank():
    figure = live_figure.module("zero1_overlap")
    found, (picture, alt) = figure.times(find("H100")), figure.still()
    assert picture.count(">backward<") == picture.count(">forward<") == 2  # ranks 0 and 1
    wide = {
        kind: [float(w) for w in re.findall(rf'class="lane-{kind}"[^>]* width="([\d.]+)" height="22"', picture)]
        for kind in ("scatter", "gather")
    }
    for kind, place in (("scatter", 1), ("gather", 2)):
        whole = sum(bucket[place] for bucket in found.buckets) * figure.SCALE
        assert wide[kind][:2] == pytest.approx([whole, whole], rel=0.01)
    one_by_one, hidden = figure.exposed(found)
    assert f"{hidden:.0f} ms instead of {one_by_one:.0f}" in alt and hidden < one_by_one / 3


def test_a_dispatch_has_every_row_once_before_and_after_it():
    figure = live_figure.module("dispatch")
    picture, alt = figure.still()
    before, between, after = (
        [row for blocks in arranged for block in blocks for row in block]
        for arranged in (figure.sent(), figure.received(), figure.grouped())
    )
    assert sorted(before) == sorted(between) == sorted(after) and len(set(before)) == len(before) == 12
    for rank, blocks in enumerate(figure.grouped()):
        assert [{expert for *_, expert in block} for block in blocks] == [{2 * rank}, {2 * rank + 1}]
    assert picture.count('class="moved"') == 2 * 12 and "3 rows for expert 0 and 4 for expert 1" in alt


def test_an_experts_gradient_is_divided_and_a_routers_is_reduced_too():
    picture, alt = live_figure.module("expert_gradients").still()
    assert re.findall(r">(all-reduce, ÷ 2|÷ 2)<", picture) == ["all-reduce, ÷ 2", "÷ 2", "÷ 2", "all-reduce, ÷ 2"]
    assert picture.count('class="moved"') == 6 and picture.count(">½ (∂L₀ + ∂L₁)<") == 4
    assert "rank 1's expert 1 holds ∂L₀ + ∂L₁" in alt and "rank 0's router holds ∂L₀, which needs all-reduce" in alt


def test_the_groups_of_a_mesh_say_which_wires_they_use():
    picture, alt = live_figure.module("meshes").still(sizes="tp:4,dp:2,pp:2")
    assert re.findall(r">(\w+) (\d+), (\d+) apart: (\w+)", picture) == [
        ("tp", "4", "1", "NVLink"), ("dp", "2", "4", "NVLink"), ("pp", "2", "8", "ports"),
    ]  # fmt: skip
    assert "[0, 4]" in alt and picture.count("mesh-first") == 4 + 2 + 2
    with pytest.raises(ValueError, match="multiply to 16"):
        live_figure.module("meshes").still(sizes="tp:4,dp:2")


@pytest.mark.parametrize("backward", [False, True])
def test_a_layer_takes_as_long_as_the_slower_of_compute_and_network(backward):
    figure = live_figure.module("fsdp_lanes")
    for n, exposed in zip(figure.SIZES, (False, True), strict=True):
        found = figure.times(n)
        jobs = figure.bars(found, backward)
        lanes = [[job for job in jobs if (job[0] == "compute") == compute] for compute in (True, False)]
        for lane in lanes:
            assert all(before[3] <= after[2] for before, after in itertools.pairwise(lane)), (n, lane)
        starts = [start for _, _, start, _ in lanes[0]]
        compute, network = (found.backward, found.gather + found.scatter) if backward else (found.forward, found.gather)
        assert starts[-1] - starts[-2] == pytest.approx(max(compute, network))
        assert (network > compute) == exposed
