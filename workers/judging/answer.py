"""Answer: what one forward call of a candidate gave, as its process says."""

from typing import Any, NamedTuple

from torch import Tensor

from drkernel_q.evaluation import Outcome
from workers.comparison.measure import Expected
from workers.exchange import integrity
from workers.exchange.segment import Segment
from workers.exchange.shared import scalars_of, specs_from
from workers.harness import state
from workers.judging.claim import claimed_text, reading
from workers.judging.structure import name_of, structure_fault


class Answer(NamedTuple):
    """What one forward call gave."""

    outputs: list[Tensor] | None
    """Copies of the outputs on the judge's device; None if nobody looks, or they are of another kind."""
    outcome: Outcome
    """Correct as far as structure, shapes and dtypes go, or what is wrong with them."""
    detail: str | None
    codes: tuple[str, ...]
    """Codes of `workers.exchange.integrity.OUTPUT_RULES` that the harness saw."""
    state: tuple[str, ...] = ()
    """What of `workers.harness.state.CODES` differs from before the candidate was loaded."""
    changed: bool = False
    """Whether the inputs were written to."""
    mutated: tuple[tuple[str, bool], ...] = ()
    """Names of parameters and buffers that were written to, and whether each is a parameter."""
    scalars: tuple[Any, ...] = ()
    """What stands beside the outputs and is no tensor."""
    late_ms: float = 0.0
    """Milliseconds that the device went on working after the last event of a timed call."""
    settled: bool = True
    """Whether the outputs of a timed call were complete at its last event."""
    written: tuple[int, ...] = ()
    """Fingerprints of what perturbed launches had written."""
    within: tuple[str, ...] = ()
    """Operators of torch that computed something inside of a perturbed launch."""
    own_launches: int = 0
    """Launches of Triton functions of the candidate's file."""
    own_names: frozenset[str] = frozenset()
    """Their names."""
    other_launches: int = 0
    """Launches of other Triton functions."""
    compiled: int = 0
    """Triton kernels that were loaded onto the device during a timed call."""
    seconds: float = 0.0


def _claims(reply: dict[str, Any]) -> Answer:
    """Read what comes with every call."""
    with reading("outputs"):
        codes, changes = tuple(reply["codes"]), tuple(reply["state"])
        if not (integrity.OUTPUT_RULES.keys() >= set(codes) and state.CODES.keys() >= set(changes)):
            raise ValueError("unknown codes")
        own, other, names = _launches(reply["launches"])
    return Answer(
        None,
        Outcome.CORRECT,
        None,
        codes,
        changes,
        own_launches=own,
        own_names=names,
        other_launches=other,
    )


def read_answer(
    reply: dict[str, Any],
    expected: Expected,
    sink: Segment,
    device: str,
    *,
    scalars: bool = True,
    is_looked_at: bool = True,
) -> Answer:
    """Read a reply whose outputs, if they are like `expected`, lie in `sink`; if looked at, they come to `device`.

    Raises:
        CandidateFailed: it is nonsense.
    """
    claims = _claims(reply)
    with reading("outputs"):
        fault = structure_fault(reply, expected, scalars=scalars)
        claims = claims._replace(scalars=tuple(scalars_of(reply["skeleton"])))
        if fault is not None:
            return claims._replace(outcome=fault[0], detail=fault[1])
        if not is_looked_at:
            return claims
        specs = specs_from(reply["tensors"], sink.size)
        for spec, working in zip(specs, expected.working, strict=True):
            if (spec.dtype, spec.shape) != (name_of(working.dtype), list(working.shape)):
                raise ValueError("places that do not fit the shapes")
        return claims._replace(outputs=sink.read(specs, device))


def _launches(rows: Any) -> tuple[int, int, frozenset[str]]:
    own = other = 0
    names = set()
    for name, is_own, count in rows:
        if is_own is True:
            own += int(count)
            names.add(claimed_text(name))
        else:
            other += int(count)
    return own, other, frozenset(names)
