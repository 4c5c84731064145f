"""Witness: what of the harness holds although candidate code shares its interpreter.

Python code can replace whatever other code looks up by name: functions, classes, builtins, JSON. The functions made
here look nothing up. All that they need is in their cells, and nothing that candidate code can reach without an audit
event leads to them. They notice what was replaced, and speak for the process: what they have not sealed was not said.
"""

import builtins
import os
import select
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]
from types import FunctionType, ModuleType
from typing import Any

import torch

from workers.wire import LENGTH, SEAL, sealer

#: What `sys` holds for a while.
_RESTLESS = frozenset({"last_exc", "last_type", "last_value", "last_traceback", "stdout", "stderr", "displayhook"})
#: Stands for a name that is not there.
_ABSENT = object()
#: Py_TPFLAGS_IMMUTABLETYPE.
_IMMUTABLE = 1 << 8


def speaker(sock: socket.socket, key: bytes) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that sends sealed frames; the judge has the same `key`, and nobody else.

    Raises, when it is called:
        OSError: the judge is gone.
        TypeError, ValueError: a message that JSON cannot hold.
    """
    assert c_make_encoder is not None
    encode: Any = c_make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, False)
    poller = select.poll()
    poller.register(sock, select.POLLOUT)
    join, seal, pack, size = "".join, sealer(key), LENGTH.pack, SEAL
    send, wait, blocked = sock.send, poller.poll, BlockingIOError

    def speak(message: Mapping[str, Any]) -> None:
        body = join(encode(message, 0)).encode()
        data = pack(size + body.__len__()) + seal(body) + body
        while data:
            try:
                data = data[send(data) :]
            except blocked:
                wait()

    return speak


def _refuse(value: object) -> object:
    raise TypeError("a reply that JSON cannot hold")


def ender(
    check: Callable[[], bool], changes: Callable[[], list[str]], speak: Callable[[Mapping[str, Any]], None]
) -> Callable[[], None]:
    """Return a function that ends the process with a last word if `check` fails: nothing can be trusted any more."""
    leave, word = os._exit, "the process was tampered with"

    def insist() -> None:
        if not check():
            speak({"ok": False, "kind": "tampered", "error": word, "fault": None, "state": changes()})
            leave(0)

    return insist


def unchanged(
    ours: Iterable[Any], others: Iterable[Any], modules: Mapping[str, object] | None = None
) -> Callable[[], bool]:
    """Return a function that says whether modules, classes and objects still hold the very same things.

    Of `ours` everything counts, with the code of functions, and nothing may be added. Of `others` it is what can be
    called, and nothing may be added that hides a builtin or something inherited. None of the `modules` that were
    imported may be another.
    """
    ours = list(ours)
    theirs = {id(layer): layer for owner in others for layer in _layers(owner)}.values()
    known = (
        *((vars(owner).get, tuple(_all(owner).items())) for owner in ours),
        *((vars(owner).get, tuple(_callables(owner).items())) for owner in theirs),
        (sys.modules.get, tuple((modules or {}).items())),
    )
    sizes = tuple((vars(owner).__len__, len(vars(owner))) for owner in ours)
    codes = tuple((function, function.__code__) for function in functions_of(ours))
    absent = _ABSENT

    def check() -> bool:
        for get, items in known:
            for name, value in items:
                if get(name, absent) is not value:
                    return False
        for count, size in sizes:
            if count() != size:
                return False
        for function, code in codes:  # noqa: SIM110 - `all` would be looked up
            if function.__code__ is not code:
                return False
        return True

    return check


def undisturbed(operators: Iterable[str], keys: tuple[str, ...]) -> Callable[[], bool]:
    """Return a function that says whether torch dispatches operators to the same code still, for keys that begin so."""
    dump, starts = torch._C._dispatch_dump, str.startswith
    known = tuple((name, dump(name)) for name in operators)

    def lines(text: str) -> list[str]:
        return [line for line in text.splitlines() if starts(line, keys)]

    def check() -> bool:
        for name, text in known:
            now = dump(name)
            if now != text and lines(now) != lines(text):
                return False
        return True

    return check


def functions_of(owners: Iterable[Any]) -> frozenset[FunctionType]:
    """Collect the functions of modules and classes."""
    return frozenset(value for owner in owners for value in vars(owner).values() if isinstance(value, FunctionType))


def _all(owner: Any) -> dict[str, object]:
    """List what a module, class or object of ours holds, with what Python would add by itself sooner or later."""
    if isinstance(owner, ModuleType):
        vars(owner).setdefault("__warningregistry__", {})
    elif isinstance(owner, type):
        owner.__annotations__  # noqa: B018 - makes them
    return dict(vars(owner))


def _layers(owner: Any) -> list[Any]:
    """Return a module, or a class with those that it inherits from, as far as anybody can change them."""
    return [kind for kind in owner.__mro__ if not kind.__flags__ & _IMMUTABLE] if isinstance(owner, type) else [owner]


def _callables(owner: Any) -> dict[str, object]:
    held, beneath = vars(owner), [builtins] if isinstance(owner, ModuleType) else owner.__mro__[1:]
    hidden = {name: _ABSENT for layer in beneath if layer is not owner for name in vars(layer) if name not in held}
    return hidden | {
        name: value
        for name, value in held.items()
        if callable(value) and not isinstance(value, ModuleType) and name not in _RESTLESS
    }
