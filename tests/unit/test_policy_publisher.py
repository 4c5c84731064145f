"""Weights reach their readers: written by the learner, loaded, acknowledged, and cleared away."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from drkernel_q.errors import NoSampler
from policy.sampler.scripted import ScriptedSampler
from policy.training.learner import Learner
from policy.training.publisher import Copied, InProcess, SharedFolder
from policy.training.weights import WeightFolder
from tests.training import a_config, a_model


class Reader:
    """A sampler of another process, which takes its time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.loaded: list[tuple[int, dict[str, torch.Tensor]]] = []

    async def load_weights(self, source: Path | None, version: int) -> None:
        assert source is not None
        await asyncio.sleep(0.01)
        self.loaded.append((version, load_file(source / "model.safetensors")))


def a_learner() -> Learner:
    return Learner(a_model(), a_config(), Accelerator(cpu=True))


async def test_every_reader_has_the_version_when_it_is_published(tmp_path: Path) -> None:
    learner, folder = a_learner(), WeightFolder(tmp_path)
    readers = [Reader("http://a:8000/v1"), Reader("http://b:8000/v1")]
    publisher = SharedFolder(folder, learner, readers, timeout_s=20)
    for version in range(4):
        with torch.no_grad():
            learner.model.lm_head.weight.fill_(version)  # type: ignore[operator, union-attr]
        await publisher.publish(version)
        for reader in readers:
            number, state = reader.loaded[-1]
            assert number == version
            assert bool((state["lm_head.weight"] == version).all())
        assert folder.readers(version) == {"http://a:8000/v1", "http://b:8000/v1"}
    assert [published.version for published in folder.versions()] == [2, 3]
    assert (tmp_path / "step_000003" / "config.json").exists()


async def test_an_output_layer_that_is_the_embedding_is_published_as_one_of_its_own(tmp_path: Path) -> None:
    """Then a server that has begun with such weights needs no new start for later ones."""
    config = a_model().config
    config.tie_word_embeddings = True
    learner = Learner(AutoModelForCausalLM.from_config(config), a_config(), Accelerator(cpu=True))
    reader = Reader("a")
    await SharedFolder(WeightFolder(tmp_path), learner, [reader], timeout_s=20).publish(1)
    ((_, state),) = reader.loaded
    assert bool((state["lm_head.weight"] == state["model.embed_tokens.weight"]).all())
    published = AutoModelForCausalLM.from_pretrained(tmp_path / "step_000001")
    assert published.config.tie_word_embeddings is False
    assert learner.model_config.tie_word_embeddings is True
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.equal(published(tokens).logits, learner.model(tokens).logits)


async def test_a_reader_that_fails_ends_the_step(tmp_path: Path) -> None:
    class Broken(Reader):
        async def load_weights(self, source: Path | None, version: int) -> None:
            raise NoSampler("the server is gone")

    publisher = SharedFolder(WeightFolder(tmp_path), a_learner(), [Reader("a"), Broken("b")], timeout_s=20)
    with pytest.raises(NoSampler, match="the server is gone"):
        await publisher.publish(1)


async def test_a_sampler_of_this_process_only_learns_the_number() -> None:
    sampler = ScriptedSampler(["x"])
    await InProcess(sampler).publish(7)
    assert sampler.policy_version == 7


async def test_a_copy_of_the_weights_is_written_into_and_nothing_else_moves() -> None:
    class Reader:
        version = -1

        async def load_weights(self, source: Mapping[str, torch.Tensor], version: int) -> None:
            self.copy, self.version = {name: tensor.clone() for name, tensor in source.items()}, version

    learner, reader = a_learner(), Reader()
    await Copied(reader, learner).publish(3)
    mine = dict(learner.model.named_parameters())
    assert reader.version == 3
    assert reader.copy.keys() == mine.keys()
    assert all(torch.equal(reader.copy[name], mine[name]) for name in mine)


async def test_those_that_can_are_sent_to_rest(tmp_path: Path) -> None:
    class Sleeper(Reader):
        rested = 0

        async def rest(self) -> None:
            self.rested += 1

    sleeper = Sleeper("a")
    await SharedFolder(WeightFolder(tmp_path), a_learner(), [sleeper, Reader("b")]).make_room()
    assert sleeper.rested == 1
