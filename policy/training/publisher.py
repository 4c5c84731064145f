"""Publisher: brings the weights of the learner to whoever samples, behind one method."""

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Protocol, runtime_checkable

from safetensors.torch import save_file
from torch import Tensor

from policy.training.learner import Learner
from policy.training.weights import Published, WeightFolder, untied


class Publisher(Protocol):
    """Brings weights to samplers; NCCL or IPC would be others of this kind."""

    async def make_room(self) -> None:
        """Have samplers give back, until the next version, what the learner needs."""

    async def publish(self, version: int) -> None:
        """Return when every sampler writes with the learner's weights, and calls them this version."""


class Reader(Protocol):
    """A sampler whose weights can be replaced."""

    name: str

    async def load_weights(self, source: Path | None, version: int) -> None:
        """Load a folder of weights, or take note of a version where they are in place already."""


@runtime_checkable
class Resting(Protocol):
    """A reader that can give memory back until it loads weights again."""

    async def rest(self) -> None:
        """Give it back."""


class CopyReader(Protocol):
    """A sampler that takes weights as they are."""

    async def load_weights(self, source: Mapping[str, Tensor], version: int) -> None:
        """Copy weights by name, once what is under way is written."""


class InProcess:
    """The sampler computes with the very weights that are trained: a new version is only a new number."""

    def __init__(self, sampler: Reader) -> None:
        """Take the sampler."""
        self._sampler = sampler

    async def make_room(self) -> None:
        """There is nothing that could be given back."""

    async def publish(self, version: int) -> None:
        """Name the version."""
        await self._sampler.load_weights(None, version)


class Copied:
    """The sampler of this process has weights of its own, which are copied into."""

    def __init__(self, sampler: CopyReader, learner: Learner) -> None:
        """Take the sampler."""
        self._sampler = sampler
        self._learner = learner

    async def make_room(self) -> None:
        """A small model's copy stays where it is."""

    async def publish(self, version: int) -> None:
        """Gather the weights and copy them."""
        state = await asyncio.to_thread(self._learner.lead, "merged_state")
        await self._sampler.load_weights(state, version)


class SharedFolder:
    """Samplers load a folder that every machine sees; each acknowledges (`policy.training.weights`)."""

    def __init__(
        self, folder: WeightFolder, learner: Learner, readers: Sequence[Reader], *, timeout_s: float = 600.0
    ) -> None:
        """Take the folder and who reads it."""
        self._folder = folder
        self._learner = learner
        self._readers = readers
        self._timeout_s = timeout_s

    async def make_room(self) -> None:
        """Send those to rest that can."""
        await asyncio.gather(*(reader.rest() for reader in self._readers if isinstance(reader, Resting)))

    async def publish(self, version: int) -> None:
        """Write the weights, have every reader load them, and remove versions that nobody needs any more.

        Raises:
            NoSampler: a reader did not load them in time.
        """
        state = await asyncio.to_thread(self._learner.lead, "merged_state")

        def write(folder: Path) -> None:
            # Servers of a model whose output layer is the embedding cannot be relied on to load both.
            ties, config = self._learner.ties, deepcopy(self._learner.model_config)
            weights = untied(state, ties)
            if ties and ties.keys() <= weights.keys():
                config.tie_word_embeddings = False
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
            config.save_pretrained(folder)

        published = await asyncio.to_thread(self._folder.publish, version, write)
        names = [reader.name for reader in self._readers]
        loading = [asyncio.create_task(self._have_loaded(reader, published)) for reader in self._readers]
        try:
            done, _ = await asyncio.wait(loading, timeout=self._timeout_s, return_when=asyncio.FIRST_EXCEPTION)
            await asyncio.gather(*done)
            await self._folder.acknowledged(version, names, timeout_s=0)
        finally:
            for task in loading:
                task.cancel()
            await asyncio.gather(*loading, return_exceptions=True)
        await asyncio.to_thread(self._folder.clean, names)

    async def _have_loaded(self, reader: Reader, published: Published) -> None:
        await reader.load_weights(published.folder, published.version)
        self._folder.acknowledge(published.version, reader.name)
