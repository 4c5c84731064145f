"""What launching a kernel must do on a CPU device; run by `tests.unit.interpreted`."""

import os
import runpy
import tempfile
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import nn
from triton.runtime import driver

from tests.unit.interpreted import raises
from workers.cpu import interpreter


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


def copied(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256, num_warps=4, num_stages=2)
    return y


def case_kernels_see_views_and_parameters() -> None:
    x = torch.arange(600.0, device="cuda")
    assert torch.equal(copied(x[100:400], torch.empty(300)), x[100:400])
    weight = nn.Parameter(torch.randn(64))
    assert torch.equal(copied(weight, torch.empty(64, device="cuda")), weight)
    assert torch.equal(copied(x[:0], torch.empty(0)), x[:0])


WITHOUT_A_NAME_FOR_THE_LANGUAGE = """
import triton
from triton.language import store

@triton.jit
def kernel(x_ptr):
    store(x_ptr, triton.language.load(x_ptr + 1))
"""


def case_kernels_find_the_language_by_any_name() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "candidate.py")
        path.write_text(WITHOUT_A_NAME_FOR_THE_LANGUAGE)
        kernel = runpy.run_path(str(path))["kernel"]
        x = torch.tensor([0.0, 7.0])
        kernel[(1,)](x)
    assert x[0].item() == 7


def case_kernels_are_interpreted_without_the_environment() -> None:
    os.environ.clear()
    late = triton.jit(copy_kernel.fn)
    y = torch.empty(4)
    late[(1,)](torch.ones(4), y, 4, BLOCK=4)
    assert y.tolist() == [1.0] * 4


def case_driver_answers_for_the_gpu() -> None:
    assert driver.active.get_current_device() == 0
    assert driver.active.get_current_stream(0) == 0
    assert driver.active.get_active_torch_device() == torch.device("cuda", 0)
    assert driver.active.get_current_target().backend == "cuda"
    assert driver.active.get_device_capability() == (9, 0)
    answers = driver.active.utils.get_device_properties(driver.active.get_current_device())
    assert answers["multiprocessor_count"] == torch.cuda.get_device_properties(0).multi_processor_count
    assert 0 < triton.testing.do_bench(lambda: torch.zeros(8), warmup=1, rep=1) < 1e3
    assert driver.active.get_benchmarker()(lambda: torch.zeros(8), quantiles=(0.5, 0.2), warmup=1, rep=1)


def case_warm_up_returns_a_compiled_kernel() -> None:
    x, y = torch.randn(8), torch.zeros(8)
    compiled = copy_kernel.warmup(x, y, 8, BLOCK=8, grid=(1,))
    compiled._init_handles()
    assert compiled.n_regs > 0
    assert compiled.metadata.shared == compiled.n_spills == 0
    assert not y.any()
    compiled[(1,)](x, y, 8, 8)
    assert torch.equal(x, y)
    assert copy_kernel[(1,)](x, y, 8, BLOCK=8).n_regs > 0


def case_autotune_launches_once() -> None:
    configs = [triton.Config({"BLOCK": size}, num_warps=warps) for size in (64, 256, 128) for warps in (1, 4)]
    tuned = triton.autotune(configs, key=["n"], reset_to_zero=["y_ptr"])(copy_kernel)
    x, y = torch.randn(600), torch.empty(600)
    with interpreter.LaunchRecorder() as launches:
        tuned[lambda meta: (triton.cdiv(600, meta["BLOCK"]),)](x, y, 600)
    assert len(launches) == 1
    assert torch.equal(x, y)
    assert tuned.best_config.kwargs == {"BLOCK": 256}

    only = triton.autotune(configs, key=["n"], prune_configs_by={"early_config_prune": lambda c, *_, **__: c[:2]})
    pruned = only(copy_kernel)
    pruned[lambda meta: (triton.cdiv(600, meta["BLOCK"]),)](x, torch.empty(600), 600)
    assert pruned.best_config.kwargs == {"BLOCK": 64}


def case_heuristics_decide() -> None:
    chosen = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(copy_kernel)
    x, y = torch.randn(100), torch.empty(100)
    chosen[(1,)](x, y, 100)
    assert torch.equal(x, y)


@triton.jit
def twice(x):
    return x + x


@triton.jit
def helped_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, twice(tl.load(x_ptr + offsets)) / tl.sum(tl.load(x_ptr + offsets)))


def case_launches_are_recorded() -> None:
    x, y = torch.ones(16), torch.empty(16)
    copied(x, y)
    with interpreter.LaunchRecorder() as launches:
        copied(x, y)
        with interpreter.LaunchRecorder() as inner:
            helped_kernel[(1,)](x, y, BLOCK=16)
        copy_kernel.warmup(x, y, 8, BLOCK=8, grid=(1,))
        torch.relu(x)
    copied(x, y)
    assert [launch.name for launch in launches] == ["copy_kernel", "helped_kernel"]
    assert [launch.name for launch in inner] == ["helped_kernel"]
    assert {launch.file for launch in launches} == {__file__}
    assert all(0 < launch.seconds < 10 for launch in launches)


def case_a_failed_launch_is_not_recorded() -> None:
    with interpreter.LaunchRecorder() as launches:
        raises(Exception, lambda: copy_kernel[(1,)](torch.ones(4), torch.ones(4), 4, BLOCK=3))
    assert launches == []
    assert copied(torch.ones(4), torch.empty(4)).all()


def case_launches_are_shown_to_the_profiler() -> None:
    x = torch.ones(16)
    with torch.profiler.profile() as profiler, interpreter.LaunchRecorder(annotate="own::"):
        copied(x, torch.empty(16))
        torch.relu(x)
    counts = {event.key: event.count for event in profiler.key_averages()}
    assert counts["own::copy_kernel"] == counts["aten::relu"] == 1
