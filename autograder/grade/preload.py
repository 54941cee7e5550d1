"""Imports everything that workers need, once, in the process from which they are forked (`workers`).

Nothing else imports this. A worker forks its ranks from itself, so that no rank has to import torch.
"""

import gc
import importlib
import os

from autograder.grade import isolation

gc.disable()  # until `make_forks_cheap`: imports make no garbage
os.environ["OMP_NUM_THREADS"] = "1"  # each core has a worker already, and each worker a jail that computes
for name in ("autograder.grade.running.workers", isolation.kernels(True)):
    importlib.import_module(name)
server = importlib.import_module("ranks.server")
server.preload()
server.make_forks_cheap()
