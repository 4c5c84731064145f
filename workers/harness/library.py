"""Library: which code is that of the Python installation, to the letter; a file's name proves nothing.

The function that says so looks nothing up by name (`workers.harness.witness`).
"""

import importlib.util
import marshal
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from types import CodeType, ModuleType

from workers.harness.text import codes_within
from workers.isolation import sandbox

#: The code of modules as they were imported, by the names of their files.
_IMPORTED: dict[str, frozenset[CodeType]] = {}
#: Where Python keeps a module compiled (PEP 3147, PEP 552): behind words of four bytes each, a magic number, flags, and
#: the time and size of the source.
_WORD, _HEADER = 4, 16


def remember(modules: Iterable[ModuleType]) -> None:
    """Know modules by what they were when they were imported, whatever becomes of their files; forks inherit that.

    A worker goes on while its own package is upgraded or edited, and no candidate is to be blamed for it.
    """
    for module in modules:
        loader = module.__spec__.loader if module.__spec__ else None
        code = getattr(loader, "get_code", lambda _: None)(module.__name__)
        if code is not None:
            _IMPORTED[code.co_filename] = frozenset(codes_within(code))


def library() -> Callable[[CodeType], bool]:
    """Return a function that says whether code is in a file of the Python installation, as it stands there now."""
    folders = {*sandbox.code_paths(), *filter(None, sys.path), sys.prefix, sys.base_prefix}
    folders |= set(map(os.path.dirname, _IMPORTED))
    # Candidates write into folders of their own there, which whoever starts a worker may have on his path.
    open_to_them = f"{os.path.realpath(tempfile.gettempdir())}/"
    roots = tuple(f"{folder}/" for folder in folders if not open_to_them.startswith(f"{os.path.realpath(folder)}/"))
    known = dict(_IMPORTED)
    starts, read, make, plain, within = str.startswith, open, compile, str, codes_within
    unreadable, gather, kept, climbs = (OSError, SyntaxError, ValueError), frozenset, _kept(), str.__contains__

    def codes_of(name: str) -> frozenset[CodeType]:
        if not starts(name, roots) or climbs(name, "/.."):
            return gather()
        code = kept(name)
        try:
            if code is None:
                with read(name, "rb") as file:
                    code = make(file.read(), name, "exec", 0, True)
            return gather(within(code))
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


def _kept() -> Callable[[str], CodeType | None]:
    """Return a function that reads what Python has compiled a file to, if that is not older, to spare compiling it."""
    read, stat, load, number, kind = open, os.stat, marshal.loads, int.from_bytes, CodeType
    parts, magic, word, header = str.rpartition, importlib.util.MAGIC_NUMBER, _WORD, _HEADER
    unreadable, mask = (OSError, EOFError, ValueError, TypeError), 2 ** (8 * _WORD) - 1
    whole = int
    optimized = f".opt-{sys.flags.optimize}" if sys.flags.optimize else ""
    suffix = f".{sys.implementation.cache_tag}{optimized}.pyc"
    elsewhere = sys.pycache_prefix is not None

    def kept(name: str) -> CodeType | None:
        if elsewhere or name[-3:] != ".py":
            return None
        folder, _, file = parts(name, "/")
        try:
            with read(folder + "/__pycache__/" + file[:-3] + suffix, "rb") as compiled:
                data = compiled.read()
            source = stat(name)
            words = [number(data[place : place + word], "little") for place in (word, 2 * word, 3 * word)]
            if data[:word] != magic or words != [0, whole(source.st_mtime) & mask, source.st_size & mask]:
                return None
            code = load(data[header:])
        except unreadable:
            return None
        return code if code.__class__ is kind else None

    return kept
