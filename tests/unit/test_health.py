"""When a device is looked at, what is done about one that is not well, and when it is put into quarantine.

The processes that would try the device are a double: each look takes the next answer of a list.
"""

from pathlib import Path
from typing import Any

import pytest

from drkernel_q import quarantine
from drkernel_q.errors import UnreliableClock
from drkernel_q.evaluation import Failure
from workers import health
from workers.device import find_device
from workers.health import EVERY, MOST_LOOKS, Health
from workers.isolation.wire import WireClosed, WireTimeout
from workers.monitor import Monitor

CPU = find_device("cpu")
WELL: dict[str, Any] = {"complaint": None, "milliseconds": 2.0, "faults": []}
SICK: dict[str, Any] = {"complaint": "7 of 8192 products are wrong", "milliseconds": None, "faults": []}
GIB = 2**30


class Household:
    """A family whose processes say what they are told to, or die; it counts how often it was replaced."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.versions: dict[str, str] = {}
        self.asked: list[str] = []
        self.started = self.dropped = 0

    def wait_ready(self) -> None:
        self.versions = {"torch": "2"}
        self.started += 1

    def ask(self, role: str, timeout_s: float) -> dict[str, Any]:
        assert self.versions, "only a family that is ready can be asked"
        self.asked.append(role)
        answer = self.answers.pop(0) if self.answers else WELL
        if isinstance(answer, Exception):
            raise answer
        return answer

    def drop(self) -> None:
        self.dropped += 1

    def close(self) -> None:
        self.versions = {}


class Driver(Monitor):
    """A driver that says what it is told to."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.reported: tuple[int, ...] = ()
        self.memory: list[int] = [GIB]
        self.others = 0
        self.errors = 0
        self.word: str | None = None
        self.listens = True

    @property
    def hears_events(self) -> bool:
        return self.listens

    def xids(self) -> tuple[int, ...]:
        reported, self.reported = self.reported, ()
        return reported

    def used_bytes(self) -> int | None:
        return self.memory.pop(0) if len(self.memory) > 1 else self.memory[0]

    def processes(self) -> int | None:
        return self.others

    def uncorrected(self) -> int | None:
        return self.errors

    def verdict(self) -> str | None:
        return self.word


class Ward:
    """One device under watch."""

    def __init__(self, state_dir: Path, *answers: dict[str, Any] | Exception) -> None:
        self.state_dir = state_dir
        self.family = Household(*answers)
        self.driver = Driver()
        self.health = Health(CPU, self.family, state_dir, self.driver)  # type: ignore[arg-type]

    @property
    def written(self) -> quarantine.Quarantine | None:
        return quarantine.find(self.state_dir, CPU.identity)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SETTLE_S", 0.2)


def ready(tmp_path: Path, *answers: dict[str, Any] | Exception) -> Ward:
    """A device whose first look went well, and the answers to the next ones."""
    ward = Ward(tmp_path, WELL, *answers)
    ward.health.wait_ready()
    return ward


def test_the_first_look_is_the_self_test_and_later_ones_are_not(tmp_path: Path) -> None:
    ward = ready(tmp_path)
    ward.health.wait_ready()
    assert ward.health.examine("a reason", ()) == []
    assert ward.family.asked == ["selftest", "canary"]
    assert ward.family.started == 1, "nothing is replaced that is well"
    assert ward.health.quarantine is None


def test_what_is_suspicious(tmp_path: Path) -> None:
    suspicion = ready(tmp_path).health.suspicion
    assert suspicion(None, None) is None
    assert suspicion("cuda:out_of_memory", None) is None
    assert suspicion(None, Failure(kind="problem", message="a bad one")) is None
    assert suspicion("cuda:illegal_address", None) == "a process ended with cuda:illegal_address"
    assert suspicion("signal:SIGSEGV", Failure(kind="problem", message="died")) is not None
    for kind in ("infrastructure", "deadline", "cancelled"):
        assert suspicion(None, Failure(kind=kind, message="x")) == f"an evaluation failed ({kind}): x"


def test_once_in_a_while_the_device_is_looked_at_for_no_reason(tmp_path: Path) -> None:
    ward = ready(tmp_path)
    found = [ward.health.suspicion(None, None) for _ in range(EVERY)]
    assert [reason is not None for reason in found] == [False] * (EVERY - 1) + [True]
    ward.health.examine(str(found[-1]), ())
    assert ward.health.suspicion(None, None) is None


@pytest.mark.parametrize("answer", [SICK, WireTimeout("nothing within 30 s"), WireClosed("it died")], ids=str)
def test_one_failed_look_replaces_everything_and_looks_again(tmp_path: Path, answer: Any) -> None:
    ward = ready(tmp_path, answer, WELL)
    (complaint,) = ward.health.examine("a reason", ())
    assert "products are wrong" in complaint or "Wire" in complaint
    assert ward.family.started == 2
    assert (ward.health.quarantine, ward.written) == (None, None)
    assert ward.health.examine("another reason", ()) == [], "the count of failures starts again"


def test_a_device_that_fails_again_and_again_is_put_away_with_the_evidence(tmp_path: Path) -> None:
    ward = ready(tmp_path, *[SICK] * MOST_LOOKS, WELL)
    complaints = ward.health.examine("a process ended with deadline", ("The last request was 12.",))
    assert len(complaints) == MOST_LOOKS
    assert ward.family.versions == {}, "nothing of ours is left on the device"
    found = ward.written
    assert found is not None
    assert found == ward.health.quarantine
    assert found.identity == CPU.identity
    assert found.reason == "The canary found that 7 of 8192 products are wrong."
    assert found.evidence[:2] == ("Before the look: a process ended with deadline.", "The last request was 12.")
    assert sum(line.startswith("Look ") for line in found.evidence) == MOST_LOOKS
    started = ward.family.started
    ward.health.wait_ready()
    assert ward.family.started == started, "and nothing is started on it any more"


def test_a_device_can_be_sick_from_the_start(tmp_path: Path) -> None:
    ward = Ward(tmp_path, *[SICK] * MOST_LOOKS)
    ward.health.wait_ready()
    assert ward.written is not None
    assert set(ward.family.asked) == {"selftest"}


def test_a_clock_that_lies_is_another_matter(tmp_path: Path) -> None:
    ward = Ward(tmp_path, WELL | {"faults": ["a wait of 20 ms is timed at 1 ms"]}, WELL)
    with pytest.raises(UnreliableClock, match="On cpu a wait of 20 ms"):
        ward.health.wait_ready()
    assert ward.written is None
    ward.health.wait_ready()
    assert ward.family.asked == ["selftest", "selftest"]


@pytest.mark.parametrize(("milliseconds", "well"), [(1.0, True), (3.9, True), (4.1, False)])
def test_a_canary_that_has_become_slow_is_not_well(tmp_path: Path, milliseconds: float, well: bool) -> None:
    ward = ready(tmp_path, WELL | {"milliseconds": milliseconds}, WELL)
    complaints = ward.health.examine("a reason", ())
    assert (complaints == []) is well
    assert well or complaints == ["the canary took 4.1 ms, and 2 ms when the worker started"]


def test_a_quarantine_that_cannot_be_written_holds_all_the_same(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    ward = Ward(blocked, *[SICK] * MOST_LOOKS)
    ward.health.wait_ready()
    assert ward.health.quarantine is not None
    assert "could not be written down" in ward.health.quarantine.evidence[-1]


def test_memory_that_comes_back_in_a_while_is_waited_for(tmp_path: Path) -> None:
    ward = ready(tmp_path)
    ward.driver.memory = [90 * GIB, 90 * GIB, 2 * GIB]
    assert ward.health.examine("a reason", ()) == []
    assert (ward.family.started, ward.family.dropped) == (1, 0)


def test_memory_that_the_judge_may_hold_costs_the_judge(tmp_path: Path) -> None:
    ward = ready(tmp_path)
    ward.driver.memory = [90 * GIB]
    ward.family.drop = lambda: setattr(ward.driver, "memory", [GIB])  # type: ignore[method-assign]
    assert ward.health.examine("a reason", ()) == []
    assert ward.family.started == 1


def test_memory_that_does_not_come_back_costs_everything_and_is_then_somebody_elses(tmp_path: Path) -> None:
    ward = ready(tmp_path)
    ward.driver.memory = [90 * GIB]
    assert ward.health.examine("a reason", ()) == [], "the device itself is well"
    assert (ward.family.started, ward.family.dropped) == (2, 1)
    assert ward.health.examine("a reason", ()) == []
    assert ward.family.started == 2, "what is held without us is where the count starts now"


def test_memory_of_a_device_that_others_use_is_not_counted(tmp_path: Path) -> None:
    ward = Ward(tmp_path)
    ward.driver.others = 1
    ward.health.wait_ready()
    ward.driver.memory = [90 * GIB]
    assert ward.health.examine("a reason", ()) == []
    assert (ward.family.started, ward.family.dropped) == (1, 0)


def test_events_of_the_driver_are_suspicious_and_name_the_fault(tmp_path: Path) -> None:
    ward = ready(tmp_path)
    ward.driver.reported = (31, 43)
    assert ward.health.suspicion(None, None) == "the driver reported xid:31, xid:43"
    assert ward.health.reported(None) == "xid:31"
    assert ward.health.reported("cuda:illegal_address") == "cuda:illegal_address"
    assert ward.health.examine("a reason", ()) == []
    assert ward.family.dropped == 0, "a program's own fault costs nobody else anything"
    assert ward.health.suspicion(None, None) is None
    assert ward.health.reported(None) is None


def test_events_that_concern_the_device_cost_the_judge(tmp_path: Path) -> None:
    ward = ready(tmp_path)
    ward.driver.reported = (94,)
    assert ward.health.suspicion(None, None) is not None
    assert ward.health.examine("a reason", ()) == []
    assert ward.family.dropped == 1


def test_an_event_that_comes_late_is_nothing_to_the_next_evaluation(tmp_path: Path) -> None:
    ward = ready(tmp_path)
    ward.health.suspicion("cuda:illegal_address", None)
    ward.driver.reported = (31,)
    assert ward.health.examine("a reason", ()) == []
    assert ward.health.suspicion(None, None) is None
    ward.health.suspicion("cuda:illegal_address", None)
    ward.driver.reported = (79,)
    assert ward.health.examine("a reason", ()) == ["the driver reported xid:79"]


@pytest.mark.parametrize("how", ["an event", "a verdict"])
def test_a_device_that_needs_a_reset_is_put_away_without_a_canary(tmp_path: Path, how: str) -> None:
    ward = ready(tmp_path)
    if how == "an event":
        ward.driver.reported = (31, 79)
    else:
        ward.driver.word = "the driver asks for a reset"
    ward.health.suspicion(None, None)
    assert len(ward.health.examine("a reason", ())) == 1
    assert ward.family.asked == ["selftest"]
    assert ward.written is not None
    assert ward.written.reason in ("The driver reported xid:79.", "The driver asks for a reset.")


@pytest.mark.parametrize(
    ("word", "listens", "xids", "errors", "to_blame"),
    [
        ("cuda:illegal_address", True, (31,), 0, False),
        ("cuda:ecc_uncorrectable", True, (), 0, False),
        ("cuda:ecc_uncorrectable", True, (94,), 0, True),
        ("cuda:ecc_uncorrectable", True, (), 1, True),
        ("cuda:ecc_uncorrectable", False, (), 0, True),
        (None, False, (94,), 1, False),
    ],
)
def test_a_fault_of_the_device_must_be_confirmed_where_it_can_be(
    tmp_path: Path, word: str | None, listens: bool, xids: tuple[int, ...], errors: int, to_blame: bool
) -> None:
    ward = ready(tmp_path)
    ward.driver.listens, ward.driver.reported, ward.driver.errors = listens, xids, errors
    ward.health.suspicion(word, None)
    assert ward.health.is_to_blame(word) is to_blame
    if word == "cuda:ecc_uncorrectable":
        assert ward.family.dropped == 1, "whatever is behind it, the kept processes may have met it too"
