"""Scores of a real transformers model, the mismatch of a real rollout, and gradients over two processes."""

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from policy.method.batch import TurnRow, collate, micro_batches
from policy.method.logprob import Scorer, score
from policy.method.loss import LossConfig, normaliser, policy_loss
from policy.method.mismatch import decide, log_ratios
from tests.tiny_policy import TinyModel, gradient, some_rows

pytestmark = pytest.mark.slow

TEMPERATURE = 0.7


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on busy cores take twenty times what these sums take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def qwen() -> Any:
    """A Qwen3 of two layers with random weights, peaked as trained ones are."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=64, tie_word_embeddings=False, **shape, **heads)).eval()
    with torch.no_grad():
        model.lm_head.weight *= 20
    return model


def rollout(model: Any) -> list[TurnRow]:
    """Sample as an engine does, and keep its own log-probabilities."""
    rows = []
    for seed in range(4):
        torch.manual_seed(seed)
        prompt = torch.randint(1, 64, (1, 3 + 2 * seed))
        drawn = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=0,
            top_p=1.0,
            max_new_tokens=20,
            pad_token_id=0,
            eos_token_id=63,
            return_dict_in_generate=True,
            output_scores=True,
        )
        output = drawn.sequences[0, prompt.shape[1] :]
        logs = torch.stack(drawn.scores)[:, 0].log_softmax(dim=-1)
        logprobs = logs.gather(-1, output[:, None])[:, 0]
        rows.append(TurnRow(tuple(prompt[0].tolist()), tuple(output.tolist()), tuple(logprobs.tolist()), 1.0))
    return rows


def test_scores_are_those_of_the_models_own_logits(qwen: Any) -> None:
    batch = collate(rollout(qwen))
    with torch.no_grad():
        logits = qwen(input_ids=batch.ids, attention_mask=batch.attention).logits[:, :-1] / TEMPERATURE
        expected = logits.log_softmax(-1).gather(-1, batch.ids[:, 1:, None])[..., 0]
        found = score(qwen, batch, TEMPERATURE, 7)
    torch.testing.assert_close(found.logprobs[batch.sampled], expected[batch.sampled], rtol=1e-5, atol=1e-5)


def test_a_rollout_in_the_same_precision_is_kept_and_one_at_another_temperature_is_not(qwen: Any) -> None:
    rows = rollout(qwen)
    batch = collate(rows)
    for temperature, accepted in ((TEMPERATURE, True), (1.0, False)):
        with torch.no_grad():
            trained = score(qwen, batch, temperature).logprobs
        for i, row in enumerate(rows):
            (found,) = decide([log_ratios(trained[i][batch.sampled[i]].numpy(), np.array(row.sampler_logprobs))])
            assert found.kept is accepted
            if accepted:
                assert abs(found.mean) < 1e-5


def test_an_adapter_is_trained_through_the_scores(qwen: Any) -> None:
    from peft import LoraConfig, get_peft_model

    batch = collate(rollout(qwen))
    before = score(qwen, batch, TEMPERATURE).logprobs.detach()
    adapted = get_peft_model(qwen, LoraConfig(r=2, target_modules=["q_proj"]))
    logprobs = score(adapted, batch, TEMPERATURE).logprobs
    torch.testing.assert_close(logprobs.detach(), before)
    policy_loss(logprobs, before, batch, 4.0).loss.backward()
    trained = {name for name, weight in adapted.named_parameters() if weight.grad is not None}
    assert trained
    assert all("lora_" in name for name in trained)
    adapted.unload()


def averaged(model: TinyModel) -> Scorer:
    """Whole on every rank, as DDP has it."""
    return DistributedDataParallel(Scorer(model))  # type: ignore[return-value]


def sharded(model: TinyModel) -> Scorer:
    """In shards, as FSDP2 has it; logits in chunks that the backward pass makes again."""
    scorer = Scorer(model, chunk_tokens=5)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.decoder.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(scorer, mesh=mesh)
    return scorer


def learn_share(rank: int, ranks: int, folder: str) -> None:
    """One process of several: its micro-batches of the step, gradients averaged over the ranks after the last."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    rows, config = some_rows(7), LossConfig()
    for wrap in (averaged, sharded):
        model = TinyModel()
        scorer: Any = wrap(model)
        batches = micro_batches(rows, 30, rank, ranks)
        for number, batch in enumerate(batches, start=1):
            if wrap is averaged:
                scorer.require_backward_grad_sync = number == len(batches)
            else:
                scorer.set_requires_gradient_sync(number == len(batches))
            z = normaliser(rows, config)
            found = policy_loss(scorer(batch).logprobs, batch.sampler_logprobs, batch, z, config, replicas=ranks)
            found.loss.backward()
        gradients: list[Any] = [weight.grad for weight in model.parameters()]
        whole = [each.full_tensor() if wrap is sharded else each for each in gradients]
        torch.save(torch.cat([each.flatten() for each in whole]), f"{folder}/{wrap.__name__}-{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_have_the_gradient_of_one(tmp_path: Path) -> None:
    other = multiprocessing.get_context("spawn").Process(target=learn_share, args=(1, 2, str(tmp_path)))
    other.start()
    learn_share(0, 2, str(tmp_path))
    other.join()
    assert other.exitcode == 0
    expected = gradient(some_rows(7))
    for wrap in (averaged, sharded):
        for rank in range(2):
            found = torch.load(tmp_path / f"{wrap.__name__}-{rank}.pt")
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
