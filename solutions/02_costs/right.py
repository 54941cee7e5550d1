"""Right answers to lesson 02, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("02-ex1-all-reduce-times")
def rounds_added_up_one_by_one():
    """Adds up the rounds in loops, prints on the way, and uses no logarithm."""

    def ring_time(nbytes, n, alpha, beta):
        total = 0
        for number in range(2 * n - 2):
            print("round", number)
            total += alpha + beta * (nbytes / n)
        return total

    def halving_time(nbytes, n, alpha, beta):
        total, held, ranks_left = 0, nbytes, n
        while ranks_left > 1:
            held, ranks_left = held / 2, ranks_left // 2
            total += 2 * (alpha + beta * held)
        return np.float64(total)


@answer_to("02-ex2-two-level")
def two_levels_without_ring_time():
    """Counts the bytes through one port and the rounds of each phase, and does not call ring_time."""

    def two_level_time(nbytes, nodes, gpus, ports, inside, network):
        in_node = (gpus - 1) * (inside[0] + inside[1] * nbytes / gpus)
        through_a_port = nbytes / nodes / min(gpus, ports)
        return in_node + 2 * (nodes - 1) * (network[0] + network[1] * through_a_port) + in_node


@answer_to("02-ex2-two-level")
def two_levels_in_three_phases():
    """Returns a numpy float, adds the phases in a list, and slows the port down instead of adding bytes."""

    def two_level_time(nbytes, nodes, gpus, ports, inside, network):
        speed = np.inf if network[1] == 0 else 1 / network[1]
        speed = speed * min(1, ports / gpus)
        phases = [ring_time(nbytes, gpus, *inside) / 2] * 2
        phases.append(ring_time(nbytes / gpus, nodes, network[0], 1 / speed))
        return np.sum(phases)


@answer_to("02-ex3-diagnosis")
def fault_by_the_speed_of_each_port():
    """Measures the speed of every pair of neighbors with eight GPUs and with one, and compares medians."""

    def diagnose(seconds, nodes):
        def speed(messages):
            return 2e9 / seconds(messages, 2e9) / 50e9

        alone = np.array([speed([(8 * k + 3, (8 * k + 19) % (8 * nodes))]) for k in range(nodes)])
        if np.median(alone) < 0.6 and alone.max() < 0.6:
            return "cards"
        bad = np.flatnonzero(alone < 0.6)
        if bad.size:
            # k sends to k + 2, so the bad node is in two slow messages; ask each of the nodes in one of them.
            for k in (bad[0], (bad[0] + 2) % nodes):
                good = next(other for other in range(nodes) if other not in (bad[0], (bad[0] + 2) % nodes))
                if speed([(8 * k, 8 * good)]) < 0.6:
                    return k
        if speed([(k, 8 + k) for k in range(8)]) < 0.2:
            return "ports"
        shift = [(k, (k + 16) % (8 * nodes)) for k in range(8 * nodes)]
        return None if speed(shift) > 0.8 else "switches"


@answer_to("02-ex3-diagnosis")
def from_the_whole_cluster_down():
    """Begins with all nodes at once, and then takes traffic away; halves the nodes to find a bad one."""

    import itertools

    def diagnose(seconds, nodes):
        def slow(messages):
            return seconds(list(messages), 10**10) > 0.3

        if not slow((k, (k + 8) % (8 * nodes)) for k in range(8 * nodes)):
            return None
        if not slow((8 * k, 8 * ((k + 1) % nodes)) for k in range(nodes)):  # one GPU of each node
            return "ports" if slow((k, 8 + k) for k in range(8)) else "switches"
        if all(slow([(8 * k, 8 * k + 8)]) for k in range(0, nodes - 1, 2)):
            return "cards"
        for k in range(nodes):
            others = [other for other in range(nodes) if other != k]
            if not slow((8 * a, 8 * b) for a, b in itertools.pairwise(others)):
                return k
        return "switches"


@answer_to("02-ex4-step")
def step_as_the_longer_of_two_paths():
    """Takes the step as the longer of two paths, and finds each price as a difference of two experiments."""

    def step_time(compute, communication, micro_batches):
        begins = compute * (1 - 2 / (3 * micro_batches))
        return np.maximum(compute, begins + communication)

    def what_is_slow(seconds):
        prices = {
            "gpu": (seconds(4e6, GRADIENTS) - seconds(1e6, GRADIENTS)) / 3e6,
            "start-ups": (seconds(1, 1e6) - seconds(1, GRADIENTS)) / (GRADIENTS / 1e6 - 1),
        }
        prices["links"] = (seconds(1, GRADIENTS) - prices["start-ups"]) / GRADIENTS
        worst = max(prices, key=lambda part: prices[part] / HEALTHY[part])
        return worst if prices[worst] > 1.5 * HEALTHY[worst] else None


@answer_to("02-ex4-step")
def one_experiment_after_the_other():
    """Asks in three ifs, with tokens and pieces of its own, and numbers of a healthy job that it worked out by hand."""

    def step_time(compute, communication, micro_batches):
        hidden = min(communication, compute * 2 / micro_batches / 3)
        return compute + communication - hidden

    def what_is_slow(seconds):
        if seconds(10**5, 4e9) > 2.2:  # 1.52 s
            return "gpu"
        if seconds(10, 2e6) > 0.65:  # 0.41 s
            return "start-ups"
        return "links" if seconds(10, 2e9) > 0.016 else None  # 0.0104 s


@answer_to("02-ex5-tokens")
def tokens_from_the_formula():
    """Writes the formula out, 4 FLOPs per parameter and token going backward, and rounds up."""

    def tokens_to_hide(total, active, sent, bandwidth, flops, share):
        return math.ceil(flops * share * sent / (4 * bandwidth) * (total / active))


@answer_to("02-ex5-tokens")
def tokens_by_the_step():
    """Finds with step_time how much of the communication one token hides."""

    def tokens_to_hide(total, active, sent, bandwidth, flops, share):
        communication = total * sent / bandwidth
        one = compute_time(active, 1, flops, share)
        return communication / (one + 10 * one - step_time(one, 10 * one, 1))


@answer_to("02-ex6-roofline")
def roofline_by_intensity():
    """Compares the arithmetic intensity with the GPU's FLOPs per byte, and solves for the rows."""

    def matmul_time(rows, inner, outer, flops, bandwidth):
        moved = 2 * (rows * inner + inner * outer + rows * outer)
        intensity = 2 * rows * inner * outer / moved
        return 2 * rows * inner * outer / min(flops, intensity * bandwidth)

    def compute_bound_rows(inner, outer, flops, bandwidth):
        per_byte = flops / bandwidth
        rest = 1 / per_byte - 1 / inner - 1 / outer  # 1 / rows
        return 1 / rest if rest > 0 else float("inf")
