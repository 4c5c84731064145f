"""Judge a set of kernels and print a table; run by hand: `python -m tests.gpu.table [DEVICE] [--json FILE]`."""

import json
import sys
import time

from drkernel_q.evaluation import Evaluation
from tests.judging import EXAMPLES, KERNELS, Bench, builtin


def main() -> None:
    """Judge and print."""
    device = next(iter(argument for argument in sys.argv[1:2] if argument != "--json"), "cuda:0")
    bench = Bench(device, memory_bytes=32 * 2**30)
    start = time.time()
    bench.evaluator.wait_ready()
    print(f"zygote {time.time() - start:.1f} s {bench.evaluator.versions} {bench.evaluator.isolation}")
    softmax = (EXAMPLES / "softmax.py").read_text()
    wrapper = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return torch.softmax(x, -1)\n"
    cases = [("softmax", "example", softmax)] * 3 + [("softmax", "torch wrapper", wrapper)]
    cases += [(path.stem, "corpus", path.read_text()) for path in sorted(KERNELS.glob("*.py")) if path.stem != "__init__"]
    documents = []
    for name, label, source in cases:
        start = time.time()
        try:
            problem = builtin(name)
        except KeyError:
            continue
        result = bench.result(problem, source, timing_budget_s=2.0, deadline_s=120.0)
        seconds = time.time() - start
        if isinstance(result, Evaluation):
            print(row(name, label, result, seconds), flush=True)
            documents.append({"problem": name, "label": label, **result.model_dump(mode="json")})
        else:
            print(f"{name:24s} {label:14s} {result.kind}: {result.message[-1500:]}", flush=True)
    if "--json" in sys.argv:
        with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
            json.dump(documents, file, indent=1)
    bench.close()


def row(name: str, label: str, result: Evaluation, seconds: float) -> str:
    """Format one line."""
    timing = result.timing
    times = f"{timing.speedup:6.3f}x [{timing.speedup_low:.3f}, {timing.speedup_high:.3f}]" if timing else " " * 22
    ms = f"{timing.reference_ms:8.4f} {timing.candidate_ms:8.4f} ms n={timing.runs}" if timing else ""
    ratio = "-" if result.profile_ratio is None else f"{result.profile_ratio:.4f}"
    codes = ",".join(item.code for item in result.evidence)
    stages = " ".join(f"{key}={value:.2f}" for key, value in result.durations_s.items())
    error = (result.error or "").strip().splitlines()[-1:] or [""]
    head = f"{name:22s} {label:14s} {result.outcome.value:13s} {result.integrity.value:10s} {codes:8s}"
    return f"{head} {times} PR {ratio} {ms} {seconds:.1f}s ({stages}) {error[0][:200]}"


if __name__ == "__main__":
    main()
