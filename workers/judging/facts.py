"""Facts: what a judge has found so far, and the evaluation and artefacts that they become."""

import base64
from typing import Any

from drkernel_q import rules
from drkernel_q.artefact import Artefacts, pack
from drkernel_q.correctness import Correctness
from drkernel_q.environment import Environment
from drkernel_q.evaluation import Evaluation, Integrity, Outcome, Protocol, Timing
from drkernel_q.observation import Evidence, Observations
from drkernel_q.profile import Profile
from workers.exchange.integrity import Finding
from workers.judging.hackcheck import HackCheck


class Facts:
    """What is known so far."""

    def __init__(self, environment: Environment) -> None:
        """Start with nothing but the environment."""
        self.environment = environment
        self.outcome = Outcome.CORRECT
        self.findings: list[Finding] = []
        self.hack_check = HackCheck()
        self.numbers: dict[str, Any] = {}
        """Fields of `Observations` that were measured."""
        self.raw: dict[str, Any] = {}
        """Fields of `Artefacts`."""
        self.correctness: Correctness | None = None
        self.profile: Profile | None = None
        self.timing: Timing | None = None
        self.durations_s: dict[str, float] = {}
        self.error: str | None = None
        self.fault: str | None = None
        self.output = ""

    def evaluation(self, protocol: Protocol) -> Evaluation:
        """Put everything together and let the rules decide."""
        facts = Evaluation(
            outcome=self.outcome,
            integrity=Integrity.UNKNOWN,
            protocol=protocol,
            observations=self._observations(),
            correctness=self.correctness,
            timing=self.timing,
            profile=self.profile,
            environment=self.environment,
            durations_s={name: round(seconds, 4) for name, seconds in self.durations_s.items()},
            error=self.error,
            fault=self.fault,
            stdout=self.output,
        )
        return facts.revised(rules.judge(facts))

    def _observations(self) -> Observations:
        seen = dict.fromkeys((*self.hack_check.findings, *self.findings))
        return Observations(
            seen=tuple(Evidence(code=each.code, weight=each.weight, detail=each.detail) for each in seen),
            probes=self.hack_check.probes,
            touched=self.hack_check.touched,
            modes=self.hack_check.modes,
            **self.numbers,
        )

    def artefacts(self) -> str:
        """Pack what was measured in the raw, as base64."""
        return base64.b64encode(pack(Artefacts(**self.raw))).decode()
