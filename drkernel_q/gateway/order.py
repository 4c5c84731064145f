"""An order: what a client asks for, and the request to the queue that it becomes."""

import uuid
from datetime import UTC, datetime
from typing import Annotated

from fastapi import HTTPException, status
from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from drkernel_q.errors import BadProblem
from drkernel_q.evaluation import EvaluationRequest, Protocol
from drkernel_q.gateway.access import Client, Right
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem, find_problem, problem_from_row
from drkernel_q.queue.routing import AUTO
from drkernel_q.request import Priority
from drkernel_q.settings import Settings
from drkernel_q.value import Value

#: Longest reference that a client may bring: six times KernelBench's longest.
MAX_REFERENCE_CHARS = 2**17
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
#: Constants nest; through this door one level does.
_Constant = bool | int | float | str | None | tuple[bool | int | float | str | None, ...]
Identity = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


#: What the description of the interface shows as an order.
EXAMPLE: JsonDict = {"problem": "softmax", "kernel": "import torch\n\n\nclass ModelNew(torch.nn.Module): ...\n"}


class Order(Value):
    """One kernel to be judged against one problem."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    id: Identity | None = None
    """Identity of the evaluation, 32 hexadecimal digits, so that the same order can safely be sent twice; made here if
    it is not given. Whoever knows it may ask for the result, so let it be random."""
    problem: Annotated[str, Field(max_length=200)] | None = None
    """Name of a problem that the gateway knows, such as `softmax` or `1/23`; beside a reference only a label for it."""
    reference: Annotated[str, Field(max_length=MAX_REFERENCE_CHARS)] | None = None
    """Or the source of a reference module in KernelBench's format; needs the right `problems`."""
    constants: dict[Annotated[str, Field(max_length=100)], _Constant] = Field(default_factory=dict, max_length=50)
    """Constants of the problem, such as sizes, that are replaced."""
    kernel: str
    """Source of the kernel: Python that defines `ModelNew`."""
    kernel_name: Annotated[str, Field(max_length=200)] = "kernel"
    """A label for people."""
    protocol: Protocol = Protocol()
    """How to judge it."""
    device: Annotated[str, Field(max_length=100)] = AUTO
    """`auto`, `cpu`, `cuda`, `cuda:N`, or a kind of device such as `sm_90` or `nvidia-h200`."""
    deadline_s: Annotated[float, Field(gt=0, le=3600)] = 240.0
    """Longest time that it may take on the worker, seconds."""
    priority: Priority = Priority.INTERACTIVE
    """What it waits behind."""
    run: _Name = "serve"
    """Run of the store that it belongs to; the client's name comes in front of it."""
    fresh: bool = False
    """Whether facts that are there already are not good enough."""

    def request(self, client: Client, settings: Settings) -> EvaluationRequest:
        """Make the request for the queue; reads files, so not in the event loop.

        Raises:
            BadProblem: the problem is not known, or the reference is none.
            HTTPException: the client may not bring references of its own.
        """
        return EvaluationRequest(
            id=self.id or uuid.uuid4().hex,
            problem=self._problem(client, settings),
            kernel=Kernel(source=self.kernel, name=self.kernel_name),
            protocol=self.protocol,
            deadline_s=self.deadline_s,
            priority=self.priority,
            run=f"{client.name}/{self.run}",
            fresh=self.fresh,
            submitted_at=datetime.now(UTC).isoformat(),
        )

    def _problem(self, client: Client, settings: Settings) -> Problem:
        if self.reference is not None:
            problem = brought(self.reference, "Model", self.problem or "reference", client)
        elif self.problem is not None:
            problem = find_problem(self.problem, settings, paths=False)
        else:
            raise BadProblem("Name the problem by `problem`, or bring its source as `reference`.")
        return problem.resized(self.constants) if self.constants else problem


def brought(source: str, entry_point: str, name: str, client: Client) -> Problem:
    """Make a problem of a reference that a client brings.

    Raises:
        BadProblem: it is no reference.
        HTTPException: the client may not bring any.
    """
    if Right.PROBLEMS not in client.rights:
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            "This token may name problems but not bring references of its own; that is the right `problems`.",
        )
    return problem_from_row({"code": source, "name": name, "entry_point": entry_point})
