"""A cell that takes long says so in JupyterLab and leaves nothing behind. A program that runs it sees nothing of it."""

from __future__ import annotations

import re
import time

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbformat.v4 import new_code_cell, new_notebook

from tests.helpers.browser import Tab, chromium
from tests.helpers.formgrader_server import Server
from tests.helpers.patience import PATIENCE

QUICKLY = "import ranks, time\nfrom ranks import progress\nprogress.PATIENCE = progress.EVERY = 0.2"
#: Rank 0 ends at once, rank 1 after a while.
RUN = "def wait(rank, world_size, seconds):\n    time.sleep(seconds * rank)\nranks.run(wait, 2, (SECONDS,));"


@pytest.fixture(scope="module")
def kernel():
    """A kernel in which the line appears after a fifth of a second."""
    manager, client = start_new_kernel(kernel_name="python3")
    outputs(client, QUICKLY, looked_at=True)
    outputs(client, RUN.replace("SECONDS", "0"), looked_at=False)  # the ranks' server has started
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def outputs(client, source: str, looked_at: bool) -> list[dict]:
    """The messages about outputs that a cell sends. looked_at: as from JupyterLab, not as from a program."""
    found: list[dict] = []
    client.execute_interactive(source, allow_stdin=looked_at, output_hook=found.append, timeout=900)
    return [message for message in found if message["msg_type"] not in ("status", "execute_input")]


def lines(found: list[dict]) -> list[str]:
    return [message["content"]["data"].get("text/plain", "") for message in found]


def test_a_long_run_says_how_many_ranks_have_finished(kernel):
    found = outputs(kernel, RUN.replace("SECONDS", "1.5"), looked_at=True)
    *seen, last = lines(found)
    assert seen and all(re.fullmatch(r"([012] of 2 ranks finished, )?\d+ s", line) for line in seen)
    assert any("1 of 2 ranks finished" in line for line in seen) and last == ""
    assert [message["msg_type"] for message in found] == ["display_data"] + ["update_display_data"] * len(seen)
    assert len({message["content"]["transient"]["display_id"] for message in found}) == 1, "one line, updated in place"


def test_a_cell_without_ranks_shows_its_time(kernel):
    *seen, last = lines(outputs(kernel, "import subprocess\nsubprocess.run(['sleep', '1.6']);", looked_at=True))
    seconds = [int(line.removesuffix(" s")) for line in seen]
    assert seconds == sorted(seconds) and seconds[-1] >= 1 and last == ""


def test_the_line_goes_when_a_cell_fails(kernel):
    found = outputs(kernel, "time.sleep(0.6)\n1 / 0", looked_at=True)
    displays = [message for message in found if message["msg_type"] != "error"]
    assert len(displays) > 1 and lines(displays)[-1] == ""


def test_a_quick_cell_shows_nothing(kernel):
    outputs(kernel, "progress.PATIENCE = 900.0", looked_at=False)
    assert outputs(kernel, "time.sleep(0.05)", looked_at=True) == []
    outputs(kernel, QUICKLY, looked_at=False)


def test_a_program_that_runs_the_notebook_gets_nothing(kernel):
    assert outputs(kernel, RUN.replace("SECONDS", "0.7"), looked_at=False) == []


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.thorough
def test_jupyterlab_shows_the_line_and_saves_nothing_of_it(tmp_path):
    path = tmp_path / "long.ipynb"
    cells = [new_code_cell(source, id=f"cell-{n}") for n, source in enumerate([QUICKLY, RUN.replace("SECONDS", "6")])]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "P"}}), path)
    server = Server(tmp_path)
    try:
        with chromium() as browser:
            tab = Tab(browser)
            tab.open(f"{server.url}/login?token={server.token}")
            tab.page.goto(f"{server.url}/lab/tree/long.ipynb")
            tab.wait_for_kernel()
            tab.page.click(".lm-MenuBar-itemLabel:text-is('Run')")
            tab.page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")
            text = "document.querySelector('.jp-Notebook').innerText"
            tab.wait(f"/1 of 2 ranks finished, \\d+ s/.test({text})")
            tab.wait(f"!{text}.includes('ranks finished')")
            until = time.monotonic() + PATIENCE
            while not (saved := nbformat.read(path, as_version=4)).cells[1].execution_count:
                assert time.monotonic() < until, "the notebook was not saved"
                tab.page.keyboard.press("Control+s")  # again: the cell may not have had its number yet
                time.sleep(0.5)
    finally:
        server.stop()
    assert "finished" not in path.read_text()
    assert all(not output.get("data") for output in saved.cells[1].outputs)
