"""The chain of the claims: which problems and kernels are measured, and how runs then ask for them."""

import ast
import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.claims import kept
from benchmarks.claims.__main__ import _protocol
from benchmarks.claims.measured import key_of, keys
from benchmarks.claims.subset import Choice, conversations, read_subset, subset
from benchmarks.claims.written import Guess, by_quality, covered, listed
from drkernel_q.curriculum import Quality, generate
from drkernel_q.curriculum.operator import OPERATORS
from drkernel_q.evaluation import Outcome, Protocol
from drkernel_q.kernel import Kernel, extract_kernel
from drkernel_q.prompt import fenced
from drkernel_q.reward import RewardConfig, reward
from drkernel_q.store import Store
from drkernel_q.store.export import write_file
from policy.model.model import load_model
from tests.values import a_reply, a_request, an_evaluation


def test_the_subset_begins_with_the_problems_whose_facts_are_recorded() -> None:
    chosen = subset(Choice(levels="123", train=30, heldout=4, longest=100, drawn=True, operators="any"))
    first = list(generate(0, 60))
    assert [each.problem for each in chosen.train] == [each.problem for each in first if each.split == "train"][:30]
    assert [each.problem for each in chosen.heldout] == [each.problem for each in first if each.split == "heldout"][:4]
    for exercise, plain in zip(chosen.heldout, (each for each in first if each.split == "heldout"), strict=False):
        *family, hurried = exercise.solutions
        assert tuple(family) == plain.solutions
        assert hurried.quality is Quality.DECOY
        ast.parse(hurried.kernel.source)
        assert extract_kernel(fenced(hurried.kernel.source, "python")) == hurried.kernel.model_copy(
            update={"name": "kernel"}
        )
    few = subset(Choice(train=3, heldout=0, operators="plain"))
    assert {each.level for each in few.train} == {1}
    assert not any(OPERATORS[name].constants for each in few.train for name in each.chain)


def test_what_is_taught_holds_every_problem_that_is_trained_on_and_none_that_is_held_out() -> None:
    choice = Choice(levels="12", train=6, heldout=2, operators="any", others=10, copies=3)
    chosen = subset(choice)
    rows = list(conversations(chosen, choice))
    names = Counter(row["module_name"] for row in rows)
    taught = {exercise.problem.name for exercise in chosen.train}
    assert all(count == (3 if name in taught else 1) for name, count in names.items())
    assert all(names[each.problem.name] for each in chosen.train)
    assert not any(names[each.problem.name] for each in chosen.heldout)
    assert len(names) == 6 + 10


def test_a_folder_remembers_its_problems(tmp_path: Path) -> None:
    choice = Choice(train=2, heldout=0, operators="any")
    assert not choice.is_of(tmp_path)
    chosen = subset(choice)
    chosen.write(tmp_path)
    choice.write(tmp_path)
    assert read_subset(tmp_path) == chosen
    assert choice.is_of(tmp_path)
    assert not choice._replace(seed=1).is_of(tmp_path)
    assert len(list((tmp_path / "train").glob("*.py"))) == 2


@pytest.mark.slow
def test_the_policy_that_is_kept_is_of_the_problems_that_are_generated_now(tmp_path: Path) -> None:
    kept.restore(tmp_path / "kept")
    chosen = read_subset(tmp_path / "kept")
    rows = [json.loads(line) for line in (tmp_path / "kept" / kept.KERNELS).read_text().splitlines()]
    sources = {each.problem.name: each.problem.source for each in (*chosen.train, *chosen.heldout)}
    assert all(sources[row["problem"]] == row["problem_source"] for row in rows)
    listed_kernels = {(row["problem"], row["kernel_source"]) for row in rows}
    for exercise in (*chosen.train, *chosen.heldout):
        wanted = [each for each in exercise.solutions if each.quality is not Quality.FALLBACK]
        assert {(exercise.problem.name, each.kernel.source) for each in wanted} <= listed_kernels
    policy, tokenizer = load_model(tmp_path / "kept" / kept.MODEL)
    assert policy.num_parameters() < 2**20
    assert tokenizer.encode("@triton.jit")


def test_kernels_are_listed_once_what_is_written_most_first_and_the_rest_of_the_family_last() -> None:
    chosen = subset(Choice(train=1, heldout=1, operators="any"))
    train, heldout = chosen.train[0], chosen.heldout[0].problem.hash
    fused = next(each.kernel.source for each in train.solutions if each.quality is Quality.FUSED)
    one = Counter({(train.problem.hash, fused): 3, (train.problem.hash, "rare"): 1, (heldout, "often"): 900})
    other = Counter({(train.problem.hash, "rare"): 1, (heldout, "often"): 1})
    rows = list(listed(chosen, [one, other]))
    written = [(row["part"], row["kernel_source"], row["share"]) for row in rows if row["share"]]
    assert written == [("heldout", "often", 1.0), ("train", "rare", 0.625), ("train", fused, 0.375)]
    assert len({(row["problem"], row["kernel_source"]) for row in rows}) == len(rows)
    assert rows[3:]
    assert all(row["quality"] for row in rows[3:])
    assert "fallback" not in {row["quality"] for row in rows}
    assert covered(chosen, rows[:1], one) == {"train": 0.0, "heldout": 1.0}
    assert covered(chosen, rows, one) == {"train": 1.0, "heldout": 1.0}
    assert by_quality(chosen, one) == {"train": {"fused1": 0.75, "other": 0.25}, "heldout": {"other": 1.0}}


async def test_a_guess_is_what_a_solution_should_be_and_anything_else_is_wrong() -> None:
    chosen = subset(Choice(train=1, heldout=0, operators="any"))
    problem, judge = chosen.train[0].problem, Guess(chosen)
    for solution in chosen.train[0].solutions:
        assert solution.quality.agrees(await judge.evaluate(problem, solution.kernel))
    hack = await judge.evaluate(problem, chosen.train[0].solutions[-1].kernel)
    assert hack.speedup == 8
    assert reward(hack) == 0
    assert reward(hack, RewardConfig(kind="speed", hack_check=False)) == 4
    for source, outcome in (("x = 1", Outcome.WRONG_VALUE), ("x = ", Outcome.COMPILE_ERROR)):
        assert (await judge.evaluate(problem, Kernel(source=source))).outcome is outcome


def test_a_fact_is_known_by_problem_kernel_and_protocol(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'facts.sqlite'}") as store:
        store.upgrade()
        request = a_request("k1")
        store.record(request, a_reply(request, an_evaluation(speedup=2.0)))
        write_file(store, "facts", "parquet", tmp_path / "facts.parquet")
    assert set(keys(tmp_path / "facts.parquet")) == {key_of(request)}
    assert key_of(a_request("k1", protocol=Protocol(trials=7))) != key_of(request)


def test_runs_ask_as_most_of_the_facts_were_measured(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'facts.sqlite'}") as store:
        store.upgrade()
        for number, trials in enumerate((5, 7, 7)):
            request = a_request(f"k{number}", protocol=Protocol(trials=trials))
            store.record(request, a_reply(request, an_evaluation(speedup=2.0)))
        write_file(store, "facts", "parquet", tmp_path / "facts.parquet")
    assert _protocol([tmp_path / "facts.parquet"])["base.protocol.trials"] == 7
