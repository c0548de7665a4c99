"""`python -m fewmask` and the `fewmask` script."""

from __future__ import annotations

import os
import sys


def main() -> None:
    # Threads that spin while they wait for each other can make small networks 20 times slower; this must be set
    # before torch loads OpenMP.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from fewmask.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
