"""The Linux calls that Python does not wrap: prctl, Landlock, seccomp, mounts, capabilities."""

import ctypes
import errno
import os
import platform
import struct
import time
from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

CLONE_NEWNS = 0x00020000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18

#: Kind of the per-process clocks of clock_gettime(2): time on a core, of all threads.
_CPUCLOCK_SCHED = 2

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_FS_EXECUTE, _FS_WRITE_FILE, _FS_READ_FILE, _FS_READ_DIR = 1, 2, 4, 8
_FS_TRUNCATE, _FS_IOCTL_DEV = 1 << 14, 1 << 15
#: Rights known to each Landlock ABI: file system (13 in ABI 1, refer in 2, truncate in 3, ioctl in 5).
_FS_BITS_BY_ABI = ((5, 16), (3, 15), (2, 14), (1, 13))
READ = _FS_EXECUTE | _FS_READ_FILE | _FS_READ_DIR
DEVICE = _FS_READ_FILE | _FS_WRITE_FILE | _FS_READ_DIR | _FS_IOCTL_DEV
WRITE = (1 << 16) - 1
_FILE_ONLY = _FS_EXECUTE | _FS_WRITE_FILE | _FS_READ_FILE | _FS_TRUNCATE | _FS_IOCTL_DEV


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def prctl(option: int, *arguments: int) -> None:
    """Set an attribute of this process (prctl)."""
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    _check(_libc.prctl(option, *padded), f"prctl {option}")


def die_with_parent(signal_number: int) -> None:
    """Ask for `signal_number` when the thread that made this process ends."""
    prctl(PR_SET_PDEATHSIG, signal_number)


def unshare_mounts() -> None:
    """Enter a mount namespace of our own, whose changes nobody else sees."""
    _check(_libc.unshare(CLONE_NEWNS), "unshare")
    mount("none", "/", None, MS_REC | MS_PRIVATE)


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    """Mount `source` at `target`."""
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _check(_libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), f"mount {target}")


def drop_capabilities() -> None:
    """Give up every capability of this process; with no_new_privs none comes back."""
    header = struct.pack("<Ii", 0x20080522, 0)
    _check(_libc.capset(header, struct.pack("<6I", *([0] * 6))), "capset")


def landlock_abi() -> int:
    """Return the Landlock ABI of the kernel, 0 without Landlock."""
    return max(int(_libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)), 0)


def landlock_rules(rules: Iterable[tuple[str, int]]) -> int:
    """Make a ruleset that allows `(path, rights)` and nothing else on files; return its descriptor.

    No TCP may be bound or connected (ABI 4), and no signal or abstract socket leaves the domain (ABI 6).

    Raises:
        OSError: the kernel has no Landlock.
    """
    abi = landlock_abi()
    if not abi:
        raise OSError(errno.EOPNOTSUPP, "no Landlock")
    known = (1 << next(bits for least, bits in _FS_BITS_BY_ABI if abi >= least)) - 1
    attributes = struct.pack("<Q", known)
    if abi >= 4:  # noqa: PLR2004 - ABI 4 brought network rights
        attributes += struct.pack("<Q", 3)
    if abi >= 6:  # noqa: PLR2004 - ABI 6 brought scopes
        attributes += struct.pack("<Q", 3)
    ruleset = _check(_libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock")
    for path, rights in rules:
        _allow(ruleset, path, rights & known)
    return ruleset


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a path that this machine lacks needs no rule
    try:
        if not os.path.isdir(path):
            rights &= _FILE_ONLY
        rule = struct.pack("<Qi", rights, fd)
        _check(_libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0), f"landlock {path}")
    finally:
        os.close(fd)


def landlock_enforce(ruleset: int) -> None:
    """Confine this process and its children to `ruleset` (needs no_new_privs), and close it."""
    try:
        _check(_libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


_BPF_LOAD, _BPF_JEQ, _BPF_JSET, _BPF_RET = 0x20, 0x15, 0x45, 0x06
_ALLOW, _EPERM, _ENOSYS = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_ARCH_X86_64 = 0xC000003E
_CLONE_NEW = 0x7E020080
#: System calls that a candidate never needs, x86-64 numbers: ptrace, process_vm_*, bpf, io_uring, userfaultfd,
#: perf, keys, mounts, namespaces, modules, kexec, handles, pidfd_getfd, kcmp, swap, reboot.
_DENIED = (
    *(101, 310, 311, 321, 425, 426, 427, 323, 298, 248, 249, 250, 165, 166, 155, 161, 272, 308),
    *(428, 429, 430, 431, 432, 433, 442, 175, 313, 176, 246, 320, 303, 304, 438, 312, 167, 168, 169),
)
_SOCKET, _CLONE, _CLONE3, _AF_UNIX = 41, 56, 435, 1


def seccomp_enforce() -> None:
    """Install the system-call filter: sockets of AF_UNIX only, no namespaces, none of `_DENIED`.

    Raises:
        OSError: another architecture than x86-64, or no seccomp.
    """
    if platform.machine() != "x86_64":
        raise OSError(errno.EOPNOTSUPP, "the filter is written for x86-64")
    program = _program()
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    keep = ctypes.create_string_buffer(header, len(header))
    prctl(PR_SET_SECCOMP, 2, ctypes.addressof(keep))


def _program() -> bytes:
    def op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("<HBBI", code, yes, no, value)

    number, arch, first = 0, 4, 16
    lines = [
        op(_BPF_LOAD, arch),
        op(_BPF_JEQ, _ARCH_X86_64, 1, 0),
        op(_BPF_RET, _EPERM),
        op(_BPF_LOAD, number),
    ]
    # The x32 ABI has other numbers under the same architecture.
    lines += [op(_BPF_JSET, 0x40000000, 0, 1), op(_BPF_RET, _EPERM)]
    lines += [op(_BPF_JEQ, _CLONE3, 0, 1), op(_BPF_RET, _ENOSYS)]
    for call in _DENIED:
        lines += [op(_BPF_JEQ, call, 0, 1), op(_BPF_RET, _EPERM)]
    lines += [
        op(_BPF_JEQ, _SOCKET, 0, 3),
        op(_BPF_LOAD, first),
        op(_BPF_JEQ, _AF_UNIX, 1, 0),
        op(_BPF_RET, _EPERM),
    ]
    lines += [op(_BPF_LOAD, number), op(_BPF_JEQ, _CLONE, 0, 3), op(_BPF_LOAD, first)]
    lines += [op(_BPF_JSET, _CLONE_NEW, 0, 1), op(_BPF_RET, _EPERM), op(_BPF_RET, _ALLOW)]
    return b"".join(lines)


def cpu_time_s(pid: int) -> float:
    """Return the time that all threads of a process were given on a core so far (clock_getcpuclockid(3)).

    Raises:
        OSError: there is no such process.
    """
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
