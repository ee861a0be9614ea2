"""Checkpoints of slices: every rank writes its own, and any plan of the program reads them.

A checkpoint is a folder::

    step-20/manifest.json           step, position in the data, layouts, and sizes and sums of the
                                    files; see `Manifest`
    step-20/rank.0.safetensors      the slices that rank 0 writes, and so on for every rank
    step-20/strategy.json           layouts of the parameters in MindSpore's form

A folder of checkpoints has several. Each is written under a hidden name, with the manifest last,
and renamed when all of it is on the disk.
"""

from shardwright.runtime.checkpoints.lease import Start
from shardwright.runtime.checkpoints.manifest import MANIFEST, Manifest, Progress
from shardwright.runtime.checkpoints.reading import (
    Checkpoint,
    check_program,
    is_sliced,
    is_within,
    load_slices,
    newest,
    open_checkpoint,
)
from shardwright.runtime.checkpoints.resharding import reshard
from shardwright.runtime.checkpoints.runs import (
    begin_writing,
    check_keeping,
    checked_newest,
    open_agreed,
    take_folder,
)
from shardwright.runtime.checkpoints.writing import CheckpointWriter, Writing

__all__ = [
    "MANIFEST",
    "Checkpoint",
    "CheckpointWriter",
    "Manifest",
    "Progress",
    "Start",
    "Writing",
    "begin_writing",
    "check_keeping",
    "check_program",
    "checked_newest",
    "is_sliced",
    "is_within",
    "load_slices",
    "newest",
    "open_agreed",
    "open_checkpoint",
    "reshard",
    "take_folder",
]
