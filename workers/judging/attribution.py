"""Attribution: who wrote the kernels that ran, and the candidate's share of the device time (the profile ratio).

A kernel is the candidate's own by identity and by the way it was launched: its name, block and registers are those of a
kernel that was compiled from the candidate's file or built in its folder, and no operator of torch launched it. Names
alone prove nothing, and change nothing. CPU time never counts.
"""

import re
from collections.abc import Collection
from statistics import median
from typing import Any, NamedTuple

from drkernel_q.profile import KernelProfile, Origin, Profile
from workers.exchange.trace import TORCH, Row, Trace

#: Most kernels that are kept of one profile.
MAX_ROWS = 200
#: Longest name of a kernel, characters.
MAX_NAME = 200
_REGISTER_UNIT = 8
_COMPILER = re.compile(r"triton_(poi|red|per|tem|mm|unk|for|split_scan|mix_order)_")
#: Namespaces of C++. Code of others stays theirs whoever compiled it: a header that is included becomes nobody's own.
_TORCH_CODE = ("at::", "at_cuda_detail::", "c10::", "torch::")
_LIBRARY_CODE = ("cublas", "cub::", "cudnn::", "cute::", "cutlass", "flash::", "pytorch_flash::", "thrust::")
_LIBRARY_NAME = re.compile(
    r"cublas|cudnn|nvjet|cutlass|xmma|cufft|^(volta|turing|ampere|hopper|blackwell)_|^sm\d+_|gemm|gemv|splitK|"
    r"flash_(fwd|bwd)|fmha|ncclDevKernel|implicit_convolve|winograd|cask"
)
#: Names that vendors' libraries give, and no honest Triton function has: what they stand for in a graph, where nobody
#: knows who launched it, is theirs, although a kernel of the candidate may have taken the name.
_VENDOR_NAME = re.compile(r"nvjet|cublas|cudnn|cutlass|xmma|^(volta|turing|ampere|hopper|blackwell)_|^sm\d+_")
#: Operators of torch that only pass work on to libraries.
_LIBRARY_OPERATOR = re.compile(
    r"aten::(mm|addmm|bmm|baddbmm|_scaled_mm|_?cudnn_\w+|_(scaled_dot_product_)?(flash|efficient|cudnn)_attention\w*)"
)


class Identity(NamedTuple):
    """What a kernel of the candidate's is recognized by; what is None or 0 is not known, and fits everything."""

    name: str
    threads: int | None = None
    """Threads of a block."""
    registers: int | None = None
    """Registers of a thread."""

    def fits(self, row: Row) -> bool:
        """Whether `row` is this kernel."""
        pairs = ((self.threads, row.threads), (_units(self.registers), _units(row.registers)))
        return self.name == row.name and all(not mine or not seen or mine == seen for mine, seen in pairs)


def _units(registers: int | None) -> int:
    """Round as the device allocates registers, so that it does not matter who has rounded already."""
    return -(-(registers or 0) // _REGISTER_UNIT)


def attribute(trace: Trace, own: Collection[Identity], calls: int) -> Profile:
    """Say who wrote each kernel and compute the profile ratio; all figures are for one of `calls` calls.

    There is no ratio when the recording is not whole.
    """
    merged: dict[tuple[str, Origin, str | None, bool], tuple[float, int]] = {}
    for row in trace.rows:
        operator = row.operator if _is_torchs(row) else None
        key = (row.name, origin(row, own), operator, row.graph)
        total_us, times = merged.get(key, (0.0, 0))
        merged[key] = (total_us + row.device_us, times + row.times)
    kernels = [
        KernelProfile(
            name=name[:MAX_NAME],
            device_us=total_us / calls,
            launches=times / calls,
            origin=found,
            operator=operator,
            graph=graph,
        )
        for (name, found, operator, graph), (total_us, times) in sorted(merged.items(), key=lambda item: -item[1][0])
    ]
    device_us = sum(kernel.device_us for kernel in kernels)
    mine = [kernel for kernel in kernels if kernel.origin is Origin.CANDIDATE]
    fault = trace.fault or (None if device_us > 0 else "no activity of the device was recorded")
    ratio = None if fault else _share(trace, sum(kernel.device_us for kernel in mine) * calls, device_us * calls, own)
    return Profile(
        profile_ratio=ratio,
        launches=sum(kernel.launches for kernel in mine),
        device_us=device_us,
        kernels=tuple(kernels[:MAX_ROWS]),
        fault=fault,
        **_medians(trace),
    )


def _share(trace: Trace, own_us: float, all_us: float, own: Collection[Identity]) -> float:
    """Return the candidate's share of the device time.

    While kernels of its own and of others run beside each other, the time is the others': to keep a corner of the
    device busy for as long as they work is no work of its own.
    """
    theirs = {row.name for row in trace.rows if not row.memory and origin(row, own) is not Origin.CANDIDATE}
    beside_us = sum(each.device_us for each in trace.overlaps if (each.name in theirs) != (each.other in theirs))
    lost_us = min(beside_us, own_us)
    return min((own_us - lost_us) / (all_us - lost_us), 1.0) if all_us > lost_us else 0.0


def _medians(trace: Trace) -> dict[str, Any]:
    if not trace.spans:
        return {}
    return {
        "window_us": median(span.window_us for span in trace.spans),
        "busy_us": median(span.busy_us for span in trace.spans),
        "early_us": median(span.early_us for span in trace.spans),
        "streams": max(span.streams for span in trace.spans),
    }


def origin(row: Row, own: Collection[Identity]) -> Origin:
    """Say who wrote what `row` is about."""
    if row.memory:
        return Origin.MEMORY
    by_torch = _is_torchs(row)
    theirs = _code_of_others(row)
    doubtful = row.graph and _VENDOR_NAME.search(row.name) is not None
    if not by_torch and not doubtful and theirs is None and any(identity.fits(row) for identity in own):
        return Origin.CANDIDATE
    if _COMPILER.match(row.name) or (row.operator is not None and _COMPILER.match(row.operator)):
        return Origin.COMPILER
    if theirs is not None:
        return theirs
    if _LIBRARY_NAME.search(row.name) or (row.operator is not None and _LIBRARY_OPERATOR.fullmatch(row.operator)):
        return Origin.LIBRARY
    return Origin.TORCH if by_torch else Origin.OTHER


def _is_torchs(row: Row) -> bool:
    return row.operator is not None and row.operator.startswith(TORCH)


def _code_of_others(row: Row) -> Origin | None:
    """Tell by the namespace of the function, not by those of its types; no Triton function can be in one."""
    path = re.split(r"[<(]", row.name.removeprefix("void ").replace("(anonymous namespace)", "anonymous"), maxsplit=1)[
        0
    ]
    if "::" not in path:
        return None
    if path.startswith(_TORCH_CODE):
        return Origin.TORCH
    return Origin.LIBRARY if path.startswith(_LIBRARY_CODE) else None


def own_names(profile: Profile) -> tuple[str, ...] | None:
    """Name the kernels of the candidate's that ran; None where that was not recorded as a whole."""
    if profile.profile_ratio is None:
        return None
    return tuple(sorted({row.name for row in profile.kernels if row.origin is Origin.CANDIDATE}))
