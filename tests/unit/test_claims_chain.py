"""The chain of the claims: which problems and kernels are measured, and how runs then ask for them."""

import ast
from collections import Counter
from pathlib import Path

from benchmarks.claims import _conversations, _protocol, _rows, subset
from drkernel_q.curriculum import Quality, generate
from drkernel_q.evaluation import Protocol
from drkernel_q.kernel import extract_kernel
from drkernel_q.prompt import fenced
from drkernel_q.store import Store
from drkernel_q.store.export import write_file
from tests.values import a_reply, a_request, an_evaluation


def test_the_subset_begins_with_the_problems_whose_facts_are_recorded() -> None:
    chosen = subset(0, "123", train=30, heldout=4)
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
    assert {each.level for each in subset(0, "12", train=5, heldout=1).train} == {1, 2}


def test_what_is_taught_holds_every_problem_that_is_trained_on_and_none_that_is_held_out() -> None:
    chosen = subset(0, "12", train=6, heldout=2)
    rows = list(_conversations(chosen, 0, "12", others=10, copies=3))
    names = Counter(row["module_name"] for row in rows)
    assert all(names[each.problem.name] == 3 for each in chosen.train)
    assert not any(names[each.problem.name] for each in chosen.heldout)
    assert len(names) == 6 + 10


def test_kernels_are_listed_once_the_family_first_then_what_is_written_most() -> None:
    chosen = subset(0, "1", train=2, heldout=0)
    first, second = (each.problem.hash for each in chosen.train)
    fused = next(each.kernel.source for each in chosen.train[0].solutions if each.quality is Quality.FUSED)
    written = Counter({(first, fused): 3, (first, "rare"): 1, (second, "often"): 9})
    rows = list(_rows(chosen, written))
    keys = [(row["problem"], row["kernel_source"]) for row in rows]
    assert len(set(keys)) == len(keys)
    assert [row["kernel_source"] for row in rows[-2:]] == ["often", "rare"]
    assert all(row["quality"] for row in rows[:-2])
    assert "fallback" not in {row["quality"] for row in rows}
    assert {row["kernel_source"]: row["count"] for row in rows}[fused] == 3


def test_runs_ask_as_most_of_the_facts_were_measured(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'facts.sqlite'}") as store:
        store.upgrade()
        for number, trials in enumerate((5, 7, 7)):
            request = a_request(f"k{number}", protocol=Protocol(trials=trials))
            store.record(request, a_reply(request, an_evaluation(speedup=2.0)))
        write_file(store, "facts", "parquet", tmp_path / "facts.parquet")
    assert _protocol([tmp_path / "facts.parquet"])["base.protocol.trials"] == 7
