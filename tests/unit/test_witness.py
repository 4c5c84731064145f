"""The witness: it notices whatever is replaced, says what JSON says, and looks nothing up that could be replaced."""

import builtins
import dis
import json
import socket
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.overrides import BaseTorchFunctionMode

from workers.harness.deeds import audit_hook, library
from workers.harness.state import _function_modes, _looker, _settler
from workers.harness.text import Text, codes_within
from workers.harness.witness import ender, speaker, unchanged, unheld
from workers.isolation.wire import Channel, WireAbuse, sealer

KEY = b"k" * 32
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def functions_within(function: Callable[..., Any]) -> Iterator[types.FunctionType]:
    """Yield a function and those of ours that its cells lead to."""
    assert isinstance(function, types.FunctionType)
    yield function
    for cell in function.__closure__ or ():
        value = cell.cell_contents
        if isinstance(value, types.FunctionType) and value.__module__.startswith("workers"):
            yield from functions_within(value)


def trusted(sock: socket.socket) -> dict[str, Callable[..., Any]]:
    speak = speaker(sock, KEY)
    same = unchanged([types.ModuleType("ours")], [json])
    return {
        "speak": speak,
        "seal": sealer(KEY),
        "unchanged": same,
        "hook": audit_hook(lambda kind: None, frozenset()),
        "library": library(),
        "end": ender(same, list, speak),
        "held": unheld()[0],
        "settle": _settler(_looker()),
    }


@pytest.mark.parametrize("name", ["speak", "seal", "unchanged", "hook", "library", "end", "held", "settle"])
def test_what_must_hold_looks_nothing_up(name: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        functions = list(functions_within(trusted(ours)[name]))
    for function in functions:
        for code in codes_within(function.__code__):
            looked_up = [
                step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
            ]
            assert not looked_up, f"{function.__qualname__} looks up {looked_up}"


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_what_is_said_is_heard_whatever_json_has_become(message: dict[str, Any]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        channel.expect_seals(KEY)
        speak, encode = speaker(theirs, KEY), json.JSONEncoder.encode
        json.JSONEncoder.encode = lambda self, o: "{}"  # type: ignore[method-assign]
        try:
            speak(message)
            speak(message)
        finally:
            json.JSONEncoder.encode = encode  # type: ignore[method-assign]
        assert [channel.receive(1.0)[0] for _ in range(2)] == [message, message]


def test_large_messages_wait_for_the_reader() -> None:
    import threading

    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        channel.expect_seals(KEY)
        theirs.setblocking(False)
        message = {"text": "x" * 2**21}
        writer = threading.Thread(target=speaker(theirs, KEY), args=(message,))
        writer.start()
        assert channel.receive(5.0)[0] == message
        writer.join()


@pytest.mark.parametrize("forge", ["nothing", "another key", "again", "later"])
def test_a_frame_without_the_right_seal_is_abuse(forge: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        channel.expect_seals(KEY)
        if forge == "nothing":
            Channel(theirs).send({"ok": True})
        elif forge == "another key":
            speaker(theirs, b"x" * 32)({"ok": True})
        elif forge == "again":
            speaker(theirs, KEY)({"ok": True})
            channel.receive(1.0)
            speaker(theirs, KEY)({"ok": True})
        else:
            skipped, sent = socket.socketpair()
            with skipped, sent:
                speak = speaker(sent, KEY)
                speak({"ok": True})
                skipped.recv(1000)
                speak({"ok": True})
                theirs.sendall(skipped.recv(1000))
        with pytest.raises(WireAbuse):
            channel.receive(1.0)


class Kept:
    """Stands for a class of ours."""

    def method(self) -> int:
        return 1


class Base:
    """Stands for a class of a library."""

    def inherited(self) -> int:
        return 1


class Derived(Base):
    """Another one."""

    def own(self) -> int:
        return 1


def function_of(module: types.ModuleType) -> types.FunctionType:
    function: types.FunctionType = module.function
    return function


CHANGES: dict[str, Callable[[types.ModuleType, types.ModuleType], object]] = {
    "a function": lambda ours, _: setattr(ours, "function", len),
    "a constant": lambda ours, _: setattr(ours, "table", ()),
    "a module": lambda ours, _: setattr(ours, "json", types.SimpleNamespace()),
    "a builtin hidden": lambda ours, _: setattr(ours, "len", lambda values: 0),
    "something new": lambda ours, _: setattr(ours, "new", 1),
    "something gone": lambda ours, _: delattr(ours, "table"),
    "a method": lambda *_: setattr(Kept, "method", lambda self: 2),
    "a property over an attribute": lambda *_: setattr(Kept, "attribute", property(lambda self: 2)),
    "the code of a function": lambda ours, _: setattr(function_of(ours), "__code__", (lambda: 2).__code__),
    "a library's function": lambda _, others: setattr(others, "call", len),
    "a builtin hidden in a library": lambda _, others: setattr(others, "isinstance", lambda *_: True),
    "a method of a library": lambda *_: setattr(Derived, "own", lambda self: 2),
    "an inherited method hidden": lambda *_: setattr(Derived, "inherited", lambda self: 2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_is_replaced_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Kept, Derived):  # what a change leaves in them is taken back
        for key, value in list(vars(kind).items()):
            if isinstance(value, types.FunctionType):
                monkeypatch.setattr(kind, key, value)
    ours, others = types.ModuleType("ours"), types.ModuleType("others")
    exec("def function():\n    return 1\n", vars(ours))
    vars(ours).update(table=(1, 2), json=json)
    vars(others)["call"] = lambda: 1
    same = unchanged([ours, Kept], [others, Derived, builtins])
    assert same()
    CHANGES[name](ours, others)
    try:
        assert not same()
    finally:
        for kind, key in ((Kept, "attribute"), (Derived, "inherited")):
            if key in vars(kind):
                delattr(kind, key)


def test_a_builtin_that_agrees_to_everything_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    same = unchanged([], [builtins])
    monkeypatch.setattr(builtins, "all", lambda values: True)
    assert not same()
    monkeypatch.undo()
    assert same()


def test_a_module_that_takes_another_s_place_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    same = unchanged([], [], {"json": json})
    assert same()
    monkeypatch.setitem(sys.modules, "json", types.ModuleType("json"))
    assert not same()


def test_new_modules_and_constants_of_libraries_do_not_count() -> None:
    others = types.ModuleType("others")
    vars(others)["call"] = lambda: 1
    same = unchanged([], [others])
    vars(others).update(submodule=types.ModuleType("submodule"), cache={})
    assert same()


def test_what_is_kept_is_noticed_when_it_goes_and_may_be_kept_anew() -> None:
    text = Text()
    text.read("def kernel(): ...\n", "/srv/candidate.py")
    holds, keep = unheld()
    keep(text)
    assert holds()
    known = text.is_held
    text.is_held = lambda code, written: True
    assert not holds()
    text.is_held = known
    assert holds()
    cell = known.__wrapped__.__closure__[0]  # type: ignore[attr-defined]
    before, cell.cell_contents = cell.cell_contents, "all of it"
    assert not holds()
    cell.cell_contents = before
    text.read("def another(): ...\n", "/srv/candidate.py")
    assert not holds()
    keep(text)
    assert holds()


def test_a_module_that_gets_a_class_of_its_own_is_noticed() -> None:
    module = types.ModuleType("theirs")
    same = unchanged([], [module])
    assert same()
    module.__class__ = type("Module", (types.ModuleType,), {})
    assert not same()


def test_the_mode_of_a_default_device_is_none() -> None:
    modes = _function_modes()
    with torch.device("cpu"):
        assert modes() == 0
        with BaseTorchFunctionMode():
            assert modes() == 1
    assert modes() == 0
