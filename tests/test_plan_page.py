"""The page that plans a training run: its scripts compute what the planner computes, and a reader can use it."""

from __future__ import annotations

import random
import sys
from dataclasses import asdict, replace

import pytest

from autograder.lessons import notebook
from planner import Layout, LayoutError, plan, predict, rows
from planner.layout import CONTEXT, RECOMPUTE, SCHEDULES, check
from planner.software import SOFTWARE
from ranks.cluster import CLUSTERS
from ranks.model import DEEPSEEK_V3, LLAMA3_8B, LLAMA3_70B, LLAMA3_405B, MODELS
from tests.helpers.browser import Tab

sys.path.insert(0, str(notebook.ROOT / "book" / "_ext"))

import plan_page

#: Settings that are drawn, in each run others.
DRAWN = 20
RUNS = {row["name"]: row for row in plan_page.published_runs()}


@pytest.fixture(scope="module")
def port(chromium) -> Tab:
    """A bare page with the scripts that compute."""
    tab = Tab(chromium)
    for script in ("ranks", "planner"):
        tab.page.add_script_tag(path=plan_page.PLANNING / f"{script}.js")
    tab.evaluate(f"window.all = {plan_page.as_json(plan_page.constants())}")
    tab.evaluate("window.js = plannerInTheBrowser(all); 0")
    return tab


@pytest.fixture
def draw() -> random.Random:
    """A source of random choices; a test that fails shows its seed."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    return random.Random(seed)


def predicted(port, model, cluster, layout, batch, precision, software):
    """The prediction of the page."""
    given = plan_page.as_json([asdict(part) for part in (model, cluster, layout, software)])
    return port.evaluate(f"""(() => {{
      const [model, cluster, layout, software] = {given};
      const found = js.predict(model, cluster, layout, {batch}, "{precision}", software);
      return {{ ...found, mfu: found.mfu(), square: found.mfu("full_square"), flops: null }};
    }})()""")


def settings(draw):
    """A model, a machine, a layout that runs, a batch, a precision and a program."""
    while True:
        model = draw.choice([*MODELS.values(), *(rows.read(RUNS[name]).model for name in plan_page.PRESETS)])
        model = replace(model, sequence=draw.choice([2048, 8192, 65536]), predicted_ahead=draw.choice([0, 0, 1]))
        cluster, software = draw.choice(list(CLUSTERS.values())), draw.choice(list(SOFTWARE.values()))
        dp, tp, pp, cp = (draw.choice(sizes) for sizes in ([1, 2, 6, 64], [1, 2, 4, 16], [1, 2, 3, 16], [1, 1, 2, 8]))
        layout = Layout(
            dp, tp, pp, cp, draw.choice([1, 2, 8]) if model.experts else 1, draw.choice([1, 2]), draw.choice([1, 2, 3]),
            draw.choice([0, 1, 2, 3]), draw.choice([None, 2]), draw.choice(RECOMPUTE), draw.choice([True, False]),
            draw.choice(SCHEDULES), draw.choice(CONTEXT),
        )  # fmt: skip
        batch = layout.dp * layout.micro_batch * draw.choice([1, 5, 16])
        precision = draw.choice(["bf16", "bf16", "fp8", "mxfp8", "nvfp4"])
        try:
            found = predict(model, cluster, layout, batch, precision, software, memory_limit=False)
        except ValueError:
            continue
        return found, (model, cluster, layout, batch, precision, software)


def differences(python, javascript):
    """Terms, sums and what follows from them, where both differ by more than a millionth."""
    names = ("seconds", "nbytes", "tokens_per_gpu_per_second")
    pairs = {name: (getattr(python, name), javascript[name]) for name in names}
    pairs |= {"mfu": (python.mfu(), javascript["mfu"]), "square": (python.mfu("full_square"), javascript["square"])}
    for kind in ("time", "memory"):
        terms = getattr(python, kind).keys() | javascript[kind].keys()
        pairs |= {f"{kind} {t}": (getattr(python, kind).get(t, 0.0), javascript[kind].get(t, 0.0)) for t in terms}
    # What is left of a difference of two large numbers, as a pipeline's imbalance, may be all rounding.
    rounding = 1e-12 * python.seconds
    return {what: pair for what, pair in pairs.items() if pair[0] != pytest.approx(pair[1], rel=1e-6, abs=rounding)}


@pytest.mark.browser
def test_the_page_computes_every_term_as_the_planner_does(port, draw):
    for _ in range(DRAWN):
        python, given = settings(draw)
        assert not differences(python, predicted(port, *given)), given


@pytest.mark.browser
def test_a_term_that_differs_is_seen(port):
    given = (LLAMA3_70B, CLUSTERS["H100"], Layout(dp=8, tp=8), 64, "bf16", SOFTWARE["megatron"])
    python = predict(*given, memory_limit=False)
    port.evaluate("window.share = all.software.MEMORY_SHARE; all.software.MEMORY_SHARE *= 1.001; 0")
    found = differences(python, predicted(port, *given))
    port.evaluate("all.software.MEMORY_SHARE = share; 0")
    assert {"time elementwise", "time optimizer", "seconds", "mfu"} <= set(found)
    assert not differences(python, predicted(port, *given))


def problem(model, cluster, layout, batch, gpus):
    """What the planner says of a layout, or None."""
    try:
        check(model, cluster, layout, batch, gpus)
    except LayoutError as error:
        return str(error)
    return None


@pytest.mark.browser
def test_the_page_says_what_the_planner_says_of_a_layout_that_cannot_run(port, draw):
    said = set()
    for _ in range(40 * DRAWN):
        model = draw.choice([LLAMA3_8B, DEEPSEEK_V3])
        dp, tp, pp, cp, ep, v = (draw.choice([1, 2, 3, 12]) for _ in range(6))
        layout = Layout(dp, tp, pp, cp, ep if draw.random() < 0.5 else 1, 1, v, context=draw.choice(CONTEXT))
        batch, gpus = draw.choice([10, 12, 144]), dp * tp * pp * cp * draw.choice([1, 1, 1, 2])
        python = problem(model, CLUSTERS["H100"], layout, batch, gpus)
        javascript = port.evaluate(f"js.check(...{plan_page.as_json([asdict(model), asdict(layout), batch, gpus])})")
        assert (javascript[0]["says"] if javascript else None) == python
        said |= {one["at"] for one in javascript}
    assert said == {"gpus", "tp", "batch", "cp", "pp", "ep"}


@pytest.mark.browser
@pytest.mark.parametrize(
    ("model", "machine", "gpus", "batch", "precision", "program"),
    [
        (LLAMA3_8B, "H100", 64, 1024, "bf16", "megatron"),
        (LLAMA3_405B, "GB200 NVL72", 1024, 1024, "fp8", "megatron"),
        (DEEPSEEK_V3, "H800", 2048, 15360, "fp8", "hai-llm"),
        (replace(LLAMA3_70B, sequence=131072), "H200", 96, 48, "bf16", "torchtitan"),
    ],
)
def test_the_page_finds_the_planners_best_layout(port, model, machine, gpus, batch, precision, program):
    cluster, software = CLUSTERS[machine], SOFTWARE[program]
    best = plan(model, cluster, gpus, batch, precision, software)
    given = plan_page.as_json([asdict(model), asdict(cluster), gpus, batch, precision, asdict(software)])
    found = port.evaluate(f"""(() => {{
      const steps = js.plan(...{given});
      let next = steps.next();
      while (!next.done) next = steps.next();
      const {{ fitting, rejected }} = next.value, best = fitting[0];
      const others = js.alternatives(fitting, 8).map((other) => js.why_not(best, other).slower);
      return [fitting.length, rejected.length, best.layout, best.seconds, others];
    }})()""")
    others = [other.seconds / best.best.seconds - 1 for other in best.alternatives()]
    assert found[:2] == [len(best.fitting), len(best.rejected)]
    assert Layout(**found[2]) == best.best.layout and found[3] == pytest.approx(best.best.seconds, rel=1e-9)
    assert found[4] == pytest.approx(others, rel=1e-6)


@pytest.mark.browser
def test_the_table_of_published_runs_is_what_the_page_computes(port):
    assert len(plan_page.presets()) == len(plan_page.PRESETS)
    for preset in plan_page.presets():
        found = port.evaluate(f"""(() => {{
          const {{ model, settings: s, unit, counting }} = {plan_page.as_json(preset)};
          const found = js.predict(model, all.clusters[s.cluster], s, s.batch, s.precision, all.programs[s.software]);
          return {{ tokens_per_gpu_per_second: found.tokens_per_gpu_per_second, step_seconds: found.seconds,
            tflops_per_gpu: found.flops(counting) / 1e12, mfu: found.mfu(counting) }}[unit];
        }})()""")
        assert found == pytest.approx(preset["predicted"], rel=1e-6), preset["name"]
