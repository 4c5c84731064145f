"""Deeds: whose code did it is told by what the code is, and not by the name that it was compiled under."""

import collections
import importlib
import inspect
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import FunctionType
from typing import Any, cast

import pytest
import torch.export._leakage_detection_utils as leaks

from tests.need import PATIENT_S
from workers.harness import library as libraries
from workers.harness.deeds import audit_hook
from workers.harness.library import library
from workers.harness.text import Text
from workers.isolation.fault import SPIED, TAMPERED

SNEAK = "def sneak(tell):\n    tell('sys._getframe', ())\n"


def compiled(source: str, filename: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), namespace)
    return namespace


@pytest.mark.parametrize("function", [collections.namedtuple, traceback.walk_stack, inspect.currentframe])
def test_code_of_the_installation_is_a_library_s(function: FunctionType) -> None:
    assert library()(function.__code__)


@pytest.mark.parametrize("filename", [traceback.__file__, "<string>", "/nowhere/module.py", __file__])
def test_code_under_another_file_s_name_is_not(filename: str) -> None:
    assert not library()(compiled(SNEAK, filename)["sneak"].__code__)


@pytest.mark.parametrize("way", ["down", "path"])
def test_what_a_candidate_has_written_is_not_whatever_leads_there(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither up and down again from a folder of the installation, nor where candidates' folder is on the path."""
    file = tmp_path / "sneak.py"
    file.write_text(SNEAK)
    name = str(file)
    if way == "down":
        folder = os.path.dirname(traceback.__file__)
        name = folder + "/.." * folder.count("/") + name
        assert Path(name).read_text() == SNEAK
    else:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.syspath_prepend(str(tmp_path))
    assert not library()(compiled(SNEAK, name)["sneak"].__code__)


def test_modules_are_known_as_they_were_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade below a worker that runs makes no stranger of its own code."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(libraries, "_IMPORTED", {})
    file = tmp_path / "upgraded.py"
    file.write_text("def work():\n    return [each for each in ()]\n")
    module = importlib.import_module("upgraded")
    libraries.remember([module])
    file.write_text("\n\n" + file.read_text())
    assert library()(module.work.__code__)
    monkeypatch.setattr(libraries, "_IMPORTED", {})
    assert not library()(module.work.__code__)


def stay(_code: int) -> None:
    """Tests run where the hook would trust nobody but libraries."""


def elsewhere(function: Callable[..., Any], *arguments: Any) -> None:
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("event", "arguments", "kind"),
    [
        ("sys._getframe", (None,), "introspection"),
        ("sys._current_frames", (), SPIED),
        ("gc.get_objects", (-1,), SPIED),
        ("object.__getattr__", (None, "tb_frame"), "introspection"),
        ("object.__getattr__", (None, "f_code"), None),
        ("import", ("workers.harness.state", None), "introspection"),
        ("import", ("json", None), None),
        ("ctypes.dlopen", ("libc.so.6",), "foreign calls"),
        ("open", ("file", "r", 0), None),
    ],
)
def test_deeds_have_kinds(event: str, arguments: tuple[Any, ...], kind: str | int | None) -> None:
    """They are told, or end the process with a code."""
    told: list[str | int] = []
    hook = audit_hook(told.append, frozenset(), told.append)
    sneak = compiled("def sneak(hook, event, arguments):\n    hook(event, arguments)\n", traceback.__file__)["sneak"]
    elsewhere(sneak, hook, event, arguments)
    assert told == ([] if kind is None else [kind])


def test_what_a_library_does_by_itself_is_nobody_s_deed() -> None:
    told: list[str] = []
    sys.addaudithook(audit_hook(told.append, frozenset(), stay))
    sneak = compiled("def sneak(make):\n    return make('Pair', 'left right')\n", "<candidate>")["sneak"]
    elsewhere(sneak, collections.namedtuple)
    assert told == []
    elsewhere(compiled("import sys\n\n\ndef sneak():\n    return sys._getframe()\n", "<candidate>")["sneak"])
    assert told == ["introspection"]


def test_a_library_that_lists_objects_for_somebody_does_not_hide_him() -> None:
    told: list[int] = []
    home = get_ident()
    sys.addaudithook(audit_hook(lambda kind: None, frozenset(), lambda code: get_ident() != home and told.append(code)))
    source = "def sneak(find, found):\n    find([found])\n"
    elsewhere(compiled(source, "<candidate>")["sneak"], leaks.find_legit_leaks_from_referrers, Written(None, None))
    assert told == [SPIED]


TRUSTED = """
import sys
from workers.harness import library as libraries
from workers.harness.deeds import audit_hook

sys.addaudithook(audit_hook(print, frozenset()))
import collections
collections.namedtuple("Pair", "left right")  # a library may
print("before", flush=True)
exec(compile({source!r}, {name!r}, "exec"), namespace := {{}})
namespace["sneak"]()
print("after")
"""


@pytest.mark.parametrize("name", ["<candidate>", "<frozen importlib._bootstrap>", traceback.__file__])
@pytest.mark.parametrize("body", ["sys._getframe()", "sys._current_frames()"])
def test_code_of_nobody_s_on_the_thread_of_the_harness_ends_the_process(body: str, name: str) -> None:
    source = f"import sys\n\n\ndef sneak():\n    return {body}\n"
    program = TRUSTED.format(source=source, name=name)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENT_S, check=False
    )
    assert (done.returncode, done.stdout.split()) == (TAMPERED, ["before"]), done.stderr


def test_the_code_of_ours_may_not_be_replaced_through_a_library_either() -> None:
    import functools

    def protected() -> int:
        return 1

    told: list[str] = []
    sys.addaudithook(audit_hook(told.append, frozenset({cast("FunctionType", protected)}), stay))
    elsewhere(lambda: functools.update_wrapper(protected, lambda: 2, assigned=("__code__",), updated=()))
    assert told == ["introspection"]


def test_a_triton_function_is_the_text_s_if_code_and_source_are() -> None:
    source = "import triton\n\n\ndef factory():\n    def kernel(x):\n        y = x + 1\n    return kernel\n"
    text = Text()
    text.read(source, "/srv/candidate.py")
    kernel = compiled(source.removeprefix("import triton\n"), "/elsewhere.py")
    assert not text.holds(Written(kernel["factory"](), None))  # on other lines: other code
    kernel = compiled(source.replace("import triton", ""), "/srv/candidate.py")["factory"]()
    assert text.holds(Written(kernel, None))
    assert text.holds(Written(kernel, "def kernel(x):\n    y = x + 1\n"))
    assert not text.holds(Written(kernel, "def kernel(x):\n    y = x + 2\n"))
    other = compiled("def kernel(x):\n    y = x + 2\n", "/srv/candidate.py")["kernel"]
    assert not text.holds(Written(other, None))
    assert not text.holds(None)


def test_a_source_that_cannot_be_compiled_holds_nothing() -> None:
    text = Text()
    text.read("def f(:\n", "/srv/candidate.py")
    assert not text.holds(Written(lambda: None, None))


class Written:
    """Looks like a Triton function."""

    def __init__(self, fn: Any, src: str | None) -> None:
        self.fn, self.src = fn, src
