"""Bugs that are put into the product, to see that the simulator finds them."""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Planted:
    """A bug: a text in a function of the product is another one.

    Parameters
    ----------
    what : str
        What is wrong then.
    function : str
        The module and the name of the function in it, with a colon between.
    right, wrong : str
        What stands there, and what is put there instead.
    """

    what: str
    function: str
    right: str
    wrong: str

    def _function(self) -> Any:
        module, _, name = self.function.partition(":")
        found = reduce(getattr, name.split("."), import_module(module))
        found = found.fget if isinstance(found, property) else found
        return inspect.unwrap(found) if callable(found) else found

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Put it in during the block."""
        function = self._function()
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.right) == 1, f"{self.function}: {self.right}"
        lines = source.replace(self.right, self.wrong).splitlines()
        begin = next(i for i, line in enumerate(lines) if line.startswith("def "))
        found: dict[str, Any] = {}
        exec("\n".join(lines[begin:]), function.__globals__, found)  # of this repository
        before = function.__code__
        function.__code__ = found[function.__name__].__code__
        try:
            yield
        finally:
            function.__code__ = before


_FILES = "shardwright.ir.files"
_CHECKPOINTS = "shardwright.runtime.checkpoints"

STORAGE = (
    Planted(
        "a file of a plan is not synced",
        f"{_FILES}.folders:write_synced",
        "os.fsync(file.fileno())",
        "pass",
    ),
    Planted(
        "a single file is not synced",
        f"{_FILES}.writing:replacing",
        "os.fsync(file.fileno())",
        "pass",
    ),
    Planted(
        "the slices of a checkpoint are not synced",
        f"{_CHECKPOINTS}.tensor_file:write_tensors",
        "os.fsync(file.fileno())",
        "pass",
    ),
    Planted(
        "names are not synced",
        f"{_FILES}.folders:synced",
        "os.fsync(descriptor)",
        "pass",
    ),
    Planted(
        "a plan is renamed before the names in it are synced",
        f"{_FILES}.folders:exchange",
        "synced(stage)",
        "pass",
    ),
    Planted(
        "files of a plan are moved before its commit is synced",
        f"{_FILES}.folders:exchange",
        "synced(folder)",
        "pass",
    ),
    Planted(
        "the next writer does not complete what is left",
        f"{_FILES}.folders:exchange",
        "    settle(folder)\n    stage =",
        "    stage =",
    ),
    Planted(
        "readers do not look at what is complete first",
        f"{_FILES}.folders:member",
        "if is_there else",
        "if False else",
    ),
    Planted(
        "two writers are not kept apart",
        f"{_FILES}.folders:locked",
        "fcntl.LOCK_EX if alone",
        "fcntl.LOCK_SH if alone",
    ),
    Planted(
        "nobody sweeps what writers have left",
        f"{_FILES}.aside:aside",
        "sweep(target)",
        "pass",
    ),
    Planted(
        "a writer sweeps what another holds",
        f"{_FILES}.aside:sweep",
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
    ),
    Planted(
        "an old checkpoint is removed before the new one is there",
        f"{_FILES}.aside:commit",
        "if not (target.is_dir() and any(target.iterdir())):",
        "shutil.rmtree(target, ignore_errors=True)\n    if True:",
    ),
    Planted(
        "a checkpoint is removed file by file under its name",
        f"{_CHECKPOINTS}.writing:_remove",
        "path.rename(hidden)",
        "hidden = path",
    ),
)


_SERVER = "shardwright.server"

SERVERS = (
    Planted(
        "a push that comes twice is applied twice",
        f"{_SERVER}.store:Store.push",
        "if push.step < counted:",
        "if False:",
    ),
    Planted(
        "a push takes the place of the one before",
        f"{_SERVER}.store:Store.push",
        "self.wait_for(push.step, seconds)",
        "pass",
    ),
    Planted(
        "workers keep no pushes for a server that comes back",
        f"{_SERVER}.client:Client._forget",
        "if step < standing.durable",
        "if True",
    ),
    Planted(
        "gradients are added in the order in which they arrive",
        f"{_SERVER}.store:Store.push",
        "[self._waiting[worker] for worker in range(self.task.workers)]",
        "list(self._waiting.values())",
    ),
    Planted(
        "pushes are told to be durable before the snapshot is written",
        f"{_SERVER}.checkpoints:Checkpoints.save",
        "if not now and store.clock % self.interval:",
        "store.durable[:] = store.applied\n    if not now and store.clock % self.interval:",
    ),
    Planted(
        "a snapshot has no counts of pushes",
        f"{_SERVER}.checkpoints:Checkpoints._load",
        "int(count) for count in",
        "0 for count in",
    ),
    Planted(
        "a server that comes back begins anew",
        f"{_SERVER}.checkpoints:Checkpoints.begin",
        "if known is not None:",
        "if False:",
    ),
    Planted(
        "values are pulled before the updates that they must have",
        f"{_SERVER}.service:ParameterServer.pull_rows",
        "store.wait_for(wish.clock, min(_WAIT, seconds / 2))",
        "pass",
    ),
    Planted(
        "a worker that waits does not look whether another server has come back",
        f"{_SERVER}.client:Client._persistently",
        "if self.task.synchronous:",
        "if False:",
    ),
    Planted(
        "a worker ends before what it has pushed is in a snapshot",
        f"{_SERVER}.client:Client.settle",
        "while link.log:",
        "while False:",
    ),
)


_LEASE = f"{_CHECKPOINTS}.lease"

OWNERSHIP = (
    Planted(
        "nobody looks who has the lease",
        f"{_LEASE}:holding",
        "_check(_holder(folder) == start, folder)",
        "pass",
    ),
    Planted(
        "the lease is taken while another start completes a checkpoint",
        f"{_LEASE}:take",
        ", locked(folder, alone=True):",
        ":",
    ),
    Planted(
        "what an earlier start has left is not removed",
        f"{_CHECKPOINTS}.writing:sweep",
        "shutil.rmtree(path, ignore_errors=True)",
        "pass",
    ),
)

_LAUNCH = "shardwright.tools.launch"

LAUNCHING = (
    Planted(
        "what the launcher has started goes on when it is killed",
        f"{_LAUNCH}:_owned",
        'if arguments.join == "False"',
        "if True",
    ),
    Planted(
        "the ranks of a start are not ended before the next one",
        f"{_LAUNCH}:_end_all",
        "supervisor.kill()",
        "pass",
    ),
    Planted(
        "a start reads the boards of the one before",
        f"{_LAUNCH}.supervision:Supervisor.begin",
        "board_path(self.folder, rank).unlink(missing_ok=True)",
        "pass",
    ),
    Planted(
        "the last death that was noted counts as the first one",
        f"{_LAUNCH}.supervision:Supervisor._noted",
        "sorted(noted)[:1]",
        "sorted(noted)[-1:]",
    ),
    Planted(
        "a rank that dies before it has a board leaves no note",
        "shardwright.runtime.faults.board:note_signal",
        "if not path.exists():",
        "if False:",
    ),
    Planted(
        "a rank that is slow counts as one that stands still",
        f"{_LAUNCH}.supervision:Supervisor.look",
        "now - seen.moved > self.timeout for",
        "now - seen.moved > self.timeout / 4 for",
    ),
    Planted(
        "ranks are not asked to end",
        f"{_LAUNCH}.supervision:Supervisor.ask_to_end",
        "os.kill(seen.board.pid, signal.SIGTERM)",
        "pass",
    ),
    Planted(
        "ranks that were not seen before are not asked to end",
        f"{_LAUNCH}:_interrupted",
        "supervisor.look()",
        "pass",
    ),
    Planted(
        "ranks that save are not waited for",
        f"{_LAUNCH}:_interrupted",
        "time.monotonic() + grace",
        "time.monotonic()",
    ),
    Planted(
        "the memory that ranks share stays",
        f"{_LAUNCH}.supervision:Supervisor.kill",
        "self._segments.remove()",
        "pass",
    ),
    Planted(
        "memory of an earlier launcher stays",
        f"{_LAUNCH}.segments:Segments.remove",
        "self._note.read_text().split() if self._note.is_file() else []",
        "self._names",
    ),
    Planted(
        "an interrupted run is started again",
        f"{_LAUNCH}:_with_restarts",
        "code == 0 or code == ExitCode.INTERRUPTED",
        "code == 0",
    ),
)


def first_seed(planted: Planted, run: Callable[[int], Any], most: int) -> tuple[int, str] | None:
    """Return the first seed that finds a planted bug, and what it says; None if none does."""
    run(0)  # what is right is known before
    with planted.inside():
        for seed in range(most):
            outcome = run(seed)
            if outcome.wrong:
                return seed, outcome.wrong[0]
    return None
