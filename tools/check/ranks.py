"""Processes that run the user's code and answer requests: one a rank, and one for one device.

Knows nothing of what is run. A process that fails, ends, or does not answer in time ends all.
"""

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DTensor imports it when it is first used: here once, not in every process

from shardwright.ir.errors import ModelError, ShardwrightError

_FAILING_SECONDS = 0.3  # for other processes to fail after one has, of which the first is told
_Start = Callable[..., Callable[[Any], Any]]


class Processes:
    """Processes by name, each begun by `start(*arguments)`, which returns what answers requests."""

    def __init__(self, path: Path, start: _Start, arguments: Mapping[str, tuple[Any, ...]]) -> None:
        # A fork has PyTorch already; where there is none, every process imports it.
        ways = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("fork" if "fork" in ways else "spawn")
        self.path, self._names = path, list(arguments)
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        for one in arguments.values():
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(there, os.getpid(), start, one), daemon=True
            )
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all processes, whatever they do."""
        for process in self._processes:
            process.kill()
        for process, connection in zip(self._processes, self._connections, strict=True):
            process.join()
            connection.close()

    def ask(self, request: Any, seconds: float) -> list[Any]:
        """Give all processes one request, and return their answers in order.

        Raises
        ------
        ModelError
            If one fails or ends, or if some have not answered in time.
        """
        packed = pickle.dumps(request)
        for at, connection in enumerate(self._connections):
            try:
                connection.send_bytes(packed)
            except ConnectionError as error:
                raise self._ended(at) from error
        answers: dict[int, Any] = {}
        failures: dict[int, ModelError] = {}
        end = time.monotonic() + seconds
        while len(answers) + len(failures) < len(self._connections):
            waiting = {
                c: at
                for at, c in enumerate(self._connections)
                if at not in answers and at not in failures
            }
            ready = set(wait(list(waiting), max(0.0, end - time.monotonic())))
            if not ready:
                break
            for connection in waiting.keys() & ready:
                at = waiting[connection]
                try:
                    answers[at] = self._answer(connection, at)
                except ModelError as failure:
                    failures[at] = failure
                    # The others may fail in the same way: the first of them is told.
                    end = min(end, time.monotonic() + _FAILING_SECONDS)
        if failures:
            raise failures[min(failures)]
        if len(answers) < len(self._connections):
            names = ", ".join(name for at, name in enumerate(self._names) if at not in answers)
            text = f"after {seconds:.0f} s the program has not ended on {names}"
            hint = "let all ranks of a group call the same collectives, and the sizes be small"
            raise ModelError(text, str(self.path), hint)
        return [answers[at] for at in range(len(self._connections))]

    def _answer(self, connection: Connection, at: int) -> Any:
        try:
            kind, answer = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionError) as error:
            raise self._ended(at) from error
        if kind == "failed":
            raise ModelError(*answer)
        return answer

    def _ended(self, at: int) -> ModelError:
        text = f"the process of {self._names[at]} ended while it ran the program"
        return ModelError(text, str(self.path))


def _serve(connection: Connection, parent: int, start: _Start, arguments: tuple[Any, ...]) -> None:
    """Answer requests until the parent ends this process, or is gone itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    for number in (signal.SIGTERM, signal.SIGHUP):  # whoever ends a rank ends it
        signal.signal(number, signal.SIG_DFL)
    sys.stdout = sys.stderr  # the answer of the command is alone on the output
    logging.getLogger("torch").setLevel(logging.ERROR)  # gloo makes do with slower collectives
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    try:
        answer = start(*arguments)
        while True:
            _await_request(connection, parent)
            made = answer(pickle.loads(connection.recv_bytes()))
            connection.send_bytes(pickle.dumps(("made", made)))
    except ShardwrightError as error:
        connection.send_bytes(pickle.dumps(("failed", (error.what, error.where, error.hint))))
        # This process stays, so that the others do not fail for want of it.
        while True:
            _await_request(connection, parent)
            connection.recv_bytes()


def _await_request(connection: Connection, parent: int) -> None:
    while not connection.poll(5.0):
        if os.getppid() != parent:
            sys.exit(1)
