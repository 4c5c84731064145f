"""Names of samplers: which engine each stands for, without loading any."""

from pathlib import Path

import pytest

from drkernel_q.errors import BadModel
from policy.sampler.factory import open_sampler
from policy.sampler.scripted import ScriptedSampler


def test_a_script_by_name_or_file(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("answer")
    for spec in ("scripted:copy", f"scripted:{tmp_path / 'a.md'}"):
        sampler = open_sampler(spec, context_tokens=100, version=3)
        assert isinstance(sampler, ScriptedSampler)
        assert (sampler.name, sampler.context_tokens, sampler.policy_version) == (spec, 100, 3)
    with pytest.raises(BadModel, match="no script at"):
        open_sampler("scripted:nothing")


async def test_anything_else_is_a_model_and_is_looked_for_when_it_is_entered(tmp_path: Path) -> None:
    sampler = open_sampler(tmp_path, device="cpu")
    with pytest.raises(BadModel, match=r"config\.json"):
        async with sampler:
            pass
