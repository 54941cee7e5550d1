"""The calls of the system that a submission may make."""

import platform
import re
import struct
from pathlib import Path

import pytest

from autograder.grade.jail import system_calls
from tests.helpers.jailed import run

pytestmark = pytest.mark.jail


REFUSED = """
import ctypes, fcntl, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)

def refused(call, *args):
    try:
        call(*args)
        return False
    except OSError as error:
        return error.errno in (1, 38)

def direct(number, *args):
    return libc.syscall(number, *args) == -1 and ctypes.get_errno() in (1, 38)

def library(name, *args):
    return getattr(libc, name)(*args) == -1 and ctypes.get_errno() in (1, 38)

here = open("/tmp/own", "w+b")
shared = open(os.__file__, "rb")
lock = struct.pack("hhlli", 0, 0, 0, 1, 0)
print([name for name, found in {
    "lock": refused(fcntl.fcntl, shared, fcntl.F_SETLK, lock),
    "lock seen": refused(fcntl.fcntl, shared, fcntl.F_GETLK, lock),
    "lock by file": refused(fcntl.fcntl, shared, 37, lock),
    "lease": refused(fcntl.fcntl, shared, fcntl.F_SETLEASE, fcntl.F_RDLCK),
    "notify": refused(fcntl.fcntl, os.open("/usr", os.O_RDONLY), fcntl.F_NOTIFY, 1),
    "memfd": refused(os.memfd_create, "x"),
    "shm": library("shmget", 0, 1 << 20, 0o1600),
    "sem": library("semget", 0, 1, 0o1600),
    "msg": library("msgget", 0, 0o1600),
    "inotify": library("inotify_init1", 0),
    "mincore": library("mincore", 0, 4096, None),
    "ptrace": library("ptrace", 0, 0, 0, 0),
    "vsock": refused(socket.socket, 40, socket.SOCK_STREAM),
    "fadvise": refused(os.posix_fadvise, here.fileno(), 0, 0, 4),
    "uring": direct(425, 1, bytes(120)),
    "bpf": direct(BPF, 0, bytes(120), 120),
    "perf": direct(PERF, bytes(120), 0, -1, -1, 0),
    "read of a process": direct(READV, os.getpid(), bytes(64), 1, bytes(64), 1, 0),
    "x32": direct(0x40000000 + 39),
}.items() if not found])
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the numbers of the calls")
def test_calls_that_reach_beyond_a_submission_are_refused(jailed):
    intel = {"BPF": 321, "PERF": 298, "READV": 310}
    numbers = intel if platform.machine() == "x86_64" else {"BPF": 280, "PERF": 241, "READV": 270}
    source = REFUSED
    for name, number in numbers.items():
        source = source.replace(f"direct({name}", f"direct({number}")
    assert run(jailed, source) == ("[]\n", None)


def test_the_numbers_of_the_calls_are_those_of_the_system():
    header = Path(f"/usr/include/{platform.machine()}-linux-gnu/asm/unistd_64.h")
    if platform.machine() != "x86_64" or not header.exists():
        pytest.skip("the system's own list is not installed")
    known = dict(re.findall(r"#define __NR_(\w+) (\d+)", header.read_text()))
    mine = system_calls.numbers("x86_64")
    assert {name for name in mine if name in known and int(known[name]) != mine[name]} == set()
    assert len(mine.keys() & known.keys()) > 190
    generic = Path("/usr/include/asm-generic/unistd.h").read_text()
    known = dict(re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", generic)) | {"newfstatat": 79}
    mine = system_calls.numbers("aarch64")
    assert {name for name in mine if name in known and int(known[name]) != mine[name]} == set()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_allows_what_is_on_the_list_and_nothing_else(machine):
    def verdict(number, arguments=(0,) * 6, kind=system_calls.MACHINES[machine][0]):
        data = struct.pack("=IIQ6Q", number, kind, 0, *arguments)
        steps, place, loaded = system_calls.program(machine), 0, 0
        while True:
            code, yes, no, value = steps[place]
            place += 1
            if code == 0x20:
                loaded = struct.unpack_from("=I", data, value)[0]
            elif code == 0x54:
                loaded &= value
            elif code == 0x06:
                return value == 0x7FFF0000
            else:
                holds = {0x15: loaded == value, 0x25: loaded > value, 0x35: loaded >= value}[code]
                place += yes if holds else no

    allowed = system_calls.numbers(machine)
    special = {allowed[name] for name in system_calls.ARGUMENTS}
    for number in range(600):
        assert number in special or verdict(number) == (number in allowed.values()), number
    assert not verdict(0x40000000 + allowed["read"]) and not verdict(allowed["read"], kind=0x40000003)
    commands = [command for command in range(1100) if verdict(allowed["fcntl"], (3, command, 0, 0, 0, 0))]
    assert commands == [0, 1, 2, 3, 4, 1030, 1031, 1032]
    assert [family for family in range(60) if verdict(allowed["socket"], (family, 1, 0, 0, 0, 0))] == [1, 2, 10, 16]
    assert [number for number in range(300) if verdict(allowed["socket"], (2, 1, number, 0, 0, 0))] == [0, 6, 17]
    assert [number for number in range(300) if verdict(allowed["socket"], (16, 3, number, 0, 0, 0))] == [0]
    assert [kind for kind in range(16) if verdict(allowed["socket"], (2, 0x80000 | kind, 0, 0, 0, 0))] == [1, 2, 3]
    assert [family for family in range(60) if verdict(allowed["socketpair"], (family, 1, 0, 0, 0, 0))] == [1]
    limits = [kind for kind in range(20) if verdict(allowed["setrlimit"], (kind, 0, 0, 0, 0, 0))]
    assert limits == [0, 1, 2, 3, *range(5, 16)]
    assert limits == [kind for kind in range(20) if verdict(allowed["prlimit64"], (0, kind, 0, 0, 0, 0))]
    requests = {
        "TCGETS": 0x5401,
        "FIONBIO": 0x5421,
        "SIOCGIFBR": 0x8940,
        "TIOCSTI": 0x5412,
        "FS_IOC_SETFLAGS": 0x40086602,
    }
    kept = [name for name, request in requests.items() if verdict(allowed["ioctl"], (3, request, 0, 0, 0, 0))]
    assert kept == ["TCGETS", "FIONBIO"]
    kinds = {"shared": 0x01, "private": 0x02, "shared, nameless": 0x21, "private, nameless": 0x22, "checked": 0x23}
    kept = [kind for kind, flags in kinds.items() if verdict(allowed["mmap"], (0, 4096, 3, flags | 0x4000, 0, 0))]
    assert kept == ["shared", "private", "private, nameless"]
