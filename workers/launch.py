"""Triton launches of this process: counted, or suppressed.

Both are done inside the candidate's process, so what they say is a claim: it can add evidence and never take any away.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Launches by (kernel name, file that its function was defined in).
Launches = Counter[tuple[str, str]]


@contextmanager
def counted(device: str) -> Iterator[Launches]:
    """Count the launches that finish while the context lasts."""
    launches: Launches = Counter()
    if device == "cpu":
        from workers.interpreter import LaunchRecorder

        with LaunchRecorder() as recorded:
            yield launches
        launches.update((launch.name, launch.file) for launch in recorded)
        return

    def count(run: Callable[..., Any], function: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(function, *args, warmup=warmup, **kwargs)
        if not warmup and kernel is not None:
            launches[kernel.metadata.name, function.fn.__code__.co_filename] += 1
        return kernel

    with _replaced(_function_type(device), count):
        yield launches


@contextmanager
def suppressed(device: str) -> Iterator[None]:
    """Let every launch of a Triton function do nothing while the context lasts (the ablation probe)."""

    def skip(run: Callable[..., Any], function: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
        return run(function, *args, warmup=True, **kwargs) if warmup else None

    with _replaced(_function_type(device), skip):
        yield


def _function_type(device: str) -> Any:
    if device == "cpu":
        from triton.runtime.interpreter import InterpretedFunction

        return InterpretedFunction
    from triton.runtime.jit import JITFunction

    return JITFunction


@contextmanager
def _replaced(kind: Any, behaviour: Callable[..., Any]) -> Iterator[None]:
    original = kind.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return behaviour(original, self, *args, **kwargs)

    kind.run = run
    try:
        yield
    finally:
        kind.run = original
