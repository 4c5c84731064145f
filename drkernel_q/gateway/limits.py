"""What the gateway takes at most: every one of its lists is bounded by a number here."""

import difflib
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field, ValidationError

from drkernel_q.errors import BadSettings
from drkernel_q.value import Value

_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0)]


class Limits(Value):
    """Bounds of one gateway process."""

    in_flight: _Count = 8
    """Evaluations in the broker at once, at least; what is beyond waits here, in fair order."""
    in_flight_a_worker: _Count = 4
    """The same for each worker that accepts requests: so many that none is idle, so few that the order stays fair."""
    waiting: _Count = 10_000
    """Accepted evaluations that have no reply yet; beyond, 503."""
    waiting_bytes: _Count = 256 * 2**20
    """Bytes of source that these hold; beyond, 503."""
    waiting_of_one: _Count = 2_000
    """Accepted evaluations of one client that have no reply yet; beyond, 429."""
    kept: _Count = 5_000
    """Replies that are kept for whoever asks again; the oldest go first, and the store still has them."""
    kept_bytes: _Count = 128 * 2**20
    """Bytes of these."""
    keep_s: _Seconds = 900.0
    """How long they are kept, seconds."""
    give_up_s: _Seconds = 900.0
    """How long an accepted evaluation waits for a broker or a worker that went away, seconds."""
    body_bytes: _Count = 2**20
    """Largest body of a request; beyond, 413."""
    batch_bytes: _Count = 16 * 2**20
    """Largest body of a batch; beyond, 413."""
    batch: _Count = 256
    """Evaluations in a batch."""
    reading_bytes: _Count = 64 * 2**20
    """Bodies that are being read, together; beyond, 503."""
    connections: _Count = 4_096
    """Requests that are open at once, those that wait among them; beyond, 503."""
    rate_per_s: _Seconds = 50.0
    """Requests of one client a second, on average; beyond, 429."""
    burst: _Count = 200
    """Requests that a client may make at once after a pause."""
    wait_s: _Seconds = 60.0
    """Longest wait for a reply in one request, seconds."""
    kernelgym_wait_s: _Seconds = 240.0
    """The same for KernelGYM's `/evaluate`, whose clients expect to be kept waiting."""


def read_limits(changes: Iterable[str]) -> Limits:
    """Read changes written as NAME=NUMBER.

    Raises:
        BadSettings: there is no such bound, or the number does not fit.
    """
    given = {}
    for change in changes:
        name, _, number = change.partition("=")
        if name not in Limits.model_fields:
            near = difflib.get_close_matches(name, Limits.model_fields, n=1)
            raise BadSettings(f"There is no limit `{name}`" + (f"; did you mean `{near[0]}`?" if near else "."))
        given[name] = number
    try:
        return Limits.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadSettings(f"The limit `{first['loc'][0]}` is wrong: {first['msg']}.") from None
