"""Claims: whatever a candidate's process says instead of the harness ends its own evaluation, and nothing else.

Who has no seal is not heard at all (`test_witness`). Here somebody has it, and lies.
"""

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch

from drkernel_q.evaluation import Outcome
from tests.judging import Bench, builtin
from workers.comparison import correctness
from workers.comparison.measure import Expected
from workers.isolation.wire import LENGTH, SEAL, Channel, WireClosed, close_all, sealer
from workers.isolation.zygote import Child, Zygote
from workers.judging.answer import Answer
from workers.judging.claim import MAX_TEXT, CandidateFailed
from workers.judging.remote import RemoteCandidate
from workers.judging.session import Session

#: What the harness would say of an honest call on 8 rows of 128.
HONEST: dict[str, Any] = {
    "ok": True,
    "skeleton": {"t": 0},
    "codes": [],
    "state": [],
    "tensors": [["float32", [8, 128], [128, 1], 0]],
    "shapes": [["float32", [8, 128]]],
    "changed": False,
    "mutated": [],
    "launches": [["softmax_kernel", True, 1]],
    "written": [],
    "within": [],
    "seconds": 0.01,
}
WORKING = torch.rand(8, 128)
EXPECTED = Expected({"t": 0}, [WORKING], [WORKING.double()], 128)


class Liar:
    """Stands for a zygote whose candidates answer every call with the same text."""

    def __init__(self, body: bytes) -> None:
        """Take the text."""
        self.body = body
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self, role: str, sock: socket.socket, output_fd: int) -> Child:
        """Start a process that does nothing, and speak for it."""
        assert role == "candidate"
        self.process = subprocess.Popen(["sleep", "60"])
        self.speaker = threading.Thread(target=self._speak, args=(Channel(sock),), daemon=True)
        self.speaker.start()
        return Child(self.process.pid, os.pidfd_open(self.process.pid))

    def _speak(self, channel: Channel) -> None:
        seal = sealer(bytes.fromhex(channel.receive(5.0)[0]["key"]))
        said = b'{"ok": true, "isolation": [], "state": []}'
        try:
            while True:
                data = LENGTH.pack(SEAL + len(said)) + seal(said) + said
                while data:
                    try:
                        data = data[channel.sock.send(data) :]
                    except BlockingIOError:
                        time.sleep(0.001)
                asked, fds = channel.receive(None)
                close_all(fds)
                said = self.body if asked["op"] == "call" else b'{"ok": true, "state": []}'
        except (WireClosed, OSError):
            pass
        finally:
            channel.close()

    def end(self, child: Child) -> int | None:
        """End it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.speaker.join()
        os.close(child.pidfd)
        return 9


@contextmanager
def forged(body: str, padding: int = 0) -> Iterator[Session]:
    """Speak to a process that answers calls with the JSON text `body`, and as many spaces as `padding` says."""
    liar = cast("Zygote", Liar(body.encode() + b" " * padding))
    session = Session(lambda: RemoteCandidate(liar, 2**30), "cpu", 5.0, lambda: 30.0)
    try:
        yield session
    finally:
        session.close()


def call(body: str, *, padding: int = 0) -> Answer:
    with forged(body, padding) as session:
        return session.call([torch.rand(8, 128)], EXPECTED, train=False)


def outcome_of(body: str) -> tuple[Outcome, str | None]:
    try:
        answer = call(body)
    except CandidateFailed as failed:
        return failed.outcome, failed.error
    assert answer.outputs is None
    return answer.outcome, answer.detail


def fail(body: str, *, padding: int = 0) -> CandidateFailed:
    with pytest.raises(CandidateFailed) as failed:
        call(body, padding=padding)
    assert len(failed.value.error) <= MAX_TEXT + 200
    failed.value.error.encode()
    return failed.value


def test_an_honest_looking_reply_is_compared_like_any_other() -> None:
    answer = call(json.dumps(HONEST))
    assert answer.outputs is not None
    assert correctness.compare(EXPECTED, answer.outputs).outcome is Outcome.WRONG_VALUE


LIES: dict[str, dict[str, str]] = {
    "nothing": {name: "null" for name in HONEST if name != "ok"},
    "numbers for everything": {name: "7" for name in HONEST if name != "ok"},
    "texts for everything": {name: '"x"' for name in HONEST if name != "ok"},
    "lists for everything": {name: "[[]]" for name in HONEST if name != "ok"},
    "objects for everything": {name: '{"a": {}}' for name in HONEST if name != "ok"},
    "deep skeleton": {"skeleton": '{"l":[' * 400 + "1" + "]}" * 400},
    "empty skeleton": {"skeleton": "{}"},
    "skeleton of two": {"skeleton": '{"t": 0, "v": 1}'},
    "skeleton of no kind": {"skeleton": '{"": 5}'},
    "unknown code": {"codes": '["X1"]'},
    "long codes": {"codes": json.dumps(["A1" * 100_000])},
    "codes that cannot be hashed": {"codes": "[{}]"},
    "unknown change of state": {"state": '["everything"]'},
    "infinite size": {"shapes": '[["float32", [1e999, 128]]]'},
    "size that is no number": {"shapes": '[["float32", [NaN]]]'},
    "more shapes than outputs": {"shapes": '[["float32", [8, 128]], ["float32", [8, 128]]]'},
    "no shapes": {"shapes": "[]"},
    "long dtype": {"shapes": json.dumps([["x" * 10**6, [8, 128]]])},
    "many sizes": {"shapes": json.dumps([["float32", [1] * 10**5]])},
    "dtype that is no text": {"shapes": '[["float32\\ud800", [8, 128]]]'},
    "place beyond the end": {"tensors": '[["float32", [8, 128], [128, 1], 4096]]'},
    "place before the start": {"tensors": '[["float32", [8, 128], [128, 1], -4096]]'},
    "place far away": {"tensors": '[["float32", [8, 128], [128, 1], 1180591620717411303424]]'},
    "overlapping elements": {"tensors": '[["float32", [8, 128], [1, 1], 0]]'},
    "one element for all": {"tensors": '[["float32", [8, 128], [0, 0], 0]]'},
    "place of another shape": {"tensors": '[["float32", [2, 2], [2, 1], 0]]'},
    "place of another dtype": {"tensors": '[["int64", [8, 64], [64, 1], 0]]'},
    "no place": {"tensors": "[]"},
    "two places": {"tensors": json.dumps(HONEST["tensors"] * 2)},
    "endless launches": {"launches": '[["softmax_kernel", true, 1e999]]'},
    "launches that are no number": {"launches": '[["softmax_kernel", true, "many"]]'},
    "launches of nothing": {"launches": "[[]]"},
    "endless writes": {"written": "[-1e999]"},
    "changed weights that have no names": {"mutated": "[[]]"},
    "an endless number of seconds": {"seconds": "1" + "0" * 400},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_broken_claim_ends_the_candidate_and_not_the_judge(lie: dict[str, str]) -> None:
    texts = {name: json.dumps(value) for name, value in HONEST.items()} | lie
    body = "{" + ",".join(f'"{name}":{text}' for name, text in texts.items()) + "}"
    outcome, text = outcome_of(body)
    assert outcome in {Outcome.CRASHED, Outcome.WRONG_SHAPE, Outcome.WRONG_DTYPE}
    assert text
    assert len(text) <= MAX_TEXT + 200


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ('{"ok": false}', Outcome.RUNTIME_ERROR),
        ("{}", Outcome.RUNTIME_ERROR),
        ('{"ok": 1, "error": [1, 2]}', Outcome.RUNTIME_ERROR),
        ('{"ok": false, "kind": {}, "error": "' + "x" * 10**6 + '"}', Outcome.RUNTIME_ERROR),
        ('{"ok": false, "kind": "memory", "error": "\\ud800"}', Outcome.OUT_OF_MEMORY),
        ('{"ok": false, "kind": "infrastructure"}', Outcome.RUNTIME_ERROR),
        ('{"ok": false, "kind": "tampered", "state": {"a": 1}}', Outcome.CRASHED),
        ("[" * 10_000, Outcome.CRASHED),
        ('{"failure": ' * 200, Outcome.CRASHED),
        ("\x00" * 100, Outcome.CRASHED),
        ("", Outcome.CRASHED),
    ],
    ids=["no reason", "empty", "odd reason", "long", "no text", "no kind", "tampered", "deep", "open", "null", "none"],
)
def test_a_reply_that_is_none_is_the_candidates_fault(body: str, outcome: Outcome) -> None:
    assert fail(body).outcome is outcome


def test_a_long_reply_is_not_read() -> None:
    failed = fail(json.dumps(HONEST), padding=5 * 2**20)
    assert failed.outcome is Outcome.CRASHED
    assert "at most" in failed.error


@pytest.mark.slow
def test_an_error_whose_text_is_no_unicode_is_reported(bench: Bench) -> None:
    source = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
    source += "        raise ValueError('a\\ud800b')"
    evaluation = bench.judge(builtin("softmax"), source, stages=("correctness",))
    assert evaluation.outcome is Outcome.RUNTIME_ERROR
    assert str(evaluation.error).endswith("ValueError: a?b\n")
    evaluation.model_dump_json()


def test_the_harness_is_left_out_of_a_traceback() -> None:
    trace = [
        "Traceback (most recent call last):",
        '  File "/opt/drkq/workers/harness/outside.py", line 104, in _attempt',
        "    answer = True, function(*arguments)",
        "                   ^^^^^^^^^^^^^^^^^^^^",
        '  File "/opt/drkq/workers/harness/theirs.py", line 58, in forwarded',
        "    return model(*inputs)",
        '  File "/tmp/candidate/candidate.py", line 19, in forward',
        "    return x.no_such_thing",
        "AttributeError: 'Tensor' object has no attribute 'no_such_thing'",
    ]
    _, said = outcome_of(json.dumps({"ok": False, "kind": "runtime", "error": "\n".join(trace)}))
    assert said == "\n".join([trace[0], *trace[6:]])
