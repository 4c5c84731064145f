"""Judge a set of kernels and print a table; run by hand: `python -m tests.gpu.table [DEVICE [NAME...]]`."""

import sys
import time

from drkernel_q.evaluation import Evaluation
from tests.judging import EXAMPLES, KERNELS, Bench, builtin

WRAPPER = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    forward = staticmethod(torch.nn.Softmax(-1))\n"


def main() -> None:
    """Judge the example three times, a torch wrapper, and the corpus (or those of it that are named)."""
    device, names = (sys.argv[1:2] or ["cuda:0"])[0], sys.argv[2:]
    bench = Bench(device, memory_bytes=32 * 2**30)
    start = time.time()
    bench.evaluator.wait_ready()
    print(f"zygote {time.time() - start:.1f} s {bench.evaluator.versions} {bench.evaluator.isolation}")
    softmax = (EXAMPLES / "softmax.py").read_text()
    cases = [("softmax", "example", softmax)] * 3 + [("softmax", "torch wrapper", WRAPPER)]
    corpus = [(path.stem, "corpus", path.read_text()) for path in sorted(KERNELS.glob("*.py"))]
    for name, label, source in [*cases, *(case for case in corpus if not names or case[0] in names)]:
        start = time.time()
        result = bench.result(builtin(name), source, timing_budget_s=2.0, deadline_s=120.0)
        seconds = time.time() - start
        if isinstance(result, Evaluation):
            print(row(name, label, result, seconds), flush=True)
        else:
            print(f"{name:22s} {label:14s} {result.kind}: {result.message[-1500:]}", flush=True)
    bench.close()


def row(name: str, label: str, result: Evaluation, seconds: float) -> str:
    """Format one line."""
    timing = result.timing
    times = f"{timing.speedup:6.3f}x [{timing.speedup_low:.3f}, {timing.speedup_high:.3f}]" if timing else " " * 22
    ms = (
        f"{timing.reference_ms:8.4f} {timing.candidate_ms:8.4f} ms (judge {timing.judge_ms:.4f}) n={timing.runs}"
        if timing
        else ""
    )
    ratio = "-" if result.profile_ratio is None else f"{result.profile_ratio:.4f}"
    codes = ",".join(item.code for item in result.evidence)
    stages = " ".join(f"{key}={value:.2f}" for key, value in result.durations_s.items())
    error = (result.error or "").strip().splitlines()[-1:] or [""]
    head = f"{name:22s} {label:14s} {result.outcome.value:13s} {result.integrity.value:10s} {codes:8s}"
    return f"{head} {times} PR {ratio} {ms} {seconds:.1f}s ({stages}) {error[0][:200]}"


if __name__ == "__main__":
    main()
