"""What every worker needs, imported once: by the process from which workers are forked (`workers`).

Nothing else imports this. Each worker forks its ranks from itself, so that none has to import torch.
"""

import gc
import os

os.environ["OMP_NUM_THREADS"] = "1"  # there is a worker for each core, and each has a jail that computes, too
os.environ["RANKS_INSIDE"] = "preload"  # `ranks` starts no server of its own

import autograder.jail.kernel
import autograder.workers
import ranks.server

ranks.server._preload()
del os.environ["RANKS_INSIDE"]
gc.collect()
gc.freeze()  # the collector would touch, and so copy, every page in every worker
