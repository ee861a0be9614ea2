"""The command in a process that is forked from a clean one.

It forks a process for each rank, which PyTorch and JAX refuse once they have started threads, and
other tests let them.
"""

import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from shardwright.tools.main import main

_CONTEXT = multiprocessing.get_context("forkserver")
# Loaded once, in the process that the others are forked from.
_CONTEXT.set_forkserver_preload([__name__, "shardwright.tools.check", "torch._dynamo"])


class Answer(NamedTuple):
    """What the command ended with, and what it wrote."""

    code: int
    output: str
    errors: str


def checked(folder: Path, *arguments: str) -> Answer:
    """Run ``shardwright check`` with arguments; its output goes through files of a folder."""
    process = _CONTEXT.Process(target=_run, args=(folder, ["check", *arguments]))
    process.start()
    process.join()
    assert process.exitcode is not None
    texts = ((folder / name).read_text() for name in ("output", "errors"))
    return Answer(process.exitcode, *texts)


def _run(folder: Path, arguments: Sequence[str]) -> None:
    for stream, name in ((1, "output"), (2, "errors")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), stream)
    raise SystemExit(main(arguments))
