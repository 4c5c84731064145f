"""The transformers sampler: completions by a model in this process, in batches, on a thread of its own."""

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from drkernel_q.errors import BadModel, NoSampler, PromptTooLong
from drkernel_q.trajectory import Message
from policy.sampler.protocol import Prompt, Sample, Sampling
from policy.sampler.renderer import Renderer
from policy.sampler.usage import Usage

if TYPE_CHECKING:
    from torch import Tensor

    from policy.sampler.engine import Engine, Request

Dtype = Literal["auto", "float32", "bfloat16"]


class TransformersSampler:
    """Samples from a model of transformers; weights can be swapped between completions.

    Log-probabilities are computed in fp32.
    """

    def __init__(
        self,
        model: "str | Path | tuple[Any, Any]",
        *,
        dtype: Dtype = "auto",
        device: str = "auto",
        context_tokens: int | None = None,
        batch_tokens: int = 65_536,
        batch_rows: int = 64,
        version: int | None = None,
    ) -> None:
        """Name a model (a folder, a GGUF file, a name of the hub), or give one with its tokenizer.

        Nothing is loaded yet. At most `batch_tokens` tokens and `batch_rows` completions are in the cache at once;
        `version` is the training step of the weights.
        """
        self.name = model[0].config.name_or_path or "model" if isinstance(model, tuple) else str(model)
        self.context_tokens = context_tokens or 0
        self.policy_version = version
        self.usage = Usage()
        self._source = model
        self._dtype: Dtype = dtype
        self._device = device
        self._limits = {"batch_tokens": batch_tokens, "batch_rows": batch_rows}
        self._work: queue.SimpleQueue[Callable[[Engine], None] | None] = queue.SimpleQueue()
        self._ended: Exception | None = NoSampler("The model is not loaded.")
        self._lock = threading.Lock()

    async def __aenter__(self) -> Self:
        """Load the model and start its thread.

        Raises:
            BadModel: it cannot be used.
        """
        self._model, tokenizer = await asyncio.to_thread(self._load)
        self._renderer = Renderer(tokenizer, stop_ids=_generation_stops(self._model))
        longest = getattr(self._model.config, "max_position_embeddings", None) or self.context_tokens
        self.context_tokens = min(self.context_tokens or longest, longest)
        self._thread = threading.Thread(target=self._run, name="drkq-sampler", daemon=True)
        self._ended = None
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the thread; completions that are under way fail."""
        self._work.put(None)
        await asyncio.to_thread(self._thread.join)
        del self._model

    def encode(self, messages: Sequence[Message]) -> Prompt:
        """Render a chat by the model's template, up to where the answer begins."""
        return self._renderer.encode(messages)

    async def sample(self, prompt: Prompt, sampling: Sampling) -> Sample:
        """Draw one completion.

        Raises:
            PromptTooLong: prompt and `max_new_tokens` do not fit into the context.
            NoSampler: the model ran out of memory with this completion alone, or the sampler was left.
        """
        from policy.sampler.engine import Request

        if not prompt.ids:
            raise BadModel("A prompt for this model needs token ids; encode it by the sampler.")
        if prompt.tokens + sampling.max_new_tokens > self.context_tokens:
            raise PromptTooLong
        future: Future[int | None] = Future()
        future.set_running_or_notify_cancel()  # from here on it takes its result, whoever still waits
        # The version is taken on the engine's thread, where no weights are swapped meanwhile.
        request = Request(prompt.ids, sampling, done=lambda _: future.set_result(self.policy_version))
        self._tell(lambda engine: engine.submit(request))
        try:
            version = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            request.cancelled = True
            raise
        if request.error is not None:
            raise NoSampler(f"The model failed: {request.error}") from request.error
        self.usage.add(prompt.tokens, len(request.output_ids))
        return self._sample(request, version)

    async def load_weights(self, source: "str | Path | Mapping[str, Tensor] | None", version: int) -> None:
        """Take over other weights, from a folder or by name, once what is under way is written.

        None: they are in the model already, which somebody else trains.

        Raises:
            BadModel: they are not those of this model; some may be in place.
        """
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()

        def swap(engine: "Engine") -> None:
            try:
                # A completion has one policy version: nobody joins until all have ended.
                while engine.running:
                    engine.step(admit=False)
                _load_into(self._model, source)
                self.policy_version = version
            except Exception as error:  # noqa: BLE001 - told to whoever waits
                future.set_exception(error)
            else:
                future.set_result(None)

        self._tell(swap)
        await asyncio.wrap_future(future)

    def _sample(self, request: "Request", version: int | None) -> Sample:
        assert request.finish_reason is not None
        ids = request.output_ids
        return Sample(
            text=self._renderer.decode(ids[:-1] if request.finish_reason == "stop" else ids),
            output_ids=tuple(ids),
            logprobs=tuple(request.logprobs),
            finish_reason=request.finish_reason,
            policy_version=version,
        )

    def _tell(self, work: "Callable[[Engine], None]") -> None:
        with self._lock:
            if self._ended is not None:
                raise NoSampler(f"The model failed: {self._ended}") from self._ended
            self._work.put(work)

    def _load(self) -> tuple[Any, Any]:
        if isinstance(self._source, tuple):
            model, tokenizer = self._source
            return model, tokenizer
        import torch

        from policy.model.model import load_model

        device = self._device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return load_model(self._source, self._dtype, device)

    def _run(self) -> None:
        """Step the engine while there is something to do; the thread's whole life."""
        from policy.sampler.engine import Engine

        engine = Engine(self._model, self._renderer.stop_ids, **self._limits)
        ended: Exception = NoSampler("The sampler was left.")
        try:
            while True:
                try:
                    work = self._work.get(block=engine.idle)
                except queue.Empty:
                    engine.step()
                    continue
                if work is None:
                    break
                work(engine)
        except Exception as error:  # noqa: BLE001 - told to everybody who waits, and to whoever comes
            ended = error
        with self._lock:
            self._ended = ended
        while not self._work.empty():
            if (work := self._work.get()) is not None:
                work(engine)
        engine.fail_all(ended)


def _generation_stops(model: Any) -> set[int]:
    """Tokens that the model's own configuration ends a completion at."""
    stops = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if stops is None:
        return set()
    return set(stops) if isinstance(stops, list | tuple) else {int(stops)}


def _load_into(model: Any, source: "str | Path | Mapping[str, Tensor] | None") -> None:
    """Copy weights into a model, in place: whoever else holds its tensors sees them too."""
    if source is None:
        return
    state = source if isinstance(source, Mapping) else _read(source)
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise BadModel(f"The weights do not fit the model: {' '.join(str(error).split())}") from error
    own = model.state_dict()
    loaded = {own[name].data_ptr() for name in state if name in own}
    # The output layer often is the embedding, and then it is saved once.
    lacking = [name for name in missing if own[name].data_ptr() not in loaded]
    if unexpected or lacking:
        raise BadModel(f"The weights are of another model: {(unexpected or lacking)[0]} is in only one of them.")


def _read(source: str | Path) -> "dict[str, Tensor]":
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from policy.model.model import model_folder

    files = sorted(Path(model_folder(source)).glob("*.safetensors"))
    if not files:
        raise BadModel(f"{source} holds no weights (*.safetensors).")
    try:
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    except (OSError, SafetensorError) as error:
        raise BadModel(f"The weights in {source} cannot be read: {error}.") from error
