"""`python -m workers --device cpu` is `drkq worker --device cpu`."""

import sys

from drkernel_q.cli import drkq

if __name__ == "__main__":
    drkq.main(["worker", *sys.argv[1:]], prog_name="drkq")
