"""Naming: what people write after `--model`, and the sampler that it stands for."""

from drkernel_q.errors import BadModel
from policy.sampler.protocol import Sampler
from policy.sampler.scripted import ScriptedSampler, read_script


def open_sampler(spec: str) -> Sampler:
    """Return the sampler that a name stands for; nothing is loaded yet.

    Raises:
        BadModel: it stands for none.
    """
    kind, _, name = spec.partition(":")
    if kind != "scripted":
        raise BadModel
    return ScriptedSampler(read_script(name), name=spec)
