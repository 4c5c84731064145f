"""Conversation: a trajectory in the public schema of cold-start data, `messages` with what is known beside them.

The columns are those of the public drkernel cold-start data; five turns are ten messages, from a user's to the
assistant's last.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from drkernel_q.errors import BadInput
from drkernel_q.kernel import extract_kernel
from drkernel_q.problem import Problem, problem_from_row
from drkernel_q.reward import RewardConfig, reward
from drkernel_q.trajectory import Message, Trajectory, Turn
from drkernel_q.value import Value, content_hash


class Conversation(Value):
    """One row of cold-start data."""

    messages: tuple[Message, ...]
    uuid: str
    entry_point: str = "Model"
    """Class of the reference."""
    repo_name: str = ""
    """Where the reference is from."""
    module_name: str
    """Name of the problem."""
    final_speedup: float | None = None
    """Speedup of the best round; None where nothing was correct and honest, or nothing was timed."""
    num_rounds: int
    """Turns."""
    original_python_code: str
    """The reference."""
    best_round: int | None = None
    """Turn with the highest reward, from 1, the first of equals; None where none was correct and honest."""
    timestamp: str = ""
    conversion_mode: str = "triton"
    enable_thinking: bool = False


def from_trajectory(problem: Problem, trajectory: Trajectory, *, repo: str = "") -> Conversation:
    """Write a trajectory as a conversation; turns whose prompt is not what came before are an error.

    Raises:
        BadInput: the trajectory has no turns, or one that does not continue the one before it.
    """
    messages = _messages(trajectory.turns)
    best = best_turn(trajectory.turns)
    evaluation = best.evaluation if best else None
    return Conversation(
        messages=messages,
        uuid=content_hash("conversation", problem.hash, *(f"{each.role}\0{each.content}" for each in messages)),
        repo_name=repo,
        module_name=problem.name,
        final_speedup=evaluation.speedup if evaluation else None,
        num_rounds=len(trajectory.turns),
        original_python_code=problem.source,
        best_round=best.number if best else None,
    )


def best_turn(turns: Sequence[Turn], config: RewardConfig | None = None) -> Turn | None:
    """Find the turn with the highest reward, the first of equals; None where none was correct and honest."""
    scored = [(reward(turn.evaluation, config), turn) for turn in turns if turn.evaluation]
    good = [(value, turn) for value, turn in scored if value > 0]
    return max(good, key=lambda pair: pair[0])[1] if good else None


def _messages(turns: Sequence[Turn]) -> tuple[Message, ...]:
    if not turns:
        raise BadInput("A trajectory without a turn is no conversation.")
    so_far: tuple[Message, ...] = turns[0].prompt
    for turn in turns:
        if turn.prompt[: len(so_far)] != so_far:
            raise BadInput(f"Turn {turn.number} was not shown all that came before, so it continues no conversation.")
        so_far = (*turn.prompt, Message(role="assistant", content=turn.completion))
    return so_far


def turns_of(conversation: Conversation) -> tuple[Turn, ...]:
    """Read turns out of a conversation; nothing is known of their kernels but their sources."""
    turns: list[Turn] = []
    for place, message in enumerate(conversation.messages):
        if message.role == "assistant":
            number = len(turns) + 1
            kernel = extract_kernel(message.content, name=f"{conversation.module_name} {number}")
            prompt = conversation.messages[:place]
            turns.append(Turn(number=number, prompt=prompt, completion=message.content, kernel=kernel))
    return tuple(turns)


def conversation_from_row(row: Mapping[str, Any]) -> Conversation:
    """Read a row; columns that are not ours are left out, and what is missing is derived.

    Raises:
        BadInput: there are no messages in it, or no reference.
    """
    known = {name: row[name] for name in Conversation.model_fields if row.get(name) is not None}
    try:
        messages = [Message(role=each["role"], content=each["content"]) for each in known.pop("messages", ())]
        rounds = sum(message.role == "assistant" for message in messages)
        if not rounds:
            raise BadInput("A row holds no messages of an assistant.")
        code = known.get("original_python_code", "")
        derived = {"module_name": "row", "uuid": content_hash("row", code, *(each.content for each in messages))}
        derived["timestamp"] = str(known.pop("timestamp", ""))
        rest = {name: str(known.pop(name)) for name in ("uuid", "module_name") if name in known}
        return Conversation.model_validate(
            derived | known | rest | {"messages": messages, "num_rounds": rounds, "original_python_code": code}
        )
    except (ValidationError, KeyError, TypeError) as error:
        raise BadInput(f"A row is no conversation: {' '.join(str(error).split())[:200]}.") from error


def problem_of(conversation: Conversation) -> Problem:
    """Make the problem of a conversation, under the name of its module.

    Raises:
        BadProblem: its reference cannot be one.
    """
    row = {"original_python_code": conversation.original_python_code, "entry_point": conversation.entry_point}
    return problem_from_row(row | {"name": conversation.module_name})


def rows(conversations: Sequence[Conversation]) -> Iterator[dict[str, Any]]:
    """Write conversations as plain rows."""
    for conversation in conversations:
        yield conversation.model_dump(mode="json")
