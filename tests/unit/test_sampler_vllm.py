"""The vLLM sampler against a real vLLM, and against the transformers sampler on the same weights."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM

from drkernel_q.trajectory import Message
from policy.sampler.protocol import Sample, Sampling
from policy.sampler.server import COMMAND
from policy.sampler.transformers import TransformersSampler
from policy.sampler.vllm import VllmSampler
from policy.training.learner import Learner
from policy.training.publisher import SharedFolder
from policy.training.weights import WeightFolder
from tests.models import a_model, recomputed
from tests.need import vllm_python
from tests.training import a_config

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(580), pytest.mark.slow]

CHATS = [
    (Message(role="user", content=text),)
    for text in ("x", "import torch", "Write a kernel for\n" * 9, "def f(x):\n    return x\n" * 3, "y = tl.load(x)")
]
FLAGS = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_model(tmp_path_factory.mktemp("models") / "a")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


def serving(folder: Path) -> VllmSampler:
    return VllmSampler(folder, version=1, options=FLAGS, command=[vllm_python() or "", *COMMAND[1:]])


@pytest.fixture
async def served(folder: Path) -> AsyncIterator[VllmSampler]:
    async with serving(folder) as sampler:
        yield sampler


async def draw(sampler: VllmSampler | TransformersSampler, temperature: float) -> list[Sample]:
    samplings = (Sampling(seed=seed, max_new_tokens=48, temperature=temperature) for seed in range(len(CHATS)))
    return await asyncio.gather(
        *(sampler.sample(sampler.encode(chat), each) for chat, each in zip(CHATS, samplings, strict=True))
    )


def same(left: list[Sample], right: list[Sample]) -> bool:
    return [(each.output_ids, each.text, each.finish_reason) for each in left] == [
        (each.output_ids, each.text, each.finish_reason) for each in right
    ]


async def test_one_model_says_the_same_through_both(
    served: VllmSampler, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with TransformersSampler(folder, device="cpu") as own:
        assert [served.encode(chat) for chat in CHATS] == [own.encode(chat) for chat in CHATS]
        greedy = await draw(served, 0.0)
        assert same(greedy, await draw(own, 0.0))
    worst = {0.0: worst_error(served, greedy, folder, 1.0)}
    for temperature in (1.0, 0.7):
        drawn = await draw(served, temperature)
        worst[temperature] = worst_error(served, drawn, folder, temperature)
        assert same(drawn, await draw(served, temperature)), "a seed draws the same again"
    with capsys.disabled():
        print(f"\nlargest error of a log-probability, by temperature: {worst}")
    assert max(worst.values()) < 1e-4

    other = a_model(tmp_path / "b", seed=1)
    await served.load_weights(other, 2)
    swapped = await draw(served, 0.0)
    async with TransformersSampler(other, device="cpu") as own:
        assert same(swapped, await draw(own, 0.0))
    assert {sample.policy_version for sample in swapped} == {2}

    (endpoint,) = served._endpoints
    assert endpoint.server is not None
    assert endpoint.server._process is not None
    os.kill(endpoint.server._process.pid, signal.SIGKILL)
    assert same(await draw(served, 0.0), swapped), "a server that died comes back with the weights that it had"
    await served.pause()
    await served.resume()
    assert same(await draw(served, 0.0), swapped)


async def test_an_output_layer_that_is_the_embedding_is_trained_with_one_new_start(tmp_path: Path) -> None:
    tied = a_model(tmp_path / "tied", tied=True)
    learner = Learner(AutoModelForCausalLM.from_pretrained(tied), a_config(), Accelerator(cpu=True))
    weights = WeightFolder(tmp_path / "weights")
    async with serving(tied) as sampler:
        (endpoint,) = sampler._endpoints
        assert endpoint.server is not None
        publisher = SharedFolder(weights, learner, [sampler], timeout_s=300)
        processes = []
        for version in (1, 2, 3):
            with torch.no_grad():
                learner.model.get_input_embeddings().weight.mul_(-1.5)  # type: ignore[union-attr, operator]
            await publisher.publish(version)
            processes.append(endpoint.server._process)
            drawn = await draw(sampler, 1.0)
            learner.model.save_pretrained(tmp_path / "now")  # type: ignore[operator]
            shutil.copytree(tied, tmp_path / "now", ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
            assert worst_error(sampler, drawn, tmp_path / "now", 1.0) < 1e-4
    assert processes[0] is processes[1] is processes[2]


def worst_error(sampler: VllmSampler, samples: list[Sample], folder: Path, temperature: float) -> float:
    errors = []
    for chat, sample in zip(CHATS, samples, strict=True):
        expected = recomputed(folder, sampler.encode(chat).ids, sample.output_ids, temperature).tolist()
        errors += [abs(left - right) for left, right in zip(sample.logprobs, expected, strict=True)]
    return max(errors)
