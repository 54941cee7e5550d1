"""What every worker needs, imported once: by the process from which workers are forked (`workers`).

Nothing else imports this. Each worker forks its ranks from itself, so that none has to import torch.
"""

import gc
import importlib
import os

os.environ["OMP_NUM_THREADS"] = "1"  # there is a worker for each core, and each has a jail that computes, too
os.environ["RANKS_INSIDE"] = "preload"  # `ranks` starts no server of its own
for name in ("autograder.grading.workers", "autograder.grading.jail.kernel"):
    importlib.import_module(name)
server = importlib.import_module("ranks.server")
server._preload()
del os.environ["RANKS_INSIDE"]
gc.collect()
gc.freeze()  # the collector would touch, and so copy, every page in every worker
