"""Generated problems and solutions: the same every time, sound, all different, and well formed."""

import ast
import hashlib
import importlib
import json
import random
import re
import runpy
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.cli import drkq
from drkernel_q.curriculum import Exercise, Quality, generate, split
from drkernel_q.curriculum.climb import Climb
from drkernel_q.curriculum.conversation import BEGINNER, walks
from drkernel_q.curriculum.exercise import Solution
from drkernel_q.curriculum.expected import expected
from drkernel_q.curriculum.folder import load_generated, write_folder
from drkernel_q.curriculum.operator import OPERATORS
from drkernel_q.curriculum.part import PRODUCTS, REDUCTIONS
from drkernel_q.curriculum.variety import Variety
from drkernel_q.errors import BadInput, BadProblem, BadSettings
from drkernel_q.kernel import extract_kernel
from drkernel_q.problem import load_folder, load_problem
from drkernel_q.problem.source import check_source
from drkernel_q.prompt import first_turn, load_templates
from drkernel_q.trajectory import Message
from tests.values import an_evaluation

_WHOLE_ROW = "BLOCK=triton.next_power_of_2(columns), num_warps="


@cache
def few() -> tuple[Exercise, ...]:
    return tuple(generate(0, 60))


def texts(exercises: Iterable[Exercise]) -> Iterator[str]:
    for exercise in exercises:
        yield exercise.problem.name
        yield exercise.problem.source
        yield from (solution.kernel.source for solution in exercise.solutions)


def digest(exercises: Iterable[Exercise]) -> str:
    return hashlib.sha256("\0".join(texts(exercises)).encode()).hexdigest()[:16]


def sources(exercise: Exercise, quality: Quality) -> list[str]:
    return [solution.kernel.source for solution in exercise.solutions if solution.quality is quality]


def test_without_variety_problem_and_quality_decide_on_a_solution() -> None:
    plain = list(generate(0, 8, (1, 2), Variety(drawn=False, longest=3)))
    assert all(len(exercise.chain) <= 3 for exercise in plain)
    for exercise in plain:
        (broken,), (edge,) = sources(exercise, Quality.BROKEN), sources(exercise, Quality.EDGE)
        assert "class ModelNew(nn.Module)\n" in broken
        assert " - 1\n" in edge
        launches = {re.findall(r"BLOCK=.*", source)[0] for source in sources(exercise, Quality.FUSED)}
        assert launches in ({"BLOCK=1024)", "BLOCK=2048, num_warps=8)"}, {f"{_WHOLE_ROW}{n})" for n in (4, 8)})


def test_chains_that_nothing_is_left_of_are_not_looked_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("drkernel_q.curriculum.generate"), "MOST_DRAWS", 50)
    with pytest.raises(BadSettings, match="hardly more than 0 problems of level 1"):
        next(generate(0, 1, (1,), Variety(longest=1)))


def test_a_seed_gives_the_same_set_everywhere() -> None:
    """A change here is a change of everything that was ever trained or measured on the curriculum: say so in docs."""
    assert digest(few()) == "0c2af235b9c763c8"


@pytest.mark.slow
def test_five_hundred_problems_have_four_thousand_solutions_and_no_source_twice() -> None:
    exercises = list(generate(0, 500))
    assert len({exercise.problem.source for exercise in exercises}) == 500
    kernels = [solution.kernel.source for exercise in exercises for solution in exercise.solutions]
    assert len(set(kernels)) == len(kernels) >= 4000
    assert {exercise.level for exercise in exercises} == {1, 2, 3}
    assert digest(exercises) == "5597b1d4c83201d2"
    met = Counter(name for exercise in exercises for name in exercise.chain)
    everything = {*OPERATORS, *(each.name for each in REDUCTIONS), *(each.name for each in PRODUCTS)}
    assert {name: met[name] for name in everything if met[name] < 8} == {}


def test_more_problems_begin_with_the_same() -> None:
    assert list(generate(3, 4)) == list(generate(3, 7))[:4]
    assert digest(generate(3, 4)) != digest(generate(4, 4))


def test_every_problem_has_every_quality() -> None:
    wanted = Counter(dict.fromkeys(Quality, 1)) + Counter({Quality.FUSED: 1})
    for exercise in few():
        assert Counter(solution.quality for solution in exercise.solutions) == wanted


def test_problems_are_references_with_sizes_for_both_devices() -> None:
    for exercise in few():
        problem = exercise.problem
        check_source(problem.source, problem.name)
        assert problem.summary.endswith(".")
        assert problem.cpu_sizes.keys() <= problem.constants.keys()
        assert problem.small().hash != problem.hash
        assert ("PRECISION" in problem.source) == (exercise.level == 3)


def test_sources_are_python_except_where_they_are_broken_on_purpose() -> None:
    for exercise in few():
        for solution in exercise.solutions:
            if solution.quality is not Quality.BROKEN:
                names = {node.name for node in ast.parse(solution.kernel.source).body if hasattr(node, "name")}
                assert "ModelNew" in names


def test_sources_are_short_enough_to_be_learned() -> None:
    """Characters; the tokenizer of a small model makes one token of three or more of them."""
    assert max(len(exercise.problem.source) for exercise in few()) < 1000
    assert max(len(solution.kernel.source) for exercise in few() for solution in exercise.solutions) < 1900


def test_qualities_differ_in_who_does_the_work() -> None:
    for exercise in few():
        assert all("F." not in text and "torch.relu" not in text for text in sources(exercise, Quality.FUSED))
        (fallback,) = sources(exercise, Quality.FALLBACK)
        assert "triton" not in fallback
        (decoy,) = sources(exercise, Quality.DECOY)
        assert decoy.partition("class ModelNew")[2].count("return out") == 0
        (lazy,) = sources(exercise, Quality.LAZY)
        assert lazy != sources(exercise, Quality.PARTIAL)[0]
        steps = lazy.partition("mask=mask)\n")[2].partition("    tl.store")[0].strip().splitlines()
        assert len([line for line in steps if line.strip().startswith("x = ")]) == 1


def test_held_out_chains_are_never_in_training() -> None:
    parts: dict[str, set[tuple[int, tuple[str, ...]]]] = {"train": set(), "heldout": set()}
    for seed in (0, 1):
        for exercise in few() if seed == 0 else generate(seed, 60):
            parts[exercise.split].add((exercise.level, exercise.chain))
    assert parts["train"] & parts["heldout"] == set()
    assert 1 <= len(parts["heldout"]) <= 30


@given(st.integers(1, 3), st.lists(st.sampled_from(sorted(OPERATORS)), min_size=1, max_size=5).map(tuple))
def test_a_split_depends_on_the_chain_alone(level: int, chain: tuple[str, ...]) -> None:
    assert split(level, chain) == split(level, tuple(name for name in chain))
    assert split(level, chain) in ("train", "heldout")


def test_a_folder_holds_what_was_generated(tmp_path: Path) -> None:
    exercises = few()[:10]
    manifest = write_folder(exercises, tmp_path / "set", solutions=True)
    assert load_generated(tmp_path / "set") == [exercise.problem for exercise in exercises]
    held_out = [exercise.problem for exercise in exercises if exercise.split == "heldout"]
    assert load_generated(tmp_path / "set", "heldout") == held_out
    train = {exercise.problem.hash for exercise in exercises if exercise.split == "train"}
    assert {problem.hash for problem in load_folder(tmp_path / "set" / "problems" / "train")} == train
    first = manifest["problems"][0]
    assert load_problem(tmp_path / "set" / first["file"]).hash == first["hash"]
    assert len(list((tmp_path / "set" / "solutions" / first["name"]).glob("*.py"))) == len(first["solutions"])
    with pytest.raises(BadInput, match="not empty"):
        write_folder(exercises, tmp_path / "set", solutions=False)


@pytest.mark.parametrize("text", [None, "[]", "{", '{"problems": [{}]}'])
def test_a_folder_that_is_none_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(BadProblem, match="generated problems"):
        load_generated(tmp_path)


def command(*args: str) -> Result:
    return CliRunner().invoke(drkq, ["problem", "generate", *args])


def test_messages_ask_as_a_rollout_does_and_answer_with_a_fused_kernel(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    done = command("--problems", "60", "--messages", str(file), "--json")
    assert done.exit_code == 0, done.stderr
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    by_name = {exercise.problem.name: exercise for exercise in few()}
    assert {row["module_name"] for row in rows} == {each.problem.name for each in few() if each.split == "train"}
    assert len({row["uuid"] for row in rows}) == len(rows)
    for row in rows:
        exercise = by_name[row["module_name"]]
        *asked, answer = (Message.model_validate(message) for message in row["messages"])
        assert tuple(asked) == first_turn(exercise.problem, load_templates("compact"))
        kernel = extract_kernel(answer.content)
        assert kernel is not None
        assert kernel.source in sources(exercise, Quality.FUSED)


def test_walks_ask_and_answer_as_a_rollout_does_and_are_a_beginners() -> None:
    templates = load_templates("brief")
    rows = list(walks(few(), templates, copies=4))
    assert rows == list(walks(few(), templates, copies=4))
    assert Counter(row["module_name"] for row in rows) == {e.problem.name: 4 for e in few() if e.split == "train"}
    by_name = {exercise.problem.name: exercise for exercise in few()}
    for row in rows:
        exercise = by_name[row["module_name"]]
        messages = [Message.model_validate(message) for message in row["messages"]]
        qualities = [Quality(name) for name in row["quality"].split()]
        answers = [extract_kernel(message.content) for message in messages if message.role == "assistant"]
        for quality, kernel in zip(qualities, answers, strict=True):
            assert kernel is not None
            assert kernel.source in sources(exercise, quality)
        assert tuple(messages[:1]) == first_turn(exercise.problem, templates)
        told = [message.content for message in messages if message.role == "user"][1:]
        assert [text.endswith("Make it faster.") for text in told] == [quality.good for quality in qualities[:-1]]
        assert ["rejected" in text for text in told] == [quality is Quality.DECOY for quality in qualities[:-1]]
    first = Counter(row["quality"].split()[0] for row in rows)
    assert set(first) == {quality.value for quality in BEGINNER}
    assert max(first.values()) < len(rows) / 3


def test_climbs_are_told_what_is_wrong_and_end_with_a_fused_kernel(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    done = command("--problems", "60", "--messages", str(file), "--climbs", "--turns", "4", "--templates", "brief")
    assert done.exit_code == 0, done.stderr
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    taught = sum(exercise.split == "train" for exercise in few())
    over_turns = rows[taught:]
    assert [row["quality"] for row in rows[:taught]] == ["fused"] * taught
    assert len(over_turns) == -(-taught // 4)
    order = [quality.value for quality in Quality]
    for row in over_turns:
        places = [order.index(name) for name in row["quality"].split()]
        assert places == sorted(set(places))
        assert order[places[-1]] == "fused"
        assert len(row["messages"]) == 2 * len(places)
    assert {len(row["messages"]) for row in over_turns} == {4, 6, 8}


@given(st.sampled_from([each for exercise in few() for each in exercise.solutions]), st.integers(0, 99))
def test_expected_facts_are_what_a_quality_should_show_and_come_from_nowhere(solution: Solution, seed: int) -> None:
    found = expected(solution, random.Random(seed))
    assert solution.quality.agrees(found)
    assert found.environment.device_kind == "nowhere"


def test_walks_tell_what_was_measured_where_it_was() -> None:
    measured = an_evaluation(speedup=17.5)
    rows = walks(few(), load_templates("brief"), facts=lambda _, solution: measured if solution.quality.good else None)
    told = [message["content"] for row in rows for message in row["messages"][1:] if message["role"] == "user"]
    assert {"17.5x" in text for text in told if "Make it faster." in text} == {True}
    assert any("17.5x" not in text for text in told)


def test_the_command_writes_a_folder_and_says_what_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    done = command("--problems", "6", "--level", "1", "--level", "3", "-o", str(folder), "--solutions", "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert [(row["level"], row["problems"], row["solutions"]) for row in document["levels"]] == [(1, 4, 40), (3, 2, 20)]
    assert len(load_generated(folder)) == 6
    again = command("--problems", "6", "-o", str(folder))
    assert again.exit_code == BadInput.exit_code
    assert "not empty" in again.stderr


def test_the_command_wants_somewhere_to_write_to() -> None:
    done = command("--problems", "3")
    assert done.exit_code == 2
    assert "--messages" in done.stderr


def climbed(exercise: Exercise, climb: Climb, seed: int) -> list[Quality]:
    """Qualities of the answers to five turns."""
    messages = [Message(role="user", content=f"Rewrite this.\n{exercise.problem.source}")]
    path = []
    for turn in range(5):
        answer = climb.answer(messages, seed + turn)
        kernel = extract_kernel(answer)
        assert kernel is not None
        path.append(next(each.quality for each in exercise.solutions if each.kernel.source == kernel.source))
        messages += [Message(role="assistant", content=answer), Message(role="user", content="Again.")]
    return path


def test_a_climb_gets_better_every_turn_and_ends_with_a_fused_kernel() -> None:
    climb, order = Climb(few()[:10]), list(Quality)
    paths = {tuple(climbed(exercise, climb, seed)) for exercise in few()[:10] for seed in range(5)}
    for path in paths:
        places = [order.index(quality) for quality in path]
        assert places == sorted(set(places))
        assert path[-1] is Quality.FUSED
    assert len({path[0] for path in paths}) > 1
    assert climbed(few()[3], climb, 9) == climbed(few()[3], climb, 9)
    with pytest.raises(BadInput, match="no problem of this curriculum"):
        climb.answer([Message(role="user", content="softmax")], 1)


def test_a_script_answers_about_its_set(tmp_path: Path) -> None:
    script = tmp_path / "climb.py"
    assert command("--problems", "3", "--script", str(script), "--turns", "1").exit_code == 0
    answer = runpy.run_path(str(script))["answer"]
    prompt = SimpleNamespace(messages=first_turn(few()[2].problem, load_templates("default")))
    kernel = extract_kernel(answer(prompt, SimpleNamespace(seed=1)))
    assert kernel is not None
    assert kernel.source in sources(few()[2], Quality.FUSED)
