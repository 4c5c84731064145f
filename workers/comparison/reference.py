"""The reference side: trusted code of the problem, run by the judge in its own precision and in fp64."""

import contextlib
import copy
import functools
import linecache
import random
import secrets
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drkernel_q.correctness import Precision
from drkernel_q.errors import BadProblem
from drkernel_q.evaluation import Baseline
from drkernel_q.problem import Problem
from workers.comparison import locality
from workers.comparison.arithmetic import ROUNDINGS, Rounding, products_in, rounded
from workers.comparison.measure import Expected
from workers.comparison.subject import with_leaves
from workers.exchange import integrity
from workers.exchange.shared import flatten, leaves, unflatten

_MODULE = "drkq_reference"
#: How often a reference is run on inputs a few roundings away, and how many at most: more than a kernel differs by that
#: computes the same in another way. In half precision one is much already.
NEARBY_RUNS = 24
NEARBY_ROUNDINGS = {torch.float32: 8, torch.float64: 8}
#: Modes of torch.compile.
_MODES = {Baseline.COMPILE: "default", Baseline.MAX_AUTOTUNE: "max-autotune-no-cudagraphs"}


class Reference:
    """A problem's `Model` on one device, for one seed of its weights at a time."""

    def __init__(self, problem: Problem, device: str, *, train: bool, made_on: str = "cpu") -> None:
        """Execute the problem's module.

        Models are made on `made_on` and then moved: the cpu, as a candidate's are, or the device, which is faster.

        Raises:
            BadProblem: it cannot be executed, or what it defines cannot be used.
        """
        self.device = device
        self.train = train
        self.made_on = made_on
        self.module = _execute(problem)
        self.init_args = self._call("get_init_inputs") if hasattr(self.module, "get_init_inputs") else []
        self.name = problem.name
        if not isinstance(self.init_args, list | tuple):
            raise BadProblem(f"get_init_inputs() of {self.name} returns no list.")
        _take_apart(self.init_args, f"get_init_inputs() of {self.name}")
        self._model: nn.Module | None = None
        self._exact_model: nn.Module | None = None
        self.seed = 0
        """That of the weights."""
        self.compiled: dict[tuple[Baseline, Precision], Callable[..., Any]] = {}
        self.own_codes: frozenset[str] = frozenset()
        self.changes_inputs = False
        self.changes_state: bool | None = None
        self._local: bool | None = None
        #: Less precise classes that outputs are taken for right in; trials narrow them down to what they have shown.
        self.accepts: tuple[Precision, ...] = tuple(ROUNDINGS)

    def _call(self, name: str) -> Any:
        try:
            return getattr(self.module, name)()
        except (Exception, SystemExit) as error:
            raise BadProblem(f"{name}() of the problem raises {type(error).__name__}: {error}") from error

    def _seed_torch(self, seed: int) -> None:
        """Do what `torch.manual_seed` does, for this device alone: that one formats a stack for each kind it lacks."""
        torch.default_generator.manual_seed(seed)
        if self.device == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)

    def precision(self, asked: Precision) -> Precision:
        """Return the least precise class that counts as full: `asked`, or what `PRECISION` of the problem names.

        Raises:
            BadProblem: it names no class.
        """
        try:
            own = Precision(getattr(self.module, "PRECISION", Precision.REFERENCE))
        except ValueError:
            names = ", ".join(Precision)
            raise BadProblem(f"PRECISION of {self.name} is none of {names}.") from None
        return own if own.is_below(asked) else asked

    def build(self, seed: int) -> nn.Module:
        """Make the model under `seed`, on the device, as a candidate will make its own."""
        try:
            self.seed = seed
            model = self._make()
            if isinstance(model, nn.Module):
                self._model = model.to(self.device).train(self.train)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise BadProblem(f"Model of {self.name} needs more memory than the device has.") from error
        except Exception as error:
            raise BadProblem(f"Model() of {self.name} raises {type(error).__name__}: {error}") from error
        if not isinstance(model, nn.Module):
            raise BadProblem(f"Model of {self.name} is no torch.nn.Module.")
        self._exact_model = None
        self.compiled.clear()
        return self.model

    def _make(self) -> nn.Module:
        self._seed_torch(self.seed)
        with torch.device(self.made_on) if self.made_on != "cpu" else contextlib.nullcontext():
            model: nn.Module = self.module.Model(*self.init_args)
        return model

    def adopt(self, state: dict[str, Tensor]) -> None:
        """Give the model another state, whole."""
        self.model.load_state_dict(state)
        self._exact_model = None

    def narrow(self, shown: Precision) -> None:
        """Take nothing less precise for right from now on than trials have shown; TF32 and fp16 look much alike."""
        least = Precision.FP16 if shown is Precision.TF32 else shown
        self.accepts = tuple(precision for precision in ROUNDINGS if not precision.is_below(least))

    @property
    def model(self) -> nn.Module:
        """The model that was built last."""
        assert self._model is not None
        return self._model

    @property
    def state_names(self) -> frozenset[str]:
        """Names of the model's parameters and buffers."""
        return frozenset(self.model.state_dict())

    def inputs(self, seed: int) -> list[Any]:
        """Make fresh inputs under `seed`, on the device.

        Raises:
            BadProblem: no list, no tensor in it, or something that is neither tensor nor scalar.
        """
        self._seed_torch(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        with torch.device(self.device):
            values = self._call("get_inputs")
        if not isinstance(values, list | tuple):
            raise BadProblem(f"get_inputs() of {self.name} returns no list but a {type(values).__name__}.")
        skeleton, tensors = _take_apart(values, f"get_inputs() of {self.name}")
        if not tensors:
            raise BadProblem(f"get_inputs() of {self.name} returns no tensor.")
        moved = [tensor.detach().to(self.device) for tensor in tensors]
        return list(unflatten(skeleton, moved))

    def run(
        self,
        inputs: Sequence[Any],
        baseline: Baseline = Baseline.EAGER,
        precision: Precision = Precision.REFERENCE,
    ) -> Any:
        """Run one forward pass without gradients, with products made in `precision`."""
        call = self.model if baseline is Baseline.EAGER else self._compile(baseline, precision)
        with torch.no_grad(), products_in(precision, self.device):
            return call(*inputs)

    def _compile(self, baseline: Baseline, precision: Precision) -> Callable[..., Any]:
        if self.device == "cpu":
            text = f"The baseline `{baseline.value}` cannot be had on the cpu device; use `--baseline eager`."
            raise BadProblem(text)
        version = baseline, precision
        if version not in self.compiled:
            self.compiled[version] = torch.compile(self.model, mode=_MODES[baseline])
        return self.compiled[version]

    def outputs(self, inputs: Sequence[Any]) -> list[Tensor]:
        """Run one forward pass on copies of `inputs` in the reference's own precision; the model stays as it is."""
        state = copy.deepcopy(self.model.state_dict()) if self.train else None
        outputs: list[Tensor] = []
        flatten(self.run(_copied(inputs) if self.changes_inputs else inputs), outputs)
        if state is not None:
            self.model.load_state_dict(state)
        return outputs

    def expected(self, inputs: Sequence[Any]) -> Expected:
        """Run the reference in its own precision and in fp64.

        Raises:
            BadProblem: the reference fails, or returns something that cannot be compared.
        """
        working: list[Tensor] = []
        state = self._saved_state()
        before = self._state_checksums() if self.changes_state is None else None
        copies = _copied(inputs)
        try:
            skeleton = flatten(self.run(copies), working)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise BadProblem(f"{self.name} needs more memory than the device has.") from error
        except Exception as error:
            raise BadProblem(f"Model of {self.name} raises {type(error).__name__}: {error}") from error
        if not working:
            raise BadProblem(f"Model of {self.name} returns no tensor.")
        owned = [*leaves(copies), *self.model.parameters(), *self.model.buffers()]
        self.own_codes |= frozenset(integrity.output_codes(working, owned))
        if {"D3", "C11"} & self.own_codes:
            raise BadProblem(f"Model of {self.name} returns something else than plain dense tensors.")
        self.changes_inputs |= not all(map(integrity.same_bits, leaves(inputs), leaves(copies)))
        if before is not None:  # a trait of the problem: seen once
            self.changes_state = before != self._state_checksums()
        self._restore(self.model, state)
        exact = self._run_exactly(inputs)
        matching = exact if exact is not None and len(exact) == len(working) else [None] * len(working)
        is_local = self._is_local(inputs, working)
        mixed = [leaf for leaf in leaves(inputs) if not (is_local and leaf.shape == working[0].shape)]
        longest = max((size for tensor in (*self.model.parameters(), *mixed) for size in tensor.shape), default=1)
        rerun = functools.partial(self._run_rounded, self.model, inputs)
        nearby = functools.partial(self._run_nearby, inputs)
        return Expected(skeleton, working, list(matching), longest, rerun, self.accepts, nearby)

    def _is_local(self, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> bool:
        """Whether outputs are local in inputs of their shape (`workers.comparison.locality`): found out once."""
        if self._local is None:
            writes = self.train or self.changes_inputs or bool(self.changes_state)
            others = [] if writes else self.inputs(secrets.randbits(63))
            self._local = not writes and locality.is_local(self.run, inputs, others, outputs)
        return self._local

    def _saved_state(self) -> dict[str, Any] | None:
        """Copy the state if a forward pass may change it, as in training."""
        return copy.deepcopy(self.model.state_dict()) if self.train else None

    @staticmethod
    def _restore(model: nn.Module, state: dict[str, Any] | None) -> None:
        if state is not None:
            model.load_state_dict(state)

    def _state_checksums(self) -> dict[str, int]:
        """Sum up the bits of every parameter and buffer, by name."""
        return {name: integrity.checksum(value) for name, value in self.model.state_dict().items()}

    def _run_rounded(self, model: nn.Module, inputs: Sequence[Any], rounding: Rounding) -> list[Tensor] | None:
        """Run `model` with the operands of products rounded; None when it cannot be run so."""
        outputs: list[Tensor] = []
        state = self._saved_state()
        try:
            with torch.no_grad(), rounded(rounding):
                flatten(model(*_copied(inputs)), outputs)
        except Exception:  # noqa: BLE001 - whatever trusted code raises under a mode of torch, or for want of memory
            return None
        finally:
            self._restore(model, state)
        return outputs

    def _run_nearby(self, inputs: Sequence[Any]) -> Iterator[list[Tensor]]:
        """Run on inputs of which each element is up to `NEARBY_ROUNDINGS` larger or smaller, as chance has it."""
        for _ in range(NEARBY_RUNS):
            try:
                outputs = self.outputs(with_leaves(inputs, list(map(_roundings_away, leaves(inputs)))))
            except (torch.OutOfMemoryError, torch.AcceleratorError):
                raise
            except Exception:  # noqa: BLE001 - trusted code may insist on inputs of a kind, such as shares of one
                return
            yield outputs

    def _run_exactly(self, inputs: Sequence[Any]) -> list[Tensor] | None:
        """Run in fp64; None when the problem fixes a dtype inside and cannot be run so."""
        tensors: list[Tensor] = []
        skeletons = [flatten(value, tensors) for value in inputs]
        wide = [tensor.double() if tensor.is_floating_point() else tensor.clone() for tensor in tensors]
        torch.set_default_dtype(torch.float64)  # for tensors that forward() makes itself
        try:
            if self._exact_model is None or self.train:
                self._exact_model = self._build_exactly()
            with torch.no_grad():
                outputs: list[Tensor] = []
                flatten(self._exact_model(*(unflatten(skeleton, wide) for skeleton in skeletons)), outputs)
        except Exception:  # noqa: BLE001 - whatever trusted code raises when it gets fp64: it cannot be run so
            return None
        finally:
            torch.set_default_dtype(torch.float32)
        return outputs

    def _build_exactly(self) -> nn.Module:
        """Make the model once more and widen it; a copy of the first would share what its closures hold."""
        torch.set_default_dtype(torch.float32)
        model = self._make()
        model.load_state_dict(self.model.state_dict())
        torch.set_default_dtype(torch.float64)
        return model.to(self.device).train(self.train).double()


def _execute(problem: Problem) -> types.ModuleType:
    module = types.ModuleType(_MODULE)
    module.__file__ = f"<{problem.name}>"
    # Triton and torch.compile look a function's source up by this name.
    linecache.cache[module.__file__] = (
        len(problem.source),
        None,
        problem.source.splitlines(keepends=True),
        module.__file__,
    )
    sys.modules[_MODULE] = module
    try:
        exec(compile(problem.source, module.__file__, "exec"), module.__dict__)  # noqa: S102 - trusted: the reference
    except (Exception, SystemExit) as error:
        raise BadProblem(f"{problem.name} cannot be executed: {type(error).__name__}: {error}") from error
    for name in ("Model", "get_inputs"):
        if not callable(getattr(module, name, None)):
            raise BadProblem(f"{problem.name} defines no {name}.")
    return module


def _take_apart(value: Any, source: str) -> tuple[Any, list[Tensor]]:
    """Return skeleton and tensors of what `source` returned.

    Raises:
        BadProblem: something is in it that is neither tensor nor scalar.
    """
    tensors: list[Tensor] = []
    try:
        return flatten(value, tensors), tensors
    except TypeError as error:
        raise BadProblem(f"{source} returns {error}; tensors and scalars are wanted.") from error


def _roundings_away(tensor: Tensor) -> Tensor:
    """Move each element by a few roundings, up or down; whole numbers, which nobody rounds, stay."""
    if not tensor.is_floating_point() or tensor.dtype.itemsize == 1 or bool((tensor == tensor.round()).all()):
        return tensor.clone()
    step = NEARBY_ROUNDINGS.get(tensor.dtype, 1) * torch.finfo(tensor.dtype).eps
    return tensor * (1 + step * (2 * torch.rand_like(tensor) - 1))


def _copied(values: Sequence[Any]) -> Sequence[Any]:
    """Copy inputs, so that a reference that works in place leaves the originals as they are."""
    return with_leaves(values, [leaf.clone() for leaf in leaves(values)])
