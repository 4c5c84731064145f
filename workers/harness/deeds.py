"""Deeds: what candidate code does to reach objects that it was not given, as Python's audit events tell of it.

The hook looks nothing up by name (`workers.harness.witness`), and nothing that candidate code can reach leads to it. A
deed is the candidate's if no library stands between: the innermost frame runs code that is not, to the letter, in a
file of the Python installation (`workers.harness.library`).
"""

import importlib
import os
import sys
from _thread import get_ident
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

from workers.harness.library import library
from workers.harness.text import codes_within
from workers.isolation.fault import SPIED, TAMPERED

#: What is watched, by the kind of deed.
_INTROSPECTION = (
    *("sys._getframe", "sys._current_frames", "sys._current_exceptions"),
    *("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
    *("sys.addaudithook", "sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"),
)
_FOREIGN = ("ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.cdata", "ctypes.string_at")
_KINDS = dict.fromkeys(_INTROSPECTION, "introspection") | dict.fromkeys(_FOREIGN, "foreign calls")
#: Attributes that lead from an object to a frame, and those whose replacement changes a function in place.
_ATTRIBUTES = {
    "object.__getattr__": frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"}),
    "object.__setattr__": frozenset({"__code__", "__defaults__", "__kwdefaults__"}),
}
#: Packages that a kernel has nothing to import from: the judge's, and what Python tests itself with, which runs code on
#: other threads.
_OURS = frozenset({"workers", "drkernel_q", "policy", "_testcapi", "_testinternalcapi", "_testlimitedcapi"})
#: Modules that do such things for others.
_THROUGH = ("/inspect.py", "/ctypes/__init__.py", "/importlib/__init__.py", "/threading.py")
#: What leads to objects that one was not given, whoever asks for it on the candidate's behalf; only the compiler of
#: torch has uses of its own for it.
_LISTINGS = frozenset({"gc.get_objects", "gc.get_referrers"})
#: What gives away the harness itself: who has that can take back whatever is told of him.
_FATAL = _LISTINGS | {"sys._current_frames", "sys._current_exceptions"}
_COMPILER = ("/torch/_dynamo/", "/torch/_inductor/", "/torch/_functorch/", "/torch/_guards.py")
_FROZEN = "<frozen "


def audit_hook(
    tell: Callable[[str], object], protected: frozenset[FunctionType], leave: Callable[[int], object] = os._exit
) -> Callable[[str, tuple[Any, ...]], None]:
    """Return a hook that tells the kinds of deeds, and ends the process (`leave`) for the worst of them.

    On the thread that asks for it, no code but ours and that of libraries has any business: what a candidate has put in
    the place of something may run there, with all of the harness below it on the stack. That ends the process, and so
    does a candidate's asking for all frames or objects on any other: what is only told could be taken back. Whoever
    replaces the code of a function that is `protected` does what no library does.
    """
    home, here, frame_of, kind_of = get_ident(), get_ident, sys._getframe, _kinds()
    is_library = library()
    is_theirs, is_strange, lists = _callers(is_library), _strangers(is_library), _LISTINGS
    tampered, spied, fatal, replacing = TAMPERED, SPIED, _FATAL, "object.__setattr__"
    looking: set[int] = set()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        thread = here()
        if thread in looking:
            return
        kind = kind_of(event, arguments)
        if kind is None:
            return
        looking.add(thread)  # to look for the caller raises events of its own
        try:
            if thread == home:
                if is_strange(frame_of(1)):
                    leave(tampered)
                return
            if event == replacing:
                function = arguments[0]
                told = function in protected or (is_library(function.__code__) and is_theirs(frame_of(1), False))
            else:
                told = is_theirs(frame_of(1), event in lists)
            if told and event in fatal:
                leave(spied)
            elif told:
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


def _callers(is_library: Callable[[CodeType], bool]) -> Callable[[FrameType | None, bool], bool]:
    through, frozen, compiler, starts, ends = _THROUGH, _FROZEN, _COMPILER, str.startswith, str.endswith
    within = str.__contains__

    def is_theirs(frame: FrameType | None, through_all: bool) -> bool:
        while frame is not None:
            name = frame.f_code.co_filename
            if not ends(name, through) and not starts(name, frozen):
                if not is_library(frame.f_code):
                    return True
                if not through_all:
                    return False
                for folder in compiler:
                    if within(name, folder):
                        return False
            frame = frame.f_back
        return False

    return is_theirs


def _strangers(is_library: Callable[[CodeType], bool]) -> Callable[[FrameType | None], bool]:
    """Return a function that says whether a stack holds code that is neither in a file of the installation nor below.

    What is below is whatever called us. Code under a name such as `<frozen importlib._bootstrap>` counts only if it is
    that module's: anything can be compiled under it.
    """
    known = set[CodeType]()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        known.add(frame.f_code)
        frame = frame.f_back
    for module in (importlib._bootstrap, importlib._bootstrap_external):
        for value in vars(module).values():
            for each in vars(value).values() if isinstance(value, type) else [value]:
                code = getattr(getattr(each, "__func__", each), "__code__", None)
                if isinstance(code, CodeType):
                    known.update(codes_within(code))
    number_of = id
    usual = {number_of(code): code for code in known}  # to ask for a code by its hash takes as long as all the rest

    def is_strange(frame: FrameType | None) -> bool:
        while frame is not None:
            code = frame.f_code
            if number_of(code) not in usual:
                if not is_library(code):
                    return True
                usual[number_of(code)] = code
            frame = frame.f_back
        return False

    return is_strange
