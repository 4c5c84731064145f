"""The policy of the claims as it is kept in the repository: where training begins, and what it writes.

What such a policy writes is measured once on a GPU. Whoever trains another one, on another machine, gets other kernels,
of which few have facts; so the weights are kept (in bfloat16, which is part of what they are), and the list of kernels.
"""

import gzip
import shutil
from pathlib import Path

import click

from benchmarks.claims.subset import CHOICE, read_choice, subset
from policy.model.model import load_model, save_model

KEPT = Path(__file__).parent / "policy"
#: What an H200 said of the kernels of the list.
MEASURED = Path(__file__).parents[1] / "facts" / "claims.parquet"
MODEL, KERNELS = Path("sft/model"), "kernels.jsonl"
_LIST = f"{KERNELS}.gz"


def keep_model(folder: Path) -> None:
    """Replace the policy that is kept by that of `folder`; what the old one wrote is not kept any more."""
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir()
    shutil.copy(folder / CHOICE, KEPT)
    save_model(*load_model(folder / MODEL, "bfloat16"), KEPT / "model")


def keep_list(folder: Path) -> None:
    """Keep the list of kernels of `folder`, the same bytes for the same list."""
    with (KEPT / _LIST).open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write((folder / KERNELS).read_bytes())


def restore(folder: Path) -> None:
    """Make `folder` as `prepare` and `sample` would have made it, with the policy and the list that are kept."""
    if folder.exists():
        raise click.ClickException(f"{folder} is there already; name another folder.")
    choice = read_choice(KEPT)
    folder.mkdir(parents=True)
    subset(choice).write(folder)
    shutil.copytree(KEPT / "model", folder / MODEL)
    if (KEPT / _LIST).exists():
        (folder / KERNELS).write_bytes(gzip.decompress((KEPT / _LIST).read_bytes()))
    choice.write(folder)
