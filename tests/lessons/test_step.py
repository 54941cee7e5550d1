"""Lesson 03: its oracles are torch's own, chance never decides a mark, and its cells run without torch."""

import subprocess
import sys

import nbformat
import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

from autograder.checks import module
from autograder.lesson import notebook
from tests.helpers import right_answers

common = module("03_step", "common")

LESSON = "03_step"


def test_the_adam_oracle_is_torch_optim_adam():
    """The checks call the function inside the optimizer, to save an import; here both run side by side."""
    hyper = {"lr": 0.03, "beta1": 0.8, "beta2": 0.97, "eps": 1e-3}
    rng = np.random.default_rng(0)
    start = rng.normal(size=5)
    weights = torch.tensor(start, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=hyper["lr"], betas=(hyper["beta1"], hyper["beta2"]), eps=hyper["eps"])
    w, m, v = start, np.zeros(5), np.zeros(5)
    for t in range(1, 51):
        g = rng.normal(size=5)
        weights.grad = torch.tensor(g)
        optimizer.step()
        w, m, v = common.torch_update(w, g, m, v, hyper, t)
        state = optimizer.state[weights]
        np.testing.assert_allclose(w, weights.detach().numpy(), rtol=1e-13)
        np.testing.assert_allclose(m, state["exp_avg"].numpy(), rtol=1e-13)
        np.testing.assert_allclose(v, state["exp_avg_sq"].numpy(), rtol=1e-13)


def test_the_first_average_is_not_a_copy():
    """AveragedModel copies in its first update; the lesson follows the averaging function, which does not."""
    model = torch.nn.Linear(1, 1, bias=False).double()
    averaged = AveragedModel(model, avg_fn=get_ema_avg_fn(0.9))
    before = model.weight.detach().numpy().ravel().copy()
    with torch.no_grad():
        model.weight += 1.0
    averaged.update_parameters(model)
    assert averaged.module.weight.item() == pytest.approx(before[0] + 1.0)
    ema = notebook.functions(LESSON)["ema_update"](before, before + 1.0, 0.9)
    np.testing.assert_allclose(ema, before + 0.1)


@pytest.mark.filterwarnings("ignore:a warning is not a mistake")
@pytest.mark.parametrize("name", right_answers.right_answers(LESSON))
def test_chance_takes_no_mark(name):
    right_answers.keeps_all_marks(LESSON, name)


def test_the_assignment_needs_no_torch():
    """All cells but the hidden tests run where torch and our packages are missing, as in a browser."""
    cells = [cell for cell in notebook.read(LESSON).cells if cell.cell_type == "code"]
    sources = [_without_hidden_tests(cell) for cell in cells]
    blocked = "import sys\nfor name in ('torch', 'ranks', 'autograder'):\n    sys.modules[name] = None\n"
    script = blocked + "\n".join(sources) + "\nprint(distributed_training_step.__name__)\n"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "distributed_training_step"


def _without_hidden_tests(cell: nbformat.NotebookNode) -> str:
    before, _, rest = cell.source.partition("### BEGIN HIDDEN TESTS")
    return before + rest.partition("### END HIDDEN TESTS")[2]
