"""One device: phases exclude each other, here and between processes, and their time is kept."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from drkernel_q.lock import Lease
from policy.rollouts.phase import Phases
from tests.need import PATIENT_S
from workers.device import device_lease, find_device

HOLDER = """
import sys
from pathlib import Path
from drkernel_q.lock import Lease
lease = Lease(Path(sys.argv[1]), sys.argv[2])
assert lease.take(alone=sys.argv[3] == "alone")
print("held", flush=True)
sys.stdin.read()
"""


def hold(folder: Path, how: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), "gpu", how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


async def test_two_phases_are_never_on_at_once() -> None:
    phases = Phases(shared=True)
    on: list[str] = []
    seen: set[frozenset[str]] = set()

    async def trajectory() -> None:
        for name in ("generate", "judge", "generate", "judge"):
            async with phases.phase(name):  # type: ignore[arg-type]
                on.append(name)
                seen.add(frozenset(on))
                await asyncio.sleep(0.002)
                on.remove(name)

    await asyncio.gather(*(trajectory() for _ in range(8)))
    async with phases.phase("learn"):
        assert on == []
    assert seen == {frozenset({"generate"}), frozenset({"judge"})}
    assert phases.seconds["generate"] > 0
    assert phases.seconds["judge"] > 0


async def test_many_are_in_a_phase_at_once() -> None:
    phases = Phases(shared=True)
    together = asyncio.Barrier(5)

    async def one() -> None:
        async with phases.phase("judge"), asyncio.timeout(20):
            await together.wait()

    await asyncio.gather(*(one() for _ in range(5)))


async def test_devices_that_are_apart_overlap() -> None:
    phases = Phases(shared=False)
    async with phases.phase("generate"), asyncio.timeout(20), phases.phase("judge"):
        pass
    assert set(phases.seconds) == {"generate", "judge"}


async def test_one_that_fails_or_is_cancelled_leaves() -> None:
    phases = Phases(shared=True)
    with pytest.raises(RuntimeError):
        async with phases.phase("generate"):
            raise RuntimeError
    waiting = asyncio.create_task(_enter(phases, "judge"))
    async with phases.phase("learn"):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.wait_for(_enter(phases, "generate"), PATIENT_S)


async def _enter(phases: Phases, name: str) -> None:
    async with phases.phase(name):  # type: ignore[arg-type]
        pass


async def test_the_lease_is_held_alone_but_not_while_workers_judge(tmp_path: Path) -> None:
    with Lease(tmp_path, "gpu") as mine, Lease(tmp_path, "gpu") as worker:
        phases = Phases(shared=True, lease=mine)
        for name in ("generate", "judge", "learn"):
            async with phases.phase(name):  # type: ignore[arg-type]
                assert worker.take(alone=False) is (name == "judge")
                worker.let_go()
        assert worker.take(alone=True)


async def test_a_phase_waits_for_the_evaluation_of_somebody_else(tmp_path: Path) -> None:
    holder = hold(tmp_path, "shared")
    with Lease(tmp_path, "gpu") as mine:
        entering = asyncio.create_task(_enter(Phases(shared=True, lease=mine), "generate"))
        await asyncio.sleep(0.2)
        assert not entering.done()
        end(holder)
        await asyncio.wait_for(entering, PATIENT_S)


def test_evaluations_share_a_lease_and_a_death_frees_it(tmp_path: Path) -> None:
    holder = hold(tmp_path, "shared")
    with Lease(tmp_path, "gpu") as mine:
        assert mine.take(alone=False)
        assert not mine.take(alone=True)
        end(holder)
        assert mine.take(alone=True)


def test_workers_of_one_cpu_have_one_lease(tmp_path: Path) -> None:
    device_lease(find_device("cpu:1"), tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == [f"{socket.gethostname()}-cpu.lease"]
