"""Resumption: a run that is started again goes on where it was, if it is the same run."""

from collections.abc import Iterable, Mapping
from typing import Any

from drkernel_q.errors import BadSettings
from drkernel_q.store import Store
from policy.config import differences


def announce(store: Store, run: str, *, kind: str, settings: Mapping[str, Any], free: Iterable[str] = ()) -> bool:
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
    for key, before, now in differences(known.settings or {}, settings, free):
        raise BadSettings(
            f"The run `{run}` was begun with {key} = {before}, not {now}; give another name by --run, or the same "
            "settings to go on."
        )
    return True
