"""What `drkq dataset` does: from the store and problem files to rows, and back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drkernel_q.cli.output import emit_json, emit_table, say
from drkernel_q.corpus.card import write_card
from drkernel_q.corpus.contamination import LEAST_SIMILARITY, Overlap, overlaps
from drkernel_q.corpus.conversation import Conversation, conversation_from_row, from_trajectory, problem_of, turns_of
from drkernel_q.corpus.file import read_rows, write_rows
from drkernel_q.corpus.prompt_row import prompt_row
from drkernel_q.corpus.selection import Selection, Tally, select
from drkernel_q.errors import BadInput, BadProblem
from drkernel_q.problem import (
    Problem,
    find_problems,
    kernelbench_files,
    load_problem,
    problem_from_row,
)
from drkernel_q.prompt import load_templates
from drkernel_q.settings import Settings, load_settings
from drkernel_q.store import Store
from drkernel_q.trajectory import Trajectory

_SELECTION = ("correct", "honest", "improved", "min_speedup", "best", "cut_after_best", "distinct")
_COLUMNS = {
    name: " ".join((field.description or "see `drkernel_q.corpus.conversation`").split())
    for name, field in Conversation.model_fields.items()
}


def export(options: Mapping[str, Any]) -> None:
    """Write the chosen trajectories of a run.

    Raises:
        BadInput: there is no such run, or nothing can be written.
    """
    selection = Selection(**{name: options[name] for name in _SELECTION})
    tally = Tally()
    with _store() as store:
        _check_run(store, options["run"])
        chosen = select(store.trajectories(options["run"], revised=True), selection, tally)
        problems = _problems(store, chosen)
    if options["uncontaminated"]:
        benchmark = _benchmark(load_settings(kernelbench=options["kernelbench"]), None)
        chosen = _uncontaminated(chosen, overlaps(problems.values(), benchmark, LEAST_SIMILARITY), tally)
    conversations = [from_trajectory(problems[each.problem_hash], each, repo=options["repo"]) for each in chosen]
    card = write_card(
        f"Conversations of the run {options['run']}",
        "Kernels written over several turns, each answered by what a judge found.",
        {"trajectories": f"{tally.kept} of {tally.seen}", "problems": len({each.problem_hash for each in chosen})}
        | {f"left out: {reason}": count for reason, count in tally.dropped.items()},
        _COLUMNS,
        licence=options["licence"],
    )
    rows = [each.model_dump(mode="json") for each in conversations]
    write_rows(rows, options["target"], options["form"], card=card)
    _tell(tally, as_json=options["as_json"])


def import_conversations(file: Path, run: str, *, as_json: bool) -> None:
    """Keep the conversations of a file as trajectories.

    Raises:
        BadInput: the file cannot be read, or holds none.
    """
    counts: dict[str, int] = {"conversations": 0, "turns": 0, "without a usable reference": 0}
    numbers: dict[str, int] = {}
    with Store.open(load_settings().store) as store:
        store.upgrade()
        store.add_run(run, kind="import", settings={"file": file.name})
        for row in read_rows(file):
            conversation = conversation_from_row(row)
            try:
                problem = problem_of(conversation)
            except BadProblem:
                counts["without a usable reference"] += 1
                continue
            store.add_problem(problem)
            number = numbers[problem.hash] = numbers.get(problem.hash, 0) + 1
            counts["conversations"] += 1
            counts["turns"] += sum(store.add_turn(run, problem.hash, number, turn) for turn in turns_of(conversation))
    _emit_counts(counts, as_json=as_json)


def prompts(options: Mapping[str, Any]) -> None:
    """Write problems as rows for reinforcement learning.

    Raises:
        BadProblem: a problem cannot be used.
    """
    settings = load_settings(kernelbench=options["kernelbench"])
    templates = load_templates(options["templates"])
    rows = [prompt_row(problem, templates) for problem in find_problems(options["names"], settings)]
    columns = {
        "prompt": "what is asked",
        "reward_model": "`ground_truth`, the reference that answers are judged against",
        "extra_info": "name, level and hash of the problem",
    }
    facts = {"problems": len(rows), "templates": options["templates"]}
    card = write_card("Prompts for kernels", "References to be written anew in Triton.", facts, columns)
    write_rows(rows, options["target"], options["form"], card=card)
    say(f"{len(rows)} prompts in {options['target']}")


def check(options: Mapping[str, Any]) -> int:
    """Print which problems are like one of a benchmark; return the exit code.

    Raises:
        BadInput: there is nothing to compare, or nothing to compare with.
    """
    settings = load_settings(kernelbench=options["kernelbench"])
    problems = find_problems(options["names"], settings)
    if options["run"] is not None:
        with _store() as store:
            _check_run(store, options["run"])
            problems += _problems(store, store.trajectories(options["run"])).values()
    if not problems:
        raise BadInput("There is nothing to check; name problems, or a run by --run.")
    found = overlaps(problems, _benchmark(settings, options["rows"]), options["similarity"])
    if options["as_json"]:
        emit_json([overlap._asdict() for overlap in found.values()])
    else:
        emit_table(Overlap._fields, found.values())
        say(f"{len(found)} of {len(problems)} problems are like one of the benchmark")
    return 1 if found else 0


@contextmanager
def _store() -> Iterator[Store]:
    with Store.open(load_settings().store) as store:
        store.check()
        yield store


def _check_run(store: Store, name: str) -> None:
    if store.run(name) is None:
        raise BadInput(f"There is no run named `{name}`.")


def _problems(store: Store, trajectories: Iterable[Trajectory]) -> dict[str, Problem]:
    found = {}
    for problem_hash in dict.fromkeys(each.problem_hash for each in trajectories):
        problem = store.problem(problem_hash)
        assert problem is not None, "a trajectory refers to a problem that is stored"
        found[problem_hash] = problem
    return found


def _benchmark(settings: Settings, rows: Path | None) -> list[Problem]:
    if rows is not None:
        return [problem_from_row(row) for row in read_rows(rows)]
    if settings.kernelbench is None:
        raise BadInput("There is nothing to compare with; set DRKQ_KERNELBENCH, --kernelbench or --rows.")
    found = []
    for name, file in kernelbench_files(settings.kernelbench).items():
        try:
            found.append(load_problem(file, name=name))
        except BadProblem as error:
            say(f"{error} It is not compared.")
    return found


def _uncontaminated(trajectories: Sequence[Trajectory], found: Mapping[str, Overlap], tally: Tally) -> list[Trajectory]:
    kept = [each for each in trajectories if each.problem_hash not in found]
    for _ in range(len(trajectories) - len(kept)):
        tally.drop("like a problem of KernelBench")
    tally.kept = len(kept)
    return kept


def _tell(tally: Tally, *, as_json: bool) -> None:
    _emit_counts({"trajectories": tally.seen, "kept": tally.kept, **tally.dropped}, as_json=as_json)


def _emit_counts(counts: Mapping[str, int], *, as_json: bool) -> None:
    if as_json:
        emit_json(counts)
    else:
        emit_table(("what", "count"), counts.items())
