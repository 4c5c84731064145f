"""Tensors on the CPU that say they are on `cuda:0`, and torch functions that take CUDA device 0 as the CPU.

Only what takes or tells a device is replaced, so every other operation runs at full speed and no torch mode is
entered. The replacements are for this process and its forks; nothing takes them back.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _device

#: Where tensors are in truth.
CPU = torch.device("cpu")
#: Where they say they are.
CUDA = torch.device("cuda", 0)

_DEVICE_TYPES = {str, int, torch.device}
_real_device = vars(torch._C.TensorBase)["device"].__get__


class Generator(torch.Generator):
    """A random number generator of the CPU, also when asked for one of CUDA."""

    def __new__(cls, device: object = CPU) -> "Generator":
        """Make a generator for what `device` stands for."""
        return super().__new__(cls, to_host(device))  # type: ignore[call-arg]  # torch's stub has no __new__


@functools.lru_cache(maxsize=64)
def to_host(device: Any) -> Any:
    """Return the CPU for what names CUDA device 0, and everything else as it is."""
    if isinstance(device, int):
        device = torch.device("cuda", device)
    elif isinstance(device, str):
        device = torch.device(device)
    if not isinstance(device, torch.device) or device.type != "cuda":
        return device
    if device.index not in {None, 0}:
        raise RuntimeError("CUDA error: invalid device ordinal")
    return CPU


def install() -> None:
    """Replace what takes or tells a device: factories, methods of tensors and modules, autocast, `torch.compile`."""
    _replace_factories()
    _replace_tensor_methods()
    _replace_autocast()
    replace(torch, {"Generator": Generator, "compile": _compile_nothing})


def replace(owner: object, replacements: dict[str, Any]) -> None:
    """Set attributes of a module or class of torch."""
    for name, value in replacements.items():
        setattr(owner, name, value)


def _replace_factories() -> None:
    # torch keeps the set of factories by identity and fills it on first use: fill it while they are its own.
    factories = _device._device_constructors()
    for module in (torch, torch.fft, torch.nested):
        for name, value in list(vars(module).items()):
            if callable(value) and (name.endswith("_like") or any(value is one for one in factories)):
                setattr(module, name, _with_device_keyword(value))

    init = _device.DeviceContext.__init__
    replace(_device.DeviceContext, {"__init__": lambda self, device: init(self, to_host(device))})


def _replace_tensor_methods() -> None:
    for name in ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"):
        setattr(torch.Tensor, name, _with_device_keyword(getattr(torch.Tensor, name)))
    replace(
        torch.Tensor,
        {
            "device": property(_device_of),
            "is_cuda": property(lambda self: _device_of(self) == CUDA),
            "is_cpu": property(lambda self: False),
            "get_device": lambda self: 0 if _device_of(self) == CUDA else -1,
            "to": _with_leading_device(torch.Tensor.to),
            "cuda": lambda self, device=None, *args, **kwargs: torch.Tensor.to(self, device or CUDA),
            "pin_memory": lambda self, device=None: self,
            "record_stream": lambda self, stream: None,
        },
    )
    replace(torch._C._nn, {"_parse_to": _with_leading_device(torch._C._nn._parse_to)})


def _device_of(tensor: torch.Tensor) -> torch.device:
    # While a torch mode is on, such as a device context, torch looks the getter up by name and finds this one.
    device = _real_device(tensor)
    return CUDA if device == CPU else device


def _with_device_keyword(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def on_host(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = to_host(kwargs["device"])
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    return on_host


def _with_leading_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function whose device may come first (after a tensor, for a method) or as a keyword."""

    @functools.wraps(function)
    def on_host(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = to_host(kwargs["device"])
        return function(*[to_host(arg) if type(arg) in _DEVICE_TYPES else arg for arg in args], **kwargs)

    return on_host


def _replace_autocast() -> None:
    """Let `autocast("cuda")` be the CPU's autocast, with CUDA's float16 where no dtype is given."""
    autocast, enabled, dtype_of = torch.amp.autocast, torch.is_autocast_enabled, torch.get_autocast_dtype
    init = autocast.__init__

    def start(self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
        if to_host(device_type) is CPU:
            device_type, dtype = "cpu", dtype or dtype_of("cuda")
        init(self, device_type, dtype, *args, **kwargs)

    replace(autocast, {"__init__": start})
    replace(
        torch,
        {
            "is_autocast_enabled": lambda device_type="cuda": enabled("cpu"),
            "get_autocast_dtype": lambda device_type: dtype_of("cpu" if enabled("cpu") else device_type),
        },
    )


def _compile_nothing(model: Any = None, **options: object) -> Any:
    """Stand for `torch.compile`: its compiler would look for a GPU's, so the program stays as it is."""
    return model if model is not None else lambda function: function
