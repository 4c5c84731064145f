"""The `drkq` command: a group whose commands come by entry point and load only when called."""

import gc
import os
import sys

import click

from drkernel_q import __version__
from drkernel_q.cli.group import CommandGroup

__all__ = ["drkq", "main"]


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="drkq", message="%(prog)s %(version)s")
@click.option("-v", "--debug", is_flag=True, help="Show tracebacks (also: DRKQ_DEBUG=1).")
def drkq(debug: bool) -> None:
    """Judge Triton kernels, and train and search with models that write them.

    Correct? honest? how fast? how much of the device time is the kernel's own? Nothing needs to be set up: without a
    broker URL a command starts what it needs and stops it at its end.

    \b
    Examples:
      drkq eval examples/softmax.py --problem softmax   judge one kernel
      drkq eval kernel.py --reference model.py --json   the same, for a program to read
      drkq stts softmax --model DIR --turns 8           let a model search for a kernel
      drkq train                                        the whole loop, with a new tiny model
      drkq problem list                                 what there is to solve
      drkq doctor                                       what works here, and what to do about the rest
      drkq worker --device cuda:0                       serve a cluster (DRKQ_BROKER_URL)

    \b
    Exit codes:
      0 correct and clean   1 the kernel is at fault   2 usage
      65 bad input   69 no broker or worker   70 a bug of drkq   75 timed out waiting
      78 settings   130 Ctrl-C
    """  # noqa: D301 - click wants the backspace character itself


#: Objects more than were let go of before garbage is looked for. A command makes hundreds of thousands while it
#: imports, nearly all to stay, and to go through them at Python's own 700 takes a sixth of the time until it begins.
GARBAGE_AFTER = 50_000


def main() -> None:
    """Run `drkq` with the arguments of this process, and exit."""
    gc.set_threshold(GARBAGE_AFTER)
    _open_closed_streams()
    try:
        drkq.main(prog_name="drkq")
    finally:
        gc.freeze()  # nor is it looked for when everything goes


def _open_closed_streams() -> None:
    """Give a process started with `2>&-` somewhere to write to; opening takes the number that is free."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115 - for as long as we live
