"""What is deployed: compose.yaml and Kubernetes files fit their schemas, and images hold what they need and no more."""

import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from drkernel_q.local import compose
from policy.sampler import server
from tests.need import PATIENT_S, ROOT, require
from workers.supervisor import DRAIN_S, JOIN_S, QUIT_S

SCRIPTS = Path(sys.executable).parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {name for name, service in SERVICES.items() if "build" in service}
WORKERS = {name for name in SERVICES if name.startswith("worker-")}


KUBERNETES = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
MANIFESTS: list[dict[str, Any]] = [
    each for path in KUBERNETES if path.stem != "kustomization" for each in yaml.safe_load_all(path.read_text())
]


def run(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def drkq_commands(service: dict[str, Any]) -> set[str]:
    """The commands of drkq that a service, its shell and its health check run."""
    words = [*service.get("entrypoint", ["drkq"] if "build" in service else ()), *service.get("command", [])]
    text = " ".join([*words, "|", *service.get("healthcheck", {}).get("test", [])])
    return set(re.findall(r"\bdrkq (\w+)", text))


def test_compose_fits_the_specification() -> None:
    files = ("compose.yaml", "deploy/compose.tls.yaml")
    run(SCRIPTS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files)


def test_a_mistake_in_compose_is_found(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text((ROOT / "compose.yaml").read_text().replace("cap_drop:", "cap_dorp:"))
    command = [SCRIPTS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", tmp_path / "compose.yaml"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def test_dockerfile_has_no_fault_that_a_linter_knows() -> None:
    hadolint = SCRIPTS / "hadolint"
    require("hadolint", hadolint.exists())
    run(hadolint, "Dockerfile")


def test_every_target_is_built_and_every_copied_path_is_there() -> None:
    text = (ROOT / "Dockerfile").read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE))
    assert {SERVICES[name]["build"]["target"] for name in OURS} == stages - {"wheel"}
    copied = {path for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for path in line.split()}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == kept
    assert all((ROOT / path).exists() for path in copied)


def test_extras_that_images_install_exist_and_versions_are_pinned() -> None:
    text = (ROOT / "Dockerfile").read_text()
    extras = PROJECT["optional-dependencies"]
    assert {name for group in re.findall(r"\$1\[([\w,]+)\]", text) for name in group.split(",")} <= set(extras)
    pinned = dict(
        line.split("==") for line in (ROOT / "deploy" / "constraints.txt").read_text().splitlines() if "==" in line
    )
    used = ("worker", "policy", "postgres", "gateway", "flower")
    wanted = [*PROJECT["dependencies"], *(line for name in used for line in extras.get(name, []))]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        version = re.search(rf"^ARG {name.upper()}=(\S+)$", text, re.MULTILINE)
        found = version[1] if version else pinned.get(name)
        assert found, f"{name} is pinned nowhere; run deploy/pin.py"
        assert found in requirement.specifier, f"{name}=={found} is not {requirement.specifier}"
    images = {service["image"] for service in SERVICES.values()} | set(re.findall(r"^ARG PYTHON=(\S+)", text, re.M))
    assert not [image for image in images if image.endswith("latest") or not re.search(r"\d\.\d+", image)]


def test_services_run_commands_that_exist() -> None:
    commands = {name: drkq_commands(service) for name, service in SERVICES.items()}
    assert (
        {"db", "persist", "worker", "train"}
        <= set.union(*commands.values())
        <= set(PROJECT["entry-points"]["drkq.commands"])
    )
    assert all(commands[name] == {"worker"} for name in WORKERS)


def test_workers_hold_nothing_that_is_not_theirs_and_reach_nobody_else() -> None:
    assert {"worker-cpu", *(f"worker-gpu-{number}" for number in range(8))} == WORKERS
    for name in WORKERS:
        worker = SERVICES[name]
        assert worker["networks"] == ["queue"]
        assert worker["secrets"] == ["worker-password"]
        assert not [key for key in worker["environment"] if "STORE" in key]
        assert worker["environment"]["DRKQ_SANDBOX"] == "${DRKQ_SANDBOX:-strict}"
        assert worker["cap_drop"] == ["ALL"]
        assert set(worker["cap_add"]) == {"CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID"}
        assert "ports" not in worker
    users = {SERVICES[name]["environment"]["DRKQ_CANDIDATE_UID"] for name in WORKERS}
    assert len(users) == len(WORKERS)
    devices = [
        SERVICES[f"worker-gpu-{number}"]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for number in range(8)
    ]
    assert devices == [[str(number)] for number in range(8)]


def test_every_service_is_confined() -> None:
    for name, service in SERVICES.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory", "pids"}, name
        assert name in WORKERS or service["user"] not in {"0:0", "root", "0"}, name
        lasting = service["restart"] != "no" and name != "trainer"
        assert not lasting or "healthcheck" in service, name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert ("ports" in service) == ("door" in service["networks"]), name
    assert all(COMPOSE["networks"][name]["internal"] for name in COMPOSE["networks"] if name != "door")
    stores = {name for name in OURS if "DRKQ_STORE_URL" in SERVICES[name].get("environment", {})}
    assert {name for name in SERVICES if "db" in SERVICES[name]["networks"]} == stores | {"postgres"}


def test_no_secret_is_in_the_file_and_each_is_made() -> None:
    made = {*compose.PASSWORDS, compose.TOKENS}
    assert {name: each["file"] for name, each in COMPOSE["secrets"].items()} == {
        name: f"./{compose.SECRETS}/{name}" for name in made
    }
    environments = json.dumps([service.get("environment", {}) for service in SERVICES.values()])
    assert not re.findall(r"://[^@\"]*:[^@\"]+@", environments), "a URL with a password"
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert f"/{compose.SECRETS}/" in ignored


def test_vllm_is_started_as_the_sampler_starts_it() -> None:
    command = [word for flag in SERVICES["vllm"]["command"] for word in flag.split("=")]
    flags = dict(zip(command[::2], command[1::2], strict=True))
    assert flags.items() >= dict(zip(server.FLAGS[::2], server.FLAGS[1::2], strict=True)).items()
    assert SERVICES["vllm"]["environment"].items() >= server.ENVIRONMENT.items()
    assert SERVICES["vllm"]["entrypoint"][1:] == list(server.COMMAND[1:])


def pods() -> dict[str, dict[str, Any]]:
    """The pods of the manifests, by what makes them."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in MANIFESTS
        if "template" in each.get("spec", {})
    }


@pytest.mark.slow
def test_manifests_fit_the_schema_of_kubernetes() -> None:
    files = [path for path in KUBERNETES if path.stem != "kustomization"]
    for version in ("1.30", "1.37"):
        run(SCRIPTS / "kubernetes-validate", "--strict", "--quiet", "--kubernetes-version", version, *files)
    listed = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    assert {path.name for path in files} == {*listed, "trainer.yaml"}


def test_pods_run_what_compose_runs() -> None:
    composed = {"worker": SERVICES["worker-gpu-0"]} | SERVICES
    assert set(pods()) < set(composed)
    for name, pod in pods().items():
        (container,), service = pod["containers"], composed[name]
        image = service["image"].partition(":${")[0]
        assert container["image"] == image, name
        if name in {"migrate", "persister", "gateway", "worker"}:
            assert container["args"] == service["command"]
    (config,) = (each for each in MANIFESTS if each["kind"] == "ConfigMap")
    asked = SERVICES["redis"]["command"][2].replace("$$", "$").replace("/run/secrets/", "/run/secrets/drkq/")
    rights = re.search("user worker .*", asked)
    assert rights
    assert rights[0] in config["data"]["start.sh"]


def test_pods_are_confined() -> None:
    for name, pod in pods().items():
        (container,) = pod["containers"]
        confined = container["securityContext"]
        assert confined["readOnlyRootFilesystem"], name
        assert not confined["allowPrivilegeEscalation"], name
        assert confined["capabilities"]["drop"] == ["ALL"], name
        assert pod["automountServiceAccountToken"] is False, name
        assert {"cpu", "memory"} <= container["resources"]["limits"].keys(), name
        assert (name == "worker") == (confined.get("runAsUser") == 0), name
        assert name == "worker" or pod["securityContext"]["runAsNonRoot"], name
    worker = pods()["worker"]
    (container,) = worker["containers"]
    assert container["securityContext"]["capabilities"]["add"] == SERVICES["worker-cpu"]["cap_add"]
    assert not [each for each in container["env"] if "STORE" in each["name"]]
    assert [item["key"] for item in worker["volumes"][0]["secret"]["items"]] == ["worker-password"]
    assert worker["terminationGracePeriodSeconds"] > DRAIN_S + QUIT_S + JOIN_S
    assert int(SERVICES["worker-cpu"]["stop_grace_period"].rstrip("s")) > DRAIN_S + QUIT_S + JOIN_S


STUB = """#!/bin/bash
echo "$(basename "$0") $* | ${DRKQ_STORE_URL:-no store}" >> "$CALLS"
case "$(basename "$0") $*" in
    valkey-server*) cat > "$CALLS.broker"; exec sleep 60 ;;
    "drkq persist --check") echo "Replies wait to be written for 0 s." >&2 ;;
    "drkq status --json") grep -q '^drkq worker' "$CALLS" && echo '{"queues": []}' ;;
    "drkq persist" | "drkq worker"*) exec sleep 60 ;;
    srun*) shift 3; SLURM_LOCALID=5 exec "$@" ;;
    "drkq eval"*) exit 1 ;;
esac
"""


@pytest.mark.slow
def test_the_slurm_job_starts_everything_and_ends_with_its_command(tmp_path: Path) -> None:
    """Its steps are stand-ins that write down how they are called."""
    for name in ("drkq", "srun", "valkey-server"):
        (tmp_path / name).write_text(STUB)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls"), "SLURM_JOB_ID": "77"}
    script = ROOT / "deploy" / "slurm" / "cluster.sbatch"
    command = ["bash", script, "drkq", "eval", "k.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENT_S, check=False
    )
    assert done.returncode == 1, f"the code of the command: {done.stderr}"
    calls = (tmp_path / "calls").read_text().splitlines()
    store = f"sqlite:///{tmp_path}/drkq-77/drkq.sqlite"
    assert {
        f"drkq db upgrade | {store}",
        f"drkq persist | {store}",
        "drkq worker --device cuda:5 | no store",
        f"drkq eval k.py | {store}",
    } <= set(calls)
    password = (tmp_path / "drkq-77" / "password").read_text()
    assert len(password) == 48
    assert f"requirepass {password}" in (tmp_path / "calls.broker").read_text()
    assert not [call for call in calls if password in call]
    assert (tmp_path / "drkq-77").stat().st_mode & 0o077 == 0


def test_what_runs_once_is_waited_for_by_what_stays() -> None:
    """Otherwise `docker compose up --wait` takes its end for a failure."""
    once = {name for name, service in SERVICES.items() if service["restart"] == "no" and "profiles" not in service}
    for name in once:
        condition = {"condition": "service_completed_successfully"}
        staying = [each for each in SERVICES.values() if each.get("depends_on", {}).get(name) == condition]
        assert any("profiles" not in each and each["restart"] == "unless-stopped" for each in staying), name


def test_the_audit_of_dependencies_tells_clean_from_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = runpy.run_path(str(ROOT / "deploy" / "audit.py"))
    clean: dict[str, Any] = {"name": "a", "version": "1", "vulns": []}
    flawed = clean | {"vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
    unknown = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
    assert audit["verdict"]([clean, unknown]) == (0, "1 pinned packages have no known vulnerability; 1 are unknown")
    assert audit["verdict"]([clean, flawed]) == (1, "a 1: PYSEC-1, fixed in 2")
    code, text = audit["verdict"]([unknown])
    assert (code, text[:7]) == (0, "SKIPPED")
    monkeypatch.setenv("REQUIRE_AUDIT", "1")
    assert audit["verdict"]([unknown])[0] == 75


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_waits_for_tells_that_it_is_ready(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        if how["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]
        else:
            assert SERVICES[other]["restart"] == "no"
