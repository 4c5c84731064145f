"""Audit whole sets of problems through the worker's own evaluator, without a broker and a store; run by hand.

    python -m tests.gpu.audit cuda:0 --kernelbench ~/KernelBench --levels 1,2 --seconds 280 -o audits.jsonl

Each audit is a line of the file as soon as it is made. What the file has already is not made again, so a run that
stopped when its time was over can be repeated. At the end the Markdown table of all that is there goes to stdout.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from drkernel_q.audit import AUDIT_VERSION, Audit
from drkernel_q.cli.findings import document, line, markdown
from drkernel_q.problem import Problem, find_problem
from drkernel_q.problem.suite import load_suite
from drkernel_q.settings import Settings
from tests.judging import Bench


def main() -> None:
    """Audit until everything is done, or the time is over."""
    options = arguments()
    ends_at = time.monotonic() + options.seconds
    known = read(options.output) if options.output.exists() else {}
    bench = Bench(options.device, memory_bytes=32 * 2**30)
    bench.evaluator.wait_ready()
    kind = bench.evaluator.device.device_kind
    todo = [problem for problem in problems(options) if (problem.hash, kind) not in known]
    say(f"{len(todo)} problems to audit on {kind}, {len(known)} known")
    with options.output.open("a", encoding="utf-8") as file:
        for number, problem in enumerate(todo):
            if time.monotonic() > ends_at:
                say(f"the time is over; {len(todo) - number} problems are left for another run")
                break
            start = time.monotonic()
            audit = bench.audit(problem, deadline_s=options.deadline, compile=options.compile)
            if not isinstance(audit, Audit):
                say(f"{problem.name}: no audit ({audit.kind}) {audit.message}")
                continue
            known[problem.hash, kind] = problem.name, audit
            file.write(json.dumps(document(problem, audit)) + "\n")
            file.flush()
            say(f"{time.monotonic() - start:5.1f} s   {line(problem, audit)}")
    bench.close()
    print(markdown(list(known.values())))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", default="cuda:0")
    parser.add_argument("names", nargs="*", help="names of problems; the built-in set, and levels, without any")
    parser.add_argument("--kernelbench", type=Path, help="a checkout of KernelBench")
    parser.add_argument("--levels", default="1,2", help="its levels to audit")
    parser.add_argument("--seconds", type=float, default=280.0, help="begin no further audit after this")
    parser.add_argument("--deadline", type=float, default=30.0, help="longest time of one audit, seconds")
    parser.add_argument("--compile", action="store_true", help="time torch.compile too")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON lines to read and add to")
    return parser.parse_args()


def problems(options: argparse.Namespace) -> Iterator[Problem]:
    """Load what was asked for."""
    settings = Settings(kernelbench=options.kernelbench)
    if options.names:
        yield from (find_problem(name, settings) for name in options.names)
        return
    yield from load_suite("builtin", settings, say)
    if options.kernelbench is not None:
        for level in options.levels.split(","):
            yield from load_suite(f"kernelbench/{level}", settings, say)


def read(path: Path) -> dict[tuple[str, str], tuple[str, Audit]]:
    """Read the audits of a file: name and audit by hash of the problem and kind of device."""
    found = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        facts = json.loads(text)
        problem = facts.pop("problem")
        audit = Audit.model_validate({name: facts[name] for name in Audit.model_fields if name in facts})
        if audit.version == AUDIT_VERSION:
            found[problem["hash"], audit.environment.device_kind] = problem["name"], audit
    return found


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
