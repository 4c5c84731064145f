"""Confinement of a candidate process, in pure Python, with whatever the machine allows.

Covered: another user id (when the worker is root), no new privileges, Landlock (files outside the work folder are
read-only or out of sight; no TCP; no signals to others), seccomp (AF_UNIX sockets only, no ptrace, no namespaces),
limits on files, processes and memory, a clean environment, and death with the parent.
Not covered: the ioctl surface of the GPU driver, and side channels of a shared machine. Treat the box as disposable.
"""

import fcntl
import functools
import glob
import os
import resource
import signal
import site
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from workers.isolation import linux

#: Measures that `strict` asks for.
ALL_MEASURES = ("limits", "no_new_privs", "uid", "landlock", "seccomp")
_READABLE = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/sys", "/nix", "/snap")
_PROC = (
    "cpuinfo",
    "meminfo",
    "stat",
    "version",
    "devices",
    "filesystems",
    "modules",
    "driver",
    "sys",
    "mounts",
)
_DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/nvidia*",
    "/dev/nvidia-caps",
)
#: Most processes and threads of the candidate's own user; Triton needs a few for ptxas and gcc.
MAX_PROCESSES = 512
#: Largest file a candidate may write, bytes.
MAX_FILE_BYTES = 2**30
MAX_OPEN_FILES = 1024
#: User ids that one worker may use at a time.
UIDS = 8


class Confinement(NamedTuple):
    """What to confine a process to."""

    workdir: str
    """Its private folder: the only place it may write to."""
    uid: int | None
    """User to become; None stays the same user."""
    memory_bytes: int | None
    """Limit on private memory; None when the device needs large reservations."""


def clean_environment(workdir: str) -> dict[str, str]:
    """Return the whole environment of a candidate: no credentials, every cache inside its own folder."""
    caches = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH")
    keep = (
        "PATH",
        "LANG",
        "LC_ALL",
        "LD_LIBRARY_PATH",
        "CUDA_HOME",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_DEVICE_MAX_COPY_CONNECTIONS",
    )
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    environment |= {name: f"{workdir}/{name.lower()}" for name in caches}
    environment |= {"HOME": workdir, "TMPDIR": workdir, "USER": "candidate"}
    # The profiler would write its own news to the candidate's output.
    environment |= {"TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "99"}
    if "TRITON_INTERPRET" in os.environ:
        environment["TRITON_INTERPRET"] = os.environ["TRITON_INTERPRET"]
    return environment


def confine(plan: Confinement) -> list[str]:
    """Confine this process for good; return the measures that took hold.

    Call it in a fresh child, after its descriptors are in place and before any code of the candidate is read.
    """
    active = ["limits"]
    _set_limits(plan)
    ruleset = _try_landlock(plan.workdir)  # before the user changes: it opens paths
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    active.append("no_new_privs")
    if plan.uid is not None:
        os.setgroups([])
        os.setresgid(plan.uid, plan.uid, plan.uid)
        os.setresuid(plan.uid, plan.uid, plan.uid)
        # A change of user clears both; CUDA and the profiler read /proc/self.
        linux.prctl(linux.PR_SET_DUMPABLE, 1)
        active.append("uid")
    elif os.geteuid() == 0:
        linux.drop_capabilities()
    linux.die_with_parent(signal.SIGKILL)
    if ruleset is not None:
        linux.landlock_enforce(ruleset)
        active.append("landlock")
    try:
        linux.seccomp_enforce()
        active.append("seccomp")
    except OSError:
        pass  # reported by its absence
    return active


def _set_limits(plan: Confinement) -> None:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: MAX_FILE_BYTES,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        resource.RLIMIT_NPROC: MAX_PROCESSES + (0 if plan.uid is not None else _own_processes()),
    }
    if plan.memory_bytes is not None:
        limits[resource.RLIMIT_DATA] = plan.memory_bytes
    for kind, value in limits.items():
        _, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))
    Path("/proc/self/oom_score_adj").write_text("1000")


def _own_processes() -> int:
    """Count the threads that the kernel will charge to this user."""
    uid = os.getuid()
    threads = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == uid:
                threads += sum(1 for _ in (folder / "task").iterdir())
        except OSError:
            continue  # it ended meanwhile
    return threads


def _try_landlock(workdir: str) -> int | None:
    rules = [(path, linux.READ) for path in (*_READABLE, *code_paths())]
    rules += [(f"/proc/{name}", linux.READ) for name in _PROC]
    devices = {path for pattern in _DEVICES for path in glob.glob(pattern)} - hidden_devices()
    rules += [(path, linux.DEVICE) for path in devices]
    rules += [(f"/proc/{os.getpid()}", linux.WRITE), (workdir, linux.WRITE)]
    try:
        return linux.landlock_rules(rules)
    except OSError:
        return None


@functools.cache
def hidden_devices(driver: str = "/proc/driver/nvidia/gpus") -> frozenset[str]:
    """List the GPUs that candidates of this process may not open: all but what CUDA_VISIBLE_DEVICES names by its UUID.

    That is none where the driver knows no GPU of this name, since it is a part of one (MIG), or tells nothing. It is
    slow to tell, so a process that forks asks once for all of its children.
    """
    minors = {}
    for path in glob.glob(f"{driver}/*/information"):
        told = dict(line.split(":", 1) for line in Path(path).read_text().splitlines() if ":" in line)
        if told.keys() >= {"GPU UUID", "Device Minor"}:
            minors[told["GPU UUID"].strip()] = told["Device Minor"].strip()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    others = set(minors) - {visible} if visible in {*minors, ""} else set()
    return frozenset(f"/dev/nvidia{minors[other]}" for other in others)


def code_paths() -> list[str]:
    """List the folders that Python code is loaded from."""
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, *site.getsitepackages()}
    paths |= {path for path in sys.path if path and os.path.isdir(path)}
    paths.add(str(Path(__file__).resolve().parents[1]))
    return sorted(os.path.realpath(path) for path in paths if os.path.isdir(path))


def expose_code(uid: int) -> bool:
    """Make `code_paths()` readable for `uid` in this process's own mount namespace; return whether it can be done.

    A Python below a home folder of mode 0700 cannot be read by another user. The first closed folder on the way is
    covered by an empty one that holds nothing but the code.
    """
    closed = {path: folder for path in code_paths() if (folder := _first_closed(path, uid))}
    if not closed:
        return True
    try:
        linux.unshare_mounts()
        handles = {path: os.open(path, os.O_PATH) for path in closed}
        for folder in sorted(set(closed.values())):
            linux.mount("drkq", folder, "tmpfs", 0, "mode=755,size=1m")
        for path, handle in handles.items():
            os.makedirs(path, 0o755, exist_ok=True)
            linux.mount(f"/proc/self/fd/{handle}", path, None, linux.MS_BIND | linux.MS_REC)
            os.close(handle)
    except OSError:
        return False
    return not any(_first_closed(path, uid) for path in code_paths())


def _first_closed(path: str, uid: int) -> str | None:
    """Return the first folder on the way to `path` that `uid` cannot pass."""
    for folder in [*reversed(Path(path).parents), Path(path)]:
        status = folder.stat()
        if not status.st_mode & 0o001 and status.st_uid != uid:
            return str(folder)
    return None


def claim_uids(first: int) -> int:
    """Claim a block of `UIDS` user ids for this process's life, so that no two workers' candidates share a user."""
    folder = Path(tempfile.gettempdir()) / "drkq-uids"
    folder.mkdir(mode=0o700, exist_ok=True)
    for uid in range(first, first + UIDS * 128, UIDS):
        fd = os.open(folder / str(uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        return uid  # the descriptor stays open on purpose: the kernel frees the block when we die
    raise RuntimeError("every block of user ids is taken")


def kill_user(uid: int) -> None:
    """Kill every process of `uid`, daemons included: a signal to -1 from that user reaches them all at once."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def probing_uid() -> int | None:
    """Return a user id for `probe` that no candidate has; None when this process may not change its user."""
    return 63_999 if os.geteuid() == 0 else None


def probe(uid: int | None) -> dict[str, bool]:
    """Confine a child as `uid` and let it try to get out; return each measure and attempt, True when it held."""
    with tempfile.TemporaryDirectory(prefix="drkq-probe-") as workdir:
        os.chmod(workdir, 0o755)  # noqa: S103 - it is empty
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reader)
                held = _try_to_escape(workdir, uid)
                os.write(writer, "\n".join(f"{name}={held[name]}" for name in held).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as report:
            lines = report.read().splitlines()
        os.waitpid(pid, 0)
    return {name: value == "True" for name, value in (line.split("=") for line in lines)}


def _try_to_escape(workdir: str, uid: int | None) -> dict[str, bool]:
    parent = os.getppid()
    if uid is not None and not expose_code(uid):
        uid = None
    active = confine(Confinement(workdir, uid, None))
    import socket

    def denied(action: object) -> bool:
        try:
            action()  # type: ignore[operator]
        except OSError:
            return True
        return False

    return {name: name in active for name in ALL_MEASURES} | {
        "no TCP socket": denied(lambda: socket.socket(socket.AF_INET)),
        "no file outside": denied(lambda: open("/var/tmp/drkq-probe", "w").close()),  # noqa: S108 - must fail
        "no environment of the parent": denied(lambda: open(f"/proc/{parent}/environ").close()),
        "no signal to the parent": denied(lambda: os.kill(parent, 0)),
    }
