"""Samplers behind HTTP, against a real server: what is sent, what is tried again, and what each failure is called."""

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drkernel_q.errors import BadModel, BadSettings, NoSampler, PromptTooLong
from drkernel_q.trajectory import Message
from policy.sampler.factory import open_sampler
from policy.sampler.openai import OpenAISampler
from policy.sampler.protocol import Sample, Sampling
from policy.sampler.remote import Patience
from policy.sampler.server import DISTURBED
from policy.sampler.vllm import VllmSampler
from tests.fake_vllm import FakeVllm, serving
from tests.models import a_model

CHAT = (Message(role="user", content="Go."),)
QUICK: dict[str, Any] = {"patience": Patience(tries=4, wait_s=0.01)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_model(tmp_path_factory.mktemp("models") / "a")


@pytest.fixture
def server(folder: Path) -> Iterator[FakeVllm]:
    with serving("policy", root=str(folder)) as server:
        yield server


async def draw(sampler: VllmSampler | OpenAISampler, *seeds: int, **sampling: Any) -> list[Sample]:
    prompt, options = sampler.encode(CHAT), {"max_new_tokens": 100} | sampling
    return await asyncio.gather(*(sampler.sample(prompt, Sampling(seed=seed, **options)) for seed in seeds))


def bodies(server: FakeVllm, path: str = "/v1/completions") -> list[Any]:
    return [body for asked, body in server.asked if asked == path]


async def test_tokens_go_in_and_come_out_as_they_are(server: FakeVllm) -> None:
    async with VllmSampler(urls=[server.url], version=2, **QUICK) as sampler:
        assert (sampler.name, sampler.context_tokens) == ("policy", 1024)
        prompt = sampler.encode(CHAT)
        (sample,) = await draw(sampler, 7, max_new_tokens=100, temperature=0.7)
    (body,) = bodies(server)
    assert body["prompt"] == list(prompt.ids)
    wanted = {"temperature": 0.7, "seed": 7, "max_tokens": 100, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "logprobs": 0}
    assert body | wanted == body
    assert body["return_token_ids"] is True
    assert body["stop_token_ids"] == [1]
    assert sample.output_ids[-1] == 1
    assert sample.logprobs == tuple(-token / 100 for token in sample.output_ids)
    assert (sample.finish_reason, sample.policy_version) == ("stop", 2)
    assert sampler.usage.completion_tokens == len(sample.output_ids)


@pytest.mark.parametrize(
    "trouble",
    [
        [429], [500], [503, 503], [408], ["hang up"],
        ["no choice"], ["no log-probabilities"], ["one log-probability too few"], ["log-probability of NaN"],
        ["log-probability of nothing"], ["no tokens"], ["another prompt"], ["aborted"],
    ],
    ids=str,
)  # fmt: skip
async def test_what_may_pass_is_tried_again(server: FakeVllm, trouble: list[Any]) -> None:
    async with VllmSampler(urls=[server.url], **QUICK) as sampler:
        expected = await draw(sampler, 1)
        server.trouble = list(trouble)
        assert await draw(sampler, 1) == expected
        server.trouble = [trouble[0]] * 10
        with pytest.raises(NoSampler):
            await draw(sampler, 1)
        assert len(server.trouble) == 6, "every try is one request"


async def test_a_request_that_is_wrong_is_not_tried_again(server: FakeVllm) -> None:
    async with VllmSampler(urls=[server.url], **QUICK) as sampler:
        with pytest.raises(PromptTooLong):
            await draw(sampler, 1, max_new_tokens=1024)
        assert bodies(server) == []
        server.trouble = [400]
        with pytest.raises(PromptTooLong, match="maximum context length"):
            await draw(sampler, 1)
        server.trouble = [422, 401]
        with pytest.raises(BadModel, match="refuses the request"):
            await draw(sampler, 1)
        with pytest.raises(BadSettings, match="does not take the key"):
            await draw(sampler, 1)
        server.model = "another"
        with pytest.raises(BadModel, match="no such model"):
            await draw(sampler, 1)


async def test_a_server_of_another_model_or_none_is_found_out_at_once(server: FakeVllm) -> None:
    with pytest.raises(BadModel, match="no model `other`; it has policy"):
        async with VllmSampler("other", urls=[server.url], **QUICK):
            pass
    with pytest.raises(NoSampler, match="does not answer"):
        async with VllmSampler(urls=["http://127.0.0.1:9"], **QUICK):
            pass


@pytest.mark.slow
async def test_servers_share_the_work_and_one_that_is_gone_is_no_loss(folder: Path, server: FakeVllm) -> None:
    with serving("policy", root=str(folder)) as other:
        server.latency_s = other.latency_s = 0.02
        async with VllmSampler(urls=[server.url, other.url], **QUICK) as sampler:
            expected = await draw(sampler, *range(20))
            assert len(bodies(server)) == len(bodies(other)) == 10
            other.trouble = ["hang up"] * 1000
            assert await draw(sampler, *range(4)) == expected[:4]


async def test_weights_are_loaded_between_completions_and_the_cache_is_forgotten(server: FakeVllm) -> None:
    async with VllmSampler(urls=[server.url], version=1, **QUICK) as sampler:
        before = await draw(sampler, *range(4))
        server.latency_s = 0.02
        under_way = asyncio.create_task(draw(sampler, *range(4)))
        await asyncio.sleep(0.01)
        await sampler.load_weights("weights/step_2", 2)
        assert await under_way == before
        after = await draw(sampler, *range(4))
        assert {sample.policy_version for sample in after} == {2}
        assert [each.output_ids for each in after] != [each.output_ids for each in before]
        paths = [path for path, _ in server.asked]
        assert paths[8:10] == ["/collective_rpc", "/reset_prefix_cache"]
        with pytest.raises(BadSettings, match="from a folder"):
            await sampler.load_weights({}, 3)


async def test_a_pause_holds_completions_back(server: FakeVllm) -> None:
    async with VllmSampler(urls=[server.url], **QUICK) as sampler:
        await sampler.pause()
        assert server.paused
        waiting = asyncio.create_task(draw(sampler, 1))
        await asyncio.sleep(0.02)
        assert bodies(server) == []
        await sampler.resume()
        assert not server.paused
        await waiting


async def test_a_server_rests_until_it_has_weights_and_takes_its_cache_last(server: FakeVllm) -> None:
    async with VllmSampler(urls=[server.url], **QUICK) as wakeful:
        await wakeful.rest()
        assert server.asked == []
    async with VllmSampler(urls=[server.url], sleeps=True, **QUICK) as sampler:
        await sampler.rest()
        await sampler.rest()
        waiting = asyncio.create_task(draw(sampler, 1))
        await asyncio.sleep(0.02)
        assert bodies(server) == []
        await sampler.load_weights("weights/step_2", 2)
        (sample,) = await waiting
        assert sample.policy_version == 2
        assert [path for path, _ in server.asked] == [
            "/sleep?level=1",
            "/wake_up?tags=weights",
            "/collective_rpc",
            "/reset_prefix_cache",
            "/wake_up?tags=kv_cache",
            "/reset_prefix_cache",
            "/v1/completions",
        ]
        await sampler.load_weights("weights/step_3", 3)
        assert [path for path, _ in server.asked][7:] == ["/collective_rpc", "/reset_prefix_cache"]


def started(folder: Path, *flags: str) -> VllmSampler:
    return VllmSampler(folder, command=[sys.executable, "-m", "tests.fake_vllm", *flags], **QUICK)


@pytest.mark.slow
async def test_a_server_of_ours_that_dies_is_started_again_with_its_weights(folder: Path, tmp_path: Path) -> None:
    async with started(folder) as sampler:
        expected = await draw(sampler, 1, 2)
        await sampler.load_weights("weights/step_2", 2)
        later = await draw(sampler, 1, 2)
    trouble = ["--trouble", json.dumps([None, "die"]), "--once", str(tmp_path / "once")]
    async with started(folder, *trouble) as sampler:
        await sampler.load_weights("weights/step_2", 2)
        assert await draw(sampler, 1) + await draw(sampler, 2) == later
        (endpoint,) = sampler._endpoints
        assert endpoint.server is not None
        assert endpoint.server.deaths == 1
        process = endpoint.server._process
    assert process is not None
    assert process.poll() is not None, "the server ends with the sampler"
    assert [each.output_ids for each in expected] != [each.output_ids for each in later]


@pytest.mark.slow
async def test_weights_whose_output_layer_is_the_embedding_need_a_new_start(folder: Path, tmp_path: Path) -> None:
    tied = a_model(tmp_path / "tied", tied=True)
    async with started(tied) as fresh:
        expected = await draw(fresh, 1, 2)
    async with started(folder) as sampler:
        (endpoint,) = sampler._endpoints
        await sampler.load_weights(tied, 1)
        assert endpoint.server is not None
        assert (endpoint.server.model, endpoint.server.deaths) == (str(tied), 0)
        assert ids(await draw(sampler, 1, 2)) == ids(expected)
        assert endpoint.server._process is not None
        endpoint.server._process.kill()
        assert ids(await draw(sampler, 1, 2)) == ids(expected)
        assert endpoint.server.deaths == 1


@pytest.mark.slow
async def test_a_new_start_that_gives_the_output_layer_weights_of_its_own_is_the_last(
    folder: Path, tmp_path: Path
) -> None:
    tied, later = a_model(tmp_path / "tied", tied=True), a_model(tmp_path / "later", seed=2)
    first = shutil.copytree(folder, tmp_path / "first")
    async with started(tied) as sampler:
        (endpoint,) = sampler._endpoints
        assert endpoint.server is not None
        await sampler.load_weights(first, 1)
        process = endpoint.server._process
        await sampler.load_weights(later, 2)
        assert endpoint.server._process is process, "weights were swapped in place"
        async with started(later) as fresh:
            assert ids(await draw(sampler, 1, 2)) == ids(await draw(fresh, 1, 2))
        shutil.rmtree(first)
        assert process is not None
        process.kill()
        await draw(sampler, 1, 2)
        assert (endpoint.server.model, endpoint.server.deaths) == (str(later), 1), "what it began with may be gone"


async def test_a_server_that_was_given_is_warned_of_where_the_output_layer_is_the_embedding(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tied = a_model(tmp_path / "tied", tied=True)
    for root, warned in ((folder, False), (tied, True)):
        caplog.clear()
        with serving("policy", root=str(root)) as server:
            async with VllmSampler(urls=[server.url], **QUICK) as sampler:
                await sampler.load_weights(folder, 1)
        assert ("may keep the output layer" in caplog.text) is warned


def ids(samples: list[Sample]) -> list[tuple[int, ...]]:
    return [sample.output_ids for sample in samples]


@pytest.mark.slow
async def test_a_server_that_does_not_start_says_why(folder: Path) -> None:
    words = [sys.executable, "-c", "raise SystemExit('no memory for the cache')"]
    with pytest.raises(NoSampler, match=r"ended with code 1; its log .* ends: no memory for the cache"):
        async with VllmSampler(folder, command=words, **QUICK):
            pass
    with pytest.raises(NoSampler, match="cannot be started"):
        async with VllmSampler(folder, command=["/nowhere/python"], **QUICK):
            pass


@pytest.mark.slow
async def test_a_server_that_was_disturbed_while_it_measured_memory_is_started_again(
    folder: Path, tmp_path: Path
) -> None:
    ends = f"raise SystemExit('AssertionError: {DISTURBED}. Initial free memory 1 GiB, current free memory 2 GiB.')"
    once = tmp_path / "once"
    disturbed = f"import pathlib, runpy; once = pathlib.Path({str(once)!r})\nif once.exists(): once.unlink(); {ends}\n"
    command = [sys.executable, "-c", f"{disturbed}runpy.run_module('tests.fake_vllm', run_name='__main__')"]
    once.touch()
    async with VllmSampler(folder, command=command, **QUICK) as sampler:
        (endpoint,) = sampler._endpoints
        assert endpoint.server is not None
        assert endpoint.server.deaths == 1
        assert await draw(sampler, 1)
    always = [sys.executable, "-c", ends]
    with pytest.raises(NoSampler, match=DISTURBED):
        async with VllmSampler(folder, command=always, **QUICK):
            pass


async def test_a_chat_server_gives_text_and_costs(server: FakeVllm) -> None:
    url = f"{server.url}/chat/v1"
    async with OpenAISampler(url=url, key="k", prices=(1.0, 20.0), **QUICK) as sampler:
        assert sampler.name == "policy"
        samples = await draw(sampler, 1, 2, max_new_tokens=50)
        assert [sample.text for sample in samples] == ["Go. 1", "Go. 2"]
        assert {(sample.output_ids, sample.logprobs, sample.policy_version) for sample in samples} == {((), (), None)}
        assert (sampler.usage.requests, sampler.usage.prompt_tokens, sampler.usage.completion_tokens) == (2, 200, 20)
        assert sampler.usage.cost == pytest.approx(2 * (100 * 1.0 + 10 * 20.0) / 1e6)
        server.trouble = [500, 429, "hang up"]
        assert (await draw(sampler, 3))[0].text == "Go. 3"
        server.trouble = [500] * 10
        with pytest.raises(NoSampler, match=r"does not answer: .*as ordered"):
            await draw(sampler, 3)
        with pytest.raises(PromptTooLong):
            await draw(sampler, 3, max_new_tokens=10**6)
    with pytest.raises(BadModel, match="no model `gpt`; it has policy"):
        async with OpenAISampler("gpt", url=url, **QUICK):
            pass


async def test_openai_itself_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(BadSettings, match="OPENAI_API_KEY"):
        async with OpenAISampler("gpt"):
            pass


async def test_addresses_say_what_they_are(server: FakeVllm) -> None:
    vllm, chat = open_sampler(f"{server.url},{server.url}/"), open_sampler(f"{server.url}/chat/v1#policy")
    assert (type(vllm), type(chat)) == (VllmSampler, OpenAISampler)
    for sampler in (vllm, chat):
        async with sampler:
            assert sampler.name == "policy"
    assert isinstance(open_sampler("vllm:folder"), VllmSampler)
    assert isinstance(open_sampler("openai:gpt"), OpenAISampler)
