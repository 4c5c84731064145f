"""Theirs: what runs on the candidate's thread (`workers.harness.outside`): its code, and looks at what that has made.

Frames of these functions lie below its own, so they are given nothing but what is the candidate's already, and
functions of torch.
"""

import contextlib
import importlib.util
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from workers.exchange import integrity
from workers.exchange.shared import flatten, is_exactly
from workers.exchange.stopwatch import plain
from workers.harness.launch import Loaded
from workers.isolation import fault

#: Longest error text that is sent, characters; the end of a traceback says most.
MAX_ERROR = 6000
_COMPILE_ERRORS = (
    "CompilationError",
    "UnsupportedLanguageConstruct",
    "CompileTimeAssertionFailure",
    "PTXASError",
)


def imported(path: str) -> type:
    """Import a source as the module `candidate` and return its `ModelNew`."""
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    factory = getattr(module, "ModelNew", None)
    if not isinstance(factory, type):
        raise NameError("the source defines no class ModelNew")
    return factory


def made(factory: Callable[..., Any], arguments: list[Any], seed: int, device: str, train: bool) -> Any:
    """Make a model under a seed of its weights."""
    torch.manual_seed(seed)
    model = factory(*arguments)
    return model.to(device).train(train) if isinstance(model, nn.Module) else model


def set_mode(model: Any, train: bool) -> None:
    """Set the mode of a module."""
    if isinstance(model, nn.Module):
        model.train(train)


def forwarded(model: Any, inputs: list[Any], scope: contextlib.AbstractContextManager[object]) -> Any:
    """Make one call within `scope`."""
    with scope:
        return model(*inputs)


def held(write: Callable[..., Any], read: Callable[..., Any], fd: int) -> None:
    """Say that there is something to wait for, and wait for a byte."""
    write(fd, b"\0")
    read(fd, 1)


def unboxed(box: list[Any], inputs: list[Tensor], model: Any) -> tuple[Any, list[str], list[Tensor]]:
    """Take what a call has returned; return its skeleton, what `codes_of` says, and plain outputs."""
    outputs: list[Tensor] = []
    skeleton = flatten(box.pop(), outputs)
    return skeleton, codes_of(outputs, inputs, model), plain(outputs)


#: The dictionary of a module, whatever its class has in the place of `__dict__`.
_HELD = nn.Module.__dict__["__dict__"].__get__


def codes_of(outputs: list[Tensor], inputs: list[Tensor], model: Any) -> list[str]:
    """Say what is wrong with outputs, by the codes of `integrity.OUTPUT_RULES`, and with what became of inputs."""
    parameters = [tensor for _, is_parameter, tensor in _named_state(model) if is_parameter]
    codes = integrity.output_codes(outputs, [*inputs, *parameters])
    return codes if all(map(integrity.is_untouched, inputs)) else sorted({*codes, "D4"})


def plainly(written: list[Any], within: list[Any]) -> tuple[list[int], list[str]]:
    """Copy what is what it should be."""
    return [value for value in written if type(value) is int], [value for value in within if type(value) is str]


def own_kernels(loads: list[Loaded]) -> list[tuple[str, int, int]]:
    """List name, threads and registers of the kernels that were compiled from the candidate's source."""
    own = {load[:1] + load[2:] for load in loads if type(load) is Loaded and load.own is True}
    kinds = (str, int, int)
    return sorted(k for k in own if len(k) == len(kinds) and all(map(is_exactly, k, kinds)))


def forget(*containers: Any) -> None:
    """Let go of what was lent; whatever hangs on it runs here."""
    for container in containers:
        container.clear()


def adopt_state(model: Any, given: dict[str, Tensor]) -> str:
    """Load the reference's state into `model` if every name and shape fits; say what was done.

    The same seed already gives the same weights to a model that draws them in the same order (`equal`).
    """
    if not isinstance(model, nn.Module):
        return "foreign"
    own = model.state_dict()
    if own.keys() != given.keys() or any(own[name].shape != given[name].shape for name in own):
        return "foreign"
    if all(integrity.same_bits(own[name].cpu(), given[name].to(own[name].dtype)) for name in own):
        return "equal"
    model.load_state_dict(given)
    return "loaded"


def replace_state(model: Any, old: list[Tensor], new: list[Tensor]) -> list[bool]:
    """Make parameters that hold what one of `old` does, or buffers if no parameter does, hold what that of `new` does.

    Names and shapes are their own. Returns of which of `old` there were any.
    """
    found = [_holders(model, content) for content in old]  # before any of them changes
    with torch.no_grad():
        for tensors, content in zip(found, new, strict=True):
            for tensor in tensors:
                tensor.copy_(content.reshape(tensor.shape))
    return [bool(tensors) for tensors in found]


def _holders(model: Any, content: Tensor) -> list[Tensor]:
    same = [(is_parameter, tensor) for _, is_parameter, tensor in _named_state(model) if _has_content(tensor, content)]
    return [tensor for is_parameter, tensor in same if is_parameter] or [tensor for _, tensor in same]


def _has_content(tensor: Tensor, content: Tensor) -> bool:
    """Whether both hold the same numbers, in the tensor's dtype, whatever their shapes."""
    if not tensor.is_floating_point() or tensor.numel() != content.numel():
        return False
    return integrity.same_bits(tensor.detach().reshape(-1), content.to(tensor).reshape(-1))


def state_checksums(model: Any) -> dict[str, tuple[bool, int]]:
    """Say of each parameter and buffer whether it is a parameter, and sum up its bits."""
    return {name: (is_parameter, integrity.checksum(tensor)) for name, is_parameter, tensor in _named_state(model)}


def _named_state(model: Any) -> list[tuple[str, bool, Tensor]]:
    """List plain parameters and buffers: the name, whether it is a parameter, and the tensor."""
    if not isinstance(model, nn.Module):
        return []
    there: dict[int, tuple[str, bool, Tensor]] = {}
    _gather(model, "", there, set())
    return list(there.values())


def _gather(module: nn.Module, prefix: str, there: dict[int, tuple[str, bool, Tensor]], seen: set[int]) -> None:
    """Collect what a module and those within it hold, each tensor once; no method of theirs is called: it may count."""
    seen.add(id(module))
    held = _HELD(module)
    for is_parameter, kind in ((True, "_parameters"), (False, "_buffers")):
        for name, tensor in _plain_items(held.get(kind)):
            if integrity.is_plain(tensor):
                there.setdefault(id(tensor), (f"{prefix}{name}", is_parameter, tensor))
    for name, inner in _plain_items(held.get("_modules")):
        if issubclass(type(inner), nn.Module) and id(inner) not in seen:
            _gather(inner, f"{prefix}{name}.", there, seen)


def _plain_items(held: object) -> list[tuple[str, Any]]:
    """List what a dictionary holds by strings; nothing of what is no plain dictionary."""
    if type(held) is not dict and type(held) is not OrderedDict:
        return []
    return [(name, value) for name, value in dict.items(held) if type(name) is str]


def failure(error: BaseException, operation: str, query: Callable[[], object]) -> dict[str, Any]:
    """Describe an exception; `kind` decides the outcome."""
    chain: list[str] = []
    link: BaseException | None = error
    while link is not None and len(chain) < 10:  # noqa: PLR2004 - no honest chain is longer
        chain.append(type(link).__name__)
        link = link.__cause__ or link.__context__
    found = fault.of_exception(error, query)
    if found in (fault.HOST_MEMORY, fault.DEVICE_MEMORY):
        kind = "memory"
    elif fault.loses_context(found):
        kind = "runtime"
    elif operation == "load" or any(name in _COMPILE_ERRORS for name in chain):
        kind = "compile"
    else:
        kind = "runtime"
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as broken:  # noqa: BLE001 - an exception whose own text raises is still only an error
        text = f"{type(error).__name__} (its text raised {type(broken).__name__})"
    return {"ok": False, "kind": kind, "error": text[-MAX_ERROR:], "fault": found}
