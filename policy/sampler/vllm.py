"""The vLLM sampler: token ids in, token ids and log-probabilities out, over one or several servers.

Servers are given by URL, or one is started for the model. A server that dies while it writes is asked again, with the
same seed, when it is back; or another one is.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import openai

from drkernel_q.errors import BadModel, BadSettings, NoSampler, PromptTooLong
from drkernel_q.trajectory import Message
from policy.sampler import remote
from policy.sampler.protocol import Prompt, Sample, Sampling
from policy.sampler.renderer import Renderer
from policy.sampler.server import COMMAND, VllmServer
from policy.sampler.usage import Usage

log = logging.getLogger(__name__)


class _Endpoint:
    """One server, and how much it has to do."""

    def __init__(self, url: str, server: VllmServer | None) -> None:
        self.url = url
        self.server = server
        self.client = remote.connect(url)
        self.in_flight = 0
        self.root = ""
        """The model of a server that was given, as it says."""

    @property
    def model(self) -> str:
        """What the server was started with."""
        return self.root if self.server is None else self.server.model

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return await self.client.post(path, cast_to=object, body=body)


class VllmSampler:
    """Samples from vLLM servers."""

    def __init__(
        self,
        model: str | Path = "",
        *,
        urls: Sequence[str] = (),
        tokenizer: str | Path | None = None,
        context_tokens: int | None = None,
        version: int | None = None,
        options: Sequence[str] = (),
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] = MappingProxyType({}),
        sleeps: bool = False,
        patience: remote.Patience = remote.Patience(),  # noqa: B008 - frozen
    ) -> None:
        """Name a model (a folder, a GGUF file, a name of the hub) that a server is started for, or servers by URL.

        `tokenizer` is where the tokenizer is, if not with the model; of `urls` alone, it is where the server has its
        model. `options` are further flags of vLLM, `command` what starts it, `environment` what it has beside ours. One
        that `sleeps` was started with `--enable-sleep-mode` and gives its memory back at `rest`.
        """
        self.name = str(model)
        self.context_tokens = context_tokens or 0
        self.policy_version = version
        self.usage = Usage()
        self._urls = [url.rstrip("/") for url in urls]
        self._tokenizer = tokenizer
        self._options = options
        self._command = command
        self._environment = environment
        self._sleeps = sleeps
        self._asleep = False
        self._patience = patience
        self._weights: str | None = None
        self._open = asyncio.Event()
        self._endpoints: list[_Endpoint] = []

    async def __aenter__(self) -> Self:
        """Start the server if need be, and find out what it serves.

        Raises:
            BadModel: it serves another model, or the tokenizer cannot be had.
            NoSampler: a server does not answer.
        """
        from policy.model.model import load_tokenizer, model_folder

        if self._urls:
            self._endpoints = [_Endpoint(url, None) for url in self._urls]
        else:
            server = VllmServer(
                await asyncio.to_thread(model_folder, self.name),
                options=self._options,
                command=self._command,
                environment=self._environment,
            )
            self._endpoints = [_Endpoint(server.url, server)]
        try:
            for endpoint in self._endpoints:
                if endpoint.server is not None:
                    await endpoint.server.ensure()
                await self._look(endpoint)
            tokenizer = await asyncio.to_thread(load_tokenizer, self._tokenizer or self.name)
            self._renderer = Renderer(tokenizer)
        except BaseException:  # a cancellation too would leave the server running
            await self.__aexit__(None, None, None)
            raise
        self._open.set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Disconnect, and stop the server that was started."""
        for endpoint in self._endpoints:
            await endpoint.client.close()
            if endpoint.server is not None:
                await asyncio.to_thread(endpoint.server.stop)

    def encode(self, messages: Sequence[Message]) -> Prompt:
        """Render a chat by the model's template, up to where the answer begins."""
        return self._renderer.encode(messages)

    async def sample(self, prompt: Prompt, sampling: Sampling) -> Sample:
        """Draw one completion on the server that has least to do.

        Raises:
            PromptTooLong: prompt and `max_new_tokens` do not fit into the context.
            NoSampler: no server answers, or what it answers is no completion.
            BadModel: the server refuses the request.
        """
        if not prompt.ids:
            raise BadModel("A prompt for vLLM needs token ids; encode it by the sampler.")
        if prompt.tokens + sampling.max_new_tokens > self.context_tokens:
            raise PromptTooLong

        async def ask() -> Sample:
            await self._open.wait()
            endpoint = min(self._endpoints, key=lambda each: each.in_flight)
            endpoint.in_flight += 1
            try:
                return self._read(
                    await endpoint.post("/v1/completions", self._body(prompt, sampling)), prompt, endpoint.url
                )
            except openai.APIConnectionError:
                # It stays the one with most to do for the others while it comes back.
                await self._revive(endpoint)
                raise
            finally:
                endpoint.in_flight -= 1

        return await remote.insist(ask, where="vLLM", patience=self._patience)

    async def load_weights(self, source: str | Path | Mapping[str, Any] | None, version: int) -> None:
        """Have every server load other weights from a folder that it sees too, once what is under way is written.

        None: the servers have them already.

        Raises:
            BadSettings: the weights are no folder.
            NoSampler: a server does not load them.
        """
        if isinstance(source, Mapping):
            raise BadSettings("A vLLM server loads weights from a folder, not from this process.")
        await self._still()
        try:
            if source is not None:
                self._weights = str(source)
                await asyncio.gather(*map(self._wake, self._endpoints))
                self._asleep = False
            self.policy_version = version
        finally:
            self._open.set()

    async def rest(self) -> None:
        """Give the device's memory back until weights are loaded again, once what is under way is written.

        Weights go to the host's memory, so that whatever is loaded later falls into place.
        """
        if not self._sleeps or self._asleep:
            return
        await self._still()
        await asyncio.gather(*(self._control(each, "/sleep?level=1", {}) for each in self._endpoints))
        self._asleep = True

    async def _still(self) -> None:
        """Hold new completions back, and wait for those that are being written."""
        self._open.clear()
        while any(endpoint.in_flight for endpoint in self._endpoints):
            await asyncio.sleep(0.01)

    async def _wake(self, endpoint: _Endpoint) -> None:
        """Load the latest weights, and take memory for the cache only when they are there."""
        if self._asleep and not self._starts_anew(endpoint):
            await self._control(endpoint, "/wake_up?tags=weights", {})
            await self._reload(endpoint)
            await self._control(endpoint, "/wake_up?tags=kv_cache", {})
            await self._control(endpoint, "/reset_prefix_cache", {})
            return
        await self._reload(endpoint)

    def _starts_anew(self, endpoint: _Endpoint) -> bool:
        """Whether its weights are swapped by a new start.

        Where the output layer is the embedding, vLLM may leave the output layer as it was (0.32 on a CPU does).
        """
        return endpoint.server is not None and any(map(_is_tied, (endpoint.model, self._weights or "")))

    async def pause(self) -> None:
        """Hold new completions back, and wait until the servers write nothing: the device is somebody else's."""
        self._open.clear()
        await asyncio.gather(*(self._control(each, "/pause?mode=wait", {}) for each in self._endpoints))

    async def resume(self) -> None:
        """Go on after `pause`."""
        await asyncio.gather(*(self._control(each, "/resume", {}) for each in self._endpoints))
        self._open.set()

    async def _reload(self, endpoint: _Endpoint) -> None:
        """Load the latest weights, and forget what the cache holds of earlier ones: vLLM does not do so by itself."""
        assert self._weights is not None
        if self._starts_anew(endpoint):
            assert endpoint.server is not None
            await endpoint.server.restart(self._weights)
            return
        folders = (endpoint.model, self._weights, str(self._tokenizer or ""))
        if endpoint.server is None and any(map(_is_tied, folders)):
            log.warning(
                "vLLM at %s may keep the output layer of earlier weights, since it is the embedding too.",
                endpoint.url,
                extra={"action": "tied_weights"},
            )
        order = {"method": "reload_weights", "kwargs": {"weights_path": self._weights}}
        await self._control(endpoint, "/collective_rpc", order)
        await self._control(endpoint, "/reset_prefix_cache", {})

    async def _control(self, endpoint: _Endpoint, path: str, body: Mapping[str, Any]) -> None:
        where = f"vLLM at {endpoint.url}{path}"
        try:
            await remote.insist(lambda: endpoint.post(path, body), where=where, patience=self._patience)
        except BadModel as error:
            raise NoSampler(f"{error} Weights are loaded only by servers with VLLM_SERVER_DEV_MODE=1.") from error

    async def _revive(self, endpoint: _Endpoint) -> None:
        """Start a server of ours again if it has died, with the weights that it had."""
        server = endpoint.server
        if server is not None and self._weights is not None:
            server.model = self._weights  # what it began with may be gone
        if server is not None:
            await server.ensure()

    async def _look(self, endpoint: _Endpoint) -> None:
        """Find out what a server serves, and how long its context is."""

        async def ask() -> Any:
            return await endpoint.client.get("/v1/models", cast_to=object)

        where = f"vLLM at {endpoint.url}"
        listed = await remote.insist(ask, where=where, patience=self._patience)
        try:
            models = {model["id"]: model for model in listed["data"]}
            self._served = self._chosen(models, endpoint)
            longest = int(models[self._served].get("max_model_len") or self.context_tokens)
            root = endpoint.root = str(models[self._served].get("root") or self._served)
        except (KeyError, TypeError, ValueError) as error:
            raise NoSampler(f"{where} does not say what it serves.") from error
        self.context_tokens = min(self.context_tokens or longest, longest)
        self.name = self.name or self._served
        self._tokenizer = self._tokenizer or (root if self._urls else None)

    def _chosen(self, models: Mapping[str, Any], endpoint: _Endpoint) -> str:
        if endpoint.server is not None or (not self.name and len(models) == 1):
            return next(iter(models))
        if self.name not in models:
            known = ", ".join(models) or "none"
            raise BadModel(f"vLLM at {endpoint.url} has no model `{self.name}`; it has {known}.")
        return self.name

    def _body(self, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        seed = {} if sampling.seed is None else {"seed": sampling.seed}
        return seed | {
            "model": self._served,
            "prompt": list(prompt.ids),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "stop_token_ids": sorted(self._renderer.stop_ids),
            "logprobs": 0,
            "return_token_ids": True,
        }

    def _read(self, answer: Any, prompt: Prompt, url: str) -> Sample:
        """Check an answer, and take it apart."""
        try:
            choice = answer["choices"][0]
            ids = tuple(int(token) for token in choice["token_ids"])
            seen = choice.get("prompt_token_ids") or answer.get("prompt_token_ids") or list(prompt.ids)
            logprobs = tuple(float(each) for each in choice["logprobs"]["token_logprobs"])
            reason = choice["finish_reason"]
            # pydantic refuses what is not finite, and lengths that differ.
            text = self._renderer.decode(ids[:-1] if reason == "stop" else ids)
            sample = Sample(
                text=text, output_ids=ids, logprobs=logprobs, finish_reason=reason, policy_version=self.policy_version
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise remote.Malformed(f"vLLM at {url} answered with what is no completion: {reason}.") from error
        if list(seen) != list(prompt.ids):
            raise remote.Malformed(f"vLLM at {url} saw another prompt than it was sent.")
        self.usage.add(prompt.tokens, len(ids))
        return sample


def _is_tied(folder: str) -> bool:
    """Whether the output layer of a saved model is its embedding; not so for a folder that only the server sees."""
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(config.get("tie_word_embeddings"))
