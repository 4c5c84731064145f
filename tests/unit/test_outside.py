"""The outer thread: nothing of the harness is below candidate code, and nothing of it comes back in but results."""

import gc
import os
import signal
import sys
import traceback
from threading import get_ident
from types import FrameType
from typing import Any

import pytest

from workers.harness.outside import Outside, OutsideFailed


@pytest.fixture(scope="module")
def outside() -> Outside:
    return Outside()


@pytest.fixture(autouse=True)
def collector() -> Any:
    yield
    gc.enable()


def below() -> list[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def test_results_come_back(outside: Outside) -> None:
    assert outside.run(divmod, 7, 3) == (2, 1)


def test_no_frame_below_holds_anything_but_the_job(outside: Outside) -> None:
    secret = object()
    frames = outside.run(below)
    held = [value for frame in frames for value in frame.f_locals.values()]
    assert outside is not secret
    assert not any(isinstance(value, Outside) or value is secret for value in held)
    assert [frame.f_code.co_name for frame in frames] == ["_attempt"]


def test_no_signal_handler_can_be_set_from_there(outside: Outside) -> None:
    with pytest.raises(OutsideFailed):
        outside.run(signal.signal, signal.SIGUSR1, lambda *_: None)


def test_an_exception_is_described_out_there_and_stays_there(outside: Outside) -> None:
    kept: list[BaseException] = []

    def fail() -> None:
        kept.append(ValueError("no"))
        raise kept[0]

    outside.describe = lambda error: {"ok": False, "error": str(error)}
    with pytest.raises(OutsideFailed) as failed:
        outside.run(fail)
    assert failed.value.reply == {"ok": False, "error": "no"}
    frames = [frame for frame, _ in traceback.walk_tb(kept[0].__traceback__)]
    assert [frame.f_code.co_name for frame in frames] == ["_attempt", "fail"]


def test_it_insists_before_anything_is_done_with_a_result(outside: Outside) -> None:
    order: list[str] = []
    outside.insist = lambda: order.append("insisted")
    try:
        outside.run(order.append, "ran")
    finally:
        outside.insist = lambda: None
    assert order == ["ran", "insisted"]


def test_what_insists_cannot_be_replaced_by_what_runs(outside: Outside) -> None:
    order: list[str] = []
    outside.insist = lambda: order.append("the first")
    try:
        outside.run(setattr, outside, "insist", lambda: order.append("the second"))
    finally:
        outside.insist = lambda: None
    assert order == ["the first"]


def test_what_a_run_leaves_is_looked_at_on_its_own_thread_and_only_if_all_is_well(outside: Outside) -> None:
    outside.look = get_ident
    outside.run(list)
    assert outside.looked == outside.ask(get_ident) != get_ident()
    outside.looked, outside.insist = None, lambda: divmod(1, 0)
    with pytest.raises(ZeroDivisionError):
        outside.run(list)
    outside.insist = lambda: None
    assert outside.looked is None


def test_garbage_is_collected_out_there_alone(outside: Outside) -> None:
    assert outside.run(gc.isenabled)
    assert not gc.isenabled()
    outside.run(gc.disable)
    assert not outside.collects
    outside.run(gc.enable)
    assert outside.collects


def test_a_fork_has_nobody_to_answer_to(outside: Outside) -> None:
    parent = os.getpid()

    def split() -> int:
        return os.fork()

    pid = outside.run(split)
    assert os.getpid() == parent
    assert os.waitpid(pid, 0)[1] == 0


class Dying:
    """Says on which thread it was let go of."""

    def __init__(self, threads: list[int]) -> None:
        self.threads, self.itself = threads, self

    def __del__(self) -> None:
        self.threads.append(get_ident())


def test_garbage_is_collected_out_there(outside: Outside) -> None:
    threads: list[int] = []

    def litter() -> None:
        Dying(threads)
        gc.set_threshold(1)

    before = gc.get_threshold()
    try:
        outside.run(litter)
        for _ in range(100):
            outside.run(list)
    finally:
        gc.set_threshold(*before)
    assert threads
    assert get_ident() not in threads


def test_what_was_returned_before_something_failed_is_let_go_of_out_there(outside: Outside) -> None:
    threads: list[int] = []

    def make() -> Dying:
        made = Dying(threads)
        del made.itself
        return made

    with pytest.raises(OutsideFailed):
        outside.run_all((make,), (divmod, 1, 0))
    assert threads
    assert get_ident() not in threads
