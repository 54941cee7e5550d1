"""How a process that was forked in the jail locks itself in before it runs a line of a submission.

bubblewrap gives all submissions of one grader the same jail: a system that can only be read, no network, no
view of the course. Within it, each submission gets its own processes, loopback, temporary files and limits. When its
first process ends, the operating system ends all its others.

Linux only. The calls are those of unshare(2), mount(2), prctl(2) and capset(2).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import resource
import socket
import struct

from jail import system_calls

_NEWNS, _NEWIPC, _NEWPID, _NEWNET = 0x00020000, 0x08000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 0x20
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_READ_ONLY = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC  # this one mount
#: Options of a mount in /proc/self/mountinfo, as flags.
_FLAGS = {
    "nosuid": _MS_NOSUID,
    "nodev": _MS_NODEV,
    "noexec": _MS_NOEXEC,
    "noatime": 1 << 10,
    "nodiratime": 1 << 11,
    "relatime": 1 << 21,
}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 4, 24, 38, 47
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)


def prepare() -> None:
    """Once for the whole jail: /proc shows only its processes, and nothing in it can make further namespaces."""
    _mount("proc", "/proc", None)
    with open("/proc/sys/user/max_user_namespaces", "w") as setting:
        setting.write("0")
    _open_the_way()


def separate() -> None:
    """From the next fork on, processes, network and files are separate from all others."""
    _call("unshare", _libc.unshare(_NEWNS | _NEWIPC | _NEWPID | _NEWNET))


def settle(
    limits: dict[str, int], environment: dict[str, str], kept: list[str], links: list[tuple[str, str]], user: int
) -> None:
    """Become the first process of the new namespaces: own temporary files, own /proc, loopback up, no rights left.

    limits: as `outside.Limits`. environment: the content of `os.environ` from now on. kept: folders and files below
    /tmp that stay visible; bubblewrap has mounted them at /jail/kept/0, 1, … as well. links: where a link leads, and
    its own place, for links below /tmp. user: the number of the user to become.
    """
    _call("mount", _libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
    _mount("tmpfs", "/tmp", f"size={limits['files']},nr_inodes=50000,mode=0700")
    for number, place in enumerate(kept):
        source = f"/jail/kept/{number}"
        os.makedirs(place if os.path.isdir(source) else os.path.dirname(place), exist_ok=True)
        if not os.path.isdir(source):
            open(place, "w").close()
        _call(f"bind {place}", _libc.mount(source.encode(), place.encode(), None, _MS_BIND | _MS_REC, None))
        _call(f"remount {place}", _libc.mount(None, place.encode(), None, _READ_ONLY & ~_MS_NOEXEC, None))
    for target, place in links:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.symlink(target, place)
    # It reads as zeros as well, but cannot be mapped, which would give memory that belongs to no process.
    _call("bind /dev/zero", _libc.mount(b"/dev/full", b"/dev/zero", None, _MS_BIND, None))
    _mount("tmpfs", "/dev/shm", f"size={limits['shared']},nr_inodes=5000,mode=0700")
    # Terminals of its own, and few: the machine has some thousands for all its programs.
    _mount("devpts", "/dev/pts", "newinstance,ptmxmode=0666,mode=620,max=64")
    _mount("proc", "/proc", None)
    with open("/proc/self/oom_score_adj", "w") as score:  # if memory runs out, the system ends it and not the jail
        score.write("500")
    _loopback_up()
    _read_only_except(("/tmp", "/dev/shm"))  # what is shared by all submissions, device files and /proc included
    for name in ("work", "home"):
        os.mkdir(f"/tmp/{name}")
    for own in ("/tmp", "/tmp/work", "/tmp/home", "/dev/shm"):
        os.chown(own, user, -1)
    os.chdir("/tmp/work")
    os.environ.clear()
    os.environ.update(environment)
    os.nice(5)  # the process that watches it has precedence
    _leave_no_core()
    resource.setrlimit(resource.RLIMIT_NPROC, (limits["processes"], limits["processes"]))
    # Timers and signals under way, which the system keeps for all programs of a user together.
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (limits["signals"], limits["signals"]))
    resource.setrlimit(resource.RLIMIT_DATA, (limits["memory"], limits["memory"]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file"], limits["file"]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits["open_files"], limits["open_files"]))
    _drop_rights(user)
    die_with_parent()  # which a change of the user takes back
    system_calls.restrict()


def _leave_no_core() -> None:
    """No crash writes a file, or starts the program of the host that looks into crashes.

    Where there is such a program, the system starts it as root, outside all jails, whatever the limit on the size: only
    a limit of one byte says that nobody wants to know. `system_calls` refuses to change it.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    most = min(1, hard) if hard != resource.RLIM_INFINITY else 1  # an ordinary user cannot raise a limit of 0
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))


def _open_the_way() -> None:
    """Let everybody pass the folders that bubblewrap has made above what it shows: some versions make them 0700."""
    for point, _ in _mounts():
        while (point := os.path.dirname(point)) != "/":
            if os.path.exists(point) and os.stat(point).st_dev == os.stat("/").st_dev:
                os.chmod(point, 0o755)


def _mounts() -> list[tuple[str, str]]:
    """Where something is mounted, and with which options."""
    with open("/proc/self/mountinfo") as lines:
        found = [line.split()[4:6] for line in lines]
    return [(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point), options) for point, options in found]


def _read_only_except(writable: tuple[str, ...]) -> None:
    """Remount read-only whatever is mounted, except these mounts and those below them. Devices can still be written to.

    The mode and the times of a device file, such as the host's own /dev/null, can no longer be changed.
    """
    for point, options in _mounts():
        if any(point == own or point.startswith(f"{own}/") for own in writable):
            continue
        flags = _READ_ONLY if point in ("/", "/dev", "/proc") else _READ_ONLY & ~_MS_NODEV & ~_MS_NOEXEC
        for option in options.split(","):
            flags |= _FLAGS.get(option, 0)  # the system refuses to lose one of these
        _libc.mount(None, os.fsencode(point), None, flags, None)
        # What is mounted below another mount cannot be reached, and not be remounted either: look at what is reached.
        if os.path.exists(point) and not os.statvfs(point).f_flag & os.ST_RDONLY:
            raise OSError(f"{point} cannot be made read-only")


def die_with_parent() -> None:
    """From now on, this process ends when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)


def _mount(kind: str, target: str, options: str | None) -> None:
    flags = {"proc": _MS_NODEV | _MS_NOEXEC, "tmpfs": _MS_NODEV, "devpts": _MS_NOEXEC}[kind] | _MS_NOSUID
    data = options.encode() if options else None
    _call(f"mount {target}", _libc.mount(kind.encode(), target.encode(), kind.encode(), flags, data))


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14s", b"lo", 0, b"")
        flags = struct.unpack("16sH14s", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", flags | _IFF_UP, b""))


def _drop_rights(user: int) -> None:
    """Become this user and give up every right over the namespaces, for this process and all that it starts."""
    _libc.prctl(_PR_CAP_AMBIENT, 4, 0, 0, 0)
    for number in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0):
            break
    _call("no_new_privs", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    os.setresuid(user, user, user)
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # else its own files in /proc would be root's
    header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)
    _call("capset", _libc.capset(header, nothing))


def _call(what: str, result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
