"""Real input: the problems of a KernelBench checkout load, references of it run, and candidates for some are judged.

    PYTHONPATH=. python benchmarks/kernelbench.py CHECKOUT [--device cpu|cuda:0] [--only 1/23,2/76] [--json FILE]

On `cpu` the sizes of `SIZES` replace the problems' own; on a GPU every problem has its full size. Both tables are
printed as Markdown. The exit code is 1 when a problem cannot be used or a candidate is not correct and clean.
"""

import argparse
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drkernel_q.errors import BadProblem
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Failure, Protocol
from drkernel_q.kernel import read_kernel
from drkernel_q.problem import Constant, Problem, kernelbench_files, load_kernelbench, load_problem
from drkernel_q.settings import Settings
from workers.device import Device, find_device
from workers.evaluator import Evaluator

#: One file a candidate: `1_23_softmax.py` is for problem 1/23.
CANDIDATES = Path(__file__).parent / "kernelbench_kernels"
#: Seconds that the timing of one candidate aims to stay within, and the most that one evaluation may take.
TIMING_BUDGET_S = 2.0
DEADLINE_S = 300.0
#: The problems that are run, each with sizes that Triton's interpreter is quick with and that no block divides.
SIZES: dict[str, dict[str, Constant]] = {
    "1/1": {"N": 200},
    "1/6": {"M": 24, "N": 24, "K": 4096},
    "1/9": {"M": 300, "N": 8},
    "1/12": {"M": 96, "N": 80},
    "1/15": {"M": 96},
    "1/23": {"batch_size": 6, "dim": 20001},
    "1/40": {"batch_size": 3, "features": 10, "dim1": 41, "dim2": 43},
    "1/50": {"batch_size": 1},
    "1/67": {"batch_size": 2, "length": 500},
    "1/82": {"batch_size": 2, "in_channels": 8, "width": 40, "height": 40},
    "1/88": {"batch_size": 50, "dim": 999},
    "1/95": {"batch_size": 61, "num_classes": 1001},
    "2/17": {"batch_size": 2, "in_channels": 8, "out_channels": 12, "height": 34, "width": 34},
    "2/28": {"batch_size": 16, "in_features": 96, "out_features": 80},
    "2/37": {"batch_size": 32, "in_features": 64, "out_features": 128, "num_groups": 8},
    "2/45": {"batch_size": 32, "input_size": 64, "hidden_size": 96, "output_size": 48},
    "2/76": {"batch_size": 50, "in_features": 300, "out_features": 170},
    "2/84": {"batch_size": 16, "in_features": 96, "out_features": 80},
    "2/88": {"batch_size": 16, "in_features": 96, "out_features": 128, "num_groups": 16},
    "2/95": {"batch_size": 20, "in_features": 96, "out_features": 1500},
    "2/99": {"batch_size": 16, "in_features": 96, "out_features": 80},
    "3/3": {"batch_size": 40, "input_size": 200, "hidden_layer_sizes": [72] * 4, "output_size": 90},
    "3/4": {"batch_size": 4},
    "3/9": {"batch_size": 1},
    "3/13": {"batch_size": 2, "height": 32, "width": 32},
    "3/28": {"dim": 96, "depth": 2, "heads": 4, "mlp_dim": 128},
    "3/34": {"batch_size": 2, "input_size": 64, "hidden_size": 48, "output_size": 32, "sequence_length": 16},
    "3/35": {"batch_size": 2, "sequence_length": 24},
    "3/43": {"batch_size": 2, "max_seqlen": 128, "seq_len": 100, "n_embd": 96, "n_head": 2},
    "3/44": {"batch_size": 2, "max_seqlen": 64, "seq_len": 48, "n_embd": 96, "n_head": 4},
    "3/46": {"batch_size": 4, "num_features": 20, "feature_size": 64},
    "3/50": {"batch_size": 2, "max_seqlen": 64, "n_embd": 96, "n_head": 4},
}


def main() -> int:
    """Load, run, judge, print."""
    options = _options()
    loaded, faults = load_all(options.checkout)
    print(f"{loaded} of {loaded + len(faults)} problems of levels 1 to 3 load.", *faults, sep="\n", flush=True)
    device = find_device(options.device)
    chosen = {spec: SIZES[spec] for spec in options.only or SIZES}
    problems = {spec: sized(load_kernelbench(options.checkout, spec), device, chosen[spec]) for spec in chosen}

    print("\n## References\n", *head("problem", "inputs", "outputs", "fp64", "error", "repeatable", "s"), sep="\n")
    references: list[dict[str, Any]] = []
    for row in examine_all(problems, device):
        references.append(row)
        print(reference_line(row), flush=True)

    columns = ("problem", "sizes", "outcome", "integrity", "speedup", "95 %", "PR", "reference, ms", "candidate, ms")
    print("\n## Candidates\n", *head(*columns, "seconds"), sep="\n")
    evaluations: list[dict[str, Any]] = []
    for problem, result in judge_all(problems, device):
        spec = problem.name.partition("_")[0]
        sizes = {} if device.type == "cuda" else chosen[spec]
        evaluations.append({"problem": problem.name, "sizes": sizes, "result": result.model_dump(mode="json")})
        print(evaluation_line(problem.name, sizes, result), flush=True)

    document = {"device": options.device, "loaded": loaded, "faults": faults}
    if options.json:
        text = json.dumps(document | {"references": references, "evaluations": evaluations}, indent=1)
        options.json.write_text(text + "\n")
    usable = not faults and all("error" not in row for row in references)
    return 0 if usable and all(_is_good(row["result"]) for row in evaluations) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="a checkout of KernelBench")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda:N")
    parser.add_argument("--only", type=lambda text: text.split(","), help="problems to run, such as 1/23,2/76")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything that was seen")
    options = parser.parse_args()
    if unknown := set(options.only or ()) - set(SIZES):
        parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join(SIZES)}")
    return options


def load_all(checkout: Path) -> tuple[int, list[str]]:
    """Load every problem of levels 1 to 3; return how many there are, and what is wrong with the others."""
    files = {name: path for name, path in kernelbench_files(checkout).items() if name[0] in "123"}
    faults = []
    for name, path in files.items():
        try:
            load_problem(path, name=name)
        except BadProblem as error:
            faults.append(str(error))
    return len(files) - len(faults), faults


def sized(problem: Problem, device: Device, sizes: dict[str, Constant]) -> Problem:
    """Reduce a problem for the interpreter; a GPU takes it as it is."""
    return problem if device.type == "cuda" else problem.resized(sizes)


def examine_all(problems: dict[str, Problem], device: Device) -> Iterator[dict[str, Any]]:
    """Run references in a process of their own, as the judge does, and yield what each showed."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=enter_device, initargs=(device.type, device.environment)) as pool:
        for problem in problems.values():
            try:
                yield pool.submit(examine, problem, device.type).result()
            except BrokenProcessPool:
                yield {"problem": problem.name, "error": "The process of the references died."}
                return


def enter_device(device: str, mask: dict[str, str]) -> None:
    """Make this process one that runs references on `device`."""
    os.environ.update(mask)
    if device == "cpu":
        from workers.cpu import interpreter

        interpreter.prepare()
        interpreter.install()


def examine(problem: Problem, device: str) -> dict[str, Any]:
    """Run a reference and describe its inputs and outputs."""
    from workers.comparison.reference import Reference
    from workers.judging import trial

    start = time.perf_counter()
    try:
        reference = Reference(problem, device, train=False)
        trial.check_inputs(reference)
        reference.build(1)
        facts = describe(reference)
    except BadProblem as error:
        return {"problem": problem.name, "error": str(error)}
    return {"problem": problem.name, **facts, "seconds": round(time.perf_counter() - start, 2)}


def describe(reference: Any) -> dict[str, Any]:
    """Run the reference that was built on fresh inputs, twice."""
    from workers.comparison.measure import measure, row_scale
    from workers.exchange import integrity
    from workers.exchange.shared import flatten

    inputs = reference.inputs(2)
    expected = reference.expected(inputs)
    tensors: list[Any] = []
    for value in inputs:
        flatten(value, tensors)
    errors = [
        measure(exact, working, row_scale(exact)).relative_l2
        for working, exact in zip(expected.working, expected.exact, strict=True)
        if exact is not None and exact.is_floating_point()
    ]
    again: list[Any] = []
    flatten(reference.run(inputs), again)
    return {
        "inputs": [list(tensor.shape) for tensor in tensors],
        "outputs": [list(tensor.shape) for tensor in expected.working],
        "finite": all(bool(tensor.isfinite().all()) for tensor in expected.working),
        "fp64": all(exact is not None for exact in expected.exact),
        "relative_l2": max(errors, default=None),
        "repeatable": all(map(integrity.same_bits, expected.working, again)),
    }


def judge_all(problems: dict[str, Problem], device: Device) -> Iterator[tuple[Problem, Evaluation | Failure]]:
    """Judge every candidate for one of the problems, through the worker's own evaluator."""
    with tempfile.TemporaryDirectory(prefix="drkq-kernelbench-") as cache:
        evaluator = Evaluator(Settings(cache_dir=Path(cache)), device, platform.node())
        try:
            for path in sorted(CANDIDATES.glob("*.py")):
                problem = problems.get("/".join(path.stem.split("_")[:2]))
                if problem is not None:
                    judged = evaluator.judge(_request(problem, path), lambda: False)
                    yield problem, judged if isinstance(judged, Failure) else judged.evaluation
        finally:
            evaluator.close()


def _request(problem: Problem, path: Path) -> EvaluationRequest:
    return EvaluationRequest(
        id=uuid.uuid4().hex,
        problem=problem,
        kernel=read_kernel(path),
        protocol=Protocol(timing_budget_s=TIMING_BUDGET_S),
        deadline_s=DEADLINE_S,
        submitted_at=datetime.now(UTC).isoformat(),
    )


def _is_good(result: dict[str, Any]) -> bool:
    return result.get("outcome") == "correct" and result["integrity"] == "clean"


def head(*columns: str) -> list[str]:
    """Return the first two lines of a table."""
    return [_line(columns), _line("---" for _ in columns)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def reference_line(row: dict[str, Any]) -> str:
    """Format what one reference showed."""
    if "error" in row:
        return _line((row["problem"], row["error"], "", "", "", "", ""))
    inputs, outputs = (", ".join("x".join(map(str, shape)) or "scalar" for shape in row[key]) for key in _SHAPES)
    error = "-" if row["relative_l2"] is None else f"{row['relative_l2']:.1e}"
    shown = outputs if row["finite"] else f"{outputs} (not finite)"
    answers = ("yes" if row["fp64"] else "no", error, "yes" if row["repeatable"] else "no")
    return _line((row["problem"], inputs, shown, *answers, f"{row['seconds']:.2f}"))


_SHAPES = ("inputs", "outputs")


def evaluation_line(name: str, sizes: dict[str, Constant], result: Evaluation | Failure) -> str:
    """Format one verdict."""
    shown = ", ".join(f"{key}={value}" for key, value in sizes.items()) or "full"
    if isinstance(result, Failure):
        return _line((name, shown, result.kind, result.message[-300:], "", "", "", "", "", ""))
    codes = " ".join(evidence.code for evidence in result.evidence)
    verdict = (result.outcome.value, f"{result.integrity.value} {codes}".strip())
    times = ("-",) * 5
    if result.timing is not None:
        timing, ratio = result.timing, result.profile_ratio
        interval = f"{timing.speedup_low:.3g} to {timing.speedup_high:.3g}"
        share = "-" if ratio is None else f"{ratio:.3f}"
        milliseconds = (f"{timing.reference_ms:.3g}", f"{timing.candidate_ms:.3g}")
        times = (f"{timing.speedup:.3g}", interval, share, *milliseconds)
    # What rounds to nothing, such as loading a file, is left out.
    stages = {stage: f"{spent:.1f}" for stage, spent in result.durations_s.items()}
    seconds = ", ".join(f"{stage} {spent}" for stage, spent in stages.items() if spent != "0.0")
    if result.error:
        print(f"{name}: {result.error.strip().splitlines()[-1]}", file=sys.stderr)
    return _line((name, shown, *verdict, *times, seconds))


if __name__ == "__main__":
    sys.exit(main())
