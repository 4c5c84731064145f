"""One step is one gradient, however it is cut; what is saved goes on as if it had never stopped."""

import multiprocessing
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from drkernel_q.errors import BadModel
from policy.training.learner import Learner, learning_rate, with_adapters
from policy.training.recipe import LoraConfig, OptimizerConfig
from policy.training.weights import merged_state
from tests.need import PATIENT_S
from tests.training import a_config, a_model, some_rows

CONFIG = a_config()


def a_learner(policy: torch.nn.Module | None = None, **changes: Any) -> Learner:
    return Learner(policy or a_model(), a_config(**changes) if changes else CONFIG, Accelerator(cpu=True))


def trained(learner: Learner, steps: int = 1, first: int = 1) -> dict[str, Any]:
    metrics = {}
    for step in range(first, first + steps):
        rows = some_rows(seed=step)
        scores = learner.score(rows)
        metrics = learner.update(rows, [score.logprobs for score in scores], step)
    return metrics


def state(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in learner.model.named_parameters()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_scores_come_in_the_order_of_the_rows_and_are_those_of_each_alone() -> None:
    learner, rows = a_learner(batch={"max_tokens": 64}), some_rows()
    scores = learner.score(rows)
    for row, found in zip(rows, scores, strict=True):
        (alone,) = learner.score([row])
        assert found.logprobs.shape == (len(row.output_ids),)
        torch.testing.assert_close(torch.tensor(found.logprobs), torch.tensor(alone.logprobs), atol=1e-4, rtol=1e-4)
        assert found.entropy == pytest.approx(alone.entropy, abs=1e-4)


def test_a_step_is_on_policy_when_it_begins() -> None:
    metrics = trained(a_learner())
    assert metrics["policy/clipped"] == metrics["policy/dual_clipped"] == 0
    assert metrics["policy/divergence"] == pytest.approx(0, abs=1e-6)
    assert metrics["policy/grad_norm"] > 0
    assert metrics["policy/skipped"] == 0


def test_how_a_step_is_cut_changes_nothing_but_rounding() -> None:
    whole, cut = (
        a_learner(a_model(dtype=torch.float64)),
        a_learner(a_model(dtype=torch.float64), batch={"max_tokens": 1}),
    )
    first, second = trained(whole), trained(cut)
    assert first["policy/grad_norm"] == pytest.approx(second["policy/grad_norm"], rel=1e-6)
    assert first["policy/loss"] == pytest.approx(second["policy/loss"], rel=1e-6)


def test_checkpointed_activations_give_the_same_step() -> None:
    plain, saving = a_learner(), a_learner(model={"gradient_checkpointing": True})
    assert trained(plain)["policy/grad_norm"] == pytest.approx(trained(saving)["policy/grad_norm"], rel=1e-5)


def test_where_nothing_is_kept_nothing_moves() -> None:
    learner = a_learner()
    trained(learner)  # momentum alone would move the weights
    before = state(learner)
    rows = [row for row in some_rows() if not row.kept]
    metrics = learner.update(rows, [row.sampler_logprobs for row in rows], 2)  # type: ignore[misc]
    assert metrics["policy/skipped"] == 1
    assert same(before, state(learner))


def test_a_gradient_that_is_no_number_is_not_taken() -> None:
    learner = a_learner()
    before = state(learner)
    rows = [replace(some_rows()[0], advantage=float("inf")), *some_rows(2)]
    metrics = learner.update(rows, [score.logprobs for score in learner.score(rows)], 1)
    assert metrics["policy/skipped"] == 1
    assert same(before, state(learner))
    assert trained(learner)["policy/skipped"] == 0


def test_what_is_saved_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    learner = a_learner()
    trained(learner, steps=2)
    learner.save(tmp_path)
    drawn = torch.rand(3)
    trained(learner, steps=2, first=3)
    other = a_learner(a_model(seed=1))
    other.load(tmp_path)
    assert torch.equal(torch.rand(3), drawn)
    trained(other, steps=2, first=3)
    assert same(state(learner), state(other))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    a_learner().save(tmp_path)
    other = a_model()
    other.lm_head = torch.nn.Linear(32, 5, bias=False)
    with pytest.raises(BadModel, match="not those of this model"):
        a_learner(other).load(tmp_path)


def test_adapters_are_merged_for_samplers_and_the_model_stays_as_it_is(tmp_path: Path) -> None:
    plain = a_model()
    adapted = with_adapters(a_model(), LoraConfig(rank=4, alpha=8))
    learner = a_learner(adapted)
    names = set(dict(plain.named_parameters()))
    assert set(merged_state(adapted)) == names
    trained(learner)
    before = state(learner)
    merged = learner.merged_state()
    assert same(before, state(learner))
    plain.load_state_dict(merged)
    rows = some_rows()
    for mine, theirs in zip(learner.score(rows), a_learner(plain).score(rows), strict=True):
        torch.testing.assert_close(torch.tensor(mine.logprobs), torch.tensor(theirs.logprobs), atol=1e-3, rtol=1e-4)
    learner.save(tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size < 100_000  # adapters only


def test_the_learning_rate_rises_and_falls() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=4, schedule="linear", schedule_steps=14)
    assert [learning_rate(config, step) for step in (1, 4, 9, 14, 99)] == pytest.approx([0.2, 0.8, 0.5, 0.0, 0.0])
    cosine = config.model_copy(update={"schedule": "cosine"})
    assert learning_rate(cosine, 9) == pytest.approx(0.5)
    assert learning_rate(OptimizerConfig(learning_rate=1.0), 1) == 1.0


def _rank(rank: int, port: int, folder: Path, sharding: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    learner = a_learner(a_model(dtype=torch.float64), batch={"max_tokens": 64}, sharding=sharding)
    if rank:
        learner.follow()
    else:
        torch.save(_two_steps(learner, folder / "saved"), folder / "found.pt")
        learner.lead("leave")
    held = sum(whole_or_part(parameter).numel() for parameter in learner.model.parameters())
    (folder / f"held{rank}").write_text(str(held))
    os._exit(0)  # one rank of the two now and then waits for ever where a process group is destroyed on a busy machine


def whole_or_part(parameter: torch.nn.Parameter) -> torch.Tensor:
    """What this rank has of it."""
    return getattr(parameter.data, "_local_tensor", parameter.data)


def _two_steps(learner: Learner, folder: Path) -> dict[str, Any]:
    """A step, a save, a step; then the second step once more from what was saved."""
    found: list[Any] = []
    folder.mkdir()
    for step in (1, 2, 2):
        rows = some_rows(seed=step)
        scores = learner.lead("score", rows)
        metrics = learner.lead("update", rows, [score.logprobs for score in scores], step)
        found.append({"metrics": metrics, "scores": [score.logprobs.tolist() for score in scores]})
        found[-1]["weights"] = learner.lead("merged_state")
        if len(found) == 1:
            learner.lead("save", folder)
        elif len(found) == 2:
            learner.lead("load", folder)
    return {"steps": found}


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_two_processes_take_the_steps_that_one_takes(tmp_path: Path, sharding: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.unit.test_policy_learner"])
    processes = [context.Process(target=_rank, args=(rank, port, tmp_path, sharding)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENT_S)
    assert [process.exitcode for process in processes] == [0, 0]
    alone = a_learner(a_model(dtype=torch.float64), batch={"max_tokens": 64})
    expected = _two_steps(alone, tmp_path / "alone")["steps"]
    found = torch.load(tmp_path / "found.pt")["steps"]
    for theirs, mine in zip(found, expected, strict=True):
        for here, there in zip(theirs["scores"], mine["scores"], strict=True):
            assert here == pytest.approx(there, rel=1e-6)
        for name in ("policy/loss", "policy/grad_norm", "policy/tokens"):
            assert theirs["metrics"][name] == pytest.approx(mine["metrics"][name], rel=1e-10)
        for name, parameter in mine["weights"].items():
            torch.testing.assert_close(theirs["weights"][name], parameter, rtol=1e-6, atol=1e-9)
    assert same(found[1]["weights"], found[2]["weights"])
    assert not same(found[0]["weights"], found[1]["weights"])
    everything = sum(parameter.numel() for parameter in alone.model.parameters())
    held = [int((tmp_path / f"held{rank}").read_text()) for rank in (0, 1)]
    assert sum(held) == everything * (1 if sharding == "full" else 2)
