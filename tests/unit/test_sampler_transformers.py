"""The transformers sampler: what it draws is what the model says, whatever is in the batch beside it."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from drkernel_q.errors import BadModel, NoSampler, PromptTooLong
from drkernel_q.trajectory import Message
from policy.model.model import load_model
from policy.sampler.engine import Engine, Request
from policy.sampler.protocol import Sample, Sampling
from policy.sampler.transformers import TransformersSampler
from tests.models import a_model, recomputed

CHATS = [
    (Message(role="user", content=text),)
    for text in ("x", "import torch", "Write a kernel for\n" * 9, "def f(x):\n    return x\n" * 3, "y = tl.load(x)")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_model(tmp_path_factory.mktemp("models") / "a")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_model(tmp_path_factory.mktemp("models") / "b", seed=1)


@pytest.fixture
async def sampler(folder: Path) -> AsyncIterator[TransformersSampler]:
    async with TransformersSampler(folder, device="cpu", version=3) as sampler:
        yield sampler


async def draw(sampler: TransformersSampler, *seeds: int, **sampling: Any) -> list[Sample]:
    """A completion for each seed, all at once, of chats of different lengths."""
    options = {"max_new_tokens": 24} | sampling
    return await asyncio.gather(
        *(sampler.sample(sampler.encode(CHATS[seed % len(CHATS)]), Sampling(seed=seed, **options)) for seed in seeds)
    )


def ids(samples: list[Sample]) -> list[tuple[int, ...]]:
    """What was drawn; the last bits of log-probabilities follow from what else is in the batch."""
    return [sample.output_ids for sample in samples]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_log_probabilities_are_those_of_a_forward_pass(
    sampler: TransformersSampler, folder: Path, temperature: float
) -> None:
    samples = await draw(sampler, *range(8), temperature=temperature)
    assert len({sample.output_ids for sample in samples}) == 8
    for seed, sample in enumerate(samples):
        prompt = sampler.encode(CHATS[seed % len(CHATS)]).ids
        expected = recomputed(folder, prompt, sample.output_ids, temperature)
        assert torch.tensor(sample.logprobs) == pytest.approx(expected, abs=1e-4)
        assert sample.policy_version == 3


@pytest.mark.slow
async def test_a_completion_depends_on_its_seed_and_not_on_the_batch(
    folder: Path, sampler: TransformersSampler
) -> None:
    together = await draw(sampler, *range(10))
    assert [(await draw(sampler, seed))[0].output_ids for seed in range(10)] == ids(together)
    async with TransformersSampler(folder, device="cpu", batch_rows=2, batch_tokens=150) as narrow:
        assert ids(await draw(narrow, *range(10))) == ids(together)
    lengths = await asyncio.gather(*(draw(sampler, seed, max_new_tokens=3 * seed + 1) for seed in range(10)))
    for (short,), whole in zip(lengths, together, strict=True):
        assert short.output_ids[:24] == whole.output_ids[: len(short.output_ids)]


async def test_greedy_is_what_generate_gives(sampler: TransformersSampler, folder: Path) -> None:
    model, tokenizer = load_model(folder)
    samples = await draw(sampler, *range(len(CHATS)), temperature=0.0)
    for chat, sample in zip(CHATS, samples, strict=True):
        prompt = torch.tensor([sampler.encode(chat).ids])
        whole = model.generate(prompt, do_sample=False, max_new_tokens=24, attention_mask=torch.ones_like(prompt))
        assert list(sample.output_ids) == whole[0, prompt.shape[1] :].tolist()
        assert sample.logprobs == pytest.approx(
            recomputed(folder, tuple(prompt[0].tolist()), sample.output_ids, 1.0), abs=1e-4
        )
        assert sample.text == tokenizer.decode(sample.output_ids, skip_special_tokens=True)


async def test_completions_end_at_the_end_of_a_turn_or_at_their_length(sampler: TransformersSampler) -> None:
    samples = await draw(sampler, *range(40), max_new_tokens=12, temperature=3.0)
    eos = sampler.encode(CHATS[0]).ids[-2]
    assert {sample.finish_reason for sample in samples} == {"stop", "length"}
    for sample in samples:
        assert (sample.output_ids[-1] == eos) == (sample.finish_reason == "stop")
        assert eos not in sample.output_ids[:-1]
        assert "<|end|>" not in sample.text
    assert sampler.usage.completion_tokens == sum(len(sample.output_ids) for sample in samples)


async def test_what_does_not_fit_is_refused(sampler: TransformersSampler, folder: Path) -> None:
    assert sampler.context_tokens == 1024
    prompt = sampler.encode(CHATS[0])
    with pytest.raises(PromptTooLong):
        await sampler.sample(prompt, Sampling(max_new_tokens=1024))
    async with TransformersSampler(folder, device="cpu", context_tokens=30) as short:
        assert len((await short.sample(prompt, Sampling(max_new_tokens=30 - prompt.tokens))).output_ids) <= 30
        with pytest.raises(PromptTooLong):
            await short.sample(prompt, Sampling(max_new_tokens=31 - prompt.tokens))


async def test_weights_are_swapped_between_completions(sampler: TransformersSampler, folder: Path, other: Path) -> None:
    before = await draw(sampler, *range(4))
    under_way = asyncio.create_task(draw(sampler, *range(4)))
    for _ in range(4):
        await asyncio.sleep(0)
    await sampler.load_weights(other, 4)
    mixed = await under_way
    async with TransformersSampler(other, device="cpu", version=4) as fresh:
        expected = await draw(fresh, *range(4))
    assert ids(await draw(sampler, *range(4))) == ids(expected)
    assert {sample.policy_version for sample in expected} == {4}
    # Whether a completion had begun by then is a matter of time; it is of one version in any case.
    wanted = {3: ids(before), 4: ids(expected)}
    assert ids(mixed) == [wanted[each.policy_version or 0][place] for place, each in enumerate(mixed)]
    await sampler.load_weights(load_model(folder)[0].state_dict(), 5)
    assert ids(await draw(sampler, *range(4))) == ids(before)
    await sampler.load_weights(None, 6)
    assert sampler.policy_version == 6


async def test_an_output_layer_that_is_the_embedding_is_swapped_with_it(tmp_path: Path) -> None:
    first, second = (a_model(tmp_path / str(seed), seed=seed, tied=True) for seed in (0, 1))
    async with TransformersSampler(first, device="cpu") as sampler, TransformersSampler(second, device="cpu") as fresh:
        await sampler.load_weights(second, 1)
        assert ids(await draw(sampler, *range(4))) == ids(await draw(fresh, *range(4)))


async def test_weights_of_another_model_are_refused(sampler: TransformersSampler, tmp_path: Path) -> None:
    state = load_model(sampler.name)[0].state_dict()
    name = "model.norm.weight"
    for wrong, said in [
        ({key: value for key, value in state.items() if key != name}, name),
        (state | {"more": state[name]}, "more"),
        (state | {name: state[name][:3]}, "size mismatch"),
    ]:
        with pytest.raises(BadModel, match=said):
            await sampler.load_weights(wrong, 4)
    with pytest.raises(BadModel, match="no model"):
        await sampler.load_weights(tmp_path, 4)
    assert sampler.policy_version == 3


async def test_a_completion_that_nobody_wants_leaves_the_batch(sampler: TransformersSampler) -> None:
    long = asyncio.create_task(draw(sampler, 1, max_new_tokens=900, temperature=0.0))
    short = await draw(sampler, 2)
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    assert ids(await draw(sampler, 2)) == ids(short)


async def test_a_model_that_fails_is_told_to_everybody(folder: Path) -> None:
    model, tokenizer = load_model(folder)
    async with TransformersSampler((model, tokenizer)) as sampler:
        prompt = sampler.encode(CHATS[0])
        model.forward = _broken
        with pytest.raises(NoSampler, match="the driver is gone"):
            await sampler.sample(prompt, Sampling(max_new_tokens=4))
        with pytest.raises(NoSampler, match="the driver is gone"):
            await sampler.sample(prompt, Sampling(max_new_tokens=4))
    with pytest.raises(NoSampler):
        await sampler.sample(prompt, Sampling(max_new_tokens=4))


def _broken(*_: object, **__: object) -> None:
    raise RuntimeError("the driver is gone")


async def test_a_batch_that_is_too_large_for_memory_is_made_smaller(folder: Path, sampler: TransformersSampler) -> None:
    model, tokenizer = load_model(folder)
    forward, largest = model.forward, list[int]()

    def limited(*arguments: Any, **options: Any) -> Any:
        largest.append(len(options["input_ids"]))
        if largest[-1] > 3:
            raise torch.OutOfMemoryError("too large")
        return forward(*arguments, **options)

    model.forward = limited
    expected = await draw(sampler, *range(12))
    async with TransformersSampler((model, tokenizer)) as small:
        drawn = await draw(small, *range(12))
    assert ids(drawn) == ids(expected)
    assert max(largest) > 3


class Fixed(torch.nn.Module):
    """A model that says the same of every prompt."""

    device = torch.device("cpu")

    def __init__(self, probabilities: list[float]) -> None:
        super().__init__()
        self.logits = torch.tensor(probabilities).log()

    def forward(self, input_ids: torch.Tensor, **_: object) -> Any:
        logits = self.logits.expand(*input_ids.shape, -1)
        return type("Output", (), {"logits": logits})


@pytest.mark.slow
def test_tokens_are_as_frequent_as_they_are_likely() -> None:
    shares = [0.0, 0.5, 0.0, 0.3, 0.15, 0.05]
    engine = Engine(Fixed(shares), {0}, batch_rows=5000, batch_tokens=10**6)  # type: ignore[arg-type]
    requests = [Request([0], Sampling(seed=seed, max_new_tokens=1), done=lambda _: None) for seed in range(4000)]
    for request in requests:
        engine.submit(request)
    while not engine.idle:
        engine.step()
    drawn = [request.output_ids[0] for request in requests]
    for token, share in enumerate(shares):
        assert drawn.count(token) / 4000 == pytest.approx(share, abs=4 * (share * (1 - share) / 4000) ** 0.5)
    assert random.Random(0).random() > 0.5, "the first seed draws from the upper half"
