"""The planner: terms worked out by hand, what must be monotone, bad input, and the published runs."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autograder.authoring import handout
from autograder.lessons import release
from planner import Layout, LayoutError, calibrate, communication, memory, plan, predict, rows, software
from planner.arithmetic import Step, matmul_rate, matmuls
from planner.search import FILLED
from ranks.cluster import find
from ranks.model import DEEPSEEK_V3, LLAMA3_8B, LLAMA3_70B, LLAMA3_405B, flops_per_token, parameters

ROOT = Path(__file__).resolve().parents[2]
RUNS = json.loads(calibrate.ROWS.read_text(encoding="utf-8"))
H100 = find("H100")


def benchmark(name):
    """The module of a benchmark; one is called planner like the package."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


program, measured = benchmark("planner"), benchmark("measured")


@pytest.fixture(scope="module")
def compared():
    """All shipped runs, with what is predicted for them."""
    return [(row, rows.compare(rows.read(row))) for row in RUNS]


def counted(compared, part=None):
    """The comparisons that are tests: not those that set a constant, nor those marked as unused."""
    left_out = calibrate.names()
    return [
        c
        for row, c in compared
        if row["name"] not in left_out and not row.get("unused") and part in (None, row["part"])
    ]


def median_error(comparisons):
    return statistics.median(abs(c.error) for c in comparisons)


# Against published runs. The margins are about a fifth of the error: a term may change a little.


def test_the_runs_are_enough_and_say_where_they_come_from(compared):
    assert len(counted(compared)) >= 60 and all(row["source"] for row in RUNS)
    assert {"A100", "H100", "H200", "B200", "GB200 NVL72", "GB300 NVL72"} <= {row["cluster"] for row in RUNS}
    assert {"bf16", "fp8", "mxfp8", "nvfp4"} <= {row["precision"] for row in RUNS}
    assert any(row["layout"].get("cp", 1) > 1 for row in RUNS) and any(row["model"].get("experts") for row in RUNS)
    assert len({row["name"] for row in RUNS}) == len(RUNS)


def test_the_errors_stay_small(compared):
    everything = counted(compared)
    dense = [c for c in everything if not c.run.model.experts]
    moe = [c for c in everything if c.run.model.experts]
    assert median_error(dense) <= 0.06  # 4.8 %
    assert program.percentile([abs(c.error) for c in dense], 0.9) <= 0.16  # 13.2 %
    assert median_error(everything) <= 0.07  # 5.8 %
    assert program.percentile([abs(c.error) for c in everything], 0.9) <= 0.25  # 21.9 %
    assert median_error(moe) <= 0.18  # 15.3 %
    assert median_error(counted(compared, "held out")) <= 0.05  # 4.2 %


def test_each_constant_solves_the_run_that_it_names(compared):
    """And the calibration would find the same again."""
    of = {row["name"]: c for row, c in compared}
    for name in calibrate.names():
        assert abs(of[name].error) < 0.003, name
    before = {key: value for key, (value, _) in software.MATMUL_SHARE.items()}
    try:
        found = calibrate.calibrate(rounds=1)
    finally:
        for key, value in before.items():
            software.MATMUL_SHARE[key] = (value, software.MATMUL_SHARE[key][1])
        for name in calibrate.RANGES:
            setattr(calibrate.arithmetic, name, getattr(software, name))
    for key, value in before.items():
        assert found[" ".join(key)] == pytest.approx(value, abs=0.002)


def test_the_order_of_layouts_is_found(compared):
    """BLOOM's sweep of 22 layouts of one model on 384 GPUs, and four smaller ones."""
    found = program.sweeps([(row, c) for row, c in compared if row["family"] == "BLOOM"])
    largest = max(found, key=len)
    assert len(largest) >= 20
    order = program.spearman(
        [c.prediction.tokens_per_gpu_per_second for c in largest], [program.speed(c) for c in largest]
    )
    assert order > 0.7  # 0.83
    assert program.regret(largest) < 0.03  # 1.1 %
    assert statistics.median(map(program.regret, found)) <= 0.05


def test_the_memory_is_found(compared):
    measured = [(row, c) for row, c in compared if row["published"].get("memory_gib") and not row.get("unused")]
    errors = [abs(c.prediction.nbytes / 2**30 / row["published"]["memory_gib"] - 1) for row, c in measured]
    assert len(errors) >= 29 and statistics.median(errors) <= 0.10  # 7 %
    for _, c in measured:
        assert c.prediction.nbytes <= c.run.software.machine(c.run.cluster).memory, c.run.name


def test_no_term_knows_a_single_run():
    """Code names no run; only the constants say which one they come from."""
    names = {row["name"] for row in RUNS}
    for path in (ROOT / "planner").glob("*.py"):
        if path.name != "software.py":
            assert not [name for name in names if name in path.read_text(encoding="utf-8")], path.name


# Terms by hand


def step(model=LLAMA3_70B, cluster=H100, **changes):
    """Llama 3 70B, one sequence per micro-batch, on 8 × 8 H100s, unless told otherwise."""
    return Step(model, cluster, replace(Layout(dp=8, tp=8), **changes), software.MEGATRON)


def test_the_products_of_a_layer_by_hand():
    """Two FLOPs per weight and token forward, four backward, over tp ranks."""
    weights = (parameters(LLAMA3_70B).total - 2 * 128256 * 8192 - 161 * 8192) / 80
    forward, backward = matmuls(step())
    ideal = 2 * weights * 8192 / 8 / matmul_rate(step(), "bf16")
    assert forward == pytest.approx(ideal) and backward == 2 * forward


def test_tensor_parallelism_by_hand():
    """Two blocks, each with an all-gather and a reduce-scatter of the micro-batch's activations, 70 % hidden."""
    nbytes = 2 * 8192 * 8192
    once = 2 * H100.all_gather_seconds(nbytes, 8)
    assert communication.tensor(step())[0] == pytest.approx(2 * once * (0.3 + 0.7 * software.OVERLAP_COST))
    # Across nodes nothing is hidden, and the group has sixteen ports.
    wide = communication.tensor(step(tp=16, dp=4))[0]
    assert wide == pytest.approx(2 * 2 * H100.all_gather_seconds(nbytes, 16))
    assert communication.tensor(step(tp=1, dp=64)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 3 * (1.0 + 2.0)),
        ({"virtual_stages": 4}, 3 * (1.0 + 2.0) / 4),
        ({"schedule": "zero_bubble"}, 3 * (1.0 + 2.0 - 2 * 1.0)),
        ({"schedule": "dualpipe"}, (4 / 2 - 1) * (1.0 + 2.0 + 2.0 - 3 * 1.0)),
        ({"pp": 1}, 0.0),
    ],
)
def test_the_bubble_by_hand(changes, expected):
    """A forward of one second, a backward of two, of which the gradients of weights take one; four stages."""
    assert communication.bubble(step(**{"pp": 4, **changes}), 1.0, 2.0, 16) == pytest.approx(expected)


def test_the_ring_of_context_parallelism_by_hand():
    """Three hops of keys and values, hidden behind attention that lasts longer."""
    one = step(cp=4, dp=2)
    hop = H100.send_seconds(2 * 2 * 8192 / 4 * 8 * 128 / 8, 8)
    forward, backward = communication.context(one, (1.0, 2.0))
    assert forward == pytest.approx(software.OVERLAP_COST * 3 * hop) and backward == pytest.approx(2 * forward)
    assert communication.context(one, (0.0, 0.0))[0] == pytest.approx(3 * hop)


def test_the_experts_by_hand():
    """Eight experts on one node per token: two exchanges of eight copies each, of bf16, inside the node."""
    one = Step(DEEPSEEK_V3, H100, Layout(dp=8, ep=8), software.MEGATRON, moe=True)
    once = H100.all_to_all_seconds(2 * 4096 * 7168 * 8, 8)
    assert communication.experts(one, (0.0, 0.0))[0] == pytest.approx(2 * once)
    # On eight nodes a token goes to 5.3 of them on average, or to at most four.
    far = replace(one, layout=Layout(dp=64, ep=64))
    free = replace(far, model=replace(DEEPSEEK_V3, nodes_per_token=None))
    ratio = communication.experts(free, (0.0, 0.0))[0] / communication.experts(far, (0.0, 0.0))[0]
    assert ratio == pytest.approx(8 * (1 - (7 / 8) ** 8) / 4, rel=0.05)
    # A rank that is alone has the states of all parameters.
    alone = replace(one, layout=Layout(dp=1, zero_stage=0))
    assert memory.states(alone) == pytest.approx(18 * parameters(DEEPSEEK_V3).total)


def test_data_parallelism_by_hand():
    """Eight replicas, one per node: every gradient crosses the one port of its rank, and 79 of 80 pieces are hidden."""
    one = step()
    ordinary, _ = communication.rank_parameters(one)
    reduce = 80 * H100.reduce_scatter_seconds(4 * ordinary / 80, 8, 8)
    gather = 80 * H100.all_gather_seconds(2 * ordinary / 80, 8, 8)
    endless = communication.data(one, 1e9, 1e9, 1)
    assert endless == pytest.approx((reduce + gather) * (1 / 80 + 79 / 80 * software.OVERLAP_COST))
    assert communication.data(one, 0.0, 0.0, 1) == pytest.approx(reduce + gather)


def test_the_states_by_hand():
    """70.6 billion parameters on eight tensor-parallel ranks: 2 + 4 bytes, and 12 over eight replicas."""
    assert memory.states(step()) == pytest.approx(70_553_706_496 / 8 * (6 + 12 / 8))
    everything = 70_553_706_496 * 18 / 64
    gathered = 3 * 2 * 70_553_706_496 / 80
    assert memory.states(step(tp=1, dp=64, zero_stage=3)) == pytest.approx(everything + gathered)


def test_the_activations_by_hand():
    """80 layers of 33.5 h bytes per token on eight ranks; in a pipeline four micro-batches of a quarter of them."""
    layers = 80 * 33.5 * 8192 * 8192 / 8
    assert memory.terms(step(), 16)["activations"] == pytest.approx(layers)
    four = memory.terms(step(pp=4, dp=2), 16)
    assert four["activations"] == pytest.approx(layers) and "logits" not in four
    kept = 80 * 2 * 8192 * 8192 / 8
    assert memory.terms(step(recompute="full"), 16)["activations"] == pytest.approx(kept + layers / 80)


# What must be monotone or symmetric


@pytest.fixture
def example():
    return predict(LLAMA3_70B, H100, Layout(dp=16, tp=4, pp=4, virtual_stages=5), 256)


def test_the_terms_add_up(example):
    assert sum(example.time.values()) == example.seconds and all(s > 0 for s in example.time.values())
    assert sum(example.memory.values()) == example.nbytes and all(b > 0 for b in example.memory.values())
    tokens = 256 * 8192 / example.seconds
    assert example.tokens_per_gpu_per_second == pytest.approx(tokens / 256)
    assert example.mfu() == pytest.approx(tokens / 256 * flops_per_token(LLAMA3_70B) / 989e12)
    assert 0.3 < example.mfu() < 0.6 and example.mfu("six_n") < example.mfu() < example.mfu("full_square")


@pytest.mark.parametrize("layout", [Layout(dp=16, tp=4, pp=4), Layout(dp=64, tp=4, zero_stage=3), Layout(dp=16, tp=16)])
def test_a_better_machine_is_never_slower(layout):
    seconds = predict(LLAMA3_70B, H100, layout, 256, memory_limit=False).seconds
    faster = {"port": 100e9, "nvlink": 900e9, "memory_bandwidth": 8e12, "flops": {"bf16": 2e15}}
    for field, value in faster.items():
        better = replace(H100, **{field: value})
        assert predict(LLAMA3_70B, better, layout, 256, memory_limit=False).seconds <= seconds, field
    slow = replace(H100, ports=1)
    assert predict(LLAMA3_70B, slow, layout, 256, memory_limit=False).seconds > seconds


def test_recomputing_more_takes_time_and_saves_memory():
    found = [
        predict(LLAMA3_70B, H100, Layout(dp=16, tp=4, pp=4, recompute=recompute), 256, software=software.TORCHTITAN)
        for recompute in ("none", "selective", "full")
    ]
    assert found[0].seconds < found[1].seconds < found[2].seconds
    assert found[0].nbytes > found[1].nbytes > found[2].nbytes


def test_a_higher_stage_of_zero_never_needs_more():
    found = [
        predict(LLAMA3_8B, H100, Layout(dp=64, zero_stage=stage), 64, memory_limit=False).nbytes for stage in range(4)
    ]
    assert found == sorted(found, reverse=True)


def test_a_larger_batch_is_used_better():
    found = [predict(LLAMA3_70B, H100, Layout(dp=16, tp=4, pp=4), batch).mfu() for batch in (64, 256, 1024)]
    assert found == sorted(found)


# `plan`


def test_a_plan_is_the_fastest_that_fits_and_says_why():
    found = plan(LLAMA3_70B, H100, 64, 128)
    assert all(p.nbytes <= FILLED * H100.memory and p.layout.gpus == 64 for p in found.fitting)
    assert [p.seconds for p in found.fitting] == sorted(p.seconds for p in found.fitting)
    assert all(nbytes > FILLED * H100.memory for _, nbytes in found.rejected)
    by_itself = predict(LLAMA3_70B, H100, found.best.layout, 128)
    assert by_itself.seconds == found.best.seconds
    lines = str(found).splitlines()
    assert len(lines) > 3 and all(" slower: " in line and " +" in line for line in lines[1:-1])
    assert "more do not fit 73 GB" in lines[-1]


def test_a_plan_for_experts_splits_them():
    found = plan(DEEPSEEK_V3, find("GB200 NVL72"), 256, 1024, "mxfp8")
    assert found.best.layout.ep > 1


def test_a_model_that_does_not_fit_is_refused_in_one_line():
    with pytest.raises(
        LayoutError, match=r"^Llama 3 405B does not fit 8 GPUs: dp .* needs \d+ GB of 73; use more GPUs$"
    ):
        plan(LLAMA3_405B, H100, 8, 8)


# Bad input


@pytest.mark.parametrize(
    ("changes", "batch", "message"),
    [
        ({"tp": 3}, 240, "tp = 3 does not divide 64 query heads; choose a divisor"),
        ({"dp": 7}, 64, "dp x micro_batch = 7 does not divide 64 sequences; choose a divisor"),
        ({"cp": 3}, 64, "cp = 3 does not divide 8192 tokens per sequence; choose a divisor"),
        ({"pp": 64, "virtual_stages": 2}, 64, "pp 64 x 2 virtual stages need more than the model's 80 layers"),
        ({"ep": 2}, 64, "ep is 2, but the model has no experts; set it to 1"),
        ({"recompute": "some"}, 64, "recompute is 'some'; it must be one of none, selective, full"),
        ({"zero_stage": 5}, 64, "zero_stage is 5; ZeRO has stages 0 to 3"),
        ({"micro_batch": 0}, 64, "micro_batch is 0; it must be a whole number of at least 1"),
        ({"cp": 2, "context": "all_to_all"}, 64, "cp x tp = 16 does not divide 8 heads of keys and values, as context "
         "parallelism by all-to-all needs; use the ring"),
        ({"tp": 1, "zero_stage": 0}, 64, "this layout needs 1"),
    ],
)  # fmt: skip
def test_a_layout_that_cannot_be_is_refused_in_one_line(changes, batch, message):
    with pytest.raises(LayoutError) as caught:
        predict(LLAMA3_70B, H100, replace(Layout(dp=8, tp=8), **changes), batch)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ep", "message"),
    [(3, "ep = 3 does not divide 256 experts"), (16, "ep = 16 does not divide the 8 ranks of a pipeline stage")],
)
def test_experts_that_do_not_divide_are_refused(ep, message):
    with pytest.raises(LayoutError, match=message):
        predict(DEEPSEEK_V3, H100, Layout(dp=8, ep=ep), 8)


def row_without(*path, value=None):
    """A shipped row with one field changed, or removed."""
    row = copy.deepcopy(next(row for row in RUNS if row["name"] == "Megatron-LM 70B"))
    *outer, key = path
    place = row[outer[0]] if outer else row
    if value is None:
        del place[key]
    else:
        place[key] = value
    return row


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (row_without("cluster"), "the field 'cluster' is missing; a row needs name, model, cluster"),
        (row_without("published"), "the field 'published' is missing"),
        (row_without("published", value={"mfu": None}), "published has none of tokens_per_gpu_per_second"),
        (row_without("model", "layers"), "the model's field 'layers' is missing"),
        (row_without("cluster", value="TPU v9"), "no cluster 'TPU v9'; there are: A100"),
        (row_without("gpus", value=100), "dp 48 x tp 8 x pp 2 x cp 1 = 768 ranks, but gpus is 100"),
        (row_without("precision", value="fp3"), "H100 has no 'fp3'; it has bf16, fp8, mxfp8"),
        (row_without("flops_counting", value="half"), "flops_counting is 'half'"),
        (row_without("layout", "tp", value="many"), "tp is 'many'; it must be a whole number of at least 1"),
        (row_without("model", "heads", value=0), "heads is 0; it must be a whole number of at least 1"),
        (row_without("published", value={"mfu": -1}), "mfu is -1; it must be a number above 0"),
        (row_without("layout", value=[1]), "a field has the wrong type"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_in_one_line(row, message):
    with pytest.raises(rows.RowError) as caught:
        rows.compare(rows.read(row))
    assert str(caught.value).startswith(f"Megatron-LM 70B: {message}") and "\n" not in str(caught.value)


def test_what_a_row_leaves_open_gets_its_default():
    row = row_without("layout", value={"tp": 8, "pp": 2, "virtual_stages": None, "micro_batch": None})
    del row["batch_sequences"], row["flops_counting"], row["model"]["kv_heads"], row["model"]["ffn"]
    run = rows.read(row)
    assert {layout.dp for layout in run.layouts} == {48} and run.counting == "causal_half"
    assert {layout.micro_batch for layout in run.layouts} == {1, 2, 4}
    assert {layout.virtual_stages for layout in run.layouts} == {1, 2, 3, 6, 7, 14, 21}
    assert run.model.kv_heads == 64 and run.model.ffn == 4 * 8192 and run.batch == 48 * 4 * 2
    assert rows.compare(run).predicted > 0


@pytest.mark.parametrize(
    ("name", "source", "told", "expected"),
    [
        ("a run", "somewhere", "", "megatron"),
        ("a run", "MosaicML llm-foundry", "", "llm-foundry"),
        ("torchtitan 8B", "torchtitan", "", "torchtitan eager"),
        ("torchtitan 8B + torch.compile", "torchtitan", "torchtitan", "torchtitan"),
        ("torchtitan 70B async TP", "", "torchtitan", "torchtitan async"),
        ("BLOOM 181B", "bigscience", "", "deepspeed"),
        ("Qwen", "Megatron-Bridge, container 26.08", "megatron", "megatron 26.06"),
        ("a run", "", "somebody's own", "megatron"),
    ],
)
def test_the_software_of_a_row_is_told_or_found(name, source, told, expected):
    row = {"name": name, "source": source, "cluster": "H100", "software": told, "precision": "bf16"}
    assert rows.software_of(row).name == expected


# The program


def test_the_program_ends_with_the_two_numbers(tmp_path, capsys):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row for row in RUNS if row["family"] == "Nemotron-4"]))
    assert program.main([str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Nemotron-4 340B 1536") and "step_seconds" in lines[0] and " error " in lines[0]
    errors = sorted(abs(rows.compare(rows.read(row)).error) for row in json.loads(path.read_text()))
    assert lines[-2:] == [
        f"median {100 * errors[1]:.1f} %",
        f"90th percentile {100 * (errors[1] + 0.8 * (errors[2] - errors[1])):.1f} %",
    ]


def test_the_program_names_bad_rows_and_goes_on(tmp_path, capsys):
    path = tmp_path / "rows.json"
    good = next(row for row in RUNS if row["family"] == "Nemotron-4")
    path.write_text(json.dumps([{"name": "half a row"}, good]))
    assert program.main([str(path)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("half a row: the field 'model' is missing; a row needs ") and said.err.count("\n") == 1
    assert said.out.splitlines()[-1].startswith("90th percentile ")


@pytest.mark.parametrize("text", ["no json", "{}", "[1]"])
def test_the_program_refuses_what_is_no_list_of_rows(tmp_path, capsys, text):
    (tmp_path / "rows.json").write_text(text)
    assert program.main([str(tmp_path / "rows.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert program.main([str(tmp_path / "missing.json")]) == 2


def test_rank_correlation_by_hand():
    assert program.spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert program.spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert program.spearman([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1) and program.spearman([1, 1], [1, 2]) == 0


# Where it is not


def test_students_do_not_get_the_planner(tmp_path, monkeypatch):
    """It answers lesson 15. That the jail does not have it either is tested in test_jail.py."""
    monkeypatch.setattr(release, "generated", lambda lessons, own: contextlib.nullcontext([]))
    handout.write(tmp_path / "handout", ["15"])
    found = {path.name for path in (tmp_path / "handout").rglob("*")}
    assert {"cluster.py", "model.py"} <= found and "planner" not in found and "search.py" not in found
    for path in (ROOT / "ranks").glob("*.py"):
        assert "planner" not in path.read_text(encoding="utf-8"), path.name


def test_importing_ranks_does_not_load_the_descriptions():
    code = "import sys, ranks; print([n for n in ('ranks.cluster', 'ranks.model', 'planner') if n in sys.modules])"
    environment = {**os.environ, "RANKS_INSIDE": "test"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert done.stdout == "[]\n", done.stderr


# Against one GPU.


@pytest.mark.parametrize("card", ["h100", "h200"])
def test_what_the_book_counts_is_what_a_gpu_did(card):
    found = measured.results(measured.HERE / "measured" / f"{card}.json")
    ratio = {what: gpu / book for what, book, gpu in measured.compared(found)}
    exact = [value for what, value in ratio.items() if "SiLU" in what or "logits" in what]
    assert len(exact) == 2 and all(abs(value - 1) < 1e-5 for value in exact)
    judged = [value for what, value in ratio.items() if "attention" in what or "memory" in what or "Adam" in what]
    assert len(judged) == 7 and all(0.84 < value < 1.1 for value in judged)
    assert 0.94 < ratio["time with full recomputation over time without (10)"] <= 1


def test_the_table_in_the_readme_is_the_one_that_is_computed():
    readme = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert measured.table(measured.HERE / "measured" / "h100.json") in readme
