"""The zygote's process: it has torch and triton imported and no device context, and forks judges and candidates.

It holds no secret: its environment is clean, and whatever a candidate could read of it after the fork is library code.
It is the parent (and subreaper) of everything it forks, so it can end a candidate together with any daemon it made.
"""

import contextlib
import faulthandler
import gc
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from workers.isolation import linux, sandbox
from workers.isolation.wire import Channel, WireClosed, WireTimeout, close_all
from workers.isolation.zygote import REAP_S, ZygoteConfig

_EXIT_POLL_S = 0.01
#: Begins the name of a candidate's private folder.
_FOLDER = "drkq-candidate-"


class _Forked(NamedTuple):
    role: str
    owner: Channel
    pidfd: int
    workdir: str | None
    uid: int | None


class Server:
    """The zygote's own loop."""

    def __init__(self, channel: Channel, config: ZygoteConfig) -> None:
        """Serve `channel`; the zygote ends with it."""
        self.root = channel
        self.config = config
        self.clients: list[Channel] = [channel]
        self.children: dict[int, _Forked] = {}
        self.turn = 0

    def serve(self) -> None:
        """Answer until the root client is gone, then end everything."""
        try:
            while self.root in self.clients:
                ready, _, _ = select.select(self.clients, [], [])
                for client in ready:
                    self._answer(client)
        finally:
            for pid in list(self.children):
                self._end(pid)

    def _answer(self, client: Channel) -> None:
        try:
            message, fds = client.receive(REAP_S)
            if message["op"] == "spawn":
                self._spawn(client, message["role"], fds)
            else:
                client.send({"status": self._end(message["pid"])})
        except (WireClosed, WireTimeout):
            self._forget(client)

    def _forget(self, client: Channel) -> None:
        self.clients.remove(client)
        client.close()
        for pid, child in list(self.children.items()):
            if child.owner is client and child.role == "candidate":
                self._end(pid)

    def _spawn(self, client: Channel, role: str, fds: list[int]) -> None:
        uid = workdir = channel = theirs = None
        if role == "candidate":
            uid, workdir = self._lodging()
        else:
            channel, theirs = Channel.pair()
        pid = os.fork()
        if pid == 0:
            _become(role, fds, theirs, self.config, uid, workdir)
        close_all(fds)
        pidfd = os.pidfd_open(pid)
        self.children[pid] = _Forked(role, client, pidfd, workdir, uid)
        if channel is not None and theirs is not None:
            theirs.close()
            self.clients.append(channel)
        client.send({"pid": pid}, [pidfd])

    def _lodging(self) -> tuple[int | None, str]:
        """Choose a user id that no living candidate has, and make its private folder."""
        workdir = tempfile.mkdtemp(prefix=_FOLDER)
        if self.config.first_uid is None:
            return None, workdir
        # In turn, so that what the kernel still counts against the last candidate does not hurt the next.
        taken = {child.uid for child in self.children.values()}
        turns = (self.config.first_uid + (self.turn + step) % sandbox.UIDS for step in range(1, sandbox.UIDS + 1))
        uid = next(number for number in turns if number not in taken)
        self.turn = uid - self.config.first_uid
        os.chown(workdir, uid, uid)
        return uid, workdir

    def _end(self, pid: int) -> int | None:
        child = self.children.pop(pid, None)
        if child is None:
            return None
        try:
            if child.role == "candidate":
                self._kill_family(pid, child)
            else:
                os.kill(pid, signal.SIGKILL)
            status = _reap(pid, child.pidfd)
        finally:
            os.close(child.pidfd)
            if child.workdir is not None:
                _remove(child.workdir)
        return status

    def _kill_family(self, pid: int, child: _Forked) -> None:
        if child.uid is not None:
            sandbox.kill_user(child.uid)
        # A fork bomb under our own user can outrun a sweep, but not its limit on processes. Every dead child must be
        # reaped, since zombies count against that limit.
        deadline = time.monotonic() + REAP_S
        _kill_quietly(pid)
        select.select([child.pidfd], [], [], REAP_S)  # once it is dead, its children are ours
        needed, quiet = 1, 0
        while quiet < needed and time.monotonic() < deadline:
            strays = [stray for stray in _own_children() if stray not in self.children and stray != pid]
            for stray in strays:
                _kill_quietly(stray)
                _reap_quietly(stray)
            if strays:
                needed, quiet = 3, -1  # the list can miss one child while another exits
                time.sleep(_EXIT_POLL_S)
            quiet += 1


def _remove(folder: str) -> None:
    """Remove a candidate's folder; not by shutil.rmtree, which recurses as deep as the candidate has nested it."""
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        if os.path.lexists(folder):  # under our own user, a folder that the candidate has closed keeps us out too
            subprocess.run([*command, "--", folder], stderr=subprocess.DEVNULL, check=False)


def _sweep(first_uid: int) -> None:
    """End what the candidates of a zygote that was killed have left: daemons, and folders."""
    users = range(first_uid, first_uid + sandbox.UIDS)
    for uid in users:
        sandbox.kill_user(uid)
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with contextlib.suppress(FileNotFoundError):  # another worker's, which has just ended
            if folder.lstat().st_uid in users:
                _remove(str(folder))


def _own_children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as listing:
        return [int(pid) for pid in listing.read().split()]


def _kill_quietly(pid: int) -> None:
    for send in (os.killpg, os.kill):
        try:
            send(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _reap_quietly(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _reap(pid: int, pidfd: int) -> int | None:
    if not select.select([pidfd], [], [], REAP_S)[0]:
        return None
    return os.waitpid(pid, 0)[1]


def _become(
    role: str,
    fds: list[int],
    zygote_sock: socket.socket | None,
    config: ZygoteConfig,
    uid: int | None,
    workdir: str | None,
) -> None:
    """Turn this fresh fork into `role`, and never return."""
    code = 70
    try:
        os.setsid()
        linux.die_with_parent(signal.SIGKILL)
        conn, zygote_fd = _arrange_descriptors(fds, zygote_sock)
        random.seed()
        if role == "candidate":
            from workers.harness import candidate

            assert workdir is not None
            memory = config.memory_bytes if config.device == "cpu" else None
            candidate.main(conn, config.device, sandbox.Confinement(workdir, uid, memory))
        elif role == "audit":
            from workers.judging import audit

            audit.main(conn, config.device, config.memory_bytes if config.device == "cpu" else None)
        elif role in ("selftest", "canary"):
            from workers import canary, selftest

            (canary if role == "canary" else selftest).main(conn, config.device)
        else:
            from workers.judging import judge

            judge.main(conn, zygote_fd, config.device, config.memory_bytes)
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must end here and not return into the zygote's loop
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _arrange_descriptors(fds: list[int], zygote_sock: socket.socket | None) -> tuple[int, int]:
    """Put the output on 1 and 2, keep the conversation and (for a judge) the zygote, close everything else."""
    conn, output = fds
    zygote_fd = zygote_sock.detach() if zygote_sock is not None else -1
    for number, source in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
        os.dup2(source, number)
    low = 3
    for keep in sorted(fd for fd in (conn, zygote_fd) if fd >= 0):
        os.closerange(low, keep)
        low = keep + 1
    os.closerange(low, 2**20)
    return conn, zygote_fd


def _boot(config: ZygoteConfig) -> dict[str, Any]:
    """Import everything that children need, and check that a fork of this process will be sound."""
    if config.first_uid is not None:
        uid = sandbox.claim_uids(config.first_uid)
        _sweep(uid)
        config = config._replace(first_uid=uid if sandbox.expose_code(uid) else None)
    sandbox.hidden_devices()  # once here instead of in every fork
    measures = sandbox.probe(config.first_uid)  # forks, so it comes before torch
    gc.disable()  # what is imported stays; to look through it again and again takes a sixth of the time
    if config.device == "cpu":
        from workers.cpu import interpreter

        interpreter.prepare()
    import torch
    import triton

    if config.device == "cpu":
        interpreter.install()
    import torch._inductor.config  # the first session of the profiler imports it, which takes over a second
    import torch.profiler

    from workers import canary, selftest  # noqa: F401 - once here instead of in every fork
    from workers.harness import candidate, library  # noqa: F401 - once here instead of in every fork
    from workers.judging import audit, judge  # noqa: F401 - once here instead of in every fork

    if config.device == "cuda":
        from triton.backends.nvidia.driver import CudaDriver

        from workers import smoke

        # Its C module is compiled here, into a cache that is ours, and not by every candidate; no device is touched.
        triton.runtime.driver.set_active(CudaDriver())
        smoke.warm_compiler()
    _tame_libraries()
    ours = [module for name, module in sys.modules.items() if name.partition(".")[0] in ("workers", "drkernel_q")]
    library.remember(ours)
    torch.set_num_threads(1)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1 or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RuntimeError(f"the zygote has {threads} threads and cannot fork soundly")
    gc.collect()
    gc.freeze()
    gc.enable()
    isolation = [name for name in sandbox.ALL_MEASURES if measures.get(name)]
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    return versions | {"uid": config.first_uid, "isolation": isolation}


def _tame_libraries() -> None:
    """Do now what libraries do at their first use, and take away what would hide something, or show the harness."""
    import torch
    from torch._dynamo.mutation_guard import install_generation_tagging_init
    from torch._functorch.vmap import lazy_load_decompositions  # type: ignore[attr-defined]  # where all versions have it

    # Torch 2.11 says so of every session; to let it accumulate them costs each 60 ms.
    warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
    # The first function that is compiled would replace methods of `Module`, and the first `vmap` override operators;
    # both are watched in candidates.
    install_generation_tagging_init()
    lazy_load_decompositions()
    for module in (torch.autograd, torch._C._autograd):  # operators that are not recorded would be nobody's
        vars(module).pop("_enable_record_function", None)
    # These would hand the harness's frames to a candidate, or their names.
    for module, names in (
        (sys, ("_setprofileallthreads", "_settraceallthreads")),
        (faulthandler, ("dump_traceback", "dump_traceback_later", "register")),
    ):
        for name in names:
            vars(module).pop(name, None)
    with contextlib.suppress(ImportError):
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # or the compiler's first progress bar would start a thread in the candidate


def main(arguments: list[str]) -> None:
    """Run a zygote whose root client is on standard input.

    It ends when that client is gone. No signal of the kernel's ends it with its parent, since it must live on for as
    long as it takes to end the candidates and what they have started.
    """
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    device, first_uid, memory_bytes = arguments
    config = ZygoteConfig(device, int(first_uid) or None, int(memory_bytes))
    channel = Channel(socket.socket(fileno=os.dup(0)))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    ready = _boot(config)
    channel.send(ready)
    Server(channel, config._replace(first_uid=ready["uid"])).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
