"""The page that plans a training run: its scripts compute what the planner computes, and a reader can use it."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, replace
from urllib.parse import urlencode

import pytest

from autograder.lessons import notebook
from planner import Layout, LayoutError, calibrate, plan, predict, rows
from planner.layout import CONTEXT, RECOMPUTE, SCHEDULES, check
from planner.software import SOFTWARE
from ranks.cluster import CLUSTERS
from ranks.model import DEEPSEEK_V3, LLAMA3_8B, LLAMA3_70B, LLAMA3_405B, MODELS
from tests.book.test_accessibility import AXE, grave
from tests.helpers import npm
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
@pytest.mark.parametrize("program", [name for name, program in SOFTWARE.items() if program.machines])
def test_a_program_brings_the_machines_of_its_published_runs(port, program):
    for machine in SOFTWARE[program].machines:
        given = (LLAMA3_8B, CLUSTERS[machine], Layout(dp=4, tp=4), 64, "bf16", SOFTWARE[program])
        assert not differences(predict(*given, memory_limit=False), predicted(port, *given))


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
    assert len(plan_page.presets()) == len(plan_page.PRESETS) and not plan_page.PRESETS.keys() & calibrate.names()
    for preset in plan_page.presets():
        found = port.evaluate(f"""(() => {{
          const {{ model, settings: s, unit, counting }} = {plan_page.as_json(preset)};
          const found = js.predict(model, all.clusters[s.cluster], s, s.batch, s.precision, all.programs[s.software]);
          return {{ tokens_per_gpu_per_second: found.tokens_per_gpu_per_second, step_seconds: found.seconds,
            tflops_per_gpu: found.flops(counting) / 1e12, mfu: found.mfu(counting) }}[unit];
        }})()""")
        assert found == pytest.approx(preset["predicted"], rel=1e-6), preset["name"]


# The page


@pytest.fixture
def page(chromium, book) -> Tab:
    """The page, opened; `make page LESSON=plan` builds it alone."""
    tab = Tab(chromium)
    tab.open((book / "book" / "plan.html").as_uri())
    yield tab
    assert not tab.errors
    tab.page.close()


def visit(tab, **settings):
    """Open the page with these settings in its address, as a link does."""
    url = tab.page.url.partition("#")[0]
    tab.page.goto("about:blank")
    tab.page.goto(f"{url}#{urlencode(settings)}")
    tab.page.wait_for_selector(".plan-headline")


def shown(tab, name):
    """A number at the top of the page, with its unit."""
    return tab.page.locator(f".plan-numbers div:has(dt:text-is('{name}')) dd").inner_text()


def told(model, cluster, layout, batch, precision, software):
    """The settings of a run as an address has them."""
    found = {"model": model.name, "sequence": model.sequence, "cluster": cluster.name, "batch": batch}
    found |= {"gpus": layout.gpus, "precision": precision, "software": software.name, **asdict(layout)}
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in found.items()}
    return {name: "" if value is None else value for name, value in texts.items()}


@pytest.mark.browser
def test_a_link_with_settings_shows_what_the_planner_says(page, draw):
    for _ in range(DRAWN):
        python, given = settings(draw)
        known = {preset["name"]: preset for preset in plan_page.presets()}
        title = plan_page.PRESETS.get(given[0].name, given[0].name)
        if given[0].predicted_ahead != known.get(title, {"model": {"predicted_ahead": 0}})["model"]["predicted_ahead"]:
            continue  # the page has no control for it
        visit(page, **{**told(*given), "model": title})
        assert shown(page, "MFU") == f"{100 * python.mfu():.1f} %", given
        found = page.evaluate("(({ found }) => ({ ...found, mfu: found.mfu(), square: found.mfu('full_square') }))"
                              "(planning.computed(planning.read(location.hash.slice(1))))")  # fmt: skip
        assert not differences(python, found), given
        terms = page.page.locator(".plan-step tbody tr:not(.plan-group)").count()
        assert terms == sum(seconds > 1e-9 * python.seconds for seconds in python.time.values())


@pytest.mark.browser
def test_a_link_carries_all_settings(page, chromium):
    tab = page.page
    tab.locator("#plan-model").select_option("DeepSeek-V3")
    tab.locator("#plan-cluster").select_option("GB300 NVL72")
    for name, value in {"gpus": 1024, "batch": 2048, "tp": 2, "pp": 8, "ep": 32, "virtual_stages": 2}.items():
        tab.locator(f"#plan-{name}").fill(str(value))
    tab.get_by_text("Type its sizes").click()
    tab.locator("#plan-expert_ffn").fill("3072")
    tab.get_by_text("More: software").click()
    tab.locator("#plan-software").select_option("megatron 26.06")
    tab.locator("#plan-shard").select_option("8")
    for name, value in {"zero_stage": 3, "recompute": "full"}.items():
        tab.locator(f"label:has([name=plan-{name}][value='{value}'])").click()
    tab.locator("#plan-precision").select_option("mxfp8")
    tab.locator("#plan-price").fill("3.5")
    page.wait("location.hash.includes('price=3.5')")
    other = Tab(chromium)
    other.open(tab.url)
    read = "JSON.stringify(planning.read(location.hash.slice(1)))"
    chosen = page.evaluate(read)
    expected = {"expert_ffn": 3072, "shard": 8, "zero_stage": 3, "recompute": "full", "price": 3.5, "ep": 32}
    assert expected.items() <= json.loads(chosen).items()
    assert other.evaluate(read) == chosen
    for part in (".plan-headline", ".plan-numbers", ".plan-step"):
        assert other.page.locator(part).inner_text() == tab.locator(part).inner_text()
    assert other.evaluate("planning.write(planning.read(location.hash.slice(1))) === location.hash.slice(1)")


@pytest.mark.browser
def test_a_slider_that_is_dragged_writes_the_address_seldom(page):
    """Safari refuses the hundredth change within 30 seconds."""
    page.evaluate("window.written = 0; history.replaceState = () => { written += 1; }; 0")
    page.evaluate("""(() => {
      const slider = document.querySelector("[aria-label='GPUs, in powers of two']");
      for (let step = 0; step < 150; step += 1) {
        slider.value = step % 10;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
      }
    })()""")
    page.wait("written > 0")
    assert page.evaluate("written") == 1


@pytest.mark.browser
def test_what_an_address_says_wrong_is_as_at_the_start(page):
    visit(page, tp="-4", pp="two", cluster="H1000", recompute="some", gpus="1e99", nothing="1", tokens="")
    assert page.evaluate("planning.write(planning.read(location.hash.slice(1))) === planning.write(planning.START)")


@pytest.mark.browser
def test_a_layout_that_cannot_run_is_said_beside_its_control(page):
    tab = page.page
    for name, value, says in (
        ("tp", 6, "tp = 6 does not divide 64 query heads"), ("batch", 500, "does not divide 500 sequences"),
        ("pp", 40, "need more than the model's 80 layers"), ("cp", 3, "does not divide 8192 tokens"),
        ("gpus", 500, "but there are 500 GPUs"), ("precision", "nvfp4", "H100 has no nvfp4; it has bf16, fp8, mxfp8"),
    ):  # fmt: skip
        tab.get_by_text("Start again").click()
        control = tab.locator(f"#plan-{name}")
        control.select_option(value) if isinstance(value, str) else control.fill(str(value))
        assert says in tab.locator(f"#plan-{name}-says").inner_text()
        assert "cannot run" in tab.locator(".plan-headline").inner_text()
        assert tab.locator("div.plan-stale").count() == 1
    tab.get_by_text("Start again").click()
    tab.locator("#plan-tp").fill("2")
    said = tab.locator(".plan-headline .plan-wrong").inner_text()
    layout = Layout(dp=64, tp=2, pp=4, virtual_stages=4)
    with pytest.raises(LayoutError) as error:
        predict(LLAMA3_70B, CLUSTERS["H100"], layout, 512)
    assert said == f"{error.value}."
    assert tab.locator(".plan-bad").count() == 1 and tab.locator(".plan-over").count() == 1


@pytest.mark.browser
def test_the_best_layout_is_a_click_away(page):
    tab, best = page.page, plan(LLAMA3_70B, CLUSTERS["H100"], 512, 512)
    tab.get_by_role("button", name="Best layout").click()
    tab.get_by_text("is this one").wait_for()
    page.wait(f"location.hash.includes('&tp={best.best.layout.tp}&')")
    found = page.evaluate("planning.layoutOf(planning.read(location.hash.slice(1)))")
    assert Layout(**found) == best.best.layout
    assert f"{best.best.mfu():.1%}".replace("%", " %") in tab.locator(".plan-headline").inner_text()
    rows = tab.locator(".plan-others tbody tr")
    assert rows.count() == 7 and "4.3 % slower: tensor parallelism" in rows.nth(1).inner_text()
    rows.nth(1).get_by_role("button").click()
    assert "4.3 % faster" in tab.locator(".plan-best").inner_text()


@pytest.mark.browser
def test_each_published_run_shows_both_speeds(page):
    for preset in plan_page.presets():
        page.page.locator(".plan-runs").get_by_role("button", name=preset["name"], exact=True).click()
        text = page.page.locator(".plan-compared").inner_text()
        way = "fast" if preset["error"] > 0 else "slow"
        assert f"{100 * abs(preset['error']):.1f} % too {way}" in text and preset["source"] in text
        too_large = page.page.locator(".plan-bad").count() == 1
        assert ("The run did fit" in text) is too_large and ("is not known" in text) <= (not preset["recompute_told"])
        assert page.evaluate("document.activeElement.className") == "plan-headline"
    page.page.locator("#plan-tp").fill("1" if preset["settings"]["tp"] > 1 else "2")
    assert page.page.locator(".plan-compared").count() == 0


#: What the element with the focus is called.
FOCUSED = (
    """(({ id, ariaLabel, name, textContent }) => id || ariaLabel || name || textContent)(document.activeElement)"""
)


@pytest.mark.browser
def test_the_keyboard_moves_everything(page):
    tab, reached = page.page, []
    tab.locator("#plan-model").focus()
    for _ in range(60):
        reached.append(page.evaluate(FOCUSED))
        tab.keyboard.press("Tab")
    for name in ("plan-gpus", "GPUs, in powers of two", "Best layout", "plan-tp", "plan-zero_stage", "plan-price"):
        assert name in reached
    slider = tab.get_by_label("Tensor (tp), in powers of two")
    slider.focus()
    tab.keyboard.press("ArrowLeft")
    assert tab.locator("#plan-tp").input_value() == "4" and slider.get_attribute("aria-valuetext") == "4"
    tab.locator("[name=plan-recompute][value=none]").focus()
    tab.keyboard.press("ArrowRight")
    assert "selective recomputation" in tab.locator(".plan-layout").inner_text()


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 768, 1440])
def test_nothing_sticks_out_and_a_phone_shows_the_sum(chromium, book, width):
    tab = Tab(chromium, width)
    tab.open((book / "book" / "plan.html").as_uri())
    tab.page.locator(".plan-others").wait_for()
    for preset in plan_page.presets()[::4]:
        tab.page.locator(".plan-runs").get_by_role("button", name=preset["name"], exact=True).click()
        assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert tab.page.locator(".plan-summary").is_visible() is (width < 700)


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_serious_in_any_state(chromium, book, theme, width):
    with npm.or_skip():
        axe = (npm.get(AXE) / "axe.min.js").read_text()
    page = chromium.new_page(color_scheme=theme, viewport={"width": width, "height": 900})
    for fragment in ("", "#tp=6&precision=nvfp4", "#tp=1", "#" + urlencode({"model": "DeepSeek-V3, as trained"})):
        page.goto("about:blank")
        page.goto((book / "book" / "plan.html").as_uri() + fragment)
        for summary in page.locator(".plan-controls summary").all():
            summary.click()
        page.wait_for_timeout(600)  # what is searched for is found, and what fades has arrived
        assert not grave(page, axe), fragment
    page.close()


@pytest.mark.browser
def test_without_scripts_the_page_says_what_it_would_be(chromium, book):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((book / "book" / "plan.html").as_uri(), wait_until="load")
    assert page.locator(".plan-still").is_visible() and "needs JavaScript" in page.locator(".plan-still").inner_text()
    rows = page.locator(".plan-runs tbody tr")
    assert (
        rows.count() == len(plan_page.PRESETS)
        and "+5.2\N{NO-BREAK SPACE}%" in rows.filter(has_text="BLOOM").inner_text()
    )
    context.close()


@pytest.mark.browser
def test_paper_has_the_numbers_and_no_sliders(page):
    page.page.emulate_media(media="print")
    assert page.page.locator(".plan-numbers").is_visible() and page.page.locator("#plan-tp").is_visible()
    assert not page.page.locator(".plan-slider:visible, .plan-button:visible").count()


def test_every_term_has_a_name_and_its_chapter_exists(draw):
    """A new term of the planner needs a place on the page."""
    places = {term for terms in plan_page.TIME.values() for term in terms}
    for _ in range(DRAWN):
        python, _ = settings(draw)
        assert python.time.keys() <= places and python.memory.keys() <= plan_page.MEMORY.keys()
    named = [*plan_page.MEMORY.values(), *(words for terms in plan_page.TIME.values() for words in terms.values())]
    assert all((plan_page.BOOK / f"{chapter}.md").is_file() for _, chapter in named if chapter)
