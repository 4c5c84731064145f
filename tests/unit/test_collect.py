"""Collection: what is counted, that a run goes on only as it was begun, and that kill -9 changes nothing."""

import asyncio
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from drkernel_q.errors import BadSettings
from drkernel_q.store import Store
from policy.config import load_config, presets
from policy.rollouts.collect import CollectConfig, Collection, Tally, collect
from policy.sampler.scripted import ScriptedSampler
from tests.collecting import SMALL, a_collection
from tests.rollouts import FakeJudge, by_seed
from tests.values import MATMUL, SOFTMAX


async def collected(store: Store, config: CollectConfig = SMALL, **judge: Any) -> Tally:
    return await collect([SOFTMAX, MATMUL], a_collection(store, config, **judge))


async def test_everything_is_counted_once(store: Store) -> None:
    tally = await collected(store)
    turns = [turn for trajectory in store.trajectories("cold") for turn in trajectory.turns]
    assert (tally.wanted, tally.finished, tally.turns, tally.resumed) == (8, 8, 40, 0)
    assert tally.kernels == tally.correct == tally.honest == sum(turn.kernel is not None for turn in turns)
    assert tally.tokens == sum(len(turn.output_ids) for turn in turns)
    speedups = [turn.evaluation.speedup or 0.0 for turn in turns if turn.evaluation]
    assert tally.best_speedup == max(speedups)
    assert tally.line(3).startswith("8 of 8 trajectories, 40 turns: ")
    assert tally.line(3).endswith("3 being judged")
    again = await collected(store)
    assert (again.turns, again.resumed, again.tokens) == (40, 40, 0)


async def test_kernels_that_could_not_be_judged_are_not_wrong(store: Store) -> None:
    tally = await collected(store, failing=True)
    assert (tally.unjudged, tally.correct, tally.best_speedup) == (tally.kernels, 0, None)


async def test_answers_that_fit_into_no_context_are_no_collection(store: Store) -> None:
    sampling = SMALL.rollout.sampling.model_copy(update={"max_new_tokens": 10**6})
    config = SMALL.model_copy(update={"rollout": SMALL.rollout.model_copy(update={"sampling": sampling})})
    with pytest.raises(BadSettings, match="Nothing was collected"):
        await collected(store, config)


@pytest.mark.slow
async def test_a_run_goes_on_only_as_it_was_begun(store: Store) -> None:
    await collected(store)
    more = SMALL.model_copy(update={"rollout": SMALL.rollout.model_copy(update={"group_size": 5})})
    assert (await collected(store, more)).turns == 50
    for change, name in (({"seed": 4}, "seed"), ({"model": "other"}, "model")):
        with pytest.raises(BadSettings, match=f"begun with {name} = "):
            a_collection(store, SMALL.model_copy(update=change))
    longer = SMALL.model_copy(update={"rollout": SMALL.rollout.model_copy(update={"turns": 6})})
    with pytest.raises(BadSettings, match=r"rollout\.turns = 5, not 6"):
        a_collection(store, longer)
    store.add_run("other", kind="train", settings={})
    with pytest.raises(BadSettings, match="is one of `drkq train`"):
        Collection(ScriptedSampler(by_seed), FakeJudge(), SMALL, run="other", store=store)


def test_presets_are_collections_of_five_turns() -> None:
    for name in presets("collect"):
        flags = {"model": "scripted:copy", "problems": ("softmax",)}
        assert load_config(CollectConfig, "collect", name, flags=flags).rollout.turns == 5
    assert presets("collect") == ["paper", "small"]


def stored_turns(url: str) -> int:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM turns")).scalar_one())
    finally:
        engine.dispose()


def run_until(url: str, turns: int) -> int:
    """Collect in a process of its own, and kill it from outside once so many turns are stored; return how many are."""
    child = os.fork()
    if child == 0:
        try:
            with Store.open(url) as store:
                asyncio.run(collect([SOFTMAX, MATMUL], a_collection(store, latency_s=0.02)))
        finally:
            os._exit(0)
    try:
        while os.waitpid(child, os.WNOHANG)[0] == 0 and stored_turns(url) < turns:
            time.sleep(0.005)
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return stored_turns(url)


@pytest.mark.slow
def test_kill_9_at_three_random_moments_changes_nothing(tmp_path: Path) -> None:
    moments = sorted(random.SystemRandom().sample(range(1, 36), 3))
    urls = [f"sqlite:///{tmp_path / name}.sqlite" for name in ("killed", "whole")]
    for url in urls:
        with Store.open(url) as store:
            store.upgrade()
    stored = [run_until(urls[0], moment) for moment in moments]
    assert stored == sorted(stored), moments
    with Store.open(urls[0]) as killed, Store.open(urls[1]) as whole:
        tally = asyncio.run(collected(killed))
        assert tally.resumed == stored[-1], moments
        asyncio.run(collected(whole))
        assert contents(killed) == contents(whole), moments
        assert len(contents(whole)) == 8


def contents(store: Store) -> list[str]:
    """Trajectories with all that is in them, in an order that has nothing to do with when they were stored."""
    return sorted(trajectory.model_dump_json() for trajectory in store.trajectories("cold"))
