"""The page on the method's options says what the code does."""

import json
import re

import pytest

from drkernel_q.reward import RewardConfig
from drkernel_q.value import Value
from policy.method.advantage import AdvantageConfig
from policy.method.laziness import LazinessConfig
from policy.method.mismatch import MismatchConfig, decide, log_ratios, telemetry
from tests.need import ROOT

PAGE = (ROOT / "docs" / "reference" / "method.md").read_text()


def documented(section: str) -> dict[str, object]:
    """Options of a section of the page, with their defaults."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return {name: json.loads(default) for name, default in re.findall(r"^\| `(\w+)` \| `(.+?)` \|", text, re.MULTILINE)}


def defaults(config: type[Value]) -> dict[str, object]:
    return config().model_dump(mode="json")


@pytest.mark.parametrize(
    ("section", "config"),
    [
        ("reward", RewardConfig),
        ("advantage", AdvantageConfig),
        ("mismatch", MismatchConfig),
        ("laziness", LazinessConfig),
    ],
)
def test_every_option_and_its_default_are_listed(section: str, config: type[Value]) -> None:
    assert documented(section) == defaults(config)


def test_options_of_the_loss_are_listed() -> None:
    from policy.method.loss import LossConfig

    assert documented("loss") == defaults(LossConfig)


def test_every_number_of_mrs_is_explained() -> None:
    (unit,) = decide([log_ratios([0.0], [0.0])])
    reported = {re.sub(r"/\d.*", "/LOW-HIGH", name) for name in telemetry([unit], [0.0], [0.0])}
    assert reported == set(re.findall(r"`(mrs/[^`]+)`", PAGE))
