"""Shard: weights, gradients and the optimizer's state in parts, one a rank (FSDP2), and checkpoints of them.

Each decoder layer is gathered when it computes, and freed again; everything else is gathered for the whole of a forward
call. It is torch's `fully_shard` itself, since accelerate shards on GPUs only and the tests have none.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from drkernel_q.errors import BadModel

#: Adapters are saved without the frozen model below them.
_OPTIONS = StateDictOptions(ignore_frozen_params=True, strict=False)


def shard(scorer: nn.Module, device: torch.device, ranks: int) -> None:
    """Move a module to the device of this rank and shard it in place; all ranks must hold the same weights.

    Raises:
        BadModel: the model does not say what its layers are.
    """
    scorer.to(device)
    mesh = init_device_mesh(device.type, (ranks,))
    layers = list(_layers(scorer))
    if not layers:
        raise BadModel("The model does not say which of its layers are to be sharded (`_no_split_modules`).")
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(scorer, mesh=mesh)


def _layers(scorer: nn.Module) -> Iterator[nn.Module]:
    names = {name for module in scorer.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return (module for module in scorer.modules() if type(module).__name__ in names)


def save_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write what is trained and the optimizer's state; each rank writes its part, so all must see the folder."""
    save(_state(model, optimizer), checkpoint_id=folder)


def load_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Read what `save_shards` wrote, by any number of ranks.

    Raises:
        BadModel: it was written of another model.
    """
    state = _state(model, optimizer)
    try:
        load(state, checkpoint_id=folder)
    except (RuntimeError, ValueError, CheckpointException) as error:
        raise BadModel(f"The weights in {folder} are not those of this model.") from error
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=_OPTIONS,
    )


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer, options=_OPTIONS)
    return {"model": weights, "optimizer": moments}
