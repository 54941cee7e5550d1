"""An analytical planner of training runs, held against published ones.

    from planner import Layout, plan, predict
    from machines.cluster import find
    from machines.model import LLAMA3_70B

    predict(LLAMA3_70B, find("H100"), Layout(dp=64, tp=4, pp=2), batch=1024).seconds
    print(plan(LLAMA3_70B, find("H100"), gpus=512, batch=1024))

Each term is one function, named after the passage of the lesson that derives it. Students do not get this package: it
answers the exercises of lesson 15. It needs nothing but the standard library and `machines`, and is
installed without the rest by `pip install ./planner`. `python -m planner` is its command.
"""

from __future__ import annotations

from planner.layout import Layout, LayoutError, check
from planner.prediction import Prediction, predict
from planner.search import Plan, plan

__all__ = ["Layout", "LayoutError", "Plan", "Prediction", "check", "plan", "predict"]
