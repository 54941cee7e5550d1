"""Exercise 1: the units of a model."""

from __future__ import annotations

from typing import Any

from torch import nn

from autograder.checking.check import check
from autograder.checking.expect import expect_equal, fail
from autograder.checking.stage import run_ranks
from autograder.checks.fsdp.models import Gain, freeze


def partitions() -> dict[str, tuple[nn.Module, list[nn.Module], bool]]:
    """Case → a model, units, and whether they divide it."""
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)), nn.ReLU(), nn.Linear(3, 2))
    tied = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    tied[2].weight = tied[0].weight
    outside = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    outside[1].weight = outside[0].weight
    gain, half = nn.Sequential(Gain(), nn.ReLU()), freeze(nn.Linear(2, 2), "weight")
    return {
        "units in another order": (net, [net[2], net[0]], True),
        "a unit without parameters": (net, [net[0], net[1], net[2]], True),
        "the module itself": (net, [net], True),
        "units inside a block": (net, [net[2], net[0][1], net[0][0]], True),
        "a tie inside a unit": (tied, [tied], True),
        "a parameter next to a layer": (gain, [gain[0]], True),
        "frozen parameters": (half, [half], True),
        "a tie to a layer in no unit": (outside, [outside[0]], False),
        "a tie across two units": (tied, [tied[0], tied[2]], False),
        "a frozen layer that is in no unit": (nn.Sequential(net, half), [net], False),
        "a layer that is in no unit": (net, [net[2]], False),
        "a parameter of the model that is in no layer": (gain[0], [gain[0].layer], False),
        "a unit inside another": (net, [net[0], net[0][1], net[2]], False),
        "the same unit twice": (net, [net[0], net[2], net[0]], False),
        "a layer of another model": (net, [net[0], net[2], nn.Linear(2, 2)], False),
        "an activation of another model": (net, [net[0], net[2], nn.ReLU()], False),
        "no units": (net, [], False),
        "no units of a model without parameters": (nn.Sequential(nn.ReLU()), [], False),
    }


def _drive_partition(rank: int, world_size: int, partition: Any) -> dict[str, Any]:
    """For each case: lists of places in `module.parameters()`, −1 for another object; or what a ValueError says."""
    observed = {}
    for case, (module, units, _) in partitions().items():
        place = {id(p): i for i, p in enumerate(module.parameters())}
        try:
            observed[case] = [[place.get(id(p), -1) for p in params] for params in partition(module, list(units))]
        except ValueError as error:
            observed[case] = str(error)
        if place != {id(p): i for i, p in enumerate(module.parameters())}:
            observed[case] = "changed"
    return observed


@check("09-ex1-partition")
def partition_divides_the_model(partition, *, rng):
    """Each unit gets its parameters, each once, in order; units that do not divide the model are a ValueError."""
    observed = run_ranks(_drive_partition, 1, (partition,))[0]
    for case, (module, units, fits) in partitions().items():
        place, got = {id(p): i for i, p in enumerate(module.parameters())}, observed[case]
        if got == "changed":
            fail("partition changed the module's parameters", case, got)
        if fits and isinstance(got, str):
            fail(f"these units divide the model, but partition raised a ValueError: {got}", case, "refused")
        if fits:
            expected = [[place[id(p)] for p in unit.parameters()] for unit in units]
            what = "the list of each unit's parameters, as places in module.parameters(),"
            expect_equal(case, got, expected, what=what)
        elif not isinstance(got, str):
            fail("these units do not divide the model, but no ValueError was raised", case, got)
        elif "units" not in got:
            fail(f"the ValueError should name 'units', it says {got!r}", case, "not named")
