"""Right answers to lesson 02, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.variants import variant


@variant("02-ex1-ring-and-tree")
def rounds_added_up_one_by_one():
    """Adds up the rounds in loops, prints on the way, and uses no logarithm."""

    def ring_time(nbytes, n, alpha, beta):
        check(nbytes=nbytes, alpha=alpha, beta=beta)
        if n < 1:
            raise ValueError(f"n = {n}: there must be a rank")
        total = 0.0
        for number in range(2 * n - 2):
            print("round", number)
            total += alpha + beta * (nbytes / n)
        return total

    def tree_time(nbytes, n, alpha, beta):
        check(nbytes=nbytes, alpha=alpha, beta=beta)
        if not n >= 1:
            raise ValueError(f"n = {n}: there must be a rank")
        total, reach = 0, 1
        while reach < n:
            reach *= 2
            total += 2 * (alpha + beta * nbytes)
        return np.float64(total)

    def check(**prices):
        for name, price in prices.items():
            if price < 0:
                raise ValueError(f"{name} is negative")


@variant("02-ex1-ring-and-tree")
def bits_for_the_levels():
    """Takes the number of levels from the bits of N − 1, shares one helper, and adds latency and bandwidth
    separately."""

    class CostError(ValueError):
        pass

    def rounds_and_bytes(rounds, message, alpha, beta):
        return rounds * alpha + rounds * message * beta

    def refuse(nbytes, n, alpha, beta):
        if n <= 0:
            raise CostError("n")
        for name in ("nbytes", "alpha", "beta"):
            if locals()[name] < 0:
                raise CostError(name + " must not be negative")

    def ring_time(nbytes, n, alpha, beta):
        from fractions import Fraction

        refuse(nbytes, n, alpha, beta)
        return float(rounds_and_bytes(2 * (n - 1), Fraction(nbytes) / n, Fraction(alpha), Fraction(beta)))

    def tree_time(nbytes, n, alpha, beta):
        refuse(nbytes, n, alpha, beta)
        return float(rounds_and_bytes(2 * (int(n) - 1).bit_length(), nbytes, alpha, beta))


@variant("02-ex2-crossover")
def crossover_from_two_points_of_each_line():
    """Calls ring_time and tree_time at 0 bytes and at N bytes, and extends the lines."""

    def crossover_bytes(n, alpha, beta):
        def lead(nbytes):
            return ring_time(nbytes, n, alpha, beta) - tree_time(nbytes, n, alpha, beta)

        at_zero = ring_time(0, n, 1, 0) - tree_time(0, n, 1, 0)
        if at_zero * alpha <= 0:
            return 0.0
        slope = ring_time(n, n, 0, 1) - tree_time(n, n, 0, 1)
        return at_zero * alpha / (-slope * beta) * n if beta > 0 else float("inf")


@variant("02-ex3-fit")
def fit_by_polyfit():
    """Uses numpy's polynomial fit of degree 1, and returns a list."""

    def fit_alpha_beta(sizes, seconds):
        if len(sizes) != len(seconds):
            raise ValueError("as many sizes as seconds, please")
        if len(set(map(float, sizes))) < 2:
            raise ValueError("two different sizes, please")
        return list(np.polyfit(np.asarray(sizes, float), seconds, 1)[::-1])


@variant("02-ex3-fit")
def fit_by_least_squares_of_a_matrix():
    """Uses `lstsq` with a column of ones, scales the sizes for its condition, and returns an array."""

    def fit_alpha_beta(sizes, seconds):
        sizes, seconds = np.array(sizes, dtype=np.float64), np.array(seconds, dtype=np.float64)
        if sizes.size != seconds.size:
            raise ValueError(f"{sizes.size} sizes, {seconds.size} seconds")
        if sizes.size < 2 or sizes.min() == sizes.max():
            raise ValueError("these sizes do not fix a line")
        unit = sizes.max()
        columns = np.column_stack([np.ones_like(sizes), sizes / unit])
        solution = np.linalg.lstsq(columns, seconds, rcond=None)[0]
        return solution / np.array([1, unit])


@variant("02-ex3-fit")
def fit_by_cramers_rule():
    """Plain Python: uncentered sums and Cramer's rule."""

    def fit_alpha_beta(sizes, seconds):
        sizes, seconds = [float(m) for m in sizes], [float(t) for t in seconds]
        if len(sizes) != len(seconds) or len(set(sizes)) <= 1:
            raise ValueError("sizes: too few, or not as many as seconds")
        n, sm, st = len(sizes), math.fsum(sizes), math.fsum(seconds)
        smm = math.fsum(m * m for m in sizes)
        smt = math.fsum(m * t for m, t in zip(sizes, seconds, strict=True))
        beta = (n * smt - sm * st) / (n * smm - sm**2)
        alpha = (st * smm - sm * smt) / (n * smm - sm**2)
        return alpha, beta


@variant("02-ex4-amdahl")
def amdahl_number_by_number():
    """Computes one number at a time through np.vectorize, and the fit as the vertex of a parabola."""

    def amdahl_speedup(parallel_fraction, n):
        if parallel_fraction < 0 or parallel_fraction > 1:
            raise ValueError(f"parallel_fraction = {parallel_fraction}")

        def one(k):
            if k < 1:
                raise ValueError(f"n = {k}")
            return k / (k - k * parallel_fraction + parallel_fraction)

        return np.vectorize(one, otypes=[float])(n)

    def fit_parallel_fraction(ns, speedups):
        pairs = list(zip(ns, speedups, strict=False))
        if not len(ns) == len(speedups):
            raise ValueError("ns and speedups differ in length")
        if all(n <= 1 for n in ns):
            raise ValueError("ns: nobody to share with")
        if any(speedup <= 0 for speedup in speedups):
            raise ValueError("speedups must be positive")
        square = sum((1 - 1 / n) ** 2 for n, _ in pairs)
        mixed = sum((1 - 1 / n) * (1 - 1 / s) for n, s in pairs)
        return sorted([0.0, mixed / square, 1.0])[1]


@variant("02-ex4-amdahl")
def amdahl_as_a_list():
    """Returns a list for a list, and fits by lstsq with one unknown."""

    def amdahl_speedup(parallel_fraction, n):
        values = np.array(n, dtype=np.float64)
        if values.min() < 1:
            raise ValueError("no n below 1")
        if abs(parallel_fraction - 0.5) > 0.5:
            raise ValueError("parallel_fraction between 0 and 1")
        return (1 / ((1 - parallel_fraction) + parallel_fraction / values)).tolist()

    def fit_parallel_fraction(ns, speedups):
        n, s = np.array(ns, dtype=float), np.array(speedups, dtype=float)
        if n.shape != s.shape or n.max(initial=0) <= 1:
            raise ValueError("ns does not fit")
        if (s <= 0).any():
            raise ValueError("speedups <= 0")
        p, *_ = np.linalg.lstsq((1 - 1 / n)[:, None], 1 - 1 / s, rcond=None)
        return np.clip(p, 0, 1)[0]


@variant("02-ex5-step")
def step_without_ring_time():
    """Sorts for the smallest n, writes the ring's time out, and takes the step as the longer of two paths."""

    def scaling_efficiency(ns, seconds):
        n0, t0 = sorted(zip(ns, seconds, strict=True))[0]
        return [n0 * t0 / (n * t) for n, t in zip(ns, seconds, strict=True)]

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if overlap < 0 or overlap > 1:
            raise ValueError("overlap is a part of the computation")
        ring = 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes * beta
        return np.maximum(compute, (1 - overlap) * compute + ring)


@variant("02-ex6-scaled-lr")
def rate_by_interpolation():
    """Uses np.interp between two points, which also holds the value after the second."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        if base_batch < 1 or batch < 1:
            raise ValueError("base_batch and batch start at 1")
        if step < 0 or warmup_steps < 0:
            raise ValueError("step and warmup_steps start at 0")
        target = base_lr / base_batch * batch
        return np.interp(step, [0, warmup_steps], [base_lr, target]) if warmup_steps else target


@variant("02-ex6-scaled-lr")
def rate_as_a_mixture():
    """A weighted mean of both ends, with the weight capped at 1."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name in ("base_batch", "batch", "step", "warmup_steps"):
            if locals()[name] < (name in ("base_batch", "batch")):
                raise ValueError("bad " + name)
        done = min(1, (step + (warmup_steps == 0)) / max(1, warmup_steps))
        return base_lr * (1 - done) + base_lr * (batch / base_batch) * done
