"""Training with a vLLM that drkq starts for it: by the real trainer, with a server that speaks vLLM's routes."""

import json
import os
import sys
from pathlib import Path

import pytest

from drkernel_q.errors import BadSettings
from drkernel_q.problem import find_problem
from drkernel_q.record import FILE, read
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from policy.config import load_config
from policy.training.recipe import TrainConfig
from policy.training.train import train
from policy.training.trainer import Summary
from tests.models import a_model
from tests.need import ROOT
from tests.values import H200, a_reply, a_request, an_evaluation

#: What stands where vLLM's server would: it writes down how it was started, and every route that was asked.
SERVER = """
import json, os, sys
from tests import fake_vllm
with open({log!r}, "a") as log:
    log.write(json.dumps([sys.argv[1:], os.environ.get("CUDA_VISIBLE_DEVICES")]) + "\\n")
answer = fake_vllm.Handler.answer
def noted(self, body):
    with open({log!r}, "a") as log:
        log.write(json.dumps([self.path, None]) + "\\n")
    answer(self, body)
fake_vllm.Handler.answer = noted
fake_vllm.main()
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vLLM that children of this process import."""
    package = tmp_path / "site" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(SERVER.format(log=str(tmp_path / "log")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(ROOT)]))
    return tmp_path / "log"


@pytest.mark.slow
async def test_a_server_is_started_rests_while_the_trainer_learns_and_has_every_version(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRKQ_RECORDED", H200)
    settings = load_settings()
    with Store.open(settings.store) as store:
        store.upgrade()
        request = a_request("known", problem=find_problem("softmax", settings))
        store.record(request, a_reply(request, an_evaluation(speedup=2.0)))
    chosen = {
        "model.name": str(a_model(tmp_path / "policy")),
        "problems.names": ["softmax"],
        "problems.per_step": 1,
        "rollout.turns": 1,
        "rollout.context_tokens": 1024,
        "sampler": {
            "name": "vllm",
            "sleeps": True,
            "gpus": "1",
            "python": sys.executable,
            "flags": ["--enforce-eager"],
        },
        "mismatch.enabled": False,
        "tracking.trackers": [],
        "judge_device": "recorded",
    }
    config = load_config(TrainConfig, "train", "tiny", flags=chosen)
    assert await train(config, tmp_path / "run", settings) == Summary(2, stopped=False)
    (flags, gpus), *routes = [json.loads(line) for line in log.read_text().splitlines()]
    assert gpus == "1"
    assert " ".join(flags).endswith(
        "--dtype float32 --max-model-len 1024 --gpu-memory-utilization 0.35 --enable-sleep-mode --enforce-eager"
    )
    asked = [path for path, _ in routes if path != "/v1/completions"]
    load = ["/collective_rpc", "/reset_prefix_cache"]
    woken = ["/sleep?level=1", "/wake_up?tags=weights", *load, "/wake_up?tags=kv_cache", "/reset_prefix_cache"]
    assert asked == [*load, *woken, *woken]
    with Store.open(settings.store) as store:
        turns = [turn for each in store.trajectories("run") for turn in each.turns]
    assert sorted(turn.policy_version or 0 for turn in turns) == [0, 0, 1, 1]
    assert all(turn.output_ids and turn.logprobs for turn in turns)
    assert [line["staleness/max"] for line in read(tmp_path / "run" / FILE)] == [0, 0]
    assert sorted(path.name for path in (tmp_path / "run" / "weights").iterdir()) == ["step_000001", "step_000002"]


async def test_a_chat_server_cannot_be_trained(tmp_path: Path) -> None:
    config = load_config(TrainConfig, "train", "tiny", flags={"sampler.name": "http://127.0.0.1:1/v1"})
    with pytest.raises(BadSettings, match="cannot be trained"):
        await train(config, tmp_path / "run", load_settings())
