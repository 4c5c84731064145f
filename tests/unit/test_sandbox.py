"""The sandbox, one property a test: candidate code tries, and what it could do is looked at from outside."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from drkernel_q.evaluation import Evaluation, Outcome
from tests.judging import Bench, builtin
from workers.isolation import linux, sandbox

pytestmark = pytest.mark.slow

ROOT = os.geteuid() == 0
SECRETS = {"DRKQ_BROKER_URL": "redis://:secret@host", "AWS_SECRET_ACCESS_KEY": "secret", "HF_TOKEN": "secret"}
needs_root = pytest.mark.skipif(not ROOT, reason="only a worker that is root gives candidates a user of their own")
needs_landlock = pytest.mark.skipif(not linux.landlock_abi(), reason="this kernel has no Landlock")
#: Begins every candidate here; `can` says whether an attempt raised nothing.
PRELUDE = """
import ctypes, json, os, signal, socket, subprocess, sys, time

def can(attempt, *arguments):
    try:
        attempt(*arguments)
    except (OSError, subprocess.SubprocessError):
        return False
    return True
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        bench = Bench("cpu")
        bench.evaluator.wait_ready()
        yield bench
        bench.close()


def run(bench: Bench, body: str) -> Evaluation:
    """Let a candidate run `body` while it is imported."""
    source = PRELUDE + textwrap.dedent(body)
    return bench.judge(builtin("softmax"), source, stages=("correctness",), kernel_deadline_s=15.0)


def seen(bench: Bench, body: str) -> Any:
    """Let a candidate run `body` and return what it put into `found`."""
    evaluation = run(bench, textwrap.dedent(body) + "\nraise SystemExit('FOUND' + json.dumps(found))")
    assert evaluation.outcome is Outcome.COMPILE_ERROR
    assert evaluation.error is not None
    _, mark, found = evaluation.error.rpartition("SystemExit: FOUND")
    assert mark, evaluation.error
    return json.loads(found)


def test_every_measure_of_this_machine_is_active_and_reported(bench: Bench) -> None:
    held = sandbox.probe(sandbox.probing_uid())
    active = {name for name in sandbox.ALL_MEASURES if held[name]}
    assert {"limits", "no_new_privs"} <= active
    assert set(run(bench, "").environment.isolation) == active
    assert set(bench.evaluator.isolation) == active
    escapes = {name for name in held if name not in sandbox.ALL_MEASURES}
    if {"landlock", "seccomp"} <= active:
        assert all(held[name] for name in escapes), held


def test_there_is_no_network(bench: Bench) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = server.getsockname()
        found = seen(
            bench,
            f"""
            kinds = ("AF_INET", "AF_INET6", "AF_NETLINK")
            found = {{name: can(socket.socket, getattr(socket, name)) for name in kinds}}
            found["connect"] = can(socket.create_connection, {address!r}, 2)
            found["AF_UNIX"] = can(socket.socketpair)
            """,
        )
    assert found == {"AF_INET": False, "AF_INET6": False, "AF_NETLINK": False, "connect": False, "AF_UNIX": True}


@needs_landlock
def test_files_outside_are_out_of_reach(bench: Bench, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    secret = tmp_path / "secret"
    secret.write_text("the expected output")
    secret.chmod(0o666)
    tmp_path.chmod(0o777)
    code = Path(sandbox.__file__)
    found = seen(
        bench,
        f"""
        found = {{
            "read": can(open, {str(secret)!r}),
            "write": can(open, {str(secret)!r}, "w"),
            "list": can(os.listdir, {str(tmp_path)!r}),
            "create": can(open, {str(tmp_path / "new")!r}, "w"),
            "remove": can(os.remove, {str(secret)!r}),
            "shared memory": can(open, "/dev/shm/drkq-test", "w"),
            "temporary": can(open, "/var/tmp/drkq-test", "w"),
            "cron": can(open, "/etc/cron.d/drkq-test", "w"),
            "shadow": can(open, "/etc/shadow"),
            "write library": can(open, {str(code)!r}, "a"),
            "write torch": can(open, sys.modules["torch"].__file__, "a"),
            "read library": can(open, {str(code)!r}),
            "own": can(open, "own", "w"),
            "own by link": can(os.link, {str(code)!r}, "linked"),
        }}
        """,
    )
    assert {name for name, could in found.items() if could} == {"read library", "own"}
    assert secret.read_text() == "the expected output"


@needs_landlock
def test_other_processes_are_out_of_sight(bench: Bench) -> None:
    found = seen(
        bench,
        f"""
        found = []
        for pid in (os.getppid(), {os.getpid()}, 1):
            for name in ("environ", "cmdline", "mem", "maps", "fd", "root", "cwd"):
                path = f"/proc/{{pid}}/{{name}}"
                for look in (os.listdir, os.readlink, lambda p: open(p, "rb").read(1)):
                    if can(look, path):
                        found.append(path)
        if can(os.listdir, "/proc"):
            found.append("/proc")
        """,
    )
    assert found == []


def test_no_signal_reaches_another_process(bench: Bench) -> None:
    if not ROOT and linux.landlock_abi() < 6:
        pytest.skip("signals to processes of the same user are scoped from Landlock's ABI 6 on")
    pids = (os.getpid(), os.getppid(), 1)
    assert seen(bench, f"found = [pid for pid in (os.getppid(), *{pids}) if can(os.kill, pid, 0)]") == []


def test_system_calls_that_no_kernel_needs_fail(bench: Bench) -> None:
    if "seccomp" not in bench.evaluator.isolation:
        pytest.skip("no seccomp filter on this machine")
    found = seen(
        bench,
        """
        libc = ctypes.CDLL(None, use_errno=True)
        calls = {
            "ptrace": (101, 0, 0, 0, 0), "process_vm_readv": (310, os.getppid(), 0, 0, 0, 0, 0), "bpf": (321, 0, 0, 0),
            "io_uring_setup": (425, 1, 0), "userfaultfd": (323, 0), "perf_event_open": (298, 0, 0, 0, 0, 0),
            "mount": (165, 0, 0, 0, 0, 0), "unshare": (272, 0x10000000), "setns": (308, 0, 0), "keyctl": (250, 0, 0),
            "pidfd_getfd": (438, 0, 0, 0), "clone to a new user namespace": (56, 0x10000011, 0, 0, 0, 0),
            "x32 getpid": (0x40000000 + 39,), "name_to_handle_at": (303, 0, 0, 0, 0, 0),
        }
        found = {}
        for name, call in calls.items():
            found[name] = (libc.syscall(*map(ctypes.c_long, call)), ctypes.get_errno())
        """,
    )
    assert {name: tuple(result) for name, result in found.items() if tuple(result) != (-1, 1)} == {}


def test_no_privilege_is_left(bench: Bench) -> None:
    status = seen(
        bench,
        """
        lines = [line.rstrip().split(":", 1) for line in open("/proc/self/status")]
        found = {name: value for name, value in lines if name.startswith(("Cap", "NoNew"))}
        found["ids"] = [*os.getresuid(), *os.getresgid(), *os.getgroups()]
        """,
    )
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[capabilities], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
    if ROOT:
        (user,) = set(status["ids"])
        assert user >= 64_000


def test_the_environment_holds_no_secret(bench: Bench) -> None:
    found = seen(
        bench,
        """
        found = {"now": dict(os.environ), "then": open("/proc/self/environ").read().split(chr(0))}
        """,
    )
    texts = [*found["now"], *found["now"].values(), *found["then"]]
    assert not [text for text in texts if "secret" in text or any(name in text for name in SECRETS)]
    assert not [name for name in found["now"] if name.startswith("DRKQ")]
    folder = found["now"]["HOME"]
    for name in ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH"):
        assert found["now"][name].startswith(folder)


def test_the_command_line_says_nothing(bench: Bench) -> None:
    (command,) = seen(bench, "found = [open('/proc/self/cmdline').read()]")
    assert "secret" not in command
    assert "--device" not in command


def test_the_folder_is_private_and_goes_with_the_candidate(bench: Bench) -> None:
    looking = """
        import tempfile
        open("trace", "w").write("of the last evaluation")
        os.makedirs("a/b", 0o700)
        os.chmod("a", 0)
        status = os.stat(".")
        own = status.st_uid == os.getuid()
        found = [os.getcwd(), tempfile.gettempdir(), status.st_mode & 0o777, own, os.listdir(".")]
    """
    first, second = seen(bench, looking), seen(bench, looking)
    for folder, temporary, mode, own, files in (first, second):
        assert temporary == folder
        assert (mode, own) == (0o700, True)
        assert set(files) - {"__pycache__"} == {"candidate.py", "trace", "a"}
        assert not Path(folder).exists()
    assert first[0] != second[0]


def test_folders_may_be_nested_as_deep_as_they_like(bench: Bench) -> None:
    folder = seen(
        bench,
        """
        found = os.getcwd()
        for _ in range(1500):
            os.mkdir("deeper")
            os.chdir("deeper")
        """,
    )
    assert not Path(folder).exists()
    assert seen(bench, "found = 1") == 1, "and the worker lives"


def test_no_descriptor_is_inherited_but_the_conversation(bench: Bench) -> None:
    found = seen(
        bench,
        """
        found = {}
        for fd in range(1024):
            try:
                found[fd] = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                pass
        """,
    )
    assert found.pop("0") == "/dev/null"
    assert found.pop("1") == found.pop("2")
    (conversation,) = found.values()
    assert conversation.startswith("socket:")


def test_files_have_a_largest_size(bench: Bench) -> None:
    found = seen(
        bench,
        """
        open("large", "wb").close()
        found = [can(os.truncate, "large", size) for size in (2**30, 2**31)]
        found.append(can(os.ftruncate, os.memfd_create("x"), 2**31))
        """,
    )
    assert found == [True, False, False]


def test_limits_hold_and_cannot_be_raised(bench: Bench) -> None:
    found = seen(
        bench,
        """
        import resource
        kinds = {name: getattr(resource, "RLIMIT_" + name) for name in ("CORE", "NOFILE", "NPROC", "FSIZE", "DATA")}
        found = {name: resource.getrlimit(kind) for name, kind in kinds.items()}
        found["oom"] = open("/proc/self/oom_score_adj").read().strip()
        found["raised"] = []
        for name, kind in kinds.items():
            try:
                resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                found["raised"].append(name)
            except (OSError, ValueError):
                pass
        """,
    )
    assert found["CORE"] == [0, 0]
    assert found["FSIZE"] == [sandbox.MAX_FILE_BYTES] * 2
    assert found["NOFILE"][1] <= sandbox.MAX_OPEN_FILES
    assert found["DATA"] == [bench.evaluator.family.memory_bytes] * 2
    assert found["oom"] == "1000"
    assert found["raised"] == []
    if ROOT:
        assert found["NPROC"] == [sandbox.MAX_PROCESSES] * 2


def test_children_have_a_largest_number_and_end_with_the_candidate(bench: Bench) -> None:
    pids = seen(
        bench,
        """
        found = []
        try:
            while len(found) < 2000:
                found.append(os.posix_spawn("/bin/sleep", ["sleep", "1000"], {}, setsigmask=range(1, 32)))
        except BlockingIOError:
            pass
        """,
    )
    assert 20 <= len(pids) < (sandbox.MAX_PROCESSES if ROOT else 2000)
    assert not [pid for pid in pids if is_alive(pid)]
    assert seen(bench, "found = os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)[1]") == 0, "room for the next"


def test_a_daemon_ends_with_the_candidate(bench: Bench) -> None:
    pid = seen(
        bench,
        """
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                os.write(writer, str(os.getpid()).encode())
                os.closerange(0, 1024)
                time.sleep(1000)
            os._exit(0)
        found = int(os.read(reader, 20))
        """,
    )
    assert not is_alive(pid)


def test_children_that_are_left_are_evidence(bench: Bench) -> None:
    source = """
import os, time
if os.fork() == 0:
    time.sleep(1000)
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
"""
    evaluation = bench.judge(builtin("softmax"), source, stages=("correctness",))
    assert evaluation.outcome is Outcome.CORRECT
    assert "D8" in {item.code for item in evaluation.evidence}


def test_output_is_kept_to_its_first_kilobytes(bench: Bench) -> None:
    evaluation = run(bench, "print('x' * 100_000)\nos.write(2, b'\\xff\\x00')")
    assert evaluation.stdout == "x" * 4096
    assert run(bench, "os.write(1, b'caf\\xc3\\xa9 \\xff')").stdout == "café \ufffd"


@pytest.mark.parametrize("end", ["os._exit(3)", "os.abort()", "os.kill(os.getpid(), 9)", "raise SystemExit"])
def test_last_words_are_kept(bench: Bench, end: str) -> None:
    assert run(bench, f"print('last words')\n{end}").stdout.startswith("last words\n")


def test_nothing_can_be_read_from_standard_input(bench: Bench) -> None:
    assert seen(bench, "found = [sys.stdin.read(), os.read(0, 10).decode()]") == ["", ""]


def test_the_clean_environment_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in {
        **SECRETS,
        "PATH": "/bin",
        "LANG": "C",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "CELERY_X": "1",
    }.items():
        monkeypatch.setenv(name, value)
    environment = sandbox.clean_environment("/work")
    assert {name: environment[name] for name in ("PATH", "LANG", "CUDA_VISIBLE_DEVICES", "HOME")} == {
        "PATH": "/bin",
        "LANG": "C",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "HOME": "/work",
    }
    assert not environment.keys() & {*SECRETS, "CELERY_X", "LD_LIBRARY_PATH", "TRITON_INTERPRET"}


@pytest.mark.parametrize(
    ("visible", "hidden"),
    [("GPU-a", {1}), ("GPU-b", {0}), ("MIG-c", set()), ("", {0, 1})],
)
def test_other_gpus_are_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str, hidden: set[int]) -> None:
    for minor, name in enumerate(("GPU-a", "GPU-b")):
        folder = tmp_path / f"0000:00:0{minor}.0"
        folder.mkdir()
        text = f"Model: \t\t NVIDIA H200\nGPU UUID: \t {name}\nBus Location: \t 0000:00:06.0\nDevice Minor: \t {minor}"
        (folder / "information").write_text(text)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert sandbox.hidden_devices(str(tmp_path)) == {f"/dev/nvidia{minor}" for minor in hidden}


@pytest.mark.gpu
@needs_landlock
def test_a_candidate_opens_its_own_gpu_alone() -> None:
    bench = Bench("cuda:0")
    try:
        found = seen(bench, "found = {str(n): can(open, f'/dev/nvidia{n}', 'rb') for n in range(8)}")
    finally:
        bench.close()
    assert sum(found.values()) == 1, found


@needs_root
def test_two_workers_never_share_users() -> None:
    """A block of user ids is free again when the process that claimed it has died."""
    with claimed() as (first, _), claimed() as (second, _):
        assert abs(first - second) >= sandbox.UIDS
    with claimed() as (third, process):
        assert third == first
        process.kill()
        process.wait()
        with claimed() as (fourth, _):
            assert fourth == first


@contextmanager
def claimed() -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """Claim users in another process; give the first of them, and the process."""
    program = "from workers.isolation import sandbox; print(sandbox.claim_uids(3_000_000), flush=True); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process
        process.communicate("\n")


def test_code_lies_where_candidates_may_read(bench: Bench) -> None:
    """Even when Python lives in somebody's closed home folder."""
    paths = sandbox.code_paths()
    assert str(Path(sandbox.__file__).resolve().parents[1]) in paths
    found = seen(bench, f"found = [can(os.listdir, path) for path in {paths!r}]")
    assert all(found)


def test_links_are_not_followed_when_the_folder_goes(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    folder = seen(
        bench,
        f"""
        os.symlink({str(tmp_path)!r}, "link")
        os.mkfifo("fifo")
        found = os.getcwd()
        """,
    )
    assert not Path(folder).exists()
    assert (tmp_path / "kept").read_text() == "kept"


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
