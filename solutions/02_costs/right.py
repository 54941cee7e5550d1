"""Right answers to lesson 02, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("02-ex1-all-reduce-times")
def rounds_added_up_one_by_one():
    """Adds up the rounds in loops, prints on the way, and uses no logarithm."""

    def ring_time(nbytes, n, alpha, beta):
        check(n, nbytes=nbytes, alpha=alpha, beta=beta)
        total = 0.0
        for number in range(2 * n - 2):
            print("round", number)
            total += alpha + beta * (nbytes / n)
        return total

    def tree_time(nbytes, n, alpha, beta):
        check(n, nbytes=nbytes, alpha=alpha, beta=beta)
        total, reach = 0, 1
        while reach < n:
            reach *= 2
            total += 2 * (alpha + beta * nbytes)
        return np.float64(total)

    def halving_time(nbytes, n, alpha, beta):
        check(n, nbytes=nbytes, alpha=alpha, beta=beta)
        total, held, ranks_left = 0.0, nbytes, n
        while ranks_left > 1:
            if ranks_left % 2:
                raise ValueError(f"n = {n}: {ranks_left} ranks cannot be halved")
            held, ranks_left = held / 2, ranks_left // 2
            total += 2 * (alpha + beta * held)
        return total

    def check(n, **prices):
        if n < 1:
            raise ValueError(f"n = {n}: there must be a rank")
        for name, price in prices.items():
            if price < 0:
                raise ValueError(f"{name} is negative")


@answer_to("02-ex1-all-reduce-times")
def bits_for_the_levels():
    """Takes the number of levels from the bits of N − 1, shares one helper, and adds latency and bandwidth
    separately."""

    class CostError(ValueError):
        pass

    def rounds_and_bytes(rounds, message, alpha, beta):
        return float(rounds * alpha + message * beta)

    def refuse(nbytes, n, alpha, beta):
        if n <= 0:
            raise CostError("n")
        for name in ("nbytes", "alpha", "beta"):
            if locals()[name] < 0:
                raise CostError(name + " must not be negative")

    def ring_time(nbytes, n, alpha, beta):
        refuse(nbytes, n, alpha, beta)
        return rounds_and_bytes(2 * (n - 1), 2 * (n - 1) * nbytes / n, alpha, beta)

    def tree_time(nbytes, n, alpha, beta):
        refuse(nbytes, n, alpha, beta)
        levels = (int(n) - 1).bit_length()
        return rounds_and_bytes(2 * levels, 2 * levels * nbytes, alpha, beta)

    def halving_time(nbytes, n, alpha, beta):
        refuse(nbytes, n, alpha, beta)
        if bin(n).count("1") > 1:
            raise CostError(f"{n=}, which has more than one bit")
        return rounds_and_bytes(2 * (int(n) - 1).bit_length(), 2 * (nbytes - nbytes / n), alpha, beta)


@answer_to("02-ex2-two-level")
def two_levels_without_ring_time():
    """Counts the bytes through one port and the rounds of each phase, and does not call ring_time."""

    def two_level_time(nbytes, nodes, gpus, ports, inside, network):
        counts = {"nodes": nodes, "gpus": gpus, "ports": ports}
        if wrong := [name for name, count in counts.items() if count < 1]:
            raise ValueError(f"below 1: {', '.join(wrong)}")
        in_node = (gpus - 1) * (inside[0] + inside[1] * nbytes / gpus)
        through_a_port = nbytes / nodes / min(gpus, ports)
        return in_node + 2 * (nodes - 1) * (network[0] + network[1] * through_a_port) + float(in_node)


@answer_to("02-ex2-two-level")
def two_levels_in_three_phases():
    """Returns a numpy float, adds the phases in a list, and slows the port down instead of adding bytes."""

    def two_level_time(nbytes, nodes, gpus, ports, inside, network):
        for name in ("nodes", "gpus", "ports"):
            if not locals()[name] > 0:
                raise ValueError("there must be at least one of " + name)
        speed = np.inf if network[1] == 0 else 1 / network[1]
        speed = speed * min(1, ports / gpus)
        phases = [ring_time(nbytes, gpus, *inside) / 2] * 2
        phases.append(ring_time(nbytes / gpus, nodes, network[0], 1 / speed))
        return np.sum(phases)


@answer_to("02-ex3-assumptions")
def assumptions_by_pairs():
    """Walks over neighboring experiments and sorts at the end."""

    def failed_assumptions(predicted, alone, both, everyone, adding):
        times = [predicted, alone, both, everyone, adding]
        numbers = [4, 2, 1, 3]
        return sorted(numbers[i] for i in range(4) if times[i + 1] / times[i] > 5 / 4)


@answer_to("02-ex3-assumptions")
def assumptions_as_a_table():
    """Appends in the order of the numbers, and compares ratios."""

    def failed_assumptions(predicted, alone, both, everyone, adding):
        failed = []
        for number, after, before in (
            (1, everyone, both),
            (2, both, alone),
            (3, adding, everyone),
            (4, alone, predicted),
        ):
            if (after - before) / before > 0.25:
                failed += [number]
        return failed


@answer_to("02-ex4-step")
def step_as_the_longer_of_two_paths():
    """Takes the step as the longer of two paths, and the computation as a sum of three passes."""

    def compute_time(parameters, tokens, flops, mfu):
        if mfu <= 0 or mfu > 1:
            raise ValueError("mfu is a part of the peak")
        return sum([2 * parameters * tokens / flops / mfu] * 3)

    def step_time(compute, communication, overlap):
        if overlap < 0 or overlap > 1:
            raise ValueError("overlap is a part of the computation")
        return np.maximum(float(compute), (1 - overlap) * compute + communication)


@answer_to("02-ex5-tokens")
def tokens_from_the_formula():
    """Writes the formula out and rounds up by negating a floor."""

    def tokens_to_hide(parameters, communication, flops, mfu, overlap):
        if not communication:
            return 0
        if not overlap:
            return float("inf")
        return int(-(-communication * flops * mfu // (6 * parameters * overlap)))


@answer_to("02-ex5-tokens")
def tokens_by_bisection():
    """Asks step_time whether a number of tokens hides the all-reduce, and doubles and halves the interval."""

    def tokens_to_hide(parameters, communication, flops, mfu, overlap):
        def hidden(tokens):
            compute = compute_time(parameters, tokens, flops, mfu)
            return communication <= overlap * compute

        if communication > 0 and overlap == 0:
            return math.inf
        low, high = -1, 1
        while not hidden(high):
            high *= 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if hidden(middle) else (middle, high)
        return high


@answer_to("02-ex6-scaled-lr")
def rate_by_interpolation():
    """Uses np.interp between two points, which also holds the value after the second."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps, rule="linear"):
        if base_batch < 1 or batch < 1:
            raise ValueError("base_batch and batch start at 1")
        if step < 0 or warmup_steps < 0:
            raise ValueError("step and warmup_steps start at 0")
        powers = {"linear": 1, "sqrt": 1 / 2}
        if rule not in powers:
            raise ValueError(f"no such rule: {rule}")
        target = base_lr * (batch / base_batch) ** powers[rule]
        return np.interp(step, [0, warmup_steps], [base_lr, target]) if warmup_steps else target


@answer_to("02-ex6-scaled-lr")
def rate_as_a_mixture():
    """A weighted mean of both ends, with the weight capped at 1."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps, rule="linear"):
        for name in ("base_batch", "batch", "step", "warmup_steps"):
            if locals()[name] < (name in ("base_batch", "batch")):
                raise ValueError("bad " + name)
        match rule:
            case "linear":
                k = batch / base_batch
            case "sqrt":
                k = np.sqrt(batch / base_batch)
            case _:
                raise ValueError(f"what rule is {rule}?")
        done = min(1, (step + (warmup_steps == 0)) / max(1, warmup_steps))
        return base_lr * (1 - done) + base_lr * k * done


@answer_to("02-ex3-assumptions")
def assumptions_one_by_one():
    """Tries the four assumptions one by one, in the order of their numbers."""

    def failed_assumptions(predicted, alone, both, everyone, adding):
        failed = []
        if everyone > 1.25 * both:
            failed.append(1)
        if both > 1.25 * alone:
            failed.append(2)
        if adding > 1.25 * everyone:
            failed.append(3)
        if alone > 1.25 * predicted:
            failed.append(4)
        return failed
