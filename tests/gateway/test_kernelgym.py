"""KernelGYM's requests, as its public training client sends them, answered in its words."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from drkernel_q.evaluation import Evaluation, Protocol, Reply, Stage
from drkernel_q.gateway.kernelgym import GymTask, result_of
from drkernel_q.gateway.submission import State, SubmissionView
from drkernel_q.request import Priority
from tests.gateway.conftest import Served
from tests.values import an_evaluation

REFERENCE = "class Net: ...\ndef get_inputs(): ...\n"


def task(echo: str = "", **changes: Any) -> dict[str, Any]:
    """All fields that the client sends, the ones that are null among them."""
    return {
        "task_id": f"parallel_task_{uuid.uuid4().hex}",
        "reference_code": REFERENCE,
        "kernel_code": json.dumps({"echo": echo, "own": uuid.uuid4().hex, **changes.pop("order", {})}),
        "backend": "triton",
        "num_correct_trials": 5,
        "num_perf_trials": 100,
        "timeout": 300,
        "priority": "normal",
        "entry_point": "Net",
        "is_valid": None,
        "verbose_errors": True,
        "enable_profiling": True,
        "detect_decoy_kernel": True,
        "reference_backend": None,
    } | changes


@pytest.fixture
def client(gateway: Served) -> Iterator[httpx2.Client]:
    """A client that knows nothing of tokens: its server's URL has one."""
    url = gateway.url.replace("://", "://x:own-has-a-long-token@") + "/kernelgym"
    with httpx2.Client(timeout=30) as client:
        client.base_url = url  # type: ignore[assignment]
        yield client


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The echo worker reads its orders from the kernel, so no line may stand behind it."""
    monkeypatch.setattr(GymTask, "kernel_source", property(lambda self: self.kernel_code))


@pytest.mark.redis
@pytest.mark.usefixtures("plain")
class TestOverHttp:
    def test_submit_poll_fetch(self, client: httpx2.Client) -> None:
        sent = task("seen", order={"sleep": 0.2})
        assert client.post("/evaluate", json=sent).status_code == 200
        status = client.get(f"/status/{sent['task_id']}")
        assert (status.status_code, status.json()["status"]) == (200, "completed")
        result = client.get(f"/results/{sent['task_id']}").json()
        assert (result["status"], result["compiled"], result["correctness"]) == ("completed", True, True)
        assert result["decoy_kernel"] is False
        assert result["metadata"]["device"] == "cpu"

    def test_same_task_again_is_not_judged_again(self, client: httpx2.Client) -> None:
        sent = task("once")
        first, second = (client.post("/evaluate", json=sent).json() for _ in range(2))
        assert first == second
        anew = client.post("/evaluate", json={**sent, "force_refresh": True}).json()
        assert anew["completed_at"] > first["completed_at"]

    def test_failure_of_the_infrastructure_is_sent_again_and_is_no_result(self, client: httpx2.Client) -> None:
        sent = task(order={"fail": "infrastructure"})
        for _ in range(2):
            answer = client.post("/evaluate", json=sent)
            assert answer.status_code == 503
            assert answer.headers["Retry-After"]
        assert client.get(f"/results/{sent['task_id']}").status_code == 404

    def test_wrong_kernel_is_completed_and_one_that_does_not_compile_failed(self, client: httpx2.Client) -> None:
        wrong = client.post("/evaluate", json=task(order={"outcome": "wrong_value"})).json()
        assert (wrong["status"], wrong["compiled"], wrong["correctness"]) == ("completed", True, False)
        broken = client.post("/evaluate", json=task(order={"outcome": "compile_error"})).json()
        assert (broken["status"], broken["compiled"], broken["error_code"]) == ("failed", False, "COMPILATION_ERROR")

    def test_batch(self, client: httpx2.Client) -> None:
        batch = {"batch_id": "b", "tasks": [task("1"), task("2", order={"outcome": "compile_error"})]}
        answer = client.post("/evaluate/batch", json=batch).json()
        assert (answer["batch_status"], answer["completed_tasks"], answer["failed_tasks"]) == ("completed", 1, 1)
        assert [each["task_id"] for each in answer["results"]] == [each["task_id"] for each in batch["tasks"]]

    @pytest.mark.parametrize("change", [{"timeout": 1}, {"backend": "hip"}, {"task_id": ""}, {"workflow": "other"}])
    def test_what_cannot_be_used_is_400(self, client: httpx2.Client, change: dict[str, Any]) -> None:
        answer = client.post("/evaluate", json=task(**change))
        assert answer.status_code == 400
        assert next(iter(change)) in answer.json()["message"]

    def test_unknown_is_404_and_health_is_told(self, client: httpx2.Client) -> None:
        assert client.get("/status/nothing").status_code == 404
        assert client.get("/results/nothing").status_code == 404
        assert client.delete("/tasks/nothing").status_code == 404
        assert client.get("/health").json()["status"] == "healthy"


def result(evaluation: Evaluation) -> dict[str, Any]:
    reply = Reply(id="i", attempt=1, worker="w", evaluation=evaluation, finished_at="2026-01-01T00:00:09+00:00")
    view = SubmissionView(id="i", state=State.DONE, submitted_at="2026-01-01T00:00:05+00:00", reply=reply)
    return result_of("mine", view).model_dump()


def test_fast_kernel_brings_what_the_reward_is_made_of() -> None:
    found = result(an_evaluation(speedup=2.5, profile_ratio=0.8))
    assert found["speedup"] == 2.5
    assert found["reference_runtime"] / found["kernel_runtime"] == pytest.approx(2.5)
    metadata = found["metadata"]
    own, total = (metadata[f"{name}_in_profiling_us"] for name in ("custom_kernel_cuda_time", "total_kernel_run_time"))
    assert own / total == pytest.approx(0.8)
    assert (metadata["num_custom_kernels"], metadata["num_total_kernels"]) == (1, 2)
    assert found["processing_time"] == 4.0


@pytest.mark.parametrize(
    ("integrity", "decoy", "correct"),
    [("clean", False, True), ("rejected", True, True), ("suspicious", True, True), ("unknown", False, False)],
)
def test_integrity_is_told_by_the_words_that_there_are(integrity: str, decoy: bool, correct: bool) -> None:
    found = result(an_evaluation(integrity=integrity, speedup=2.0))
    assert (found["decoy_kernel"], found["correctness"]) == (decoy, correct)
    assert found["status"] == "completed"
    # By which sign it was found is not told: a policy would learn to avoid the sign.
    assert "no kernel of its own ran" not in json.dumps(found)


def test_wrong_kernel_has_no_speedup_and_a_reason() -> None:
    found = result(an_evaluation("wrong_value", speedup=9.0))
    assert (found["speedup"], found["error_code"]) == (0.0, "CORRECTNESS_ERROR")
    assert found["error_message"].startswith("wrong values")


def test_task_as_an_order() -> None:
    asked = GymTask.model_validate(task(reference_backend="torch_compile", run_performance=False, priority="high"))
    assert asked.protocol == Protocol(
        stages=(Stage.CORRECTNESS, Stage.INTEGRITY, Stage.PROFILE), baselines=("compile",)
    )
    assert asked.urgency is Priority.INTERACTIVE
    assert asked.kernel_source.endswith("\nModelNew = NetNew\n")
