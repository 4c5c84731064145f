"""`drkq doctor`: what each check says about a machine that is well, and about one that is not."""

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from drkernel_q.cli import doctor, drkq, machine
from drkernel_q.cli.machine import Check, State
from drkernel_q.settings import load_settings

WELL: machine.Facts = {
    "sandbox": {"measures": {"uid": True, "seccomp": True}},
    "driver": {"version": "580.1", "devices": ["NVIDIA H200"]},
    "torch": {"version": "2.11.0+cu130", "devices": 1},
    "triton": {"version": "3.6.0"},
    "kernel": {"device": "cuda", "duration_s": 0.5},
}


def judge(facts: machine.Facts, *, strict: bool = False) -> dict[str, Check]:
    checks = [machine.driver(facts), machine.torch(facts), machine.triton(facts), machine.kernel(facts)]
    return {check.name: check for check in [*checks, machine.sandbox(facts, strict=strict)]}


def states(checks: dict[str, Check]) -> dict[str, State]:
    return {name: check.state for name, check in checks.items()}


def test_well_machine_is_ok() -> None:
    assert set(states(judge(WELL)).values()) == {State.OK}


def test_machine_without_gpu_is_told_what_works() -> None:
    facts = {
        **WELL,
        "driver": {"version": None, "devices": [], "reason": "NVML Shared Library Not Found"},
        "torch": {"version": "2.13.0+cpu", "devices": 0},
        "kernel": {"device": "cpu", "duration_s": 0.1},
    }
    checks = judge(facts)
    assert states(checks) == dict.fromkeys(checks, State.OK) | {"driver": State.WARN}
    assert "cpu device" in checks["driver"].advice
    assert "interpreted" in checks["kernel"].found


def test_torch_that_cannot_use_the_devices_fails() -> None:
    checks = judge({**WELL, "torch": {"version": "2.13.0+cpu", "devices": 0}})
    assert checks["torch"].state is State.FAIL
    assert "0 of 1 devices" in checks["torch"].found


@pytest.mark.parametrize(("strict", "state"), [(False, State.WARN), (True, State.FAIL)])
def test_measure_that_does_not_hold_is_named(strict: bool, state: State) -> None:
    checks = judge({**WELL, "sandbox": {"measures": {"uid": False, "seccomp": True}}}, strict=strict)
    assert checks["sandbox"].state is state
    assert "uid" in checks["sandbox"].found
    assert "seccomp" not in checks["sandbox"].found


@pytest.mark.parametrize("name", machine.FACTS)
def test_fact_that_could_not_be_had_is_never_ok(name: str) -> None:
    checks = judge({**WELL, name: {"error": "ImportError: no such thing"}})
    assert [check.name for check in checks.values() if check.state is not State.OK] == [name]
    assert checks[name].found == "ImportError: no such thing"
    assert checks[name].advice


def replace_workers_doctor(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "workers").mkdir()
    (folder / "workers" / "__init__.py").touch()
    (folder / "workers" / "doctor.py").write_text(source)
    monkeypatch.setattr(machine, "HOME", folder)


def test_facts_of_a_process_that_dies_are_told_as_far_as_they_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "import json, os, signal\n"
        "print(json.dumps({'fact': 'sandbox', 'measures': {}}), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    replace_workers_doctor(source, tmp_path, monkeypatch)
    facts = machine.ask()
    assert facts["sandbox"] == {"fact": "sandbox", "measures": {}}
    assert facts["kernel"] == {"error": "ended by signal 11"}


def test_facts_of_a_process_that_hangs_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_workers_doctor("import time\ntime.sleep(60)\n", tmp_path, monkeypatch)
    assert machine.ask(timeout_s=0.5)["torch"] == {"error": "no answer within 0.5 s"}


def test_packages_that_are_not_ours_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.packages().state is State.OK
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "workers", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    check = doctor.packages()
    assert check.state is State.FAIL
    assert str(tmp_path / "workers") in check.found


def test_misspelt_variable_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_BROKER", "redis://localhost")
    check = doctor.variables()
    assert check.state is State.WARN
    assert "DRKQ_BROKER" in check.found


def test_store_that_is_not_there_yet_is_ok_and_not_made(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path / "data")
    assert doctor.store(settings).state is State.OK
    assert not (tmp_path / "data").exists()


def test_store_of_another_revision_fails(tmp_path: Path) -> None:
    (tmp_path / "drkq.sqlite").touch()
    check = doctor.store(load_settings(data_dir=tmp_path))
    assert check.state is State.FAIL
    assert check.advice == "drkq db upgrade"


def test_store_that_cannot_be_reached_fails() -> None:
    check = doctor.store(load_settings(store_url="postgresql+psycopg://nobody:secret@127.0.0.1:1/none"))
    assert check.state is State.FAIL
    assert "secret" not in check.found


def test_broker_that_does_not_answer_fails() -> None:
    settings = load_settings(broker_url="redis://:secret@127.0.0.1:1/0")
    (check,) = doctor.broker_and_workers(settings)
    assert (check.name, check.state) == ("broker", State.FAIL)
    assert "secret" not in check.found


def test_disk_space_is_measured_where_the_folder_will_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "not" / "yet"
    assert str(tmp_path) in doctor.space("disk", folder).found
    monkeypatch.setattr(doctor, "LITTLE_SPACE_BYTES", 2**63)
    assert doctor.space("disk", folder).state is State.WARN
    monkeypatch.setattr(doctor, "NO_SPACE_BYTES", 2**63)
    assert doctor.space("disk", folder).state is State.FAIL


@pytest.mark.slow
def test_whole_report_on_this_machine() -> None:
    result = CliRunner().invoke(drkq, ["doctor", "--json"])
    checks = {check["name"]: check for check in json.loads(result.stdout)}
    assert result.exit_code == (1 if any(check["state"] == "FAIL" for check in checks.values()) else 0)
    for name in ("python", "packages", "settings", "torch", "triton", "kernel", "store"):
        assert checks[name]["state"] == "ok", checks[name]


@pytest.mark.slow
def test_wrong_setting_is_reported_as_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_SANDBOX", "none")
    result = CliRunner().invoke(drkq, ["doctor"])
    assert result.exit_code == 1
    assert "FAIL  settings" in result.stdout
    assert os.linesep in result.stdout
