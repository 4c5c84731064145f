"""What torch must do on a CPU device; run by `tests.unit.interpreted`, since a CPU device changes the whole process."""

import time

import numpy as np
import torch
from torch import nn

from tests.unit.interpreted import raises
from workers.cpu import hosttensor

CUDA = torch.device("cuda", 0)
WAYS_TO_SAY_CUDA = ("cuda", "cuda:0", torch.device("cuda"), CUDA, 0)


def check_on_device(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        assert tensor.is_cuda
        assert not tensor.is_cpu
        assert tensor.device == CUDA
        assert tensor.get_device() == 0
        assert tensor.untyped_storage().device == torch.device("cpu")


def case_factories_take_cuda() -> None:
    x = torch.zeros(2, 3)
    for device in WAYS_TO_SAY_CUDA:
        check_on_device(
            *(f(2, 3, device=device) for f in (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn)),
            torch.tensor([1.0], device=device),
            torch.as_tensor([1.0], device=device),
            torch.arange(4, device=device),
            torch.linspace(0, 1, 4, device=device),
            torch.full((2,), 7, device=device),
            torch.eye(2, device=device),
            torch.randint(0, 5, (2,), device=device),
            torch.randperm(4, device=device),
            torch.empty_strided((2, 2), (1, 2), device=device),
            torch.tril_indices(2, 2, device=device),
            torch.fft.fftfreq(4, device=device),
            torch.zeros_like(x, device=device),
            torch.empty_like(x, device=device),
            torch.full_like(x, 3, device=device),
            torch.rand_like(x, device=device),
            x.new_zeros(2, device=device),
            x.new_empty((2,), device=device),
            x.new_full((2,), 1, device=device),
            x.new_tensor([1], device=device),
            torch.empty(2, pin_memory=True),
        )
    assert torch.full((2,), 7, device="cuda", dtype=torch.int8).dtype == torch.int8


def case_tensors_and_modules_move_to_cuda() -> None:
    x = torch.ones(3)
    for device in WAYS_TO_SAY_CUDA:
        check_on_device(x.to(device), x.to(device=device), x.to(device, torch.float16), x.cuda(device))
        assert x.to(device, torch.float16).dtype == torch.float16
        check_on_device(*nn.Linear(2, 3).to(device).parameters(), *nn.Linear(2, 3).cuda(device).parameters())
        check_on_device(*nn.Linear(2, 3, device=device).parameters())
    check_on_device(x.cuda(), x.cuda(non_blocking=True), x.pin_memory(), x.to(torch.zeros(1)))
    assert nn.Linear(2, 2).to("cuda", torch.float64).weight.dtype == torch.float64
    assert torch.equal(x.to("cuda", copy=True), x)
    assert x.to("cuda", copy=True).data_ptr() != x.data_ptr()
    assert x.to("cuda").data_ptr() == x.data_ptr()


def case_tensors_say_where_they_are() -> None:
    check_on_device(torch.zeros(1), nn.Parameter(torch.zeros(1)), torch.zeros(2)[1:], torch.zeros(2).detach())
    assert torch.zeros(1, device="meta").device.type == "meta"
    assert not torch.zeros(1, device="meta").is_cuda
    assert "cuda:0" in repr(torch.zeros(1))
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad is not None
    check_on_device(x.grad)


def case_another_gpu_does_not_exist() -> None:
    assert "invalid device ordinal" in raises(RuntimeError, lambda: torch.zeros(1, device="cuda:1"))
    assert "invalid device ordinal" in raises(RuntimeError, lambda: torch.zeros(1).to("cuda:3"))
    raises(RuntimeError, lambda: torch.zeros(1, device="cudda"))


def case_default_device_and_device_contexts() -> None:
    with torch.device("cuda"):
        check_on_device(torch.zeros(1), nn.Linear(2, 2).weight)
    torch.set_default_device("cuda")
    check_on_device(torch.zeros(1))
    torch.set_default_device(None)
    x = torch.zeros(1)
    with torch.cuda.device(0), torch.cuda.device("cuda"), torch.cuda.device(x.device), torch.cuda.device_of(x):
        check_on_device(torch.zeros(1))
    assert torch._C._len_torch_function_stack() == 0


def case_torch_cuda_describes_one_gpu() -> None:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    assert torch.cuda.is_available()
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.get_device_name(0) == properties.name
    assert torch.cuda.get_device_capability() == (properties.major, properties.minor) == (9, 0)
    assert properties.multi_processor_count > 0
    assert properties.total_memory == torch.cuda.mem_get_info()[1] > 2**30
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 0
    for name in ("init", "synchronize", "empty_cache", "reset_peak_memory_stats", "ipc_collect"):
        getattr(torch.cuda, name)()
    torch.cuda.set_device(0)
    torch.cuda.synchronize("cuda:0")
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert isinstance(torch.cuda.FloatTensor([1.0, 2.0]), torch.FloatTensor)
    with torch.cuda.nvtx.range("a range"):
        pass


def case_events_measure_the_wall_clock() -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    raises(RuntimeError, lambda: start.elapsed_time(end))
    start.record()
    time.sleep(0.02)
    end.record(torch.cuda.current_stream())
    end.synchronize()
    assert end.query()
    assert 20 <= start.elapsed_time(end) < 2000


def case_streams_are_in_order() -> None:
    stream, x = torch.cuda.Stream(), torch.zeros(4)
    with torch.cuda.stream(stream):
        x += 1
        x.record_stream(stream)
    torch.cuda.current_stream().wait_stream(stream)
    stream.record_event().synchronize()
    stream.synchronize()
    assert torch.cuda.current_stream(x.device).cuda_stream == torch.cuda.default_stream().cuda_stream
    assert x.tolist() == [1.0] * 4


def case_random_numbers_repeat() -> None:
    def draw() -> torch.Tensor:
        return torch.rand(4, device="cuda")

    torch.cuda.manual_seed(3)
    first = draw()
    torch.cuda.manual_seed_all(3)
    assert torch.equal(first, draw())
    torch.manual_seed(3)
    state = torch.cuda.get_rng_state()
    assert torch.equal(first, draw())
    torch.cuda.set_rng_state(state)
    with torch.random.fork_rng():
        assert torch.equal(first, draw())
    assert torch.equal(first, draw())
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert torch.equal(first, torch.rand(4, device="cuda", generator=generator))
    assert isinstance(generator, torch.Generator)


def case_autocast_gives_the_dtypes_of_a_gpu() -> None:
    a = torch.randn(4, 4)
    with torch.autocast("cuda"):
        assert torch.is_autocast_enabled()
        assert (a @ a).dtype == torch.get_autocast_dtype("cuda") == torch.float16
    with torch.amp.autocast("cuda", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
    with torch.autocast(device_type=a.device.type, enabled=False):
        assert (a @ a).dtype == torch.float32
    with torch.autocast("cpu"):
        assert (a @ a).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled()
    assert torch.get_autocast_dtype("cuda") == torch.float16


def case_torch_itself_still_works() -> None:
    x = torch.randn(2, 5, 8, device="cuda")
    nn.LSTM(8, 8).cuda()(x)
    nn.MultiheadAttention(8, 2, batch_first=True, device="cuda").eval()(x, x, x)
    nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    nn.BatchNorm1d(5).cuda()(x)
    assert torch.equal(torch.func.vmap(lambda a: a.sum())(x), x.sum((1, 2)))
    check_on_device(nn.ModuleList([nn.Linear(1, 1)]).cuda()[0].weight, torch.as_tensor(np.ones(2)))


def case_torch_compile_is_eager() -> None:
    model = nn.Linear(2, 2)
    assert torch.compile(model, mode="max-autotune") is model

    @torch.compile(fullgraph=True)
    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    assert double(torch.ones(1)).item() == 2
    # This loads the compiler, which refuses to when two names of torch are one object.
    x = torch.ones(1, requires_grad=True)
    torch.utils.checkpoint.checkpoint(lambda a: a * 2, x, use_reentrant=False).sum().backward()
    assert x.grad.item() == 2


def case_nothing_is_left_on() -> None:
    assert torch._C._len_torch_function_stack() == 0
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not torch.cuda.is_initialized()


def case_names_of_devices() -> None:
    assert all(hosttensor.to_host(name) is hosttensor.CPU for name in WAYS_TO_SAY_CUDA)
    assert hosttensor.to_host(None) is None
    assert hosttensor.to_host("cpu") == torch.device("cpu")
    assert hosttensor.to_host("meta") == torch.device("meta")
