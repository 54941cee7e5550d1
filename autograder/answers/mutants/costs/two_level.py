"""Wrong answers to lesson 02, exercise 2: two_level_time."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, right, tests_of

TWO = "02-ex2-two-level"


@right(TWO)
def _two_levels():
    """Right: the base of the edits below."""

    def two_level_time(nbytes, nodes, gpus, ports, inside, network):
        for name, value in (("nodes", nodes), ("gpus", gpus), ("ports", ports)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        alpha, beta = network
        shared = max(1.0, gpus / ports)
        within = ring_time(nbytes, gpus, *inside)
        between = ring_time(nbytes / gpus, nodes, alpha, beta * shared)
        return within + between


more_ports_than_gpus_help = edit(
    TWO,
    """With more ports than GPUs your second phase gets faster. A GPU uses one port at most, so the ports that are
    left over stay idle.""",
    ("max(1.0, gpus / ports)", "gpus / ports"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

rings_share_a_port_in_whole_numbers = edit(
    TWO,
    """You rounded the number of rings per port. Eight GPUs on three ports share them evenly: each port carries 8/3
    of a ring's bytes.""",
    ("gpus / ports", "gpus // ports"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

the_busiest_port_decides = edit(
    TWO,
    """You rounded the number of rings per port up, as if whole rings were assigned to ports. The rings share the ports
    evenly: 8 GPUs on 3 ports give each port 8/3 of a ring's bytes.""",
    ("gpus / ports", "math.ceil(gpus / ports)"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

ports_are_forgotten = edit(
    TWO,
    """Your second phase takes the same time however many ports a node has. With one port for eight GPUs, eight times
    the bytes go through it.""",
    ("beta * shared", "beta"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

ports_speed_up_instead = edit(
    TWO,
    """More ports make your second phase slower. The bytes through one port grow with the GPUs that share it, and fall
    with the number of ports.""",
    ("gpus / ports", "ports / gpus"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

sharing_delays_the_start = edit(
    TWO,
    """You multiplied alpha, too, by the number of rings that share a port. The rings start their messages at the same
    time, so each round pays alpha once; only the bytes queue.""",
    ("alpha, beta * shared", "alpha * shared, beta * shared"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

whole_vector_between_nodes = edit(
    TWO,
    """Your rings between nodes all-reduce the whole vector. After the reduce-scatter a GPU holds one shard of the
    node's sum, T/g bytes, and only this goes over the network.""",
    ("ring_time(nbytes / gpus, nodes", "ring_time(nbytes, nodes"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

shard_of_the_nodes = edit(
    TWO,
    """You cut the vector by the number of nodes before the second phase. The shards come from the reduce-scatter
    inside a node: there is one for each of its GPUs.""",
    ("nbytes / gpus", "nbytes / nodes"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

without_the_way_back = edit(
    TWO,
    """You forgot the third phase, or the first. Inside the node, a reduce-scatter comes before the network and an
    all-gather after it. Together they make a whole ring all-reduce.""",
    ("within + between", "within / 2 + between"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

all_reduced_twice_inside = edit(
    TWO,
    """You count a whole all-reduce before the network and another after it. Phase 1 is only the reduce-scatter and
    phase 3 only the all-gather; both together are one all-reduce.""",
    ("within + between", "2 * within + between"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

reduce_scatter_between_nodes = edit(
    TWO,
    """You counted half of the all-reduce between nodes. In the second phase the GPUs with the same number all-reduce
    their shard: 2(nodes − 1) rounds.""",
    ("within + between", "within + between / 2"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

phases_at_the_same_time = edit(
    TWO,
    """You took the longer of the phases. They follow one another: the network waits for the node's sum. Add them up.
    """,
    ("within + between", "max(within, between)"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

one_ring_of_all_gpus = edit(
    TWO,
    """Your second phase is a ring over all GPUs. Each of its rings has one GPU per node: as many ranks as there are
    nodes.""",
    ("ring_time(nbytes / gpus, nodes", "ring_time(nbytes / gpus, nodes * gpus"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

prices_swapped = edit(
    TWO,
    """You took the network's prices inside the node and the node's between nodes. The last argument is the network.""",
    ("alpha, beta = network", "inside, (alpha, beta) = network, inside"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

one_node_needs_a_network = edit(
    TWO,
    """You refuse a single node. It has no second phase, so the answer is the time inside the node.""",
    ("if value < 1:", "if value < 1 + (name == 'nodes'):"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

one_gpu_a_node_is_refused = edit(
    TWO,
    """You refuse nodes with a single GPU. Then nothing happens inside, and the answer is a plain ring between nodes.
    """,
    ("if value < 1:", "if value < 1 + (name == 'gpus'):"),
    base=_two_levels,
    breaks=tests_of(TWO),
)

refuses_no_count = edit(
    TWO,
    """You accepted nodes, gpus or ports below 1, or failed with another error. Raise a ValueError that names the
    argument before you divide by it.""",
    (
        """    for name, value in (("nodes", nodes), ("gpus", gpus), ("ports", ports)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
""",
        "",
    ),
    base=_two_levels,
    breaks=tests_of(TWO),
    fails=["two_levels_refuse_nonsense"],
)
