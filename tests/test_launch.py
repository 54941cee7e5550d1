"""Lesson 06: the jobs that its checks play write what torch's own flight recorder writes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.distributed as dist

import ranks
from autograder.checks.launch import diagnosis
from autograder.lessons import notebook

pytestmark = pytest.mark.skipif("06_launch" not in notebook.lessons(), reason="the lesson is not there")


def recorded(rank, world_size):
    """A rank's own dump after one all-reduce."""
    dist.all_reduce(torch.ones(3))
    return json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False))


def played(kind, seed=0):
    """(dumps, now, what is to be found) of a job with this fault."""
    rng = np.random.default_rng(seed)
    return diagnosis._job(rng, kind, n=4).play(rng)


def test_a_played_dump_has_the_fields_of_a_real_one():
    real = ranks.run(recorded, 2, echo=False)[0]
    mine = next(dump for dump in played("hung")[0] if dump)
    assert set(mine) <= set(real)
    entry, real_entry = mine["entries"][-1], real["entries"][-1]
    assert set(entry) <= set(real_entry)
    assert set(mine["pg_config"]["0"]) == set(next(iter(real["pg_config"].values())))
    for name in ("collective_seq_id", "profiling_name", "input_sizes", "time_created_ns", "timeout_ms", "state"):
        assert type(entry[name]) is type(real_entry[name]), name
    assert real_entry["process_group"] == ["0", "default_pg"] and entry["process_group"][0] == "0"


def test_only_a_dead_rank_leaves_no_dump_and_only_the_culprit_is_missing():
    for kind in ("dead", "hung", "slow"):
        for seed in range(20):
            dumps, now, (said, culprit, (group, number, _)) = played(kind, seed)
            assert said == kind and [rank for rank, dump in enumerate(dumps) if dump is None] == [culprit] * (
                kind == "dead"
            )
            called = [
                rank
                for rank, dump in enumerate(dumps)
                for entry in (dump or {"entries": []})["entries"]
                if (entry["process_group"][0], entry["collective_seq_id"]) == (group, number)
            ]
            assert called == [rank for rank in range(4) if rank != culprit]
            assert all(entry["time_created_ns"] < now for dump in dumps if dump for entry in dump["entries"])
