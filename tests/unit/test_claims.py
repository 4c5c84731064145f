"""Claims: whatever a candidate's process says instead of the harness ends its own evaluation, and nothing else."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from drkernel_q.evaluation import Evaluation, Integrity, Outcome
from tests.judging import Bench, builtin

pytestmark = pytest.mark.slow

#: What the harness would say of an honest call on the small softmax problem.
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
    "seconds": 0.01,
}
#: Takes over the conversation in its forward pass and never gives it back.
FORGER = """
import os, struct, time, torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        for fd in range(3, 64):
            try:
                if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                    body = BODY
                    data = struct.pack("<I", len(body)) + body
                    while data:
                        try:
                            data = data[os.write(fd, data):]
                        except BlockingIOError:
                            time.sleep(0.001)
            except OSError:
                pass
        time.sleep(1000)
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench("cpu")
    yield bench
    bench.close()


def forge(bench: Bench, body: str, *, padding: int = 0) -> Evaluation:
    """Judge a candidate that answers its first call with the JSON text `body`, and as many spaces as `padding` says."""
    source = FORGER.replace("BODY", f"{body.encode()!r} + b' ' * {padding}")
    evaluation = bench.judge(builtin("softmax"), source, stages=("correctness", "integrity"), kernel_deadline_s=5.0)
    assert Evaluation.model_validate_json(evaluation.model_dump_json(round_trip=True)) == evaluation
    assert evaluation.integrity is not Integrity.CLEAN
    return evaluation


def test_an_honest_looking_reply_is_compared_like_any_other(bench: Bench) -> None:
    evaluation = forge(bench, json.dumps(HONEST))
    assert evaluation.outcome is Outcome.WRONG_VALUE
    assert "expected" in str(evaluation.error)


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
def test_a_broken_claim_ends_the_candidate_and_not_the_judge(bench: Bench, lie: dict[str, str]) -> None:
    texts = {name: json.dumps(value) for name, value in HONEST.items()} | lie
    evaluation = forge(bench, "{" + ",".join(f'"{name}":{text}' for name, text in texts.items()) + "}")
    assert evaluation.outcome in {Outcome.CRASHED, Outcome.WRONG_SHAPE, Outcome.WRONG_DTYPE}
    assert evaluation.error is not None
    assert len(evaluation.error) <= 7000


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ('{"ok": false}', Outcome.RUNTIME_ERROR),
        ("{}", Outcome.RUNTIME_ERROR),
        ('{"ok": 1, "error": [1, 2]}', Outcome.RUNTIME_ERROR),
        ('{"ok": false, "kind": {}, "error": "' + "x" * 10**6 + '"}', Outcome.RUNTIME_ERROR),
        ('{"ok": false, "kind": "memory", "error": "\\ud800"}', Outcome.OUT_OF_MEMORY),
        ('{"ok": false, "kind": "infrastructure"}', Outcome.RUNTIME_ERROR),
        ("[" * 10_000, Outcome.CRASHED),
        ('{"failure": ' * 200, Outcome.CRASHED),
        ("\x00" * 100, Outcome.CRASHED),
        ("", Outcome.CRASHED),
    ],
    ids=["no reason", "empty", "odd reason", "long reason", "no text", "no kind", "deep", "open", "null", "none"],
)
def test_a_reply_that_is_none_is_the_candidates_fault(bench: Bench, body: str, outcome: Outcome) -> None:
    evaluation = forge(bench, body)
    assert evaluation.outcome is outcome
    assert evaluation.error is not None
    assert len(evaluation.error) <= 7000


def test_a_long_reply_is_not_read(bench: Bench) -> None:
    evaluation = forge(bench, json.dumps(HONEST), padding=5 * 2**20)
    assert evaluation.outcome is Outcome.CRASHED
    assert "at most" in str(evaluation.error)


def test_an_error_whose_text_is_no_unicode_is_reported(bench: Bench) -> None:
    source = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
    source += "        raise ValueError('a\\ud800b')"
    evaluation = bench.judge(builtin("softmax"), source, stages=("correctness",))
    assert evaluation.outcome is Outcome.RUNTIME_ERROR
    assert str(evaluation.error).endswith("ValueError: a?b\n")
    evaluation.model_dump_json()
