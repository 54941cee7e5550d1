"""Exercises 1 and 4: schedules."""

from __future__ import annotations

from autograder.checking.check import REFUSALS, check
from autograder.checking.expect import expect_raises, fail
from autograder.checks.pipeline.schedules import as_evidence, expect_bubble, expect_complete, expect_peaks

#: (stages, micro-batches): more micro-batches than stages, fewer, equally many, one.
COUNTS = [(4, 8), (4, 2), (3, 3), (1, 4), (5, 1), (1, 1), (2, 7), (8, 16), (6, 4)]
#: (stages, micro-batches) with a count below 0, and its name.
NEGATIVE = [((-1, 2), "stages"), ((3, -1), "micro_batches")]


@check("11-ex1-schedules", points=1)
def gpipe_fills_and_drains(gpipe_schedule, *, rng):
    """Each stage runs all its forwards, then all its backwards; only filling and draining leave it idle."""
    for stages, count in [*COUNTS, (int(rng.integers(2, 7)), int(rng.integers(2, 12)))]:
        case = f"GPipe, {stages} stages, {count} micro-batches"
        schedule = expect_complete(case, gpipe_schedule(stages, count), stages, count)
        for stage, mine in enumerate(schedule):
            if [kind for kind, _, _ in mine] != ["F"] * count + ["B"] * count:
                fail(f"stage {stage} runs a backward before its last forward", case, as_evidence(schedule))
        expect_bubble(case, schedule, (stages - 1) / (count + stages - 1), exactly=True)


@check("11-ex1-schedules", points=0.75)
def one_f_one_b_keeps_few_alive(one_f_one_b_schedule, *, rng):
    """1F1B has GPipe's bubble, and each stage keeps no more activations alive than it must."""
    for stages, count in [*COUNTS, (int(rng.integers(2, 7)), int(rng.integers(2, 12)))]:
        case = f"1F1B, {stages} stages, {count} micro-batches"
        schedule = expect_complete(case, one_f_one_b_schedule(stages, count), stages, count)
        expect_peaks(case, schedule, [min(count, stages - s) for s in range(stages)])
        expect_bubble(case, schedule, (stages - 1) / (count + stages - 1), exactly=True)


@check("11-ex1-schedules", points=0.25, fixed=REFUSALS)
def schedules_refuse_counts_below_one(gpipe_schedule, one_f_one_b_schedule):
    """A count of stages or micro-batches below 1 is a ValueError that names it."""
    for name, function in (("gpipe_schedule", gpipe_schedule), ("one_f_one_b_schedule", one_f_one_b_schedule)):
        for arguments, word in (((0, 4), "stages"), ((4, 0), "micro_batches"), ((1, 1), ""), *NEGATIVE):
            if word:
                expect_raises(f"{name}{arguments}", function, *arguments, error=ValueError, mentions=word)
            else:
                function(*arguments)


# ---- 4 · interleaved ----


@check("11-ex4-interleaved", points=2.5)
def interleaved_divides_the_bubble(interleaved_schedule, *, rng):
    """An interleaved schedule is complete, and its bubble and its activations stay within the stated bounds."""
    counts = [(4, 8, 2), (2, 4, 3), (4, 4, 2), (3, 9, 2), (1, 3, 2), (4, 8, 1), (5, 5, 3), (8, 16, 4), (3, 3, 1)]
    counts += [(int(n), int(n * rng.integers(2, 5)), int(rng.integers(2, 6))) for n in rng.integers(5, 10, 2)]
    for n, m, c in counts:
        case = f"{n} stages, {m} micro-batches, {c} chunks"
        schedule = expect_complete(case, interleaved_schedule(n, m, c), n, m, c)
        expect_bubble(case, schedule, (n - 1) / (c * m + n - 1), exactly=False)
        expect_peaks(case, schedule, [min(m * c, 2 * (n - 1 - s) + (c - 1) * n + 1) for s in range(n)])


@check("11-ex4-interleaved", points=0.5, fixed=REFUSALS)
def interleaved_refuses_what_does_not_fit(interleaved_schedule):
    """A count below 1, and micro-batches that are not a multiple of the stages, are a ValueError that names it."""
    wrong = [((4, 6, 2), "micro_batches"), ((4, 2, 2), "micro_batches"), ((0, 4, 2), "stages")]
    wrong += [((4, 0, 2), "micro_batches"), ((4, 4, 0), "chunks"), ((2, 2, 1), ""), ((2, 3, 1), "micro_batches")]
    wrong += [((-2, 4, 2), "stages"), ((2, -4, 2), "micro_batches"), ((2, 4, -1), "chunks")]
    for arguments, word in wrong:
        case = f"interleaved_schedule{arguments}"
        if word:
            expect_raises(case, interleaved_schedule, *arguments, error=ValueError, mentions=word)
        else:
            expect_complete(case, interleaved_schedule(*arguments), *arguments)
