"""Witness: what of the harness holds although candidate code shares its interpreter.

Python code can replace whatever other code looks up by name: functions, classes, builtins, JSON. The functions made
here look nothing up. All that they need is in their cells, and nothing that candidate code can reach without an audit
event leads to them. They notice what was replaced, and speak for the process: what they have not sealed was not said.
"""

import builtins
import ctypes
import gc
import os
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]
from operator import is_, itemgetter
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch

from workers.isolation.wire import LENGTH, SEAL, sealer

#: What `sys` holds for a while.
_RESTLESS = frozenset(
    {"last_exc", "last_type", "last_value", "last_traceback", "stdout", "stderr", "displayhook", "excepthook"}
)
#: Operators of torch that are looked at at a time, and functions of ours whose code is: to look at one takes half a
#: microsecond under an audit hook, and whoever changes it cannot keep that from the hook.
SAMPLED, CODES_AT_A_TIME = 4, 10
#: Where CPython keeps the version of a dictionary (`PyDictObject.ma_version_tag`), with pointers of as many bytes.
_VERSION_AT, _POINTER_BYTES = 24, 8
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
    watched: list[tuple[Any, dict[str, object], int | None]] = [
        *((vars(owner), _all(owner), len(_all(owner))) for owner in ours),
        *((vars(owner), _callables(owner), None) for owner in theirs),
        (sys.modules, dict(modules or {}), None),
    ]
    known = tuple((held.get, held.__len__, tuple(items.items()), size) for held, items, size in watched)
    versions = tuple(version_of(held) for held, _, _ in watched)
    before = [[0] * len(versions)]
    recoded = _recoded(ours)
    of_modules = tuple(owner for owner in (*ours, *theirs) if isinstance(owner, ModuleType))
    kinds = tuple(map(type, of_modules))
    every, both, each, number, same, kind, absent = map, zip, all, itemgetter(0), is_, type, _ABSENT

    def is_held(entry: tuple[Any, ...]) -> bool:
        get, count, items, size = entry
        for name, value in items:
            if get(name, absent) is not value:
                return False
        return size is None or count() == size

    def check() -> bool:
        now = [*every(number, versions)]
        if now != before[0] or 0 in now:
            for entry, new, old in both(known, now, before[0]):
                if (new != old or new == 0) and not is_held(entry):
                    return False
            before[0] = now
        # A class of its own answers for a module's names.
        return each(every(same, every(kind, of_modules), kinds)) and not recoded()

    return check


def _recoded(owners: Iterable[Any]) -> Callable[[], bool]:
    """Return a function that says whether functions of ours have another code, some of them at a time."""
    codes = tuple((function, function.__code__) for function in functions_of(owners))
    turn, step, most = [0], CODES_AT_A_TIME, codes.__len__()

    def recoded() -> bool:
        start = turn[0]
        for function, code in codes[start : start + step]:
            if function.__code__ is not code:
                return True
        turn[0] = start + step if start + step < most else 0
        return False

    return recoded


def unheld() -> tuple[Callable[[], bool], Callable[[object], None]]:
    """Return a function that says whether objects still hold what they held, and one that adds an object to them.

    Of an object its attributes count, and the cells of functions among them: whoever has a function may assign to them.
    """
    known: dict[int, tuple[dict[str, object], tuple[tuple[str, object], ...], tuple[tuple[CellType, object], ...]]] = {}
    everything = known.values

    def holds() -> bool:
        for held, attributes, cells in everything():
            for name, value in attributes:
                if held.get(name) is not value:
                    return False
            for cell, value in cells:
                if cell.cell_contents is not value:
                    return False
        return True

    def keep(kept: object) -> None:
        functions = [getattr(value, "__wrapped__", value) for value in vars(kept).values()]
        cells = [cell for function in functions for cell in getattr(function, "__closure__", None) or ()]
        known[id(kept)] = vars(kept), tuple(vars(kept).items()), tuple((cell, cell.cell_contents) for cell in cells)

    return holds, keep


def version_of(held: Mapping[str, object]) -> Sequence[int]:
    """Return a view of the number that changes whenever a dictionary does; of a zero where Python tells none.

    `held` is a dictionary, or what `vars` gives for a class. CPython before 3.14 keeps such a number (PEP 509).
    """
    inner = held if isinstance(held, dict) else gc.get_referents(held)[0]
    if not _HAS_VERSIONS or not isinstance(inner, dict):
        return (0,)
    number = ctypes.c_uint64.from_address(id(inner) + _VERSION_AT)
    return memoryview(number).cast("B").cast("Q")


def _has_versions() -> bool:
    """Whether dictionaries are numbered where we would look for it."""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 14) or struct.calcsize("P") != _POINTER_BYTES:
        return False
    some: dict[str, int] = {"a": 1}
    number = ctypes.c_uint64.from_address(id(some) + _VERSION_AT)
    seen = [number.value]
    some.get("a")
    unmoved = number.value == seen[0]
    for change in (lambda: some.update(a=2), lambda: some.update(b=1), lambda: some.pop("b")):
        change()
        seen.append(number.value)
    return unmoved and len(set(seen)) == len(seen)


def undisturbed(operators: Iterable[str], restless: tuple[str, ...]) -> Callable[[], bool]:
    """Return a function that says whether torch dispatches operators to the same code still.

    Keys that begin as one of `restless` do not count. It looks at `SAMPLED` operators each time, nobody knows which: to
    look at all takes over a millisecond.
    """
    dump, starts, draw = torch._C._dispatch_dump, str.startswith, os.urandom
    known = tuple((name, dump(name)) for name in operators)
    count, count_drawn, places = known.__len__(), SAMPLED, tuple(range(SAMPLED))

    def lines(text: str) -> list[str]:
        return [line for line in text.splitlines() if not starts(line, restless)]

    def check() -> bool:
        drawn = draw(count_drawn)
        for place in places:
            name, text = known[drawn[place] % count]
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


_HAS_VERSIONS = _has_versions()
