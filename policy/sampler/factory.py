"""Which sampler a name stands for."""

from pathlib import Path
from typing import Any, TypedDict, Unpack

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
    tokenizer: str | None
    """Where the tokenizer of served weights is, if not with them."""
    flags: tuple[str, ...]
    """Further flags of a vLLM that is started."""
    prices: tuple[float, float]
    """What a million tokens read and written cost."""
    latency_s: float
    """How long each answer of a script takes."""


def open_sampler(spec: str | Path, **options: Unpack[SamplerOptions]) -> Sampler:
    """Choose a sampler by a name; it connects or loads when it is entered (`async with`).

    ```
    scripted:copy, scripted:FILE   answers by a script (policy.sampler.scripted)
    vllm:MODEL                     a vLLM server that is started for the model
    http://HOST:PORT[,...]         vLLM servers that run already
    http://HOST:PORT/v1[#MODEL]    any server with a chat interface like OpenAI's
    openai:MODEL                   OpenAI
    anything else                  a model in this process: a folder, a GGUF file, a name of the hub
    ```

    Raises:
        BadModel: there is no such script.
    """
    kind, _, rest = str(spec).partition(":")
    match kind:
        case "scripted":
            return _scripted(rest, options)
        case "vllm":
            return _vllm(rest, options)
        case "openai":
            return _openai(rest, options)
        case "http" | "https":
            return _served(str(spec), options)
    return _own(str(spec), options)


def _scripted(name: str, options: SamplerOptions) -> Sampler:
    from policy.sampler.scripted import ScriptedSampler, read_script

    script = ScriptedSampler(read_script(name), name=f"scripted:{name}", latency_s=options.get("latency_s", 0.0))
    script.context_tokens = options.get("context_tokens") or script.context_tokens
    script.policy_version = options.get("version")
    return script


def _own(name: str, options: SamplerOptions) -> Sampler:
    from policy.sampler.transformers import TransformersSampler

    return TransformersSampler(name, **_chosen(options, "device", "dtype", "context_tokens", "version"))


def _vllm(model: str, options: SamplerOptions, urls: tuple[str, ...] = ()) -> Sampler:
    from policy.sampler.vllm import VllmSampler

    chosen = _chosen(options, "context_tokens", "version", "tokenizer")
    return VllmSampler(model, urls=urls, options=options.get("flags", ()), **chosen)


def _openai(model: str, options: SamplerOptions, url: str | None = None) -> Sampler:
    from policy.sampler.openai import OpenAISampler

    return OpenAISampler(model, url=url, **_chosen(options, "context_tokens", "prices"))


def _served(address: str, options: SamplerOptions) -> Sampler:
    """A bare address is one of vLLM; one with a path is that of a chat interface."""
    urls = tuple(url.strip().rstrip("/") for url in address.split(","))
    if any("/" in url.partition("://")[2] for url in urls):
        url, _, model = address.partition("#")
        return _openai(model, options, url)
    return _vllm("", options, urls)


def _chosen(options: SamplerOptions, *names: str) -> dict[str, Any]:
    given: dict[str, Any] = dict(options)
    return {name: given[name] for name in names if name in given}
