"""The gate of a device: some share it, one has it alone, and whoever wants it alone comes first."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from workers.gate import Gate, OpenGate


class Room:
    """Counts who is within, and notes what must never be."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.shared = self.alone = self.most = 0
        self.broken: list[tuple[int, int]] = []

    def enter(self, *, alone: bool) -> None:
        with self.lock:
            self.shared, self.alone = self.shared + (not alone), self.alone + alone
            self.most = max(self.most, self.shared)
            if self.alone > 1 or (self.alone and self.shared):
                self.broken.append((self.shared, self.alone))

    def leave(self, *, alone: bool) -> None:
        with self.lock:
            self.shared, self.alone = self.shared - (not alone), self.alone - alone


def test_nobody_is_beside_whoever_has_it_alone(tmp_path: Path) -> None:
    room = Room()

    def use(seed: int) -> None:
        gate, dice = Gate(tmp_path, "device"), random.Random(seed)
        for _ in range(40):
            alone = dice.random() < 0.4
            with gate.alone() if alone else gate.shared():
                room.enter(alone=alone)
                time.sleep(dice.random() * 2e-3)
                room.leave(alone=alone)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert room.broken == []
    assert room.most > 1  # it was shared


def test_who_wants_it_alone_comes_before_those_who_would_share_it(tmp_path: Path) -> None:
    first, second, third = (Gate(tmp_path, "device") for _ in range(3))
    order: list[str] = []

    def use(gate: Gate, name: str, *, alone: bool) -> None:
        with gate.alone() if alone else gate.shared():
            order.append(name)

    with first.shared():
        waits = threading.Thread(target=use, args=(second, "alone"), kwargs={"alone": True})
        waits.start()
        while not second.waited_s:
            time.sleep(1e-3)
        later = threading.Thread(target=use, args=(third, "shared"), kwargs={"alone": False})
        later.start()
        while not third.waited_s:
            time.sleep(1e-3)
        assert order == []
    waits.join()
    later.join()
    assert order == ["alone", "shared"]


def test_those_who_share_it_give_way_and_go_on_after(tmp_path: Path) -> None:
    sharing, wanting = Gate(tmp_path, "device"), Gate(tmp_path, "device")
    order: list[str] = []

    def use() -> None:
        with wanting.alone():
            order.append("alone")
            time.sleep(0.02)
            order.append("no more")

    with sharing.shared():
        assert not sharing.is_wanted()
        waits = threading.Thread(target=use)
        waits.start()
        while not sharing.is_wanted():
            time.sleep(1e-3)
        assert order == []
        sharing.give_way()
        order.append("shared")
        assert order == ["alone", "no more", "shared"]
        assert not sharing.is_wanted()
    waits.join()
    with wanting.alone():
        assert not sharing.is_wanted(), "who does not share it has nothing to give way with"


def test_death_lets_go(tmp_path: Path) -> None:
    script = "import sys, time; from pathlib import Path; from workers.gate import Gate\n"
    script += "with Gate(Path(sys.argv[1]), 'd').alone():\n    print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        gate = Gate(tmp_path, "d", lambda: os.kill(process.pid, signal.SIGKILL))
        with gate.shared():
            assert gate.waited_s > 0


@pytest.mark.parametrize("alone", [True, False])
def test_an_open_gate_keeps_nobody(alone: bool) -> None:
    gate = OpenGate()
    with gate.alone() if alone else gate.shared(), gate.alone():
        assert gate.waited_s == 0.0
        assert not gate.is_wanted()
