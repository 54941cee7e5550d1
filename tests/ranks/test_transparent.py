"""What is right in plain torch is right under `ranks`, to the bit; what torch refuses is refused in its own words."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch.multiprocessing
import torch_programs

import ranks


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """(in plain torch, under `ranks`): what came of each program on each rank. A pair of processes runs all of them."""
    folder = tmp_path_factory.mktemp("plain")
    torch.multiprocessing.spawn(torch_programs.in_plain_torch, args=(2, str(folder)), nprocs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the traps that some programs are about
        found = ranks.run(torch_programs.run_all, 2, timeout=600, echo=False)
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(2)], found


@pytest.mark.parametrize("name", torch_programs.PROGRAMS)
def test_a_program_does_the_same_as_in_plain_torch(outcomes, name):
    plain, under_ranks = ([rank[name] for rank in found] for found in outcomes)
    assert under_ranks == plain
    refused = name in torch_programs.REFUSED
    assert all((kind != "returned") == refused for kind, _ in plain), "the program itself is right, or is refused"


def test_there_are_enough_of_them():
    assert len(torch_programs.PROGRAMS) >= 60 and len(torch_programs.DOCUMENTED) >= 20
