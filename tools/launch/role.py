"""One process of a run with parameter servers: its log, and the script.

python -m shardwright.tools.launch.role LOG SCRIPT ARGUMENTS...
"""

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> None:
    """Write what the script prints to a log, and run the script; it says itself how it joins."""
    log, script = arguments[0], arguments[1]
    sys.stdout.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = list(arguments[1:])
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
