"""Which sampler a name stands for."""

from pathlib import Path
from typing import TypedDict, Unpack

from policy.sampler.protocol import Sampler


class SamplerOptions(TypedDict, total=False):
    """What can be said of a sampler beside its name; each kind uses what is its own."""

    device: str
    """Device of a model in this process: `auto`, `cpu`, `cuda:N`."""
    dtype: str
    """What it is computed in: `auto`, `float32`, `bfloat16`."""
    context_tokens: int | None
    """Longest prompt and completion together, if shorter than the model's own."""
    version: int | None
    """Training step of its weights."""
    latency_s: float
    """How long each answer of a script takes."""


def open_sampler(spec: str | Path, **options: Unpack[SamplerOptions]) -> Sampler:
    """Choose a sampler by a name; it connects or loads when it is entered (`async with`).

    `scripted:copy` or `scripted:FILE` answers by a script (`policy.sampler.scripted`); anything else is a model in this
    process: a folder, a GGUF file, or a name of the hub.

    Raises:
        BadModel: there is no such script.
    """
    kind, _, rest = str(spec).partition(":")
    if kind == "scripted":
        from policy.sampler.scripted import ScriptedSampler, read_script

        script = ScriptedSampler(read_script(rest), name=str(spec), latency_s=options.get("latency_s", 0.0))
        script.context_tokens = options.get("context_tokens") or script.context_tokens
        script.policy_version = options.get("version")
        return script
    from policy.sampler.transformers import TransformersSampler

    chosen = {name: options[name] for name in ("device", "dtype", "context_tokens", "version") if name in options}
    return TransformersSampler(spec, **chosen)  # type: ignore[arg-type]
