"""Training data: what is chosen, that public schemas go in and out unchanged, and what counts as the same."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.cli import drkq
from drkernel_q.corpus.contamination import overlaps
from drkernel_q.corpus.conversation import conversation_from_row, from_trajectory, problem_of, turns_of
from drkernel_q.corpus.file import FORMS, read_rows, write_rows
from drkernel_q.corpus.normal import normal_form
from drkernel_q.corpus.selection import Selection, Tally, select
from drkernel_q.errors import BadInput
from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem, builtin_files, load_problem, load_row
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from drkernel_q.trajectory import Message, Trajectory, Turn
from tests.values import an_evaluation

GELU = load_problem(builtin_files()["gelu"])
SOFTMAX = load_problem(builtin_files()["softmax"])
WRONG = an_evaluation("wrong_value", "unknown")
REJECTED = an_evaluation("correct", "rejected", speedup=9.0, profile_ratio=1.0)


def good(speedup: float) -> Evaluation:
    return an_evaluation(speedup=speedup, profile_ratio=1.0)


def kernel(number: int) -> str:
    return f"class ModelNew:\n    def forward(self, x):\n        return x * {number}\n"


def a_trajectory(*facts: Evaluation | None, problem: Problem = GELU, first: int = 1) -> Trajectory:
    """One turn for each of the facts, with a kernel of its own."""
    turns: list[Turn] = []
    prompt: tuple[Message, ...] = (Message(role="user", content="Write it."),)
    for number, evaluation in enumerate(facts, 1):
        completion = f"```python\n{kernel(first + number)}```"
        source = Kernel(source=kernel(first + number))
        turns.append(Turn(number=number, prompt=prompt, completion=completion, kernel=source, evaluation=evaluation))
        prompt = (*prompt, Message(role="assistant", content=completion), Message(role="user", content="Again."))
    return Trajectory(problem_hash=problem.hash, turns=tuple(turns))


def test_a_conversation_of_five_turns_has_ten_messages_and_names_the_best() -> None:
    trajectory = a_trajectory(WRONG, good(1.5), REJECTED, good(2.0), None)
    conversation = from_trajectory(GELU, trajectory)
    assert [message.role for message in conversation.messages] == ["user", "assistant"] * 5
    assert (conversation.num_rounds, conversation.best_round, conversation.final_speedup) == (5, 4, 2.0)
    assert problem_of(conversation) == GELU
    bare = [turn.model_copy(update={"evaluation": None}) for turn in trajectory.turns]
    assert [turn.model_copy(update={"kernel": None}) for turn in turns_of(conversation)] == [
        turn.model_copy(update={"kernel": None}) for turn in bare
    ]
    assert [turn.kernel and turn.kernel.source for turn in turns_of(conversation)] == [
        turn.kernel and turn.kernel.source for turn in bare
    ]


def test_a_trajectory_with_nothing_good_has_no_best_round() -> None:
    conversation = from_trajectory(GELU, a_trajectory(WRONG, REJECTED))
    assert (conversation.best_round, conversation.final_speedup) == (None, None)


def test_a_trajectory_that_forgot_something_is_no_conversation() -> None:
    first, second = a_trajectory(good(1.0), good(2.0)).turns
    with pytest.raises(BadInput, match="Turn 2"):
        from_trajectory(
            GELU, Trajectory(problem_hash=GELU.hash, turns=(first, second.model_copy(update={"prompt": ()})))
        )
    with pytest.raises(BadInput, match="without a turn"):
        from_trajectory(GELU, Trajectory(problem_hash=GELU.hash, turns=()))


@pytest.mark.parametrize(
    ("selection", "kept"),
    [
        ({}, "abcdef"),
        ({"correct": True}, "abdef"),
        ({"honest": True}, "abef"),
        ({"improved": True}, "be"),
        ({"min_speedup": 1.5}, "be"),
        ({"honest": True, "best": 2}, "bef"),
        ({"honest": True, "best": 1}, "ef"),
        ({"distinct": True}, "abcdf"),
        ({"distinct": True, "honest": True, "best": 1}, "bf"),
    ],
)
def test_selections(selection: dict[str, Any], kept: str) -> None:
    trajectories = {
        "a": a_trajectory(good(1.0), WRONG, first=10),
        "b": a_trajectory(WRONG, good(2.0), first=20),
        "c": a_trajectory(WRONG, None, first=30),
        "d": a_trajectory(REJECTED, first=40),
        "e": a_trajectory(WRONG, good(3.0), first=20),
        "f": a_trajectory(good(1.2), problem=SOFTMAX),
    }
    tally = Tally()
    chosen = select(trajectories.values(), Selection(**selection), tally)
    assert chosen == [trajectories[name] for name in kept]
    assert (tally.seen, tally.kept, sum(tally.dropped.values())) == (6, len(kept), 6 - len(kept))


def test_what_comes_after_the_best_turn_can_be_left_out() -> None:
    whole = a_trajectory(WRONG, good(2.0), good(1.0))
    (cut,) = select([whole], Selection(cut_after_best=True))
    assert cut.turns == whole.turns[:2]


RENAMED = [
    ("def f(a, b):\n    return a + b", 'def g(x, y):\n    """Add."""\n    return x + y  # sum', True),
    ("def f(a, b):\n    return a + b", "def f(a, b):\n    return b + a", False),
    ("x = tl.load(p + 1)", "y = tl.load(q+1)", True),
    ("x = tl.load(p + 1)", "x = tl.store(p + 1)", False),
    ("x = 0.5", "x = 0.7", False),
    ("not python (", "not  python(", True),
]


@pytest.mark.parametrize(("left", "right", "same"), RENAMED)
def test_names_comments_and_layout_are_no_difference(left: str, right: str, same: bool) -> None:
    assert (normal_form(left) == normal_form(right)) is same


@given(st.text(st.sampled_from("def f(x):\n\t '\"0+\\"), max_size=30))
def test_any_text_has_a_normal_form(text: str) -> None:
    assert normal_form(text) == normal_form(text)


def test_a_problem_of_the_benchmark_is_found_whatever_its_names_and_sizes() -> None:
    disguised = Problem(
        name="mine",
        source=GELU.source.replace("features", "width").replace("inner", "z").replace("8192", "64"),
    )
    benchmark = [load_problem(file, name=name) for name, file in builtin_files().items()]
    found = overlaps([disguised, SOFTMAX], [each for each in benchmark if each.name != "softmax"])
    assert {hash_: (each.benchmark, each.similarity) for hash_, each in found.items()} == {
        disguised.hash: ("gelu", 1.0)
    }


@pytest.mark.parametrize("form", FORMS)
def test_rows_come_back_as_they_were(tmp_path: Path, form: str) -> None:
    made = [from_trajectory(GELU, a_trajectory(WRONG, good(2.0))), from_trajectory(SOFTMAX, a_trajectory(None))]
    path = tmp_path / {"jsonl": "x.jsonl", "parquet": "x.parquet", "folder": "x"}[form]
    write_rows([each.model_dump(mode="json") for each in made], path, form, card="# Card\n")
    assert [conversation_from_row(row) for row in read_rows(path)] == made
    assert not list(tmp_path.rglob("*.part"))


PUBLIC = {
    "messages": [{"role": "user", "content": "Write."}, {"role": "assistant", "content": f"```python\n{kernel(1)}```"}],
    "uuid": 7,
    "entry_point": "Net",
    "module_name": "Net",
    "original_python_code": GELU.source.replace("class Model(", "class Net("),
    "timestamp": 12.5,
    "some_column": [1],
}


def test_a_public_row_is_understood() -> None:
    conversation = conversation_from_row(PUBLIC)
    assert (conversation.uuid, conversation.timestamp, conversation.num_rounds) == ("7", "12.5", 1)
    assert "Model = Net" in problem_of(conversation).source


@pytest.mark.parametrize("row", [{}, {"messages": []}, {"messages": [{"role": "user"}]}, {"messages": 3}])
def test_a_row_that_is_no_conversation_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        conversation_from_row(row)


def run(*args: str) -> Result:
    return CliRunner().invoke(drkq, ["dataset", *args])


@pytest.fixture
def full(own_folders: Path) -> Store:
    """The store of the settings, with a run of two problems."""
    store = Store.open(load_settings().store)
    store.upgrade()
    store.add_run("mine", kind="collect", settings={})
    for problem in (GELU, SOFTMAX):
        store.add_problem(problem)
        store.add_trajectory("mine", a_trajectory(WRONG, good(2.0), problem=problem))
        store.add_trajectory("mine", a_trajectory(WRONG, problem=problem))
    return store


def test_exported_conversations_are_imported_as_the_same_trajectories(full: Store, tmp_path: Path) -> None:
    file = tmp_path / "mine.parquet"
    done = run("export", "--run", "mine", "--honest", "--form", "parquet", "-o", str(file), "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == {"trajectories": 4, "kept": 2, "not honest": 2}
    for _ in range(2):
        again = run("import", str(file), "--run", "theirs", "--json")
        assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout) == {"conversations": 2, "turns": 0, "without a usable reference": 0}
    said = [[turn.completion for turn in each.turns] for each in full.trajectories("theirs")]
    assert said == [
        [turn.completion for turn in each.turns] for each in full.trajectories("mine") if len(each.turns) == 2
    ]


def test_prompts_are_rows_that_name_problems(tmp_path: Path) -> None:
    file = tmp_path / "prompts.parquet"
    done = run("prompts", "gelu", "softmax", "--templates", "compact", "--form", "parquet", "-o", str(file))
    assert done.exit_code == 0, done.stderr
    assert load_row(file, "1").source == SOFTMAX.source
    assert load_row(file, GELU.hash).source == GELU.source
    row = pq.read_table(file).to_pylist()[0]
    assert [message["role"] for message in row["prompt"]] == ["user"]
    assert GELU.source.strip() in row["prompt"][0]["content"]


def test_contaminated_trajectories_are_left_out(full: Store, tmp_path: Path) -> None:
    level = tmp_path / "bench" / "KernelBench" / "level1"
    level.mkdir(parents=True)
    (level / "26_GELU.py").write_text(GELU.source)
    checkout = str(tmp_path / "bench")
    checked = run("check", "--run", "mine", "--kernelbench", checkout, "--json")
    assert checked.exit_code == 1, checked.stderr
    assert [(row["problem"], row["benchmark"]) for row in json.loads(checked.stdout)] == [("gelu", "1/26_GELU")]
    file = tmp_path / "clean.jsonl"
    done = run("export", "--run", "mine", "--uncontaminated", "--kernelbench", checkout, "-o", str(file))
    assert done.exit_code == 0, done.stderr
    assert {row["module_name"] for row in read_rows(file)} == {"softmax"}
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"code": SOFTMAX.source}) + "\n")
    assert run("check", "gelu", "--rows", str(rows)).exit_code == 0


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("export", "--run", "nobody", "-o", "x.jsonl"), "no run named `nobody`"),
        (("check",), "nothing to check"),
        (("check", "gelu"), "nothing to compare with"),
        (("import", "nowhere.jsonl", "--run", "r"), "cannot be read"),
    ],
)
def test_a_bad_call_is_a_sentence(full: Store, args: tuple[str, ...], sentence: str) -> None:
    done = run(*args)
    assert done.exit_code == BadInput.exit_code
    assert sentence in done.stderr


@pytest.mark.slow
def test_a_folder_is_loaded_by_datasets(full: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    assert run("export", "--run", "mine", "--form", "folder", "-o", str(folder), "--licence", "mit").exit_code == 0
    card = (folder / "README.md").read_text()
    assert "license: mit" in card
    assert "4 of 4" in card
    import datasets

    loaded = datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert [row["num_rounds"] for row in loaded] == [2, 1, 2, 1]
