"""What became of a notebook and its cells: the only thing that comes back from a run, and all that a page is made of.

In between it lies in the notebook. `to_metadata`, `of_metadata` and `of_notebook` alone know under which keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any

import nbformat

from autograder import properties
from autograder.checks.expect import HANG, UNWRITTEN, Failure, Hint

#: What became of a cell that ran to its end, with an error or without one.
OK, ERROR = "ok", "error"
#: Of one that was stopped, besides "died"; these are kinds of failure as well.
TIMEOUT, OUT_OF_TIME = "timeout", "out of time"
#: Of a cell that was skipped, and of a property that was not tried, because nothing could be learned from it any more.
NOT_RUN, NOT_TRIED = "not run", "not tried"
#: The kind of failure of which nothing is kept: an earlier version of the grader wrote sentences instead.
OUTDATED = "outdated"


@dataclass
class Outcome:
    """What became of a cell, or of a property.

    status: that of `Reply`, OUT_OF_TIME, NOT_RUN or NOT_TRIED; "" before the run. seed: of the inputs that repeat the
    failure; a text, since JavaScript would round it. where: the frames in the student's cells. picture: what the ranks
    sent each other (`pictures`).
    """

    status: str = ""
    failure: Failure | None = None
    seed: str = ""
    where: list[str] = field(default_factory=list)
    picture: dict[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> Failure:
        """Why it did not run to its end, or does not hold."""
        return self.failure or Failure(OUTDATED)


@dataclass
class Tried(Outcome):
    """What became of a property: its name and points, the sentence that it `says`.

    tries: their number, if there were two. carried: the exercises that alone had made it fail (`carried_forward`).
    own_error_beside: those with whose right answers it fails as well. find_hints: searches for those of the failure.
    """

    name: str = ""
    says: str = ""
    points: float = 0.0
    tries: int = 0
    carried: list[str] = field(default_factory=list)
    own_error_beside: list[str] = field(default_factory=list)
    find_hints: Callable[..., tuple[Hint, ...]] | None = field(default=None, compare=False, repr=False)

    @property
    def holds(self) -> bool:
        """Does it hold, perhaps in a second run without the errors of other exercises?"""
        return self.status == OK or bool(self.carried)

    @property
    def is_lost(self) -> bool:
        """Was it tried, and does it not hold?"""
        return not self.holds and self.status != NOT_TRIED


@dataclass
class CellOutcome(Outcome):
    """What became of a cell; of a test, with that of the properties of its exercise, the core first.

    seconds: of all its `runs`. left_out: had fresh kernels no time for it? setup: is it the lesson's own, put back?
    instead_of: the setup cell in whose place it stands. notes: what was repaired. unwritten: does its answer hold the
    stub? functions: those that it tries. all_or_nothing: do its properties count only with the core? comment: what the
    gradebook says of it.
    """

    seconds: float = 0.0
    runs: int = 0
    left_out: bool = False
    setup: bool = False
    instead_of: str = ""
    notes: list[str] = field(default_factory=list)
    unwritten: bool = False
    functions: list[str] = field(default_factory=list)
    all_or_nothing: bool = False
    comment: str = ""
    properties: list[Tried] = field(default_factory=list)

    @property
    def by_machine(self) -> str:
        """What the gradebook says of it, unless a person writes something else."""
        return " ".join([*self.notes, self.comment]).strip()

    @property
    def passed(self) -> bool:
        """Do all properties of an exercise hold?"""
        return bool(self.properties) and all(one.holds for one in self.properties)

    @property
    def lost(self) -> list[Tried]:
        """The properties that were tried and do not hold."""
        return [one for one in self.properties if one.is_lost]

    @property
    def score(self) -> float:
        """The points for the properties that hold; see `properties.earned`."""
        return properties.earned([(one.name, one.points, one.holds) for one in self.properties], self.all_or_nothing)

    @property
    def met_limit(self) -> bool:
        """Was a limit of time met, in the cell or in a property that this may have cost?"""
        counting = self, *(one for one in self.properties if not one.carried)
        return self.left_out or any(one.status in (TIMEOUT, OUT_OF_TIME) for one in counting)

    @property
    def why_stopped(self) -> Failure | None:
        """Why an answer's cell did not run to its end; None if it did, or only because it is not written."""
        return self.failure if self.failure and self.failure.kind != UNWRITTEN else None


@dataclass
class NotebookOutcome:
    """What there is to say of a notebook as a whole.

    problem: why it could not be read, "" if it could. remarks: on how it was found, and what was repaired, a sentence
    each. left_out: files beside it that are not used, and why. python: the version that it was saved with, if it says.
    busy: had other programs the processors for most of its run?
    """

    problem: str = ""
    remarks: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    python: str = ""
    busy: bool = False


def failed_by_time(cells: Iterable[CellOutcome]) -> bool:
    """Does a test fail, and was a limit of time or a hang of ranks met on the way?"""
    cells = list(cells)
    tried = [one for cell in cells for one in cell.properties]
    kinds = {one.failure.kind for one in (*cells, *tried) if one.failure}
    return any(one.status != OK for one in tried) and bool(kinds & {HANG, TIMEOUT, OUT_OF_TIME})


# ---- in a notebook ----


def to_metadata(of: nbformat.NotebookNode, found: CellOutcome | NotebookOutcome) -> None:
    """Keep in a cell, or in a notebook, what became of it."""
    of.metadata["autograder"] = nbformat.from_dict(_data(found))


def of_metadata(cell: Any) -> CellOutcome:
    """What became of a cell, as the notebook keeps it; TypeError for what nobody of ours has written."""
    found = _read(CellOutcome, cell["metadata"].get("autograder", {}))
    found.properties = [_read(Tried, one) for one in found.properties]
    return found


def of_notebook(nb: Any) -> NotebookOutcome:
    """What there is to say of a notebook, as it keeps it."""
    return _read(NotebookOutcome, nb["metadata"].get("autograder", {}))


def _data(found: Any) -> Any:
    """Plain data, without the fields that are as they are when nothing has happened."""
    if isinstance(found, list | tuple):
        return [_data(one) for one in found]
    if not is_dataclass(found):
        return found
    return {
        one.name: _data(value)
        for one in fields(found)
        if one.compare and (value := getattr(found, one.name)) != _default(one)
    }


def _default(one: Any) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _read(kind: type, found: dict) -> Any:
    made = kind(**{one.name: found[one.name] for one in fields(kind) if one.name in found})
    if isinstance(made, Outcome) and made.failure is not None:
        made.failure = Failure.of_data(found["failure"])
    return made
