"""What is learned from each turn follows from facts alone: what is lost is no 0, and what is rejected moves nobody."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.lesson import Lesson
from drkernel_q.problem import Problem
from drkernel_q.trajectory import Group, Trajectory, Turn
from policy.rollouts.rollout import GroupOrder, RolledGroup
from policy.training.credit import Logprobs, Place, by_trajectory, learned_rows, lessons, scorable
from policy.training.order import orders
from tests.training import a_config
from tests.values import SOFTMAX, an_audit, an_evaluation

CONFIG = a_config(laziness={"enabled": False})
Facts = Evaluation | None


def a_group(table: Sequence[Sequence[Facts]], first: int = 1) -> RolledGroup:
    """Trajectories of turns with these facts; every turn has tokens of its own."""

    def turn(number: int, facts: Facts) -> Turn:
        return Turn(
            number=number,
            prompt=(),
            completion="",
            kernel=Kernel(source="k"),
            evaluation=facts,
            prompt_ids=(1, 2),
            output_ids=(3,) * number,
            logprobs=(-1.0,) * number,
            finish_reason="stop",
        )

    made = [
        Trajectory(problem_hash=SOFTMAX.hash, turns=tuple(turn(t, facts) for t, facts in enumerate(row, start=1)))
        for row in table
    ]
    return RolledGroup(GroupOrder(SOFTMAX, first), Group(problem_hash=SOFTMAX.hash, trajectories=tuple(made)))


def as_sampled(group: RolledGroup) -> dict[Place, "np.ndarray[tuple[int], np.dtype[np.float32]]"]:
    """What a trainer says that agrees with the sampler."""
    return {place: np.asarray(turn.logprobs, dtype=np.float32) for row in by_trajectory(group) for place, turn in row}


def taught(group: RolledGroup, trained: Logprobs | None = None, **changes: object) -> list[Lesson]:
    config = a_config(**({"laziness": {"enabled": False}} | changes)) if changes else CONFIG
    return lessons([group], as_sampled(group) if trained is None else trained, config, step=5)


GOOD, BAD = an_evaluation(speedup=2.0, profile_ratio=1.0), an_evaluation("wrong_value")
facts = st.sampled_from([GOOD, BAD, an_evaluation(speedup=1.0, profile_ratio=0.5), None])
tables = st.lists(st.lists(facts, min_size=1, max_size=3), min_size=2, max_size=5)


@given(tables, st.data())
def test_a_lost_evaluation_is_no_reward_and_as_good_as_not_there_for_the_others(
    table: list[list[Facts]], data: st.DataObject
) -> None:
    i = data.draw(st.integers(0, len(table) - 1))
    last = len(table[i]) - 1
    lost = [list(row) for row in table]
    lost[i][last] = None
    ended = [row[:last] if j == i else row for j, row in enumerate(lost)]
    mine = {(each.trajectory, each.turn): each for each in taught(a_group(lost))}
    theirs = {(each.trajectory, each.turn): each for each in taught(a_group(ended))}
    assert mine[i + 1, last + 1].reward is None
    # Its own trajectory is masked up to there; to the others it never was.
    assert all(mine[i + 1, turn].advantage is None for turn in range(1, last + 2))
    for place, lesson in theirs.items():
        if place[0] != i + 1 and place[1] == last + 1:
            assert mine[place].advantage == lesson.advantage
        if place[0] != i + 1:
            assert mine[place].reward == lesson.reward


@given(tables)
def test_rewards_are_never_0_for_what_was_not_judged(table: list[list[Facts]]) -> None:
    group = a_group(table)
    found = taught(group)
    flat = [facts for row in table for facts in row]
    assert [lesson.reward is None for lesson in found] == [facts is None for facts in flat]
    rows = learned_rows(scorable([group]), found)
    assert set(rows) == {
        Place(lesson.problem_hash, lesson.trajectory, lesson.turn) for lesson in found if lesson.advantage is not None
    }


def test_trajectories_are_numbered_on_and_steps_are_named() -> None:
    found = taught(a_group([[GOOD], [BAD]], first=17))
    assert [(lesson.trajectory, lesson.turn, lesson.step) for lesson in found] == [(17, 1, 5), (18, 1, 5)]
    assert [lesson.advantage for lesson in found] == [3.0, -3.0]


def test_a_rejected_row_stays_and_leaves_the_others_as_they_are() -> None:
    group = a_group([[GOOD, GOOD], [BAD, BAD], [BAD, GOOD]])
    apart = as_sampled(group)
    apart[Place(SOFTMAX.hash, 2, 2)] = apart[Place(SOFTMAX.hash, 2, 2)] + np.float32(0.5)
    found = {(each.trajectory, each.turn): each for each in taught(group, apart)}
    before = {(each.trajectory, each.turn): each for each in taught(group)}
    # The whole trajectory goes, both turns of it; advantages are the same bits as before.
    assert [place for place, lesson in found.items() if lesson.mismatch == "band"] == [(2, 1), (2, 2)]
    assert {place: lesson.advantage for place, lesson in found.items()} == {
        place: lesson.advantage for place, lesson in before.items()
    }
    rows = learned_rows(scorable([group]), list(found.values()))
    assert [row.kept for row in rows.values()] == [True, True, False, False, True, True]


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, "kept"), (0.01, "band"), (-11.0, "veto"), (np.nan, "nonfinite")])
def test_why_a_trajectory_was_rejected(shift: float, verdict: str) -> None:
    group = a_group([[GOOD], [BAD]])
    apart = as_sampled(group)
    place = Place(SOFTMAX.hash, 1, 1)
    apart[place] = apart[place] + np.float32(shift)
    first, second = taught(group, apart)
    assert (first.mismatch, second.mismatch) == (verdict, "kept")
    assert (first.mean_log_ratio is None) is (verdict == "nonfinite")


def test_a_turn_without_token_ids_is_not_learned_from() -> None:
    group = a_group([[GOOD], [BAD]])
    (first, second) = group.group.trajectories
    bare = first.turns[0].model_copy(update={"output_ids": (), "logprobs": ()})
    textual = RolledGroup(
        group.order,
        group.group.model_copy(update={"trajectories": (first.model_copy(update={"turns": (bare,)}), second)}),
    )
    found = taught(textual)
    assert not found[0].is_learned
    assert found[0].reward == 3.0  # and it is compared with all the same
    assert found[1].advantage == -3.0


def test_lazy_kernels_are_drawn_once_and_only_those_that_are_right() -> None:
    lazy = an_evaluation(speedup=1.0, profile_ratio=0.0)
    group = a_group([[lazy, BAD, None, GOOD] for _ in range(40)])
    first = lessons([group], as_sampled(group), a_config(), step=1)
    by_turn = {turn: [lesson for lesson in first if lesson.turn == turn] for turn in (1, 2, 3, 4)}
    assert sum(lesson.lazy for lesson in by_turn[1]) > 30  # kept with e^-3
    assert all(lesson.draw is None and not lesson.lazy for lesson in by_turn[2] + by_turn[3])
    assert all(lesson.keep_probability == 1 and not lesson.lazy for lesson in by_turn[4])
    # Found again after a resume, even by other rules.
    known = {Place(each.problem_hash, each.trajectory, each.turn): each for each in first}
    other = a_config(laziness={"tau": 0.0})
    again = lessons([group], as_sampled(group), other, step=1, known=known)
    assert [lesson.lazy for lesson in again] == [lesson.lazy for lesson in first]
    assert not any(lesson.lazy for lesson in lessons([group], as_sampled(group), other, step=1))


def test_an_audit_decides_whether_speed_is_paid() -> None:
    group = a_group([[GOOD], [BAD]])
    kind = GOOD.environment.device_kind
    worthless = {SOFTMAX.hash: {kind: an_audit(unusable="nothing to compute")}}
    found = lessons([group], as_sampled(group), CONFIG, step=1, audits=worthless)
    assert worthless[SOFTMAX.hash][kind].speed_rewarded is False
    assert found[0].reward == 1.0


PROBLEMS = [Problem(name=name, source=f"class Model: {name!r}") for name in "abcde"]


def test_every_problem_comes_once_a_round_and_the_order_is_that_of_the_seed() -> None:
    rounds = [orders(PROBLEMS, 5 * lap, 5, group_size=3, seed=1) for lap in range(3)]
    for lap, wanted in enumerate(rounds):
        assert {order.problem for order in wanted} == set(PROBLEMS)
        assert {order.first for order in wanted} == {3 * lap + 1}
    assert len({tuple(order.problem.name for order in wanted) for wanted in rounds}) > 1
    assert orders(PROBLEMS[::-1], 3, 9, group_size=3, seed=1) == (rounds[0] + rounds[1] + rounds[2])[3:12]
    assert orders(PROBLEMS, 0, 5, group_size=3, seed=2) != rounds[0]
