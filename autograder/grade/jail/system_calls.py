"""The calls of the system that a submission may make; the system refuses all others, with seccomp(2).

The list is what was measured with strace while a lesson was graded (Python, numpy, torch with gloo, matplotlib), and
the calls of the same families that other versions of these use. It leaves out whatever shows or reaches what is not the
submission's own: keyrings, System V and POSIX queues, memory without a name, watches and leases on files, the page
cache, other processes' memory, mounts, and new kinds of calls such as io_uring.

Locks by byte range (`fcntl`) are refused, since all submissions see the same files of this system and one could read
another's locks. `flock` stays, because torch's file store locks its own file with it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

#: By machine: what seccomp(2) calls it, and the column of its numbers in ALLOWED.
MACHINES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}

#: name:number on x86_64:number on aarch64, empty where a machine has no such call; above each group, what it is for.
ALLOWED = """
    # Read and write what is open.
    read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69 pwritev:296:70 lseek:8:62
    sendfile:40:71 copy_file_range:326:285 close:3:57 close_range:436:436 dup:32:23 dup2:33: dup3:292:24 ioctl:16:29
    fcntl:72:25
    # Files and folders, as far as the jail's own file system allows.
    open:2: openat:257:56 openat2:437:437 creat:85: stat:4: lstat:6: fstat:5:80 newfstatat:262:79 statx:332:291
    statfs:137:43 fstatfs:138:44 access:21: faccessat:269:48 faccessat2:439:439 getdents:78: getdents64:217:61
    getcwd:79:17 chdir:80:49 fchdir:81:50 readlink:89: readlinkat:267:78 getxattr:191:8 lgetxattr:192:9
    fgetxattr:193:10 listxattr:194:11 llistxattr:195:12 flistxattr:196:13
    # Change files and folders: lesson 16 renames and fsyncs its checkpoints.
    mkdir:83: mkdirat:258:34 rmdir:84: unlink:87: unlinkat:263:35 rename:82: renameat:264:38 renameat2:316:276
    link:86: linkat:265:37 symlink:88: symlinkat:266:36 mknod:133: mknodat:259:33 truncate:76:45 ftruncate:77:46
    fallocate:285:47 fsync:74:82 fdatasync:75:83 flock:73:32 chmod:90: fchmod:91:52 fchmodat:268:53 fchmodat2:452:452
    chown:92: fchown:93:55 lchown:94: fchownat:260:54 umask:95:166 utime:132: utimes:235: futimesat:261:
    utimensat:280:88
    # Memory, and on which node of the machine it lies.
    mmap:9:222 munmap:11:215 mremap:25:216 mprotect:10:226 madvise:28:233 msync:26:227 brk:12:214 mbind:237:235
    set_mempolicy:238:237 get_mempolicy:239:236 membarrier:324:283
    # Pipes, and waiting for several files at once.
    pipe:22: pipe2:293:59 poll:7: ppoll:271:73 select:23: pselect6:270:72 epoll_create:213: epoll_create1:291:20
    epoll_ctl:233:21 epoll_wait:232: epoll_pwait:281:22 epoll_pwait2:441:441 eventfd:284: eventfd2:290:19
    signalfd:282: signalfd4:289:74
    # Sockets: gloo connects ranks in the jail's own network. ARGUMENTS says which kinds.
    socket:41:198 socketpair:53:199 bind:49:200 listen:50:201 accept:43:202 accept4:288:242 connect:42:203
    shutdown:48:210 getsockname:51:204 getpeername:52:205 setsockopt:54:208 getsockopt:55:209 sendto:44:206
    recvfrom:45:207 sendmsg:46:211 recvmsg:47:212 sendmmsg:307:269 recvmmsg:299:243
    # Processes and threads: ranks are forked, and start threads of torch.
    clone:56:220 clone3:435:435 fork:57: vfork:58: execve:59:221 exit:60:93 exit_group:231:94 wait4:61:260
    waitid:247:95 set_tid_address:218:96 set_robust_list:273:99 get_robust_list:274:100 rseq:334:293 futex:202:98
    futex_waitv:449:449 futex_wake:454:454 futex_wait:455:455 futex_requeue:456:456 prctl:157:167 arch_prctl:158:
    capget:125:90 pidfd_open:434:434
    # Who and where a process is, and what it may use.
    getpid:39:172 getppid:110:173 gettid:186:178 getpgrp:111: getpgid:121:155 setpgid:109:154 getsid:124:156
    setsid:112:157 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 getgroups:115:158 getresuid:118:148
    getresgid:120:150 uname:63:160 sysinfo:99:179 getrusage:98:165 getrlimit:97:163 setrlimit:160:164
    prlimit64:302:261 getcpu:309:168
    # On which cores a process runs, and when.
    sched_yield:24:124 sched_setaffinity:203:122 sched_getaffinity:204:123 sched_setparam:142:118
    sched_getparam:143:121 sched_setscheduler:144:119 sched_getscheduler:145:120 sched_get_priority_max:146:125
    sched_get_priority_min:147:126 getpriority:140:141 setpriority:141:140
    # Signals.
    rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigtimedwait:128:137
    rt_sigqueueinfo:129:138 rt_sigsuspend:130:133 sigaltstack:131:132 kill:62:129 tkill:200:130 tgkill:234:131
    pause:34: restart_syscall:219:128
    # Clocks and timers.
    time:201: gettimeofday:96:169 times:100:153 clock_gettime:228:113 clock_getres:229:114 nanosleep:35:101
    clock_nanosleep:230:115 alarm:37: getitimer:36:102 setitimer:38:103 timer_create:222:107 timer_settime:223:110
    timer_gettime:224:108 timer_getoverrun:225:109 timer_delete:226:111 timerfd_create:283:85 timerfd_settime:286:86
    timerfd_gettime:287:87
    # Random numbers.
    getrandom:318:278
"""

_ALL = 0xFFFFFFFF

#: What may be asked of a file with ioctl(2). Of terminals: modes, sizes, groups, the other end. FIONREAD, FIONBIO,
#: FIONCLEX, FIOCLEX, FIOASYNC, FICLONE. Of sockets: SIOCATMARK, the submission's own addresses, SIOCETHTOOL. Others
#: have the system load modules, or leave something at a file system that all submissions see.
REQUESTS = """
    5401 5402 5403 5404 802c542a 402c542b 402c542c 402c542d 540e 540f 5410 5411 5413 5414 5422 5429 5441
    80045430 40045431 541b 5421 5450 5451 5452 40049409 8905 8910 8912 8913 8915 8919 891b 891d 8921 8927 8933 8946
"""

_LIMITS = (0, 1, 2, 3, *range(5, 16))

#: Calls of which an argument must be one of a few: its place, which of its bits count, and what they may be.
ARGUMENTS: dict[str, list[tuple[int, int, tuple[int, ...]]]] = {
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_SETPIPE_SZ, F_GETPIPE_SZ
    "fcntl": [(1, _ALL, (0, 1, 2, 3, 4, 1030, 1031, 1032))],
    # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, all of the submission's own network; SOCK_STREAM, SOCK_DGRAM, SOCK_RAW (of
    # AF_NETLINK); their usual protocols, TCP and UDP. For others, the system would load modules.
    "socket": [(0, _ALL, (1, 2, 10, 16)), (1, 0xF, (1, 2, 3)), (2, _ALL, (0, 6, 17))],
    "socketpair": [(0, _ALL, (1,))],
    "ioctl": [(1, _ALL, tuple(int(request, 16) for request in REQUESTS.split()))],
    # All limits but RLIMIT_CORE (see `namespace`).
    "setrlimit": [(0, _ALL, _LIMITS)],
    "prlimit64": [(1, _ALL, _LIMITS)],
    # Not MAP_SHARED and MAP_ANONYMOUS at once: such memory can be kept where it belongs to no process and counts for
    # none. /dev/shm has memory to share.
    "mmap": [(3, 0x21, (0, 0x01, 0x20))],
}

# The steps of a program for the system's filter: bpf(4).
_LOAD, _AND, _EQUAL, _GREATER, _NOT_LESS, _GIVE = 0x20, 0x54, 0x15, 0x25, 0x35, 0x06
_ALLOW = 0x7FFF0000
_UNKNOWN, _REFUSED = 0x50000 | errno.ENOSYS, 0x50000 | errno.EPERM
_PR_SET_SECCOMP = 22

#: Of AF_NETLINK only protocol 0, which asks for the submission's own network: for others the system would load modules.
_NETLINK = [(_LOAD, 0, 0, 16), (_EQUAL, 0, 3, 16), (_LOAD, 0, 0, 32), (_EQUAL, 1, 0, 0), (_GIVE, 0, 0, _REFUSED)]

_libc = ctypes.CDLL(None, use_errno=True)


def numbers(machine: str) -> dict[str, int]:
    """The allowed calls of a machine, by name."""
    column = MACHINES[machine][1]
    lines = [line for line in ALLOWED.splitlines() if not line.lstrip().startswith("#")]
    rows = [row.split(":") for line in lines for row in line.split()]
    return {row[0]: int(row[column]) for row in rows if row[column]}


def program(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter's steps: (code, steps to skip if true, if false, value)."""
    known = numbers(machine)
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, MACHINES[machine][0]), (_GIVE, 0, 0, _REFUSED), (_LOAD, 0, 0, 0)]
    for name, checks in ARGUMENTS.items():
        part = [step for check in checks for step in _check(*check)] + (_NETLINK if name == "socket" else [])
        part += [(_GIVE, 0, 0, _ALLOW)]
        steps += [(_EQUAL, 0, len(part), known.pop(name)), *part]
    # Ascending ranges, so that a number is refused as soon as it is smaller than the next range. The second numbers
    # that x86_64 has for its calls are larger than all of them.
    for first, last in _ranges(sorted(known.values())):
        steps += [(_NOT_LESS, 1, 0, first), (_GIVE, 0, 0, _UNKNOWN), (_GREATER, 1, 0, last), (_GIVE, 0, 0, _ALLOW)]
    return [*steps, (_GIVE, 0, 0, _UNKNOWN)]


def _check(place: int, bits: int, values: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """Refuse the call unless these bits of the argument at `place` are one of `values`."""
    tests = [(_EQUAL, len(values) - number, 0, value) for number, value in enumerate(values)]
    return [(_LOAD, 0, 0, 16 + 8 * place), (_AND, 0, 0, bits), *tests, (_GIVE, 0, 0, _REFUSED)]


def _ranges(values: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for value in values:
        if found and found[-1][1] == value - 1:
            found[-1] = found[-1][0], value
        else:
            found.append((value, value))
    return found


def restrict() -> None:
    """From now on, this process and all that it starts can make only these calls. It must have no_new_privs.

    OSError on a machine whose numbers are not known.
    """
    machine = platform.machine()
    if machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"the calls of a {machine} are not known: only {', '.join(MACHINES)}")
    steps = program(machine)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    if _libc.prctl(_PR_SET_SECCOMP, 2, filters, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")
