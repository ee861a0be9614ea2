"""Training that ends when it is asked to: by a signal, or by a file."""

import json
import signal
from pathlib import Path
from types import FrameType
from typing import Any

from shardwright.communication import WORLD_AXIS, processes
from shardwright.ir.errors import ModelError
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.values import check_flag, wrong_value
from shardwright.mindspore.train.serialization import save_checkpoint
from shardwright.runtime import LocalCommunicator, MpiCommunicator, any_process
from shardwright.train import Callback, RunContext

_KEY = "GracefulExit"


class OnRequestExit(Callback):
    """Ends the training after the step in which it is asked to, and saves the network.

    One of several processes is enough: all end after the same step.

    Parameters
    ----------
    save_ckpt : bool
        Whether the parameters are written to ``NAME_train.ckpt``, whole.
    save_mindir : bool
        Has no effect: programs are not written in MindSpore's form.
    file_name : str
        The begin of the file's name.
    directory : str
        Its folder.
    config_file : str, optional
        A JSON file that is read after each step: ``{"GracefulExit": 1}`` ends the training.
    sig : int
        The signal that ends the training.
    """

    def __init__(
        self,
        save_ckpt: bool = True,
        save_mindir: bool = True,
        file_name: str = "Net",
        directory: str = "./",
        config_file: str | None = None,
        sig: int = signal.SIGTERM,
    ) -> None:
        check_flag("save_ckpt", save_ckpt)
        check_flag("save_mindir", save_mindir)
        if not isinstance(file_name, str) or not file_name or "/" in file_name:
            raise wrong_value("file_name", file_name, "the begin of a file's name")
        if sig not in (signal.SIGTERM, signal.SIGINT):
            raise wrong_value("sig", sig, "`signal.SIGTERM` or `signal.SIGINT`")
        self._saves, self._path = save_ckpt, Path(directory) / f"{file_name}_train.ckpt"
        self._config = None if config_file is None else Path(config_file)
        self._signal, self._asked = sig, False
        self._before: Any = None

    def on_train_begin(self, run_context: RunContext) -> None:
        """Listen to the signal."""
        self._asked = False
        self._before = signal.signal(self._signal, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def on_train_step_end(self, run_context: RunContext) -> None:
        """End the training, where it was asked for."""
        if not self._anywhere(self._asked or self._said_by_file()):
            return
        if self._saves:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            save_checkpoint(run_context.original_args().train_network, str(self._path))
        run_context.request_stop()

    def on_train_end(self, run_context: RunContext) -> None:
        """Let the signal mean what it did."""
        signal.signal(self._signal, self._before)

    def _said_by_file(self) -> bool:
        """Return whether the file asks for the end.

        Raises
        ------
        ModelError
            If it is no JSON file of an object.
        """
        if self._config is None or not self._config.is_file():
            return False
        try:
            found = json.loads(self._config.read_text())
            return bool(found.get(_KEY, 0))
        except (ValueError, AttributeError) as error:
            raise ModelError(
                f"`{self._config}` is no JSON file of an object: {error}",
                hint=f'write `{{"{_KEY}": 1}}`',
            ) from error

    @staticmethod
    def _anywhere(asked: bool) -> bool:
        started = processes()
        if started is None:
            return any_process(asked, LocalCommunicator())
        mesh = Mesh((MeshAxis(WORLD_AXIS, started.size),))
        return any_process(asked, MpiCommunicator(mesh))


__all__ = ["OnRequestExit"]
