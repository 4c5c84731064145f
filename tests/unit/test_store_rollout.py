"""Trajectories and evaluations come back as they went in, and shared texts are stored once."""

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drkernel_q.correctness import Correctness
from drkernel_q.errors import BadInput
from drkernel_q.evaluation import (
    Evaluation,
    Evidence,
    Integrity,
    Outcome,
    Stage,
)
from drkernel_q.kernel import Kernel
from drkernel_q.profile import KernelProfile, Origin, Profile
from drkernel_q.store import Store
from drkernel_q.trajectory import Message, Trajectory, Turn
from tests.values import MATMUL, SOFTMAX, a_reply, a_request, an_environment, an_evaluation

anything = st.text(st.characters(exclude_categories=()), max_size=12)
real = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=0, max_value=1e300)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)

profiles = st.builds(
    Profile,
    profile_ratio=st.none() | st.floats(0, 1),
    launches=positive,
    device_us=positive,
    kernels=st.lists(
        st.builds(KernelProfile, name=anything, device_us=positive, launches=positive, origin=st.sampled_from(Origin)),
        max_size=3,
    ).map(tuple),
)
timings = st.builds(lambda speedup: an_evaluation(speedup=speedup).timing, st.floats(1e-6, 1e6))
evaluations = st.builds(
    Evaluation,
    outcome=st.sampled_from(Outcome),
    integrity=st.sampled_from(Integrity),
    evidence=st.lists(st.builds(Evidence, code=anything, detail=anything), max_size=2).map(tuple),
    correctness=st.none()
    | st.builds(Correctness, trials=st.just(5), passed=st.integers(0, 5), max_error=st.none() | real),
    timing=st.none() | timings,
    profile=st.none() | profiles,
    environment=st.sampled_from([an_environment(), an_environment("cpu")]),
    durations_s=st.dictionaries(st.sampled_from(Stage).map(str), positive, max_size=2),
    error=st.none() | anything,
    stdout=anything,
)
kernels = st.builds(Kernel, source=anything, name=anything)
judged = st.tuples(st.none(), st.none()) | st.tuples(kernels, st.none() | evaluations)
messages = st.lists(
    st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), content=anything), max_size=4
).map(tuple)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    numbers = draw(st.sets(st.integers(1, 9), max_size=3))
    turns = []
    for number in sorted(numbers):
        kernel, evaluation = draw(judged)
        turns.append(
            Turn(
                number=number,
                prompt=draw(messages),
                completion=draw(anything),
                kernel=kernel,
                evaluation=evaluation,
                prompt_ids=draw(token_ids),
                output_ids=draw(token_ids),
                logprobs=tuple(draw(st.lists(real, max_size=3))),
                finish_reason=draw(st.none() | anything),
                policy_version=draw(st.none() | st.integers(0, 10**6)),
            )
        )
    return Trajectory(problem_hash=SOFTMAX.hash, turns=tuple(turns))


each_example_in_one_store = settings(
    max_examples=settings().max_examples // 3,  # each writes to a database
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
run_numbers = itertools.count()


@pytest.mark.slow
@each_example_in_one_store
@given(evaluation=evaluations)
def test_every_evaluation_comes_back_as_it_went_in(store: Store, evaluation: Evaluation) -> None:
    request = a_request()
    reply = a_reply(request, evaluation)
    assert store.record(request, reply)
    assert store.find(request.id) == reply


@pytest.mark.slow
@each_example_in_one_store
@given(written=st.lists(trajectories(), min_size=1, max_size=3))
def test_every_trajectory_comes_back_as_it_went_in(store: Store, written: list[Trajectory]) -> None:
    store.add_problem(SOFTMAX)
    run = f"run {next(run_numbers)}"
    numbers = [store.add_trajectory(run, trajectory) for trajectory in written]
    assert numbers == list(range(1, len(written) + 1))
    assert list(store.trajectories(run)) == written


def a_turn(number: int, *prompt: Message, kernel: str = "k", evaluation: Evaluation | None = None) -> Turn:
    return Turn(
        number=number,
        prompt=prompt,
        completion=f"answer {number}",
        kernel=Kernel(source=kernel, name="k.py"),
        evaluation=evaluation,
    )


def said(role: str, content: str) -> Message:
    return Message.model_validate({"role": role, "content": content})


def test_shared_prefixes_are_stored_once(store: Store) -> None:
    store.add_problem(SOFTMAX)
    system, user = said("system", "You write kernels."), said("user", "softmax, please")
    answer, feedback = said("assistant", "answer 1"), said("user", "Faster!")
    turns = (a_turn(1, system, user), a_turn(2, system, user, answer, feedback))
    trajectory = Trajectory(problem_hash=SOFTMAX.hash, turns=turns)
    store.add_trajectory("a", trajectory)
    # system, user, answer 1, feedback, answer 2
    assert store.status().rows["messages"] == 5
    store.add_trajectory("b", trajectory)
    assert store.status().rows["messages"] == 5
    assert store.status().rows["kernels"] == 1
    assert [*store.trajectories("a"), *store.trajectories("b")] == [trajectory, trajectory]


def test_trajectories_are_numbered_by_problem_and_run(store: Store) -> None:
    store.add_problem(SOFTMAX)
    store.add_problem(MATMUL)
    places = [("a", SOFTMAX), ("a", MATMUL), ("a", SOFTMAX), ("b", SOFTMAX)]
    numbers = [
        store.add_trajectory(run, Trajectory(problem_hash=problem.hash, turns=(a_turn(1),))) for run, problem in places
    ]
    assert numbers == [1, 1, 2, 1]
    assert len(list(store.trajectories("a"))) == 3
    assert list(store.trajectories("nobody")) == []


@pytest.mark.parametrize("persister_first", [True, False])
def test_the_facts_of_a_turn_are_one_row_whoever_writes_them_first(store: Store, persister_first: bool) -> None:
    store.add_problem(SOFTMAX)
    request = a_request("k", run="r")
    reply = a_reply(request, an_evaluation(speedup=2.0, profile_ratio=0.5))
    trajectory = Trajectory(problem_hash=SOFTMAX.hash, turns=(a_turn(1, evaluation=reply.evaluation),))
    if persister_first:
        store.record(request, reply)
    store.add_trajectory("r", trajectory)
    if not persister_first:
        assert store.record(request, reply)
        assert not store.record(request, reply)
    rows = store.status().rows
    assert (rows["evaluations"], rows["profile_kernels"]) == (1, 2)
    assert store.find(request.id) == reply
    assert list(store.trajectories("r")) == [trajectory]


def test_equal_facts_of_two_turns_are_two_rows(store: Store) -> None:
    """An evaluation that was answered from the cache belongs to every turn that asked."""
    store.add_problem(SOFTMAX)
    facts = an_evaluation(speedup=2.0)
    trajectory = Trajectory(problem_hash=SOFTMAX.hash, turns=(a_turn(1, evaluation=facts), a_turn(2, evaluation=facts)))
    store.add_trajectory("r", trajectory)
    assert store.status().rows["evaluations"] == 2
    assert list(store.trajectories("r")) == [trajectory]


def test_a_trajectory_of_an_unknown_problem_is_refused(store: Store) -> None:
    with pytest.raises(BadInput, match="add it first"):
        store.add_trajectory("r", Trajectory(problem_hash=MATMUL.hash, turns=()))
    facts_about_nothing = Turn(number=1, prompt=(), completion="", evaluation=an_evaluation())
    store.add_problem(SOFTMAX)
    with pytest.raises(BadInput, match="no kernel"):
        store.add_trajectory("r", Trajectory(problem_hash=SOFTMAX.hash, turns=(facts_about_nothing,)))
    twice = Trajectory(problem_hash=SOFTMAX.hash, turns=(a_turn(1), a_turn(1)))
    with pytest.raises(BadInput, match="refuses"):
        store.add_trajectory("r", twice)
    assert store.status().rows["trajectories"] == 0


def test_a_run_is_announced_once(store: Store) -> None:
    request = a_request(run="late")
    store.record(request, a_reply(request))
    assert store.add_run("late", kind="train", settings={"seed": 1})
    assert not store.add_run("late", kind="eval", settings={"seed": 2})
    assert store.add_run("early", kind="eval", settings={})
    with store.reading() as connection:
        rows = connection.exec_driver_sql("SELECT name, kind FROM runs ORDER BY name").all()
    assert [tuple(row) for row in rows] == [("early", "eval"), ("late", "train")]


@pytest.mark.slow
@each_example_in_one_store
@given(written=trajectories(), again=st.integers(0, 3))
def test_a_trajectory_stored_by_turns_is_one_stored_whole(store: Store, written: Trajectory, again: int) -> None:
    store.add_problem(SOFTMAX)
    run = f"run {next(run_numbers)}"
    assert store.open_trajectory(run, SOFTMAX.hash, 3).turns == ()
    for turn in written.turns:
        assert store.add_turn(run, SOFTMAX.hash, 3, turn)
    for turn in written.turns[:again]:
        assert not store.add_turn(run, SOFTMAX.hash, 3, turn)
    assert store.open_trajectory(run, SOFTMAX.hash, 3) == written
    assert list(store.trajectories(run)) == [written]
    assert store.add_trajectory(run, written) == 4


def test_a_turn_that_is_there_stands(store: Store) -> None:
    store.add_problem(SOFTMAX)
    first = a_turn(1, evaluation=an_evaluation(speedup=2.0))
    assert store.add_turn("r", SOFTMAX.hash, 1, first)
    assert not store.add_turn("r", SOFTMAX.hash, 1, a_turn(1, kernel="other", evaluation=an_evaluation(speedup=3.0)))
    assert store.open_trajectory("r", SOFTMAX.hash, 1).turns == (first,)
    assert store.status().rows["evaluations"] == 1


def test_turns_of_many_writers_are_stored_once(store: Store) -> None:
    store.add_problem(SOFTMAX)
    turn = a_turn(1, evaluation=an_evaluation(speedup=2.0))
    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(lambda number: store.add_turn("r", SOFTMAX.hash, number % 3 + 1, turn), range(12)))
    assert added.count(True) == 3
    assert len(list(store.trajectories("r"))) == 3


def test_a_turn_out_of_place_is_refused(store: Store) -> None:
    with pytest.raises(BadInput, match="add it first"):
        store.open_trajectory("r", MATMUL.hash, 1)
    store.add_problem(SOFTMAX)
    with pytest.raises(BadInput, match="refuses"):
        store.open_trajectory("r", SOFTMAX.hash, 0)
    with pytest.raises(BadInput, match="no kernel"):
        store.add_turn("r", SOFTMAX.hash, 1, Turn(number=1, prompt=(), completion="", evaluation=an_evaluation()))
    assert store.status().rows["trajectories"] == 0
    assert store.status().rows["runs"] == 0


KILLED = """
import sys
from drkernel_q.kernel import Kernel
from drkernel_q.store import Store
from drkernel_q.trajectory import Turn
with Store.open(sys.argv[1]) as store:
    for number in range(1, 10_000):
        turn = Turn(number=number, prompt=(), completion=f"answer {number}", kernel=Kernel(source=f"k{number}"))
        store.add_turn("r", sys.argv[2], 1, turn)
        print(number, flush=True)
"""


@pytest.mark.slow
def test_what_a_killed_process_stored_is_there_and_whole(store: Store, store_url: str) -> None:
    store.add_problem(SOFTMAX)
    command = [sys.executable, "-c", KILLED, store_url, SOFTMAX.hash]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        told = [int(process.stdout.readline()) for _ in range(5)]
        process.kill()
        told += [int(line) for line in process.stdout if line.endswith("\n")]
    numbers = [turn.number for turn in store.open_trajectory("r", SOFTMAX.hash, 1).turns]
    assert numbers == list(range(1, len(numbers) + 1))
    assert told[-1] <= numbers[-1] <= told[-1] + 1
