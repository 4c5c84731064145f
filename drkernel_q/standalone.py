"""Standalone: a kernel as a file that runs by itself, with what was found about it as a comment at its head."""

from drkernel_q.evaluation import Evaluation, side_name
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem

_MAIN = '''

# The reference that it was judged against, for `python {name}` alone; nothing below is part of the kernel.
_REFERENCE = {reference}


def _main():
    """Compare the kernel with the reference on random inputs, and time both."""
    import statistics
    import time

    import torch

    scope = {{"__name__": "reference"}}
    exec(compile(_REFERENCE, "reference.py", "exec"), scope)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        print("no CUDA device: TRITON_INTERPRET=1 must be set, and a kernel that insists on CUDA tensors will not run")
    torch.manual_seed(0)
    reference = scope["Model"](*scope["get_init_inputs"]()).to(device).eval()
    torch.manual_seed(0)
    kernel = ModelNew(*scope["get_init_inputs"]()).to(device).eval()
    kernel.load_state_dict(reference.state_dict(), strict=False)
    inputs = [each.to(device) if isinstance(each, torch.Tensor) else each for each in scope["get_inputs"]()]

    def synchronize():
        if device == "cuda":
            torch.cuda.synchronize()

    def median_ms(model):
        times = []
        for _ in range(20):
            synchronize()
            start = time.perf_counter()
            model(*inputs)
            synchronize()
            times.append(time.perf_counter() - start)
        return 1e3 * statistics.median(times[3:])

    with torch.inference_mode():
        expected, got = reference(*inputs), kernel(*inputs)
        torch.testing.assert_close(got, expected, atol=1e-2, rtol=1e-2)
        print("outputs agree within 1e-2")
        reference_ms, kernel_ms = median_ms(reference), median_ms(kernel)
    print(f"kernel {{kernel_ms:.4g}} ms, reference {{reference_ms:.4g}} ms, on {{device}}; drkq eval measures better")


if __name__ == "__main__":
    _main()
'''


def standalone(problem: Problem, kernel: Kernel, evaluation: Evaluation, *, name: str, origin: str) -> str:
    """Return the text of a file `name` that `drkq eval` judges as the kernel, and that Python runs as a small test.

    `origin` says in a line where the kernel comes from. On the cpu device the reference has the sizes it was judged in.
    """
    on_cpu = evaluation.environment.device_type == "cpu"
    reference = problem.small() if on_cpu else problem
    head = "\n".join(f"# {line}".rstrip() for line in _head(problem, evaluation, name, origin))
    return f"{head}\n{kernel.source.rstrip()}\n" + _MAIN.format(name=name, reference=_literal(reference.source))


def _head(problem: Problem, evaluation: Evaluation, name: str, origin: str) -> list[str]:
    environment = evaluation.environment
    versions = f"torch {environment.torch}, triton {environment.triton}, drkq {environment.drkq}"
    how = f"TRITON_INTERPRET=1 python {name}" if environment.device_type == "cpu" else f"python {name}"
    lines = [
        f"A kernel for {problem.name} ({problem.hash}).",
        f"Found by {origin}",
        f"Judged {evaluation.outcome.value} and {evaluation.integrity.value} on {evaluation.device} "
        f"({environment.device_name}), {versions}.",
    ]
    timing = evaluation.timing
    for row in timing.baselines if timing else ():
        side = side_name(row.baseline, row.precision)
        interval = f"[{row.speedup_low:.3g}, {row.speedup_high:.3g}]"
        lines.append(f"{row.speedup:.3g} times as fast as {side} {interval}: reference {row.reference_ms:.4g} ms.")
    if timing is not None:
        lines.append(f"Kernel {timing.candidate_ms:.4g} ms, median of {timing.runs} calls.")
    if evaluation.profile_ratio is not None:
        lines.append(f"{evaluation.profile_ratio:.1%} of the device time is its own.")
    return [*lines, f"Try it: {how}", f"Judge it again: drkq eval {name} --problem {problem.name}", ""]


def _literal(source: str) -> str:
    """Write text as a Python literal, as readable as its characters allow."""
    for quotes in ('"""', "'''"):
        if quotes not in source and "\\" not in source and not source.rstrip().endswith(quotes[0]):
            return f"{quotes}\\\n{source.rstrip()}\n{quotes}"
    return repr(source)
