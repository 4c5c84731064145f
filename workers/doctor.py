"""What a machine offers to workers, as facts for `drkq doctor`; `python -m workers.doctor` prints them.

It is a process of its own because `drkernel_q` imports no torch, and because a broken driver may take the
process down: the facts written until then still arrive.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

Fact = dict[str, object]


def main() -> None:
    """Write every fact to stdout as `{"fact": name, ...}`; one that cannot be had carries `error`."""
    facts: dict[str, Callable[[], Fact]] = {
        "sandbox": sandbox,  # forks, so it comes before torch has threads
        "driver": driver,
        "torch": torch_build,
        "triton": triton_build,
        "kernel": kernel,
    }
    with _own_stdout() as report:
        for name, find in facts.items():
            try:
                fact = find()
            except Exception as error:  # noqa: BLE001 - whatever a broken installation raises is the fact
                fact = {"error": f"{type(error).__name__}: {error}"}
            report.write(json.dumps({"fact": name, **fact}) + "\n")
            report.flush()


def sandbox() -> Fact:
    """Try every measure that confines candidates."""
    from workers.isolation.sandbox import probe, probing_uid

    return {"measures": probe(probing_uid())}


def driver() -> Fact:
    """Ask NVML for the driver and its devices; a machine without a driver is a fact, not an error."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"version": None, "devices": [], "reason": str(error)}
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
    return {"version": pynvml.nvmlSystemGetDriverVersion(), "devices": names}


def torch_build() -> Fact:
    """Name torch, the CUDA it was built for, and the devices it can use."""
    import torch

    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {"version": torch.__version__, "cuda": torch.version.cuda, "devices": usable}


def triton_build() -> Fact:
    """Name triton, which interprets kernels where torch finds no device."""
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported
    import triton

    return {"version": triton.__version__}


def kernel() -> Fact:
    """Compile and run one line, on the first device or through the interpreter."""
    import torch

    from workers import smoke

    device = "cuda" if torch.cuda.is_available() else "cpu"
    started = time.monotonic()
    smoke.run(device)
    return {"device": device, "duration_s": round(time.monotonic() - started, 3)}


def _own_stdout() -> TextIO:
    """Keep stdout for the facts, and send what libraries print there to stderr."""
    report = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return report


if __name__ == "__main__":
    main()
