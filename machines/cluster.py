"""Machines that models are trained on, and how long their links take: one description for the whole course.

    from machines.cluster import find

    h100 = find("H100")
    h100.bandwidth(16, stride=1)            # bytes per second of a group that fills two nodes
    h100.all_reduce_seconds(1e9, 16)        # seconds of an all-reduce of 1 GB in it

Bandwidths are per direction, FLOP/s are dense, GB are 10⁹ bytes. Every machine says where its numbers come from; "not
reopened" marks a number whose source could not be opened when this file was written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

GB = 1e9
#: What makers print as "GB" of memory: dies hold powers of two (ml-engineering, as below, "Accelerator memory").
GIB = 2.0**30
US = 1e-6

#: The part of a link's nominal bandwidth that long vectors reach. NVLink: 8 × H200, 16 GiB, a ring, 367.6 GB/s of 450.
#: Network: 4 nodes of 8 × B200, 16 GiB, 382 GB/s of 400. Both from ml-engineering, network/README.md @744d01e.
NVLINK_SHARE = 0.83
NETWORK_SHARE = 0.97
#: Seconds before a collective moves its first byte, besides NCCL's own start-up times: 8 × H200 need 40 µs for 32 KiB
#: (same source), of which NCCL's model explains 15.
LAUNCH = 25 * US
#: Seconds that each chunk of a vector costs besides its bytes (`pipelined`). Calibrated on 8 × H200, 16 MiB, 219.9
#: GB/s.
CHUNK = 8 * US


@dataclass(frozen=True)
class StartUp:
    """Seconds that one step of a ring takes besides its bytes, by NCCL's protocol; infinite where NCCL does not use it.

    Long vectors go by Simple, which sends data and then a signal that they are there. Short ones go by LL, with a flag
    in every eight bytes, or LL128, with a flag in every 128 bytes: no signal, so less to wait for, but less bandwidth.
    """

    ll: float
    ll128: float
    simple: float


#: NCCL's own prices: `baseLatencies` and `hwLatencies` of a ring, src/graph/tuning.cc at v2.30.7-1.
BASE = StartUp(6.6 * US, 14.0 * US, 8.4 * US)
NVLINK_STEP = StartUp(0.6 * US, 1.9 * US, 3.4 * US)
NETWORK_STEP = StartUp(2.7 * US, 4.0 * US, 14.0 * US)
#: The same for a level of a tree (Simple), and what a step over NVLink costs at least once a group leaves its domain.
TREE_NVLINK, TREE_NETWORK, POSTING = 4.0 * US, 14.0 * US, 1.0 * US
#: AWS's network delivers out of order, so NCCL cannot use LL or LL128. Both numbers reproduce the 378 µs of 1 MiB on 4
#: nodes of 8 × B200 (ml-engineering, as above), whichever algorithm ran.
EFA_STEP, EFA_TREE = StartUp(math.inf, math.inf, 26 * US), 72 * US
#: What LL, LL128 and a tree keep of the bandwidth (same file of NCCL, lines 327 to 331).
LL_SHARE, LL128_SHARE, TREE_SHARE = 0.5, 0.92, 0.92
#: Bytes per second that LL reaches at most on two nodes and on more: `llMaxBws` of the same file, with Intel's CPUs.
#: With AMD's, 22.5 and 19 GB/s.
LL_TWO_NODES, LL_NODES = 39.0 * GB, 20.4 * GB


def pipelined(seconds: float) -> float:
    """Seconds for a vector whose bytes alone take `seconds`, sent through two links one after the other, in chunks.

    With m chunks, each link passes one every CHUNK + seconds / m, and the last chunk leaves the second link after m + 1
    such times. The best m gives (√CHUNK + √seconds)².
    """
    return (math.sqrt(CHUNK) + math.sqrt(seconds)) ** 2


@dataclass(frozen=True)
class Cluster:
    """Identical GPUs in NVLink domains, which a network joins.

    flops: dense FLOP/s per GPU, by precision ("bf16", "fp8", "nvfp4"). memory: bytes of HBM per GPU.
    memory_bandwidth: bytes per second of it. domain: GPUs per NVLink domain. nvlink: bytes per second that a GPU sends
    to others of its domain. ports: network ports per domain. port: bytes per second of one. host_link: bytes per second
    between a GPU and its host. switch_share: the part of `NVLINK_SHARE` that a vector added up by the switch itself
    reaches (NCCL's `nvlsEfficiency`); 0 where the switch cannot add. network_step: seconds per step of a ring over the
    network. network_level: seconds per level of a tree over it. ll: bytes per second that LL reaches at most inside a
    domain (NCCL's `llMaxBws`). host_gpus: GPUs that share a host link. host_memory: bytes of the host's memory per GPU
    (a DGX H100 has 2 TB for 8, a Grace 480 GB for two). like: the machine whose kernels this one runs as fast as, for a
    machine of your own (`own`). source: where the numbers come from.
    """

    name: str
    flops: Mapping[str, float]
    memory: float
    memory_bandwidth: float
    domain: int
    nvlink: float
    ports: int
    port: float
    host_link: float
    switch_share: float
    source: str
    network_step: StartUp = field(default=NETWORK_STEP)
    network_level: float = TREE_NETWORK
    ll: float = 141 * GB
    host_gpus: int = 1
    host_memory: float = 250 * GB
    like: str = ""

    def together(self, group_size: int, stride: int = 1) -> int:
        """How many ranks of a group share an NVLink domain: the group's ranks are `stride` apart in the numbering.

        A group that does not fit uses a power of two of each domain's GPUs: 64 of 72.
        """
        if group_size * stride <= self.domain:
            return group_size
        return max(1, min(group_size, (1 << self.domain.bit_length() - 1) // stride))

    def bandwidth(self, group_size: int, stride: int = 1, alone: bool = False) -> float:
        """Nominal bytes per second of a ring through a group of ranks that are `stride` apart in the numbering.

        Inside a domain it is NVLink's. A ring enters and leaves a domain once, and NCCL makes as many rings as the
        group has ports there; k ranks in a domain have the ports of k GPUs, since the other groups of the same axis
        communicate at the same time. With a port per GPU that is k ports. alone: no other group communicates, so that k
        ranks have k ports even where GPUs share them.
        """
        k = self.together(group_size, stride)
        if k >= group_size:
            return self.nvlink
        ports = min(k, self.ports) if alone else self.ports * k / self.domain
        return min(self.nvlink, ports * self.port) if k > 1 else ports * self.port

    def effective_bandwidth(self, group_size: int, stride: int = 1) -> float:
        """Bytes per second that long vectors reach, of `bandwidth`."""
        if self.together(group_size, stride) >= group_size:
            return self.nvlink * NVLINK_SHARE
        network = self.bandwidth(group_size, stride) * NETWORK_SHARE
        return min(network, self.nvlink * NVLINK_SHARE)

    def all_reduce_seconds(self, nbytes: float, group_size: int, stride: int = 1, switch: bool = True) -> float:
        """Seconds of an all-reduce of `nbytes` bytes per rank. switch: the NVLink switch may add, where it can."""
        if group_size <= 1 or nbytes <= 0:
            return 0.0
        steps, k = 2 * (group_size - 1), self.together(group_size, stride)
        moving = nbytes * steps / group_size / self.effective_bandwidth(group_size, stride)
        ways = self._ring_seconds(moving, steps, group_size, stride)
        domains = math.ceil(group_size / k)
        if domains > 1:
            levels = (k - 1) * TREE_NVLINK + math.log2(domains) * self.network_level
            ways.append(LAUNCH + BASE.simple + 2 * levels + pipelined(moving / TREE_SHARE))
        elif switch and self.switch_share and group_size > 4:
            # Every GPU sends its vector, and the sum of one part of it; it receives as much.
            speed = self.nvlink * NVLINK_SHARE * self.switch_share
            ways.append(LAUNCH + pipelined(nbytes * (1 + 1 / group_size) / speed))
        return min(ways)

    def all_gather_seconds(self, nbytes: float, group_size: int, stride: int = 1) -> float:
        """Seconds of an all-gather or a reduce-scatter; `nbytes`: the whole vector's bytes, not those of a shard."""
        if group_size <= 1 or nbytes <= 0:
            return 0.0
        moving = nbytes * (group_size - 1) / group_size / self.effective_bandwidth(group_size, stride)
        return min(self._ring_seconds(moving, group_size - 1, group_size, stride))

    reduce_scatter_seconds = all_gather_seconds

    def all_to_all_seconds(
        self, nbytes: float, group_size: int, stride: int = 1, crossing: float | None = None
    ) -> float:
        """Seconds of an all-to-all; `nbytes`: what one rank has for all ranks, its own part included.

        crossing: the bytes that one rank sends to other domains. By default, the part of `nbytes` for their ranks.
        """
        if group_size <= 1 or nbytes <= 0:
            return 0.0
        k = self.together(group_size, stride)
        inside = nbytes * (k - 1) / group_size / (self.nvlink * NVLINK_SHARE)
        if k >= group_size:
            return LAUNCH + NVLINK_STEP.simple + inside
        crossing = nbytes * (group_size - k) / group_size if crossing is None else crossing
        outside = crossing / (self.ports / self.domain * self.port * NETWORK_SHARE)
        return LAUNCH + self.network_step.simple + max(inside, outside)

    def send_seconds(self, nbytes: float, stride: int = 1) -> float:
        """Seconds of a message to the rank `stride` further on in the numbering."""
        inside = self.together(2, stride) == 2
        step = NVLINK_STEP.simple if inside else self.network_step.simple
        return step + nbytes / self.effective_bandwidth(2, stride)

    def _ring_seconds(self, moving: float, steps: int, group_size: int, stride: int) -> list[float]:
        """Seconds of a ring by each protocol; moving: what its bytes alone take."""
        domains = math.ceil(group_size / self.together(group_size, stride))
        between = round(steps * (domains - 1) / (group_size - 1))
        speed = self.effective_bandwidth(group_size, stride)
        ll = min(LL_SHARE * speed, (self.ll, LL_TWO_NODES, LL_NODES)[min(domains, 3) - 1])

        def start(base: float, inside: float, network: float) -> float:
            inside = inside if domains == 1 else max(inside, POSTING)
            return LAUNCH + base + (steps - between) * inside + (between * network if between else 0.0)

        net = self.network_step
        return [
            start(BASE.ll, NVLINK_STEP.ll, net.ll) + moving * speed / ll,
            start(BASE.ll128, NVLINK_STEP.ll128, net.ll128) + moving / LL128_SHARE,
            start(BASE.simple, NVLINK_STEP.simple, net.simple) + pipelined(moving),
        ]


ACCELERATORS = "ml-engineering compute/accelerator/README.md @744d01e (2026-08), FLOP/s and memory"
LINKS = "scaling-book gpus.md @1a55377 (2025-08) and ml-engineering network/README.md @744d01e, links"
HOPPER = {"bf16": 989e12, "fp8": 1979e12}
GRACE = {"bf16": 2500e12, "fp8": 5000e12}

#: Name → machine.
CLUSTERS = {
    cluster.name: cluster
    for cluster in (
        Cluster(
            "A100", {"bf16": 312e12}, 80 * GIB, 2000 * GB, 8, 300 * GB, 8, 25 * GB, 31 * GB, 0.0,
            f"DGX A100. {ACCELERATORS}; {LINKS}; 8 ports of 200 Gb/s: not reopened", ll=87.7 * GB,
        ),
        Cluster(
            "H100", HOPPER, 80 * GIB, 3350 * GB, 8, 450 * GB, 8, 50 * GB, 63 * GB, 0.85,
            f"DGX H100. {ACCELERATORS}; {LINKS}",
        ),
        Cluster(
            "H800", HOPPER, 80 * GIB, 3350 * GB, 8, 200 * GB, 8, 50 * GB, 63 * GB, 0.85,
            "An H100 with less NVLink; 200 GB/s nominal: not reopened (DeepSeek-V3, section 3.2.2, reaches 160)",
        ),
        Cluster(
            "H200", HOPPER, 141 * GIB, 4800 * GB, 8, 450 * GB, 8, 50 * GB, 63 * GB, 0.85,
            f"DGX H200. {ACCELERATORS}; {LINKS}",
        ),
        Cluster(
            "B200", {"bf16": 2250e12, "fp8": 4500e12, "nvfp4": 9000e12}, 180 * GIB, 8000 * GB, 8, 900 * GB, 8, 50 * GB,
            63 * GB, 0.74, f"DGX B200. {ACCELERATORS}; {LINKS}", ll=282 * GB,
        ),
        Cluster(
            "GB200 NVL72", {**GRACE, "nvfp4": 10000e12}, 186 * GIB, 8000 * GB, 72, 900 * GB, 72, 50 * GB,
            450 * GB, 0.74,
            f"One of 72 GPUs of a rack. {ACCELERATORS}; {LINKS}; host link: NVLink-C2C, shared by two GPUs",
            ll=282 * GB, host_gpus=2,
        ),
        Cluster(
            "GB300 NVL72", {**GRACE, "nvfp4": 15000e12}, 277.5 * GIB, 8000 * GB, 72, 900 * GB, 72, 100 * GB,
            450 * GB, 0.74,
            f"One of 72 GPUs of a rack. {ACCELERATORS} (nvidia-smi: 284,208 MiB); {LINKS}; 800 Gb/s: not reopened",
            ll=282 * GB, host_gpus=2,
        ),
        Cluster(
            "25 Gb/s", HOPPER, 80 * GIB, 3350 * GB, 8, 450 * GB, 1, 3.125 * GB, 63 * GB, 0.85,
            "Nodes of a DGX H100, joined by a single port of 25 Gb/s Ethernet each: a cluster without a fast network",
        ),
    )
}  # fmt: skip


#: Words that a machine's name may have or not.
_LEFT_OUT = {"dgx", "hgx", "sxm", "sxm4", "sxm5", "nvl72", "nvidia", "cluster", "ethernet", "80gb", "node", "nodes"}


def find(name: str) -> Cluster:
    """The machine of this name; case, spaces, "DGX", "HGX", "SXM", "NVL72" and the like do not matter. ValueError."""

    def plain(text: str) -> str:
        words = str(text).lower().replace("-", " ").replace("_", " ").replace("/", "").split()
        return "".join(word for word in words if word not in _LEFT_OUT).removesuffix("nvl72").removesuffix("sxm")

    for cluster in CLUSTERS.values():
        if plain(cluster.name) == plain(name):
            return cluster
    raise ValueError(f"no cluster {name!r}; there are: {', '.join(CLUSTERS)}")


#: Fields of a machine of your own, and their units, as people say them: what each must have, then what it may have.
OWN = {
    "like": "the known machine whose kernels it shares",
    "tflops": "dense 10¹² FLOP/s per GPU, by precision: bf16, fp8, nvfp4",
    "memory_gb": "10⁹ bytes of memory per GPU",
    "memory_bandwidth_gb_s": "10⁹ bytes per second of that memory",
    "domain": "GPUs that NVLink, or the like, joins",
    "nvlink_gb_s": "10⁹ bytes per second and direction that a GPU sends in its domain",
    "ports": "network ports per domain",
    "port_gb_s": "10⁹ bytes per second and direction of a port",
}
MAY_OWN = {
    "name": "what it is called",
    "host_link_gb_s": "10⁹ bytes per second between a host and its GPUs",
    "host_gpus": "GPUs that share this link",
    "host_memory_gb": "10⁹ bytes of the host's memory per GPU",
}
#: The `source` of a machine of your own.
OWN_SOURCE = "a machine of your own"


def own(given: Mapping[str, Any]) -> Cluster:
    """A machine of your own, from the fields of `OWN` and `MAY_OWN`. ValueError, in one line.

    Its kernels reach the part of its peak that those of the machine `like` reach of theirs, and what no field describes
    is that machine's too.
    """
    for name in given:
        if name not in OWN and name not in MAY_OWN:
            raise ValueError(f"a machine has no field {name!r}; it has {', '.join([*OWN, *MAY_OWN])}")
    for name, unit in OWN.items():
        if given.get(name) is None:
            raise ValueError(f"the machine's field {name!r} is missing: {unit}")
    known, tflops = find(given["like"]), given["tflops"]
    for name, value in given.items():
        if name not in ("name", "like", "tflops"):
            _above_0(name, value)
        if name in ("domain", "ports", "host_gpus") and not isinstance(value, int):
            raise ValueError(f"{name} is {value!r}; it must be a whole number")
    if "bf16" not in tflops:
        raise ValueError(f"tflops has no bf16: {OWN['tflops']}")
    for kind, rate in tflops.items():
        if kind not in known.flops:
            raise ValueError(f"tflops has {kind}, and {known.name} has {', '.join(known.flops)}; choose another 'like'")
        _above_0(f"tflops of {kind}", rate)
    return replace(
        known,
        name=given.get("name") or "own machine",
        like=known.name,
        flops={kind: rate * 1e12 for kind, rate in tflops.items()},
        memory=given["memory_gb"] * GB,
        memory_bandwidth=given["memory_bandwidth_gb_s"] * GB,
        domain=given["domain"],
        nvlink=given["nvlink_gb_s"] * GB,
        ports=given["ports"],
        port=given["port_gb_s"] * GB,
        host_link=given["host_link_gb_s"] * GB if "host_link_gb_s" in given else known.host_link,
        host_gpus=given.get("host_gpus") or known.host_gpus,
        host_memory=given["host_memory_gb"] * GB if "host_memory_gb" in given else known.host_memory,
        source=OWN_SOURCE,
    )


def _above_0(name: str, value: Any) -> None:
    """ValueError unless the value is a number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} is {value!r}; it must be a number above 0")
