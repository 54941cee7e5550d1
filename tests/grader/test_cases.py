"""Cases: what a check says of an answer, how it runs it, and what it says of itself where it is wrong."""

from __future__ import annotations

import linecache
import re
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.profiler import record_function

from autograder.checks import cases, check, module, stage
from autograder.checks.cases import Call, Case, CaseError, at_most, close, evidence, fact, refused, sentence
from autograder.checks.expect import CheckFailed
from ranks import processes

training = module("08_zero1", "training")


@dataclass
class Seen:
    """The facts of most drivers here."""

    when: str = ""
    number: Any = fact("the number", "count the ranks")
    slope: Any = fact("the gradient of x")
    items: Any = fact("item {}")
    wrong: str = sentence()
    besides: Any = evidence()


@dataclass
class Other:
    """Facts of another kind."""

    number: Any = fact("the number")


class SmallerThanAll:
    """What a cheat would return."""

    def __le__(self, other):
        return True


def drive(rank, world_size, answer):
    """What the answer returns is the rank's facts."""
    return answer(rank)


def play(*yielded: Any) -> CheckFailed | None:
    """How a check that yields these cases fails."""

    def body(*, rng):
        yield from yielded

    return check.attempt(body, (), 1)


def told(*yielded: Any) -> str:
    """What a check that yields these cases says."""
    failure = play(*yielded)
    return "" if failure is None else str(failure)


def case(answer: Any, expect: Any, ranks: int = 2, name: str = "a", **more: Any) -> Case:
    return Case(name, ranks, drive, (answer,), [expect] * ranks, **more)


# ---- what is said of an answer ----


@pytest.mark.parametrize(
    ("seen", "expected", "says"),
    [
        (Seen(number=3), Seen(number=3), ""),
        (Seen(number=3, items=["unheard of"]), Seen(number=3), ""),
        (Seen(number=3), Seen(number=4), "the number on rank 0 is 3, expected 4; count the ranks (case: 2 ranks, a)"),
        (Seen("after step 2", 3), Seen("", 4), "the number after step 2 on rank 0 is 3, expected 4; count the ranks"),
        (Seen(number=5), Seen(number=at_most(4)), "is 5, expected at most 4; count the ranks"),
        (Seen(number=5), Seen(number=at_most(4, slack=1)), ""),
        (Seen(number=1), Seen(number=at_most(4, least=1)), ""),
        (Seen(number=0), Seen(number=at_most(4, least=1)), "is 0, expected at least 1; count the ranks"),
        (Seen(number=6), Seen(number=at_most(4, slack=1)), "is 6, expected at most 4;"),
        (Seen(number=float("nan")), Seen(number=at_most(4)), "is nan, expected at most 4;"),
        (Seen(number=SmallerThanAll()), Seen(number=at_most(4)), "expected at most 4;"),
        (Seen(number=1.5), Seen(number=close(1.0, atol=0.1)), "wrong: got 1.5, expected 1;"),
        (Seen(number=1.05), Seen(number=close(1.0, atol=0.1)), ""),
        (Seen(number=None), Seen(number=close(1.0, dtype="float64")), "is None: does the function return it?"),
        (Seen(slope=None), Seen(slope=close(1.0)), "the gradient of x on rank 0 is None: backward does not reach it"),
        (Seen(number=torch.ones(2)), Seen(number=close(np.zeros(2), dtype="float64")), "is float32, expected float64"),
        (Seen(number=[1.0, 2.0]), Seen(number=close([1, 2], dtype="float64")), ""),
        (Seen(items=[1, 2]), Seen(items=[1, 3]), "item 1 on rank 0 is 2, expected 3"),
        (Seen(items=[1]), Seen(items=[1, 3]), "the number of items on rank 0 is 1, expected 2"),
        (Seen(items={"lr": 1}), Seen(items={"lr": 2}), "item 'lr' on rank 0 is 1, expected 2"),
        (Seen(items={}), Seen(items={"lr": 2}), "the list of item keys on rank 0 is [], expected ['lr']"),
        (Seen(wrong="it forgot the rest"), Seen(wrong=""), "on rank 0, it forgot the rest (case: 2 ranks, a)"),
        (Seen(wrong=["", "it forgot", "it is late"]), Seen(wrong=""), "on rank 0, it forgot (case: 2 ranks, a)"),
        (Seen(wrong=[""]), Seen(wrong=""), ""),
        (Seen(wrong=[]), Seen(wrong=""), ""),
        ([Seen("", 3), Seen("later", 4)], [Seen("", 3), Seen("", 5)], "the number later on rank 0 is 4, expected 5"),
    ],
)
def test_the_first_fact_that_differs_makes_the_sentence(seen, expected, says):
    said = told(case(lambda rank: seen, expected))
    assert says in said and bool(says) == bool(said)


def test_the_evidence_is_of_all_ranks():
    failure = play(case(lambda rank: Seen(number=rank, besides=torch.tensor([rank])), Seen(number=0)))
    name, moment, values, besides = failure.got
    assert (failure.failure.case, name, moment, values) == ("2 ranks, a", "number", 0, [0, 1])
    assert [list(one) for one in besides] == [[0], [1]]


def test_the_evidence_of_a_wrong_dtype_is_the_dtype():
    """Whoever computes in another way, in the same narrow dtype, makes the same mistake."""
    for numbers in ([torch.ones(2), torch.ones(3)], [torch.zeros(2), torch.zeros(3)]):
        expected = [close(np.zeros(n), dtype="float64") for n in (2, 3)]
        failure = play(case(lambda rank, numbers=numbers: Seen(items=numbers), Seen(items=expected)))
        assert failure.got[2] == [["float32", "float32"]] * 2


def reduce_all(*sizes):
    def answer(rank):
        for size in sizes:
            dist.all_reduce(torch.zeros(size))
        return Seen(number=1)

    return answer


@pytest.mark.parametrize(
    ("sizes", "sends", "says"),
    [
        ((3, 4), [("all_reduce", 12), ("all_reduce", 16)], ""),
        ((3,), [("all_reduce", 16, "all numbers")], "rank 0 puts 12 bytes into all_reduce, expected 16: all numbers"),
        ((3, 4), [("all_reduce", 12)], "rank 0 sends 2 messages, expected 1: all_reduce of 16 bytes is one too many"),
        ((), [("all_reduce", 12, "all")], "sends 0 messages, expected 1; missing is all_reduce of 12 bytes: all"),
        (
            (3, 4),
            [("all_reduce", 12), ("all_gather", 16, "its shard")],
            "message 2 of 2 on rank 0 is all_reduce of 16 bytes, expected all_gather of 16 bytes: its shard",
        ),
    ],
)
def test_the_first_message_that_differs_makes_the_sentence(sizes, sends, says):
    said = told(case(reduce_all(*sizes), Seen(number=1), sends=sends, because="once is enough"))
    assert says in said and bool(says) == bool(said)
    assert not says or "; once is enough (case: 2 ranks, a)" in said


def test_one_rank_may_leave_messages_out_but_not_send_others():
    both = [("all_reduce", 12), ("all_reduce", 16)]
    for sizes, right in [((), True), ((4,), True), ((3, 4), True), ((4, 3), False), ((5,), False)]:
        assert (told(case(reduce_all(*sizes), Seen(number=1), ranks=1, sends=both)) == "") == right


def test_small_collectives_may_come_besides():
    few, many = (
        told(case(reduce_all(*sizes), Seen(number=1), sends=[("all_reduce", 12)], scalars=1))
        for sizes in ((1, 3), (1, 1, 3))
    )
    assert few == "" and "2 collectives of a single number, expected at most 1" in many


def in_parts(rank, world_size, answer):
    """Two parts."""
    answer(1)
    dist.barrier()
    answer(2)
    return Seen(number=1)


def test_a_driver_cuts_its_case_into_parts():
    def judge(rank, parts):
        found = [[m.bytes for m in part] for part in parts]
        return "" if found == [[4], [8]] else f"rank {rank} sent {found}"

    def each(size):
        return dist.all_reduce(torch.zeros(size))

    def twice(size):
        return [each(size), each(size)]

    expect = [Seen(number=1)] * 2
    right = [Case(name, 2, in_parts, (each,), expect, parts=2, judge=judge) for name in "ab"]
    assert told(*right) == ""
    wrong = Case("c", 2, in_parts, (twice,), expect, parts=2, judge=judge)
    assert told(*right, wrong) == "rank 0 sent [[4, 4], [8, 8]] (case: 2 ranks, c)"


def test_an_answer_that_ends_its_process_has_failed_and_not_the_check():
    said = told(case(lambda rank: sys.exit(0), Seen(number=1)))
    assert "RuntimeError: the process of this rank was ended by sys.exit" in said


def test_an_answers_own_barrier_is_told():
    def answer(rank):
        dist.barrier()
        return Seen(number=1)

    assert "barrier was called" in told(case(answer, Seen(number=1)))
    assert told(case(answer, Seen(number=1), parts=0), RIGHT) == ""
    assert "the number on rank 0 is 1, expected 2" in told(case(answer, Seen(number=2), parts=0))


def test_what_is_compared_may_depend_on_all_ranks():
    def forgive(seen):
        return [Seen(number=0)] * 2 if seen[0].number == seen[1].number else seen

    assert told(case(lambda rank: Seen(number=7), Seen(number=0), sees=forgive)) == ""
    assert "the number on rank 0 is 5" in told(case(lambda rank: Seen(number=5 + rank), Seen(number=0), sees=forgive))


def test_what_a_driver_marks_can_be_judged():
    def answer(rank):
        dist.all_reduce(torch.zeros(2))
        with record_function("marked"):
            dist.all_reduce(torch.zeros(2))
        return Seen(number=1)

    def judge(rank, parts):
        return " ".join(f"rank {rank} sent {m.bytes} bytes" for m in parts[0].within("marked") if rank)

    assert told(case(answer, Seen(number=1), judge=judge)).startswith("rank 1 sent 8 bytes (case")
    with_evidence = case(answer, Seen(number=1), judge=lambda rank, parts: ("it is late", "marked"))
    assert play(with_evidence).got == ["sent", 0, "marked"]


# ---- how it is run ----


RIGHT = case(lambda rank: Seen(number=1), Seen(number=1), name="right")
SENDS = case(reduce_all(3), Seen(number=1), sends=[("all_reduce", 12)])


def test_a_hang_names_its_case_and_hides_nothing_before_it():
    hangs = case(lambda rank: dist.recv(torch.zeros(1), src=1 - rank), Seen(number=1), name="hangs")
    failure = play(RIGHT, hangs)
    assert failure.compared[0] == "2 ranks, hangs" and failure.failure.kind == "hang"
    assert str(failure).split("\n")[0] == "With 2 ranks, every rank waits forever (case: 2 ranks, hangs)"
    wrong = case(lambda rank: Seen(number=2), Seen(number=1), name="wrong")
    assert "the number on rank 0 is 2" in told(RIGHT, wrong, hangs)


def test_an_error_names_its_case_and_what_must_come_instead():
    def fails(rank):
        raise KeyError("lr")

    failure = play(RIGHT, case(fails, Seen(number=1), name="fails", must="it must load."))
    assert str(failure).startswith("it must load. With 2 ranks, rank ") and failure.compared[0] == "2 ranks, fails"
    assert "raised KeyError" in told(RIGHT, case(fails, Seen(number=1), name="fails"))


def test_cases_in_a_row_share_a_launch_whose_limit_grows_with_them(monkeypatch):
    launched = []

    def run_ranks(worker, world_size, args, timeout, **driver):
        launched.append((world_size, len(args[0]), timeout))
        return stage.run_ranks(worker, world_size, args, timeout, **driver)

    monkeypatch.setattr(cases, "run_ranks", run_ranks)
    one = [case(lambda rank: Seen(number=1), Seen(number=1), ranks=ranks) for ranks in (2, 2, 2, 1)]
    alone = case(lambda rank: Seen(number=1), Seen(number=1), must="it must.")
    assert told(*one, Call(abs, 1, gives=1, name="abs"), one[3], alone) == ""
    assert launched == [(2, 3, 22.0), (1, 1, 20.0), (1, 1, 20.0), (2, 1, 20.0)]


def test_the_modules_of_drivers_are_preloaded(monkeypatch):
    """Else each rank imports the whole lesson."""
    monkeypatch.setattr(processes, "PRELOAD", set())
    play(Case("a", 1, training.drive, (None, None), [Other(1)]))
    assert training.__name__ in processes.PRELOAD


def test_the_picture_of_a_failure_shows_its_case_alone():
    failure = play(SENDS, case(reduce_all(4), Seen(number=1), sends=[("all_reduce", 12)]))
    assert [(m.rank, m.bytes) for m in sorted(failure.ledger, key=lambda m: m.rank)] == [(0, 16), (1, 16)]


def test_a_call_that_fails_shows_no_messages_of_ranks_that_ran_before():
    failure = play(SENDS, Call(lambda: 3.0, gives=close(1.5), name="half(3)", what="the half"))
    assert failure.failure.message.startswith("the half is wrong") and failure.ledger is None


# ---- plain calls ----


def total(numbers, start):
    if start < 0:
        raise ValueError(f"start must not be negative, got {start}")
    numbers += start
    return numbers.sum()


def named(function, name):
    """A check of one function, as `check` plays it."""

    def body(total, *, rng):
        yield from function(total)

    return check.attempt(body, (name,), 1)


def test_a_call_gets_copies_and_is_named_as_a_student_would_write_it():
    numbers = np.ones(3)
    seen = []

    def look(result, given, start):
        seen.append((given is numbers, given.tolist()))
        return float(result)

    assert named(lambda f: [Call(f, numbers, 1, gives=6.0, sees=look)], total) is None
    assert numbers.tolist() == [1, 1, 1] and seen == [(False, [2, 2, 2])]
    failure = named(lambda f: [Call(f, [1], 2, gives=6, what="the sum", because="add all")], lambda x, y: 3)
    assert str(failure) == "the sum is 3, expected 6; add all (case: total([1], 2))"
    fortran = np.asfortranarray(np.ones((2, 3)))
    layout = Call(lambda a: a.flags.f_contiguous, fortran, gives=True, name="layout")
    assert told(layout) == ""


def test_a_call_gives_facts_too_and_its_error_names_the_case():
    def look(result, *_):
        return Seen(number=result, wrong="" if result < 9 else "too large")

    def call(expected):
        return [Call(abs, -9, sees=look, gives=expected, name="abs of -9")]

    assert told(*call(Seen(number=9))) == ""
    assert told(*call(Seen(wrong=""))) == "too large (case: abs of -9)"
    assert told(*call(Seen(number=8))) == "the number is 9, expected 8; count the ranks (case: abs of -9)"
    failure = play(Call(lambda: 1 / 0, gives=1, name="a division"))
    assert str(failure) == "Your code raised ZeroDivisionError: division by zero (case: a division)"


def test_a_failure_shows_its_input_where_that_is_short():
    def failure(*args, ranks=0, **how):
        wrong = Case("few", ranks, take, args, [Seen(number=2)] * ranks, **how)
        return play(wrong if ranks else Call(lambda *_: 1, *args, gives=2, name="few", **how))

    short, long = {"a": [1, "b", None], "c": np.arange(2)}, list(range(99))
    shown = "few; the input: {'a': [1, 'b', None], 'c': array([0, 1])}, 3"
    assert failure(short, 3).failure.case == shown and failure(short, 3, ranks=2).failure.case == f"2 ranks, {shown}"
    assert failure(short, 3).compared == ("few", 1), "hints compare without it"
    assert failure(long).failure.case == failure(object()).failure.case == failure(len).failure.case == "few"
    assert failure(long, shows="0 to 98").failure.case == "few; the input: 0 to 98"
    assert len(failure(long, shows="x" * 5000).failure.case) < 1100


def take(rank, world_size, *_):
    return Seen(number=1)


def test_whole_numbers_are_equal_by_value_and_a_bool_is_none():
    for got in (7, np.int64(7), np.uint8(7)):
        assert told(Call(lambda got=got: got, gives=7, name="n")) == ""
        assert told(Call(lambda got=got: {"a": (got,)}, gives={"a": (np.int32(7),)}, name="n")) == ""
    for got in (7.0, np.float64(7), "7", True, np.bool_(True)):
        assert told(Call(lambda got=got: got, gives=7, name="n"))
        assert told(Call(lambda got=got: got, gives=1, name="n"))
    numpys, pythons = (play(Call(lambda zero=zero: zero, gives=7, name="n")) for zero in (np.int64(0), 0))
    assert numpys.compared == pythons.compared
    assert str(numpys) == "what it returns is 0, expected 7 (case: n)"


def test_what_is_refused_names_the_argument_and_the_right_call_must_succeed():
    right = {"numbers": np.ones(3), "start": 1}

    def tried(answer):
        return named(lambda f: refused(f, right, wrong={"below 0": {"start": -1}}, gives=6.0, sees=first), answer)

    def first(result, *_):
        return float(result)

    def unnamed(numbers, start):
        if start < 0:
            raise ValueError("no")
        return 6.0

    def never(numbers, start):
        raise ValueError("start is always wrong")

    assert tried(total) is None
    assert "should name 'start'" in tried(unnamed).failure.message
    assert tried(unnamed).failure.case == "below 0; the input: [1.0, 1.0, 1.0], -1"
    assert "nothing was raised" in tried(lambda numbers, start: 6.0).failure.message
    assert "raised ValueError: start is always wrong" in tried(never).failure.message


# ---- what is said of a check that is wrong itself ----


def returns(value):
    return lambda rank: value


@pytest.mark.parametrize(
    ("yielded", "says"),
    [
        (lambda: Case("a", 2, drive, (int,)), "a Case without expectation: expect=[the facts of each rank]"),
        (lambda: Case("a", 0, drive, (int,), []), "a Case on 0 ranks: at least 1, or a Call, which needs none"),
        (lambda: Case("a", 3, drive, (int,), [Seen()] * 2), "expect has the facts of 2 ranks, and the Case 3"),
        (lambda: Case("a", 1, drive, (int,), [4]), "expect has a int in it, which is no dataclass with facts"),
        (lambda: Case("a", 1, drive, (int,), [Seen()]), "a Case that expects nothing of any fact"),
        (lambda: Case("a", 2, drive, (int,), [[Seen("", 1)], []]), "expect has 1 and 0 moments on the ranks"),
        (lambda: Call(abs, 1, name="abs"), "a Call without expectation: gives=… or raises=…"),
        (lambda: Call(abs, 1, gives=1), "a Call of a driver needs a name"),
        (lambda: Seen(), "a Seen was yielded, not a Case or a Call"),
        (lambda: case(returns({"number": 1}), Seen(number=1)), "the driver returned dict, and expect has Seen"),
        (lambda: case(returns(Other(1)), Seen(number=1)), "the driver returned Other, and expect has Seen"),
        (
            lambda: case(returns([Seen("", 1)]), [Seen("", 1), Seen("", 1)]),
            "the driver returned Seen, and expect has Seen, Seen",
        ),
        (lambda: Call(abs, 1, gives=Seen(number=1), name="abs"), "the driver returned int, and expect has Seen"),
    ],
)
def test_a_case_that_is_wrong_itself_is_told_with_file_and_line(yielded, says):
    def body(*, rng):
        yield yielded()  # the line that is named

    with pytest.raises(CaseError) as caught:
        check.attempt(body, (), 1)
    file, line, text = re.fullmatch(r"(tests/grader/test_cases\.py):(\d+): (.*)", str(caught.value)).groups()
    assert text == says and "the line that is named" in linecache.getline(file, int(line))


def test_a_check_without_cases_is_told():
    def none(*, rng):
        yield from ()

    def returned(*, rng):
        return [Call(abs, 1, gives=1)]

    with pytest.raises(CaseError, match=r"tests/grader/test_cases\.py:\d+: the check yields no case"):
        check.attempt(none, (), 1)
    with pytest.raises(CaseError, match="returns its cases: yield them"):
        check.attempt(returned, (), 1)


def test_in_a_jail_facts_of_another_form_are_the_answers_fault():
    """There an answer can make them anything."""
    jailed = stage.Stage(call=stage.HERE.call, apart=stage.HERE.apart, jailed=True)
    with stage.on(jailed):
        for seen in (None, Other(1), [Seen("", 1)] * 2):
            failure = play(case(returns(seen), Seen(number=1)))
            assert str(failure) == "what the ranks returned cannot be read (case: 2 ranks, a)"


def test_an_ellipsis_that_an_answer_returns_is_a_wrong_value():
    """Open fields hold it as well; a driver that leaves one open which is compared fails the right answer."""
    failure = play(case(returns(Seen()), Seen(number=1)))
    assert str(failure) == "the number on rank 0 is Ellipsis, expected 1; count the ranks (case: 2 ranks, a)"
