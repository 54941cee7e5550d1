"""The page that plans a training run: its scripts compute what the planner computes, and a reader can use it."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, replace
from html import unescape
from urllib.parse import urlencode

import pytest

from autograder.lesson import notebook
from machines import cluster
from machines.cluster import CLUSTERS
from machines.model import DEEPSEEK_V3, LLAMA3_8B, LLAMA3_70B, LLAMA3_405B, MODELS
from planner import Layout, LayoutError, accuracy, calibrate, export, huggingface, plan, predict, rows
from planner.__main__ import main as command
from planner.arithmetic import Step
from planner.layout import CONTEXT, MODULES, RECOMPUTE, SCHEDULES, broken_rules
from planner.search import warnings
from planner.software import SOFTWARE
from tests.book.test_accessibility import AXE, grave
from tests.helpers import npm
from tests.helpers.browser import Tab
from tests.lessons.test_one_cluster import chapter

sys.path.insert(0, str(notebook.ROOT / "book" / "_ext"))

import plan_page
import running_model
import to_javascript

#: Settings that are drawn, in each run others.
DRAWN = 20
RUNS = {row["name"]: row for row in plan_page.published_runs()}


@pytest.fixture(scope="module")
def port(chromium) -> Tab:
    """A bare page with the translated planner."""
    tab = Tab(chromium)
    tab.page.add_script_tag(content=to_javascript.translated())
    tab.evaluate("window.js = makePlanner(); 0")
    tab.evaluate("""window.part = {
      model: (given) => js.model.Model.from(given), layout: (given) => js.layout.Layout.from(given),
      software: (name) => js.software.SOFTWARE.get(name),
      cluster: (given) => js.cluster.Cluster.from({ ...given, flops: new js.Dict(Object.entries(given.flops)) }),
    }; 0""")
    return tab


@pytest.fixture
def draw() -> random.Random:
    """A source of random choices; a test that fails shows its seed."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    return random.Random(seed)


def arguments(model, cluster, layout, software):
    """JavaScript that makes these four."""
    parts = {"model": asdict(model), "cluster": asdict(cluster), "layout": asdict(layout), "software": software.name}
    return ", ".join(f"part.{name}({plan_page.as_json(value)})" for name, value in parts.items())


#: What a prediction in JavaScript is in JSON.
SHOWN = """({ seconds: found.seconds, nbytes: found.nbytes, tokens_per_gpu_per_second: found.tokens_per_gpu_per_second,
  mfu: found.mfu(), square: found.mfu("full_square"), time: Object.fromEntries(found.time.items()),
  memory: Object.fromEntries(found.memory.items()) })"""


def predicted(port, model, cluster, layout, batch, precision, software, trained="all", lora_rank=32):
    """The prediction in JavaScript."""
    return port.evaluate(f"""(() => {{
      const [model, cluster, layout, software] = [{arguments(model, cluster, layout, software)}];
      const found = js.prediction.predict(model, cluster, layout, {batch}, "{precision}", software, false,
        "{trained}", {lora_rank});
      return {SHOWN};
    }})()""")


def settings(draw):
    """A prediction, and its model, machine, layout that runs, batch, precision, program, and what is trained."""
    while True:
        model = draw.choice([*MODELS.values(), *(rows.read(RUNS[name]).model for name in plan_page.PRESETS)])
        model = replace(model, sequence=draw.choice([2048, 8192, 65536]), predicted_ahead=draw.choice([0, 0, 1]))
        model = replace(model, document=draw.choice([None, None, 1000]))
        cluster, software = draw.choice(list(CLUSTERS.values())), draw.choice(list(SOFTWARE.values()))
        dp, tp, pp, cp = (draw.choice(sizes) for sizes in ([1, 2, 6, 64], [1, 2, 4, 16], [1, 2, 3, 16], [1, 1, 2, 8]))
        modules = tuple(name for name in MODULES if draw.random() < 0.2)
        layout = Layout(
            dp, tp, pp, cp, draw.choice([1, 2, 8]) if model.experts else 1, draw.choice([1, 2]), draw.choice([1, 2, 3]),
            draw.choice([0, 1, 2, 3]), draw.choice([None, 2]), draw.choice(RECOMPUTE), draw.choice([True, False]),
            draw.choice(SCHEDULES), draw.choice(CONTEXT), draw.choice([(), modules]), draw.choice([0, 0, 1]),
            draw.choice([0, 0, 1]), draw.choice([1, 1, 2]) if model.experts else 1,
        )  # fmt: skip
        batch = layout.dp * layout.micro_batch * draw.choice([1, 5, 16])
        precision, trained = draw.choice(["bf16", "bf16", "fp8", "mxfp8", "nvfp4"]), draw.choice(["all", "all", "lora"])
        given, rank = (model, cluster, layout, batch, precision, software), draw.choice([8, 32])
        try:
            return predict(*given, memory_limit=False, trained=trained, lora_rank=rank), (*given, trained, rank)
        except ValueError:
            continue


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
def test_a_term_that_differs_is_seen(chromium):
    tab = Tab(chromium)
    tab.page.add_script_tag(content=to_javascript.translated().replace("MEMORY_SHARE = 0.82", "MEMORY_SHARE = 0.821"))
    tab.evaluate("window.js = makePlanner(); 0")
    found = tab.evaluate(f"""(() => {{
      const {{ MODELS }} = js.model, {{ find }} = js.cluster, layout = new js.layout.Layout(8, 8);
      const found = js.prediction.predict(MODELS.get("Llama 3 70B"), find("H100"), layout, 64, "bf16", undefined, 0);
      return {SHOWN};
    }})()""")
    found = differences(predict(LLAMA3_70B, CLUSTERS["H100"], Layout(dp=8, tp=8), 64, memory_limit=False), found)
    assert {"time elementwise", "time optimizer", "seconds", "mfu"} <= set(found)


@pytest.mark.browser
def test_both_say_the_same_of_a_layout_that_cannot_run(port, draw):
    said = set()
    for _ in range(20 * DRAWN):
        model, software = draw.choice([LLAMA3_8B, DEEPSEEK_V3]), draw.choice(list(SOFTWARE.values()))
        dp, tp, pp, cp, ep, v = (draw.choice([1, 2, 3, 12]) for _ in range(6))
        layout = Layout(dp, tp, pp, cp, ep if draw.random() < 0.5 else 1, 1, v if draw.random() < 0.5 else 1,
                        draw.choice([1, 2, 5]), context=draw.choice(CONTEXT))  # fmt: skip
        batch, gpus = draw.choice([10, 12, 144]), dp * tp * pp * cp * draw.choice([1, 1, 1, 2])
        rules = broken_rules(model, CLUSTERS["H100"], layout, batch, gpus, "fp8", software)
        python = [[str(rule), rule.setting] for rule in rules]
        model_, cluster, layout_, program = "abcd"
        javascript = port.evaluate(f"""(() => {{
          const [{model_}, {cluster}, {layout_}, {program}] = [{arguments(model, CLUSTERS["H100"], layout, software)}];
          const rules = js.layout.broken_rules(a, b, c, {batch}, {gpus}, "fp8", d);
          return [...rules].map((rule) => [rule.message, rule.setting]);
        }})()""")
        assert javascript == python
        said |= {setting for _, setting in python} or {None}
    assert said >= {None, "gpus", "tp", "batch", "cp", "pp", "ep", "virtual_stages", "zero_stage"}


@pytest.mark.browser
@pytest.mark.parametrize(
    ("model", "machine", "gpus", "batch", "precision", "program"),
    [(LLAMA3_405B, "GB200 NVL72", 256, 256, "fp8", "megatron"), (DEEPSEEK_V3, "H800", 256, 960, "fp8", "hai-llm")],
)
def test_both_find_the_same_layouts(port, model, machine, gpus, batch, precision, program):
    cluster, software = CLUSTERS[machine], SOFTWARE[program]
    best = plan(model, cluster, gpus, batch, precision, software)
    found = port.evaluate(f"""(() => {{
      const [model, cluster, layout, software] = [{arguments(model, cluster, Layout(), software)}];
      const plan = js.search.plan(model, cluster, {gpus}, {batch}, "{precision}", software);
      const row = (found) => [found.layout.__str__(), found.seconds, plan.grown(found)];
      return [plan.filled, plan.fitting.length, plan.rejected.length, row(plan.best), plan.alternatives().map(row)];
    }})()""")

    def row(prediction):
        grown = [[term, pytest.approx(more, rel=1e-9)] for term, more in best.grown(prediction)]
        return [str(prediction.layout), pytest.approx(prediction.seconds, rel=1e-12), grown]

    assert found[:3] == [best.filled, len(best.fitting), len(best.rejected)]
    assert found[3] == row(best.best) and found[4] == [row(other) for other in best.alternatives()]


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import os", "Import"), ("x = [y for y in z]", "the name z"), ("def f(*a): pass", "a parameter"),
        ("x = 1 @ 2", "MatMult"), ("for x in (): pass\nelse: pass", "For"), ("x = f'{1:,}'", "this format"),
        ("def f(a): pass\nx = f(1, b=2)", "the keyword b"), ("async def f(): pass", "AsyncFunctionDef"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_named_with_file_and_line(tmp_path, code, what):
    (tmp_path / "module.py").write_text(f"\n{code}\n")
    module = to_javascript.Module("module", tmp_path / "module.py", {})
    with pytest.raises(to_javascript.NotTranslated, match=rf"module\.py:[23]: {what}.* has no translation"):
        module.text()


@pytest.mark.browser
def test_the_table_of_published_runs_is_what_the_page_computes(port):
    machines = plan_page.constants()["machines"]
    assert len(plan_page.presets()) == len(plan_page.PRESETS) and not plan_page.PRESETS.keys() & calibrate.names()
    for preset in plan_page.presets():
        settings = preset["settings"]
        machine = machines.get(settings["cluster"]) or asdict(CLUSTERS[settings["cluster"]])
        found = port.evaluate(f"""(() => {{
          const {{ model, settings: s, unit, counting }} = {plan_page.as_json(preset)};
          const cluster = part.cluster({plan_page.as_json(machine)});
          const given = [part.model(model), cluster, part.layout(s), s.batch, s.precision, part.software(s.software)];
          const found = js.prediction.predict(...given, false);
          return {{ tokens_per_gpu_per_second: found.tokens_per_gpu_per_second, step_seconds: found.seconds,
            tflops_per_gpu: found.flops_per_gpu_per_second(counting) / 1e12, mfu: found.mfu(counting) }}[unit];
        }})()""")
        assert found == pytest.approx(preset["predicted"], rel=1e-12), preset["name"]


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


def told(model, cluster, layout, batch, precision, software, trained="all", lora_rank=32):
    """The settings of a run as an address has them."""
    found = {
        "model": model.name,
        "sequence": model.sequence,
        "cluster": cluster.name,
        "batch": batch,
        "trained": trained,
        "lora_rank": lora_rank,
        "document": model.document,
    }
    found |= {"gpus": layout.gpus, "precision": precision, "software": software.name, **asdict(layout)}
    return {name: running_model.in_address(value) for name, value in found.items()}


@pytest.mark.browser
def test_a_link_with_settings_shows_what_the_planner_says(page, draw):
    for _ in range(DRAWN):
        python, given = settings(draw)
        known = {preset["name"]: preset for preset in plan_page.presets()}
        title = plan_page.PRESETS.get(given[0].name, given[0].name)
        if given[0].predicted_ahead != known.get(title, {"model": {"predicted_ahead": 0}})["model"]["predicted_ahead"]:
            continue  # the page has no control for it
        visit(page, **{**told(*given), "model": title})
        if given[6] == "all":  # LoRA's FLOPs are fewer than those that MFU counts
            assert shown(page, "MFU") == f"{100 * python.mfu():.1f} %", given
        found = page.evaluate("(({ found }) => ({ ...found, mfu: found.mfu(), square: found.mfu('full_square') }))"
                              "(planning.computed(planning.read(location.hash.slice(1))))")  # fmt: skip
        assert not differences(python, found), given
        terms = page.page.locator(".plan-step tbody tr:not(.plan-group)").count()
        assert terms == sum(seconds > 1e-9 * python.seconds for seconds in python.time.values())
        margin = accuracy.margin(python, given[4], given[5], given[6])
        said = page.page.locator(".plan-headline .plan-note").inner_text()
        assert said == f"± {100 * margin.error:.1f} %: {margin.words}."


@pytest.mark.browser
def test_a_link_carries_all_settings(page, chromium):
    tab = page.page
    tab.locator("#plan-model").select_option("DeepSeek-V3")
    tab.locator("#plan-cluster").select_option("GB300 NVL72")
    for name, value in {"gpus": 1024, "batch": 2048, "tp": 2, "pp": 1, "ep": 32, "virtual_stages": 1}.items():
        tab.locator(f"#plan-{name}").fill(str(value))
    tab.get_by_text("Type its sizes").click()
    tab.locator("#plan-expert_ffn").fill("3072")
    tab.get_by_text("More: software").click()
    tab.locator("#plan-software").select_option("megatron 26.06")
    tab.locator("#plan-shard").select_option("8")
    for name, value in {"zero_stage": 3, "recompute": "full"}.items():
        tab.locator(f"label:has([name=plan-{name}][value='{value}'])").click()
    tab.get_by_text("More: parts of recomputation").click()
    tab.locator("label:has([name=plan-recompute_modules][value=moe_act])").click()
    tab.locator("#plan-offload_layers").fill("3")
    tab.get_by_text("Fine-tuning: all weights").click()
    tab.locator("#plan-trained").select_option("lora")
    tab.locator("#plan-lora_rank").fill("16")
    tab.locator("#plan-document").fill("2048")
    tab.locator("#plan-precision").select_option("mxfp8")
    tab.locator("#plan-price").fill("3.5")
    page.wait("location.hash.includes('price=3.5')")
    other = Tab(chromium)
    other.open(tab.url)
    read = "JSON.stringify(planning.read(location.hash.slice(1)))"
    chosen = page.evaluate(read)
    # A module in the place of full recomputation.
    expected = {"expert_ffn": 3072, "shard": 8, "zero_stage": 3, "recompute": "selective", "price": 3.5, "ep": 32}
    expected |= {
        "recompute_modules": ["moe_act"],
        "offload_layers": 3,
        "trained": "lora",
        "lora_rank": 16,
        "document": 2048,
    }
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
    said = page.page.get_by_text("does not know all of the link").inner_text()
    assert all(words in said for words in ("tp = -4", "cluster = H1000", "nothing = 1"))
    assert page.evaluate("planning.write(planning.read(location.hash.slice(1))) === planning.write(planning.START)")


@pytest.mark.browser
def test_a_layout_that_cannot_run_is_said_beside_its_control(page):
    tab = page.page
    tab.get_by_text("More: parts of recomputation").click()
    for name, value, says in (
        ("tp", 6, "tp = 6 does not divide 64 query heads"), ("batch", 500, "does not divide 500 sequences"),
        ("pp", 40, "need more than the model's 80 layers"), ("cp", 3, "does not divide 8192 tokens"),
        ("gpus", 500, "but there are 500 GPUs"), ("precision", "nvfp4", "H100 has no 'nvfp4'; it has bf16, fp8, mxfp8"),
        ("virtual_stages", 6, "does not divide 80 layers"), ("recompute_layers", 21, "but a rank has 20 layers"),
    ):  # fmt: skip
        tab.get_by_text("Start again").click()
        control = tab.locator(f"#plan-{name}")
        control.select_option(value) if isinstance(value, str) else control.fill(str(value))
        assert says in tab.locator(f"#plan-{name}-says").inner_text()
        assert "cannot run" in tab.locator(".plan-headline").inner_text()
        assert tab.locator(".plan-numbers, .plan-step, .plan-export").count() == 0
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
    tab.get_by_text("this is the best within 85 % of the memory").wait_for()
    page.wait(f"location.hash.includes('&tp={best.best.layout.tp}&')")
    found = page.evaluate("({ ...planning.layoutOf(planning.read(location.hash.slice(1))) })")
    assert Layout(**{**found, "recompute_modules": tuple(found["recompute_modules"])}) == best.best.layout
    assert f"{best.best.mfu():.1%}".replace("%", " %") in tab.locator(".plan-headline").inner_text()
    rows = tab.locator(".plan-others tbody tr")
    assert rows.count() == 7 and "fit 73 GB, 85 % of the memory" in tab.locator(".plan-results").inner_text()
    slower = [other.seconds / best.best.seconds - 1 for other in best.alternatives(6)]
    place = next(number for number, more in enumerate(slower) if more > 0.01)
    assert f"{100 * slower[place]:.1f} % slower: " in rows.nth(place + 1).inner_text()
    rows.nth(place + 1).get_by_role("button").click()
    assert f"{100 * slower[place]:.1f} % faster" in tab.locator(".plan-best").inner_text()


@pytest.mark.browser
def test_a_plan_that_is_tight_says_so(page):
    visit(page, model="Llama 3 405B", gpus=112, batch=112)
    page.page.get_by_role("button", name="Best layout").click()
    page.page.get_by_text("this is the best within 95 % of the memory").wait_for()
    assert "Tight: nothing fits 85 % of the memory" in page.page.locator(".plan-results").inner_text()


@pytest.mark.browser
def test_a_layout_that_is_faster_within_the_tie_is_called_faster(page):
    visit(page, model="Llama 3 8B", gpus=64, batch=256, tp=1, pp=1, virtual_stages=1)
    page.page.get_by_text("% faster, a tie: less simple").first.wait_for()
    found = plan(LLAMA3_8B, CLUSTERS["H100"], 64, 256)
    said = [words for words in map(found.why_not, found.alternatives(6)) if "a tie" in words]
    cells = [words for words in page.page.locator(".plan-others td:nth-child(3)").all_inner_texts() if "a tie" in words]
    assert cells == [words.replace("%", " %") for words in said] and len(said) >= 1


@pytest.mark.browser
def test_what_the_planner_is_known_to_get_wrong_is_a_note(page):
    layouts = [Layout(tp=8)], [Layout()]
    wide, odd = (warnings(replace(LLAMA3_8B, sequence=length), CLUSTERS["H100"], SOFTWARE["megatron"], some)
                 for length, some in zip((8192, 8191), layouts, strict=True))  # fmt: skip
    assert page.page.locator(".plan-warnings").inner_text() == f"Note: {wide[0]}."
    visit(page, model="Llama 3 8B", gpus=64, batch=64, tp=1, pp=1, virtual_stages=1, zero_stage=3, sequence=8191)
    assert page.page.locator(".plan-warnings").inner_text() == f"Note: {odd[0]}."


@pytest.mark.browser
def test_documents_longer_than_a_sequence_are_refused(page):
    visit(page, document=10000)
    says = "documents of 10000 tokens are longer than sequences of 8192; choose shorter documents, or longer sequences"
    assert page.page.locator("#plan-document-says").text_content() == says
    assert f"{says}." in page.page.locator(".plan-headline").inner_text()
    assert page.page.locator(".plan-numbers").count() == 0


@pytest.mark.browser
def test_sizes_that_are_typed_are_no_longer_the_models_name(page):
    visit(page, model="Llama 3 8B", gpus=8, tp=2, pp=1, virtual_stages=1, layers=16)
    assert "your own model (Llama 3 8B with other sizes)" in page.page.locator(".plan-headline").inner_text()


#: What Hugging Face has of Qwen3 8B.
CONFIG = {
    "model_type": "qwen3", "_name_or_path": "Qwen/Qwen3-8B", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.browser
@pytest.mark.parametrize("way", ["paste", "drop"])
def test_a_configuration_becomes_the_model(page, chromium, way):
    text = json.dumps(CONFIG)
    if way == "paste":
        page.page.get_by_text("A Hugging Face configuration").click()
        page.page.locator("#plan-config").fill(text)
    else:
        page.evaluate(f"""(() => {{
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([{json.dumps(text)}], "config.json"));
          const drop = new DragEvent("drop", {{ bubbles: true, cancelable: true, dataTransfer }});
          document.querySelector(".plan-results").dispatchEvent(drop);
        }})()""")
    page.page.locator("#plan-pp").fill("1")
    page.page.locator("#plan-virtual_stages").fill("1")
    page.page.locator(".plan-headline").get_by_text("Qwen/Qwen3-8B on 512").wait_for()
    python = predict(huggingface.model_of(CONFIG), CLUSTERS["H100"], Layout(dp=64, tp=8), 512)
    assert shown(page, "MFU") == f"{100 * python.mfu():.1f} %"
    page.wait("location.hash.includes('sizes=')")
    other = Tab(chromium)
    other.open(page.page.url)
    assert shown(other, "MFU") == shown(page, "MFU")


@pytest.mark.browser
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("layers: 80", "This is no JSON"), ("[1]", "This is no JSON"),
        ('{"model_type": "mamba"}', "the architecture 'mamba' (model_type) is not known; known are deepseek_v2"),
        (json.dumps({**CONFIG, "hidden_size": None}), "the configuration's field 'hidden_size' is missing"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_used_says_why(page, text, says):
    page.page.get_by_text("A Hugging Face configuration").click()
    page.page.locator("#plan-config").fill(text)
    assert says in page.page.locator("#plan-config-says").inner_text()
    assert page.page.locator("#plan-config").input_value() == text
    assert "Llama 3 70B on 512" in page.page.locator(".plan-headline").inner_text()
    page.page.locator("#plan-config").fill("")
    assert not page.page.locator("#plan-config-says").inner_text()


@pytest.mark.browser
def test_a_machine_of_ones_own_starts_as_the_one_that_was_chosen(page, chromium):
    tab = page.page
    before = shown(page, "MFU")
    tab.locator("#plan-cluster").select_option("your own machine")
    assert shown(page, "MFU") == before
    for value, says in (
        ("-1", "memory_gb is -1; it must be a number above 0"), ("0", "memory_gb is 0; it must be a number above 0"),
        ("", "the machine's field 'memory_gb' is missing"),
    ):  # fmt: skip
        tab.locator("#plan-memory_gb").fill(value)
        tab.locator("#plan-ports").focus()
        assert says in tab.locator("#plan-memory_gb-says").inner_text()
        assert says in tab.locator(".plan-headline").inner_text()
        assert tab.locator("#plan-memory_gb").input_value() == value
        assert tab.locator(".plan-numbers, .plan-step, .plan-others, .plan-export").count() == 0
    tab.locator("#plan-tflops-bf16").fill("800")
    tab.locator("#plan-memory_gb").fill("40")
    fields = {"like": "H100", "tflops": {"bf16": 800, "fp8": 1979}, "memory_gb": 40, "memory_bandwidth_gb_s": 3350,
              "domain": 8, "nvlink_gb_s": 450, "ports": 8, "port_gb_s": 50}  # fmt: skip
    layout = Layout(dp=16, tp=8, pp=4, virtual_stages=4)
    python = predict(LLAMA3_70B, cluster.own(fields), layout, 512, memory_limit=False)
    assert shown(page, "MFU") == f"{100 * python.mfu():.1f} %" and python.nbytes > 40e9
    doubt = "published runs (megatron, dense models, Hopper, bf16; none with this machine)."
    assert doubt in tab.locator(".plan-headline .plan-note").inner_text()
    assert "of 40 GB" in shown(page, "memory per GPU") and tab.locator(".plan-bad").count() == 1
    page.wait("location.hash.includes('machine=')")
    other = Tab(chromium)
    other.open(tab.url)
    assert shown(other, "MFU") == shown(page, "MFU")
    visit(page, cluster="your own machine", machine=json.dumps({**fields, "port_gb_s": 0}))
    assert "does not know all of the link: machine = " in tab.locator(".plan-results").inner_text()
    assert "512 × H100" in tab.locator(".plan-headline").inner_text()


@pytest.mark.browser
def test_the_settings_can_be_copied_for_three_programs(page):
    page.page.get_by_text("As settings of a training program").click()
    step = Step(LLAMA3_70B, CLUSTERS["H100"], Layout(dp=16, tp=8, pp=4, virtual_stages=4), SOFTWARE["megatron"])
    predicted = predict(LLAMA3_70B, CLUSTERS["H100"], step.layout, 512, memory_limit=False)
    for name, program in (("Megatron-LM", "megatron"), ("Megatron-Bridge", "bridge"), ("torchtitan", "torchtitan")):
        page.page.locator(".plan-export label", has_text=name).click()
        found = page.page.locator(".plan-export pre").text_content().splitlines()
        assert found == export.lines(program, step, 512, predicted) and "s per step" in found[1]
    visit(page, trained="lora")
    page.page.get_by_text("As settings of a training program").click()
    page.page.locator(".plan-export label", has_text="Megatron-LM").click()
    assert page.page.locator(".plan-export .plan-wrong").inner_text() == f"{export.refusal('megatron', 'lora')}."
    assert page.page.locator(".plan-export pre").count() == 0


@pytest.mark.browser
def test_a_run_has_one_prediction_everywhere(page, capsys):
    """Benchmark, lesson 15, the command and the page say the same of Llama 3 405B as it was trained."""
    lesson = chapter("15_layout", "LONG = replace(LLAMA3_405B")
    for name, (model, layout, batch, published), step in zip(
        ("8192 seq 8192", "16384 seq 8192", "16384 seq 131072"), lesson["RUNS"], lesson["steps"], strict=True
    ):
        row = RUNS[f"Llama 3 405B {name}"]
        compared = rows.compare(rows.read(row))
        assert row["published"]["tflops_per_gpu"] == published
        assert compared.prediction.layout == layout and compared.prediction.seconds == step.seconds
        text = ",".join(f"{key}={value}" for key, value in asdict(layout).items()
                        if value != getattr(Layout(), key))  # fmt: skip
        options = ["--batch", str(batch), "--sequence", str(model.sequence), "--software", "meta", "--json"]
        assert command(["Llama 3 405B", "--machine", "H100", "--layout", text, *options]) == 0
        assert json.loads(capsys.readouterr().out)["seconds"] == step.seconds
        visit(page, **told(model, CLUSTERS["H100"], layout, batch, "bf16", SOFTWARE["meta"]))
        found = page.evaluate("planning.computed(planning.read(location.hash.slice(1))).found.seconds")
        assert found == pytest.approx(step.seconds, rel=1e-12)


@pytest.mark.browser
def test_the_boxes_of_the_chapters_say_what_the_page_says(page):
    """Each row of each box leads to its settings, and there stand its memory and time."""
    linked = [row for box in running_model.boxes(plan_page.BOOK) for row in box.predictions if row.found]
    assert len(linked) > 40
    for row in linked:
        fragment = unescape(row.link).split("#")[1].split('"')[0]
        found = page.evaluate(f"""(() => {{
          const {{ found }} = planning.computed(planning.read({json.dumps(fragment)}));
          return [found.seconds, found.nbytes];
        }})()""")
        assert found == pytest.approx([row.found.seconds, row.found.nbytes], rel=1e-12), fragment
        assert page.evaluate(f"planning.unread({json.dumps(fragment)})") == []


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
