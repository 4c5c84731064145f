"""Outside: the thread that candidate code runs on, with nothing of the harness below it on the stack.

Frames cannot be kept from Python code: exceptions, generators, signal handlers and a dozen helpers of libraries hand
them out, and whoever has one reads all that lies below it. So candidate code has a stack to itself. It holds what that
code was given, and ends in a loop that is written in C and has no variables. Signal handlers, which run on the main
thread's stack, cannot be set from here. What candidate code raises, or leaves to be collected, stays here as well.
"""

import _thread
import gc
import os
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from queue import SimpleQueue
from typing import Any

#: Turns an exception of candidate code into a reply.
Describe = Callable[[BaseException], dict[str, Any]]
#: Bytes of the stack: as much as a main thread has.
_STACK_BYTES = 64 * 2**20
#: Exit code of a process that cannot describe an exception.
_SPEECHLESS = 70


class OutsideFailed(Exception):
    """Candidate code raised something; `reply` describes it, since to look at the object itself may run code."""

    def __init__(self, reply: dict[str, Any]) -> None:
        """Keep the description."""
        super().__init__()
        self.reply = reply


class Outside:
    """Runs functions on the outer thread, one at a time, while everything else waits."""

    def __init__(self) -> None:
        """Start the thread."""
        self.insist: Callable[[], None] = _unheeded
        """Called after each function of `run` has returned, before anything else is done."""
        self.describe: Describe = _undescribed
        """Called out there with what a function raises."""
        self.look: Callable[[], Any] = _unheeded
        """Called out there when the functions of `run` have returned; nothing of the candidate's runs after it."""
        self.looked: Any = None
        """What it returned last; whoever sets it to None can tell whether there was a `run` since."""
        self.collects = True
        """Whether the collector of garbage was on when candidate code returned last."""
        self._pid = os.getpid()
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        self._answers: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
        self._done = _thread.allocate_lock()
        self._done.acquire()
        before = _thread.stack_size(_STACK_BYTES)
        jobs = chain.from_iterable(iter(self._jobs.get, None))
        _thread.start_new_thread(deque, (map(self._answers.put, map(_attempt, jobs)), 0))
        _thread.stack_size(before)
        gc.disable()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function` out there and return what it returns.

        Raises:
            OutsideFailed: it raised something, which `describe` has described out there.
        """
        return self.run_all((function, *arguments))[0]

    def run_all(self, *jobs: tuple[Any, ...]) -> list[Any]:
        """Call functions with their arguments out there, one right after the other, and return what they return.

        Raises:
            OutsideFailed: one of them raised something; the first speaks for all.
        """
        insist = self.insist  # now, and not when somebody may have put something in its place
        # Out there, so that garbage of the candidate's is never collected in here.
        jobs = ((gc.enable,), *jobs, (gc.isenabled,), (gc.disable,), (self.look,))
        (_, *answers, (_, collects), _, (_, looked)) = self._wait_for(jobs)
        self.collects = collects is True
        insist()
        self.looked = looked
        failed = [result for fine, result in answers if not fine]
        results = [result for _, result in answers]
        if failed:
            self.ask(_forget, answers, results)
            raise OutsideFailed(failed[0])
        return results

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that no candidate has made, and insist on nothing."""
        return self._wait_for([(function, *arguments)])[0][1]

    def _wait_for(self, jobs: Sequence[tuple[Any, ...]]) -> list[tuple[bool, Any]]:
        """Hand jobs over, all at once, and sleep until they are done: to wake up for each would disturb the next."""
        handed = (*jobs, (self._done.release,))
        wait = self._done.acquire  # made now: what is made while it collects out there may set that off in here
        self._jobs.put(tuple((self._pid, self.describe, function, arguments) for function, *arguments in handed))
        wait()
        answers = [self._answers.get() for _ in jobs]
        self._answers.get()
        return answers


def _forget(*lists: list[Any]) -> None:
    """Let go of what jobs have returned; whatever hangs on it runs out there."""
    for each in lists:
        each.clear()


def _unheeded() -> None: ...


def _undescribed(error: BaseException) -> dict[str, Any]:
    return {"ok": False, "kind": "runtime", "error": type(error).__name__}


def _attempt(job: tuple[int, Describe, Callable[..., Any], Sequence[Any]]) -> tuple[bool, Any]:
    pid, describe, function, arguments = job
    try:
        answer = True, function(*arguments)
    except BaseException as error:  # noqa: BLE001 - the boundary around candidate code: any end is an answer
        try:
            answer = False, describe(error)
        except BaseException:  # noqa: BLE001 - no memory is left to say what was wrong
            os._exit(_SPEECHLESS)
    if os.getpid() != pid:  # a fork of the candidate's has nobody to answer to
        os._exit(0)
    return answer
