"""The commands and health checks of compose.yaml, run as plain processes, in the order in which they wait."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from drkernel_q.local import compose
from drkernel_q.local.process import tether
from drkernel_q.queue.connection import connect
from policy.cli.train import command as train
from policy.cli.training import Order, prepare
from tests.need import PATIENT_S, ROOT, redis_server
from tests.queue.chaos import processes_with
from tests.queue.conftest import kill_tree, wait_until
from tests.services import Postgres

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.postgres]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
DRKQ = [sys.executable, "-m", "drkernel_q"]
_VARIABLE = re.compile(r"\$(?:\$|\{(\w+):-([^}]*)\})")


class Machine:
    """Runs services of compose.yaml here: other ports, other folders, no containers."""

    def __init__(self, folder: Path, ports: Mapping[str, str], store_url: str) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._store_url = store_url
        self._exchange = {
            "valkey-server": str(redis_server()),
            "valkey-cli": f"redis-cli -p {ports['6379']}",
            "/run/secrets": str(folder / compose.SECRETS),
            "/run/drkq/locks": str(folder / "locks"),
            "/var/lib/drkq-worker": str(folder / "state"),
            "/tmp/cache": os.environ.get("DRKQ_CACHE_DIR", str(folder / "cache")),
            "/run/drkq/tls.conf": str(folder / "tls.conf"),
            "dir /data": f"dir {folder}\nbind 127.0.0.1",
            "/runs/": f"{folder}/runs/",
            "redis:6379": f"127.0.0.1:{ports['6379']}",
            "port 6379": f"port {ports['6379']}",
            "0.0.0.0": "127.0.0.1",
            "8080": ports["8080"],
            "5555": ports["5555"],
        }

    def translate(self, text: str) -> str:
        """Fill in what compose fills in, and name what is here in place of what is in a container."""
        text = _VARIABLE.sub(lambda found: "$" if found[1] is None else os.environ.get(found[1], found[2]), text)
        for there, here in self._exchange.items():
            text = text.replace(there, here)
        return re.sub(r"\bexec drkq\b", f"exec {' '.join(DRKQ)}", text)

    def environment(self, service: str) -> dict[str, str]:
        own = {name: self.translate(value) for name, value in SERVICES[service].get("environment", {}).items()}
        if "DRKQ_STORE_URL" in own:
            own["DRKQ_STORE_URL"] = self._store_url
        # A container's home is read-only, and nothing names other folders of the user.
        rest = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        return rest | own | {"HOME": "/proc/nowhere", "SERVICE": f"{service}@{self.folder}"}

    def command(self, words: list[str]) -> list[str]:
        found = [self.translate(word) for word in words]
        match found[0]:
            case "CMD":
                return self.command(words[1:])
            case "CMD-SHELL":
                return ["sh", "-c", *found[1:]]
            case "drkq":
                return [*DRKQ, *found[1:]]
            case "celery":
                return [sys.executable, "-m", *found]
            case "python3":
                return [sys.executable, *found[1:]]
        return found

    def words(self, service: str) -> list[str]:
        described = SERVICES[service]
        entry = described.get("entrypoint", ["drkq"] if "build" in described else [])
        return self.command([*entry, *described["command"]])

    def start(self, service: str, *prefix: str) -> None:
        with self.log(service).open("wb") as log:
            self.running[service] = subprocess.Popen(
                [*prefix, *self.words(service)],
                env=self.environment(service),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=tether(signal.SIGKILL),  # noqa: PLW1509 - one prctl, no locks
            )

    def healthy(self, service: str, limit_s: float = 40) -> None:
        """Wait until the health check of a service says so."""
        check = self.command(SERVICES[service]["healthcheck"]["test"])
        environment = self.environment(service)

        def ask() -> bool:
            return (
                subprocess.run(check, env=environment, cwd=self.folder, capture_output=True, check=False).returncode
                == 0
            )

        wait_until(ask, f"{service} is healthy: {self.log(service)}", self.running[service], limit_s)

    def run(self, service: str, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [*DRKQ, *words] if words else self.words(service)
        environment = self.environment(service)
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)

    def log(self, service: str) -> Path:
        return self.folder / f"{service}.log"


@pytest.fixture
def machine(tmp_path: Path, postgres: Postgres, unused_tcp_port_factory: Any) -> Iterator[Machine]:
    tmp_path.chmod(0o755)
    compose.make_secrets(tmp_path)
    ports = {name: str(unused_tcp_port_factory()) for name in ("6379", "8080", "5555")}
    url = postgres.url(postgres.create()).replace(":secret@", "@")
    machine = Machine(tmp_path, ports, url)
    yield machine
    for process in reversed(machine.running.values()):
        kill_tree(process)


def confined() -> list[str]:
    """What leaves a worker of its rights only those that compose.yaml gives it."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        return []
    kept = [f"+{name.lower()}" for name in SERVICES["worker-cpu"]["cap_add"]]
    # Where Python is in a folder that other users may not enter, the sandbox opens a view of it; no image has that.
    closed = any(not parent.stat().st_mode & 1 for parent in [Path(sys.prefix), *Path(sys.base_prefix).parents])
    capabilities = ",".join(["-all", *kept, *(["+sys_admin"] if closed else [])])
    return [setpriv, "--bounding-set", capabilities, "--no-new-privs"]


def test_the_services_start_serve_and_end(machine: Machine) -> None:
    machine.start("redis")
    machine.healthy("redis")
    done = machine.run("migrate")
    assert done.returncode == 0, done.stderr
    for service in ("worker-cpu", "persister", "gateway", "flower"):
        machine.start(service, *(confined() if service == "worker-cpu" else ()))
    for service in ("persister", "gateway", "flower"):
        machine.healthy(service)
    machine.healthy("worker-cpu", 60)

    evaluated = machine.run(
        "client",
        "eval",
        "examples/softmax.py",
        "--problem",
        "softmax",
        "--trials",
        "1",
        "--timing-budget",
        "0.1",
        "--json",
    )
    assert evaluated.returncode == 0, evaluated.stderr + machine.log("worker-cpu").read_text()
    found = json.loads(evaluated.stdout)
    assert found["outcome"] == "correct"
    stored = machine.run("client", "db", "query", "recent", "--json")
    assert [row["request_id"] for row in json.loads(stored.stdout)] == [found["request_id"]]
    the_gateway_asks_for_a_token(machine)
    a_worker_may_do_little(machine)
    nothing_shows_a_secret(machine, evaluated.stdout + evaluated.stderr)

    for service in ("worker-cpu", "persister", "gateway"):
        machine.running[service].terminate()
    assert [machine.running[service].wait(PATIENT_S) for service in ("worker-cpu", "persister")] == [0, 0]
    assert machine.running["gateway"].wait(PATIENT_S) in {0, -signal.SIGTERM}
    first = int(SERVICES["worker-cpu"]["environment"]["DRKQ_CANDIDATE_UID"])
    left = Path(tempfile.gettempdir()).glob("drkq-candidate-*")
    assert not [folder for folder in left if first <= folder.stat().st_uid < first + 1000]
    check = machine.command(SERVICES["worker-cpu"]["healthcheck"]["test"])
    gone = subprocess.run(check, env=machine.environment("worker-cpu"), capture_output=True, text=True, check=False)
    assert (gone.returncode, "serves cpu" in gone.stderr) == (69, True)


def test_the_broker_serves_other_hosts_by_tls(machine: Machine, unused_tcp_port: int) -> None:
    """What deploy/compose.tls.yaml adds: a second port with a certificate, for the same logins."""
    place = machine.folder / compose.SECRETS
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    files = ["-out", str(place / "broker-certificate"), "-keyout", str(place / "broker-key")]
    subprocess.run([*make.split(), *files], check=True, capture_output=True)
    added = yaml.safe_load((ROOT / "deploy" / "compose.tls.yaml").read_text())
    assert added["services"]["redis"]["configs"][0]["target"] == "/run/drkq/tls.conf"
    config = machine.translate(added["configs"]["tls"]["content"]).replace("6380", str(unused_tcp_port))
    (machine.folder / "tls.conf").write_text(config)
    machine.start("redis")
    machine.healthy("redis")
    authority = f"ssl_ca_certs={place / 'broker-certificate'}"
    url = f"rediss://worker:{secret(machine, 'worker-password')}@localhost:{unused_tcp_port}/0"
    assert connect(f"{url}?{authority}", retries=0).ping()
    with pytest.raises(RedisError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(url, retries=0).ping()


def the_gateway_asks_for_a_token(machine: Machine) -> None:
    _, token, _ = secret(machine, compose.TOKENS).split()
    url = machine.translate("http://127.0.0.1:8080/v1/overview")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, timeout=20)
    with refused.value:
        assert refused.value.code == 401
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200


def a_worker_may_do_little(machine: Machine) -> None:
    """The login of workers takes, answers and announces; it neither empties the broker nor changes it."""
    port = int(machine.translate("port 6379").split()[1])
    password = secret(machine, "worker-password")
    with Redis(port=port, username="worker", password=password) as client:
        assert client.ping()
        for words in (["FLUSHALL"], ["CONFIG", "GET", "*"], ["KEYS", "*"], ["GET", "elsewhere"], ["SHUTDOWN"]):
            with pytest.raises((NoPermissionError, ResponseError), match=r"(?i)permission"):
                client.execute_command(*words)


def nothing_shows_a_secret(machine: Machine, said: str) -> None:
    words = [*(secret(machine, name) for name in compose.PASSWORDS), secret(machine, compose.TOKENS).split()[1]]
    logs = {service: machine.log(service).read_text() for service in machine.running}
    for where, text in (logs | {"the client": said}).items():
        assert not [word for word in words if word in text], where
    running = processes_with(f"@{machine.folder}")
    assert len(running) >= len(machine.running)
    for pid, command in running.items():
        environment = Path(f"/proc/{pid}/environ").read_text(errors="replace")
        assert not [word for word in words if word in command or word in environment], command


def secret(machine: Machine, name: str) -> str:
    return (machine.folder / compose.SECRETS / name).read_text().strip()


def test_the_trainer_begins_and_goes_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shell chooses between a new run and one that is there; the command is read, and not run."""
    for name, value in {"PRESET": "tiny", "PROBLEMS": "softmax", "LORA_RANK": "8"}.items():
        monkeypatch.setenv(f"DRKQ_{name}", value)
    shell, option, text = machine.words("trainer")

    def asked() -> Order:
        done = subprocess.run(
            [shell, option, text.replace(" ".join(DRKQ), "echo")], capture_output=True, text=True, check=True
        )
        command, *words = shlex.split(done.stdout)
        assert command == "train"
        return prepare(train.make_context("train", words).params)

    first = asked()
    assert (first.resume, first.folder) == (False, machine.folder / "runs" / "train")
    assert (first.config.sampler.name, first.config.shared_device) == ("http://vllm:8000", False)
    assert (first.config.model.name, first.config.lora.rank) == ("/models/policy", 8)
    first.folder.mkdir(parents=True)
    (first.folder / "config.toml").write_text("steps = 7\n")
    again = asked()
    assert (again.resume, again.folder, again.config.steps) == (True, first.folder, 7)
