"""Resumption: a run that is started again goes on where it was, if it is the same run."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from drkernel_q.errors import BadSettings
from drkernel_q.store import Store


def announce(store: Store, run: str, *, kind: str, settings: Mapping[str, Any], free: Collection[str] = ()) -> bool:
    """Announce a run, or make sure that the one of this name is the same; True when it goes on.

    Settings are compared by their keys, nested ones with points; those that are `free`, or lie below one that is, may
    change from one start to the next.

    Raises:
        BadSettings: there is a run of this name with other settings; the message names the first.
    """
    if store.add_run(run, kind=kind, settings=settings):
        return False
    known = store.run(run)
    assert known is not None
    if known.kind != kind:
        raise BadSettings(f"The run `{run}` is one of `drkq {known.kind}`; give another name by --run.")
    before, now = (dict(_flat(each or {})) for each in (known.settings, settings))
    for key in sorted({*before, *now}):
        is_free = any(key == name or key.startswith(f"{name}.") for name in free)
        if not is_free and before.get(key) != now.get(key):
            raise BadSettings(
                f"The run `{run}` was begun with {key} = {before.get(key)}, not {now.get(key)}; give another name by "
                "--run, or the same settings to go on."
            )
    return True


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, list(value) if isinstance(value, tuple) else value
