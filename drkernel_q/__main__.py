"""`python -m drkernel_q` is `drkq`, also in a checkout that is not installed."""

from drkernel_q.cli import main

if __name__ == "__main__":
    main()
