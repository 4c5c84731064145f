"""Deeds: what candidate code does to reach objects that it was not given, as Python's audit events tell of it.

The hook looks nothing up by name (`workers.harness.witness`), and nothing that candidate code can reach leads to it. A
deed is the candidate's if no library stands between: the innermost frame runs code that is not, to the letter, in a
file of the Python installation. A file's name proves nothing, since code is compiled under any.
"""

import sys
from _thread import get_ident
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

from workers.harness.text import codes_within
from workers.isolation import sandbox

#: What is watched, by the kind of deed.
_INTROSPECTION = (
    *("sys._getframe", "sys._current_frames", "sys._current_exceptions"),
    *("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
    *("sys.addaudithook", "sys.settrace", "sys.setprofile"),
)
_FOREIGN = ("ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.cdata", "ctypes.string_at")
_KINDS = dict.fromkeys(_INTROSPECTION, "introspection") | dict.fromkeys(_FOREIGN, "foreign calls")
#: Attributes that lead from an object to a frame, and those whose replacement changes a function in place.
_ATTRIBUTES = {
    "object.__getattr__": frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"}),
    "object.__setattr__": frozenset({"__code__", "__defaults__", "__kwdefaults__"}),
}
#: Our packages: a kernel has nothing to import from the judge's.
_OURS = frozenset({"workers", "drkernel_q", "policy"})
#: Modules that do such things for others.
_THROUGH = ("/inspect.py", "/ctypes/__init__.py", "/importlib/__init__.py")
_FROZEN = "<frozen "


def audit_hook(
    tell: Callable[[str], object], protected: frozenset[FunctionType]
) -> Callable[[str, tuple[Any, ...]], None]:
    """Return a hook that tells the kinds of deeds; the thread that asks for it is trusted.

    Whoever replaces the code of a function that is `protected` does what no library does.
    """
    home, here, frame_of, kind_of, is_theirs = get_ident(), get_ident, sys._getframe, _kinds(), _callers()
    looking: set[int] = set()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        thread = here()
        if thread == home or thread in looking:
            return
        kind = kind_of(event, arguments)
        if kind is None:
            return
        looking.add(thread)  # to look for the caller raises events of its own
        try:
            replaced = event == "object.__setattr__" and arguments[0] in protected
            if replaced or is_theirs(frame_of(1)):
                tell(kind)
        finally:
            looking.discard(thread)

    return hook


def _kinds() -> Callable[[str, tuple[Any, ...]], str | None]:
    kinds, attributes, packages, text = _KINDS, _ATTRIBUTES, _OURS, str

    def kind_of(event: str, arguments: tuple[Any, ...]) -> str | None:
        if event in attributes:
            return "introspection" if arguments[1] in attributes[event] else None
        if event == "import":
            return "introspection" if text(arguments[0]).partition(".")[0] in packages else None
        return kinds.get(event)

    return kind_of


def _callers() -> Callable[[FrameType | None], bool]:
    through, frozen, starts, ends, is_library = _THROUGH, _FROZEN, str.startswith, str.endswith, library()

    def is_theirs(frame: FrameType | None) -> bool:
        while frame is not None:
            name = frame.f_code.co_filename
            if not ends(name, through) and not starts(name, frozen):
                return not is_library(frame.f_code)
            frame = frame.f_back
        return False

    return is_theirs


def library() -> Callable[[CodeType], bool]:
    """Return a function that says whether code is in a file of the Python installation, as it stands there now."""
    folders = {*sandbox.code_paths(), *filter(None, sys.path), sys.prefix, sys.base_prefix}
    roots = tuple(f"{folder}/" for folder in folders)
    known: dict[str, frozenset[CodeType]] = {}
    starts, read, make, plain, within = str.startswith, open, compile, str, codes_within
    unreadable, gather = (OSError, SyntaxError, ValueError), frozenset

    def codes_of(name: str) -> frozenset[CodeType]:
        if not starts(name, roots):
            return gather()
        try:
            with read(name, "rb") as file:
                return gather(within(make(file.read(), name, "exec", 0, True)))
        except unreadable:
            return gather()

    def is_library(code: CodeType) -> bool:
        name = code.co_filename
        if name.__class__ is not plain:
            return False
        if name not in known:
            known[name] = codes_of(name)
        return code in known[name]

    return is_library
