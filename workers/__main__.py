"""`python -m workers --device cpu` is `drkq worker --device cpu`."""

import sys

from drkernel_q.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "worker")
    main()
