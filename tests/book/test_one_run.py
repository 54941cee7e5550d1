"""The boxes of the running model add up, and the page that collects them has them all."""

from __future__ import annotations

import io
import sys

import pytest
from bs4 import BeautifulSoup
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

from autograder.lesson import notebook
from machines.cluster import GB
from machines.model import LLAMA3_8B, flops_per_token
from planner import Layout

sys.path.insert(0, str(notebook.ROOT / "book" / "_ext"))

import live_figure
import running_model

BOXES = running_model.boxes(notebook.ROOT / "book")
ROWS = [(box, row) for box in BOXES for row in box.predictions if row.found]


def names(pair):
    box, row = pair
    return f"{box.chapter[:2]} {row.name}"


@pytest.mark.parametrize("pair", ROWS, ids=names)
def test_the_parts_of_a_box_add_up_to_what_it_shows(pair):
    """Every term has a name and a place in one of the three columns."""
    _, row = pair
    held, sent, seconds = (sum(column) for column in list(zip(*running_model.parts(row), strict=True))[2:])
    assert (held, seconds) == (pytest.approx(row.found.nbytes), pytest.approx(row.found.seconds))
    assert row.cells[0] == f"{held / GB:.0f} GB" and row.cells[1] == f"{sent / GB:,.0f} GB"
    assert row.cells[2] in (f"{seconds:.3g} s", "does not fit")


def test_a_term_that_no_column_shows_is_seen(monkeypatch):
    without = {group: {term: words for term, words in terms.items() if term != "data"}
               for group, terms in running_model.TIME.items()}  # fmt: skip
    monkeypatch.setattr(running_model, "TIME", without)
    with pytest.raises(AssertionError):
        test_the_parts_of_a_box_add_up_to_what_it_shows(ROWS[0])


def work(row):
    """Seconds that all GPUs of a row spend on matrix multiplications and attention, the output layer's included."""
    return row.found.layout.gpus * sum(row.found.time[term] for term in ("matmuls", "attention", "logits"))


def test_no_layout_has_more_or_less_of_the_models_work_than_another():
    """On one machine and with one batch, a layout changes who computes, and not how much."""
    for machine in ("H100", "GB200 NVL72"):
        boxes = [row for box, row in ROWS if box.model == LLAMA3_8B and row.machine == machine]
        same = [row for row in boxes if row.found.batch == running_model.BATCH]  # lesson 04 has a larger one
        assert len({row.found.layout for row in same}) > 2
        assert max(map(work, same)) < 1.02 * min(map(work, same))


def test_a_whole_step_has_the_flops_of_the_model():
    for box, row in ROWS:
        if box.model == LLAMA3_8B:
            flops = row.found.mfu() * row.found.cluster.flops["bf16"] * row.found.layout.gpus * row.found.seconds
            assert flops == pytest.approx(flops_per_token(LLAMA3_8B) * box.batch * LLAMA3_8B.sequence)


def build(folder, **pages):
    """The pages of a small book with these texts, without links, and the warnings."""
    (folder / "book").mkdir()
    toctree = "\n".join(["```{toctree}", *(f"book/{name}" for name in pages), "```"])
    (folder / "index.md").write_text(f"# Book\n\n{toctree}\n")
    for name, text in pages.items():
        (folder / "book" / f"{name}.md").write_text(text)
    options = {"extensions": ["myst_parser", "running_model"], "myst_enable_extensions": ["colon_fence"]}
    warnings = io.StringIO()
    with docutils_namespace():  # what this book registers is not there for the next one
        Sphinx(folder, None, folder / "out", folder / "doctrees", "html", options, None, warnings).build()
    made = {
        name: BeautifulSoup((folder / "out" / "book" / f"{name}.html").read_text(), "html.parser") for name in pages
    }
    return made, warnings.getvalue()


def cells(row):
    return [cell.get_text() for cell in row.select("th, td")]


def test_the_page_has_the_box_of_every_chapter_that_has_one(tmp_path):
    pages, _ = build(
        tmp_path,
        **{
            "12_tensor": "# Tensor\n\n:::{running-model} tp=8\nBody.\n:::\n",
            "13_none": "# None\n",
            "98_new": "# New\n\n::::{running-model} ep=64 zero_stage=3\n:model: DeepSeek-V3\n:batch: 4096\n::::\n",
        },
        one_run="# Run\n\n:::{one-run}\n:::\n",
    )
    tables = [[cells(row) for row in table.select("tbody tr")] for table in pages["one_run"].select("table")]
    layouts = [("12_tensor", "tp\xa08, ZeRO‑1"), ("98_new", "ep\xa064, ZeRO‑3; DeepSeek‑V3; 4,096 sequences")]
    for number, (chapter, layout) in enumerate(layouts):
        box = [cells(row) for row in pages[chapter].select(".running-model tbody tr")]
        for column, table in enumerate(tables[:3], 1):
            shown = [row[column].removesuffix("\xa0GB").removesuffix("\xa0s") for row in box]
            shown = [value if value[:1].isdigit() else "–" for value in shown]
            assert table[number] == [chapter[:2], layout, *shown]
    assert len(tables[0]) == 2
    *parts, together = tables[3]
    for column in (1, 2, 3):
        added = sum(float(row[column].replace(",", "")) for row in parts if row[column])
        assert added == pytest.approx(float(together[column].replace(",", "")), abs=0.0005 * len(parts))


def test_lessons_whose_boxes_say_the_same_share_a_row():
    same = running_model.together(BOXES)
    assert sorted(box.chapter for row in same for box in row) == [box.chapter for box in BOXES]
    assert all(box.predictions == row[0].predictions for row in same for box in row)
    assert len({(row[0].words, row[0].batch) for row in same}) == len(same)


def test_the_picture_has_the_numbers_of_the_boxes_and_the_story_tells_what_it_shows():
    figure = live_figure.module("one_run")
    lines = {lesson: line for line in figure.lines() for lesson in line.lessons.split(", ")}
    for box in BOXES:
        if box.chapter[:2] in lines:
            row = next(row for row in box.predictions if row.name == running_model.ADDED_UP)
            sums = [sum(parts.values()) for parts in lines[box.chapter[:2]].columns if parts]
            assert sums == pytest.approx(
                [row.found.nbytes / GB, sum(row.sent.values()) / GB, row.found.seconds][: len(sums)]
            )
    held, sent, seconds = (
        {lesson: line.columns[i] and sum(line.columns[i].values()) for lesson, line in lines.items()} for i in range(3)
    )
    assert [lesson for lesson in lines if not seconds[lesson]] == ["01", "03", "08"]
    assert {"02", "06", "07", "10"} <= set(lines["10"].lessons.split(", "))
    assert (
        sent["09"] > sent["10"] and seconds["09"] < seconds["10"] and lines["10"].columns[2]["compute"] > seconds["09"]
    )
    assert lines["05"].columns[2]["communication"] > lines["12"].columns[2]["communication"]
    assert held["11"] == min(held.values()) and sent["11"] == min(sent.values())
    took = [value for value in seconds.values() if value]
    assert seconds["11"] == max(took) and lines["11"].columns[2]["waiting"] > seconds["11"] / 2
    assert seconds["15"] == min(took) and lines["15"].layout == "ZeRO‑3 over\xa064"
    assert lines["15"].columns[2]["communication"] < lines["09"].columns[2]["communication"]
    assert "12, tp" in figure.still()[1]


def test_a_box_leads_to_its_settings(tmp_path):
    pages, _ = build(tmp_path, **{"12_tensor": "# Tensor\n\n:::{running-model} tp=8 recompute=full\nBody.\n:::\n"})
    links = [link["href"] for link in pages["12_tensor"].select(".running-model tbody a")]
    assert len(links) == 4 and links[1].startswith("plan.html#cluster=H100&gpus=64&batch=1024&model=Llama+3+8B&")
    assert "&tp=8&" in links[1] and "&recompute=full&" in links[1] and "dp=" not in links[1]


def test_a_layout_that_needs_more_gpus_than_a_row_has_says_so():
    found = running_model.predictions(LLAMA3_8B, 1024, (("tp", 8), ("pp", 4)))
    assert found[0].cells[0] == "too few GPUs" and found[1].found.layout.gpus == 64
    assert found[1].found.layout == Layout(dp=2, tp=8, pp=4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zero_stage=3\nWhat there is to see.\n", "1,012\N{NO-BREAK SPACE}GB"),
        ("zero_stag=3\n", "'zero_stag=3' sets no field of a layout"),
        ("tp=3\n", "running-model: "),
        ("\n:model: Llama 4\n", "there is no model 'Llama 4'"),
        ("tp=64\n", "one-run: tp = 64 does not divide 32 query heads"),
    ],
)
def test_a_box_stands_on_its_page_or_stops_it(tmp_path, text, expected):
    box = f"# T\n\n:::{{running-model}} {text}:::\n"
    pages, warnings = build(tmp_path, **{"12_t": box}, one_run="# R\n\n:::{one-run}\n:::\n")
    assert expected in pages["12_t"].get_text() + warnings
