"""A kernel for every problem of KernelBench's levels 1 to 3: ours where there is one, and torch's own work elsewhere.

    PYTHONPATH=. python benchmarks/kernelbench_folder.py CHECKOUT FOLDER [--only 1/23,2/76] [--small]

fills FOLDER/kernels for `drkq bench kernelbench/1 kernelbench/2 kernelbench/3 --kernels FOLDER/kernels`. A wrapper is
the text of the reference, its `Model` called `ModelNew`: correct where anything is, nobody's kernel (A1) unless
`--backend any` says that this does not matter, and as fast as the reference, so that what `drkq bench` makes of it is
known beforehand. `--small` writes the problems of `SIZES` in these sizes to FOLDER/problems too, for `drkq bench
FOLDER/problems --kernels FOLDER/kernels --device cpu`. Prints one JSON line.
"""

import argparse
import ast
import io
import json
import tokenize
from pathlib import Path

from benchmarks.kernelbench import CANDIDATES, SIZES
from drkernel_q.problem import kernelbench_files, load_problem

#: Functions of a reference that a kernel has no use for.
_OF_THE_PROBLEM = {"get_inputs", "get_init_inputs"}


def wrapper(source: str) -> str:
    """Return a reference as a kernel file."""
    lines = source.splitlines(keepends=True)
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.FunctionDef) and node.name in _OF_THE_PROBLEM:
            del lines[node.lineno - 1 : node.end_lineno]
    for token in reversed(list(tokenize.generate_tokens(io.StringIO("".join(lines)).readline))):
        if token.type == tokenize.NAME and token.string == "Model":
            (row, begin), (_, end) = token.start, token.end
            lines[row - 1] = f"{lines[row - 1][:begin]}ModelNew{lines[row - 1][end:]}"
    return "".join(lines)


def candidates() -> dict[str, Path]:
    """Find our kernels, by level and number of their problem."""
    return {"/".join(path.stem.split("_")[:2]): path for path in sorted(CANDIDATES.glob("*.py"))}


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","), help="problems, such as 1/23,2/76")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    kernels, problems = options.folder / "kernels", options.folder / "problems"
    ours, counts = candidates(), {"ours": 0, "wrapped": 0}
    for name, path in kernelbench_files(options.checkout).items():
        spec = name.partition("_")[0]
        wanted = options.only or (SIZES if options.small else None)
        if name[0] not in "123" or (wanted is not None and spec not in wanted):
            continue
        problem = load_problem(path, name=name)
        file = f"{name.replace('/', '_')}.py"
        kernels.mkdir(parents=True, exist_ok=True)
        kernel = ours[spec].read_text() if spec in ours else wrapper(problem.source)
        (kernels / file).write_text(kernel)
        counts["ours" if spec in ours else "wrapped"] += 1
        if options.small:
            problems.mkdir(exist_ok=True)
            (problems / file).write_text(problem.resized(SIZES[spec]).source)
    print(json.dumps({"benchmark": "kernelbench_folder", "folder": str(options.folder), **counts}))


if __name__ == "__main__":
    main()
