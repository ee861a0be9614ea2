"""The settings of parameter servers in this process, and its role by MindSpore's variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from shardwright.communication.rendezvous import (
    node_of_environment,
    number_of_environment,
    scheduler_of_environment,
)
from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.values import (
    NOT_NEGATIVE_INTEGER,
    POSITIVE,
    POSITIVE_INTEGER,
    check_flag,
    check_names,
    wrong_value,
)
from shardwright.server.scheduler import SERVER, WORKER
from shardwright.server.security import PLAIN, Security, security_of

SCHEDULER = "MS_SCHED"
ROLES = (SCHEDULER, SERVER, WORKER)
MOST_RANKS = 4096
"""Ranks and workers, by MindSpore's documentation: scripts that ask for more fail there, too."""


@dataclass(frozen=True)
class Settings:
    """How parameters are trained on servers.

    Parameters
    ----------
    enable_ps : bool
        Whether they are.
    enable_ssl : bool
        Whether messages are encrypted.
    config_file_path : str
        A file with the configuration of TLS; see `security_of`.
    security_ctx : mapping, optional
        The configuration itself, or with ``config_file_path`` and passwords.
    server_password, client_password : str
        Passwords of the files with keys.
    synchronous : bool
        Whether an update takes the gradients of all workers; else of one.
    checkpoint_dir : Path, optional
        Where servers write their checkpoints, from which they come back.
    checkpoint_interval : int
        Updates from one checkpoint to the next.
    resume : bool
        Whether servers continue the checkpoints of another run.
    heartbeat_timeout : float
        Seconds without a sign after which a process is lost.
    cache_rows : int
        Rows of each table that a worker keeps, where a step reads some rows only.
    hash_rows : bool
        Whether the rows of such tables are divided over servers by hash, not by range.
    """

    enable_ps: bool = False
    enable_ssl: bool = False
    config_file_path: str = ""
    security_ctx: Mapping[str, Any] | None = None
    server_password: str = field(default="", repr=False)
    client_password: str = field(default="", repr=False)
    synchronous: bool = True
    checkpoint_dir: Path | None = None
    checkpoint_interval: int = 100
    resume: bool = False
    heartbeat_timeout: float = 30.0
    cache_rows: int = 0
    hash_rows: bool = False

    def security(self) -> Security:
        """Return how messages are encrypted.

        Raises
        ------
        OptionError
            If the configuration is missing or wrong.
        """
        given = dict(self.security_ctx or {})
        path = given.pop("config_file_path", self.config_file_path)
        passwords = [
            given.pop(name, getattr(self, name)) for name in ("server_password", "client_password")
        ]
        if not self.enable_ssl:
            return PLAIN
        for name, word in zip(("server_password", "client_password"), passwords, strict=True):
            _text(name, word)
        if path and given:
            raise OptionError(
                "the configuration of TLS is given twice, in a file and in `security_ctx`"
            )
        if not path and not given:
            raise OptionError(
                "messages are to be encrypted, and there are no certificates",
                hint="give `config_file_path` or `security_ctx`; `shardwright certificates DIR` "
                "makes some to try",
            )
        return security_of(path or given, *passwords)


@dataclass(frozen=True)
class Roles:
    """The processes of a run, and which one this is, by MindSpore's variables.

    Parameters
    ----------
    role : str
        ``MS_SCHED``, ``MS_PSERVER`` or ``MS_WORKER``.
    scheduler : str
        Address of the scheduler.
    servers, workers : int
        Number of servers and of workers.
    number : int, optional
        The number that this process asks for.
    """

    role: str
    scheduler: str
    servers: int
    workers: int
    number: int | None = None

    @staticmethod
    def of_environment(with_servers: bool = True) -> "Roles":
        """Return the roles that the variables describe; `with_servers` if there are servers.

        Raises
        ------
        ModelError
            If a variable is missing or has a wrong value.
        """
        role = os.environ.get("MS_ROLE", "")
        if role not in ROLES:
            found = f"is `{role}`" if role else "is missing"
            raise ModelError(
                f"parameter servers are on, and the variable `MS_ROLE` {found}, expected "
                "MS_SCHED, MS_PSERVER or MS_WORKER",
                hint="start the script with `shardwright launch --server_num 1`",
            )
        host, port = scheduler_of_environment()
        return Roles(
            role,
            f"{host}:{port}",
            number_of_environment("MS_SERVER_NUM") if with_servers else 0,
            number_of_environment("MS_WORKER_NUM"),
            node_of_environment(),
        )

    @property
    def host(self) -> str:
        """The host of the scheduler."""
        return self.scheduler.rpartition(":")[0]


@dataclass
class _Context:
    settings: Settings = field(default_factory=Settings)


_CONTEXT = _Context()


def settings() -> Settings:
    """Return the settings of this process."""
    return _CONTEXT.settings


def update(**given: Any) -> None:
    """Change settings; see `set_ps_context`.

    Parameters
    ----------
    **given
        Fields of `Settings`.

    Raises
    ------
    OptionError
        If a setting is unknown or has a value that is not allowed.
    """
    names = tuple(item.name for item in fields(Settings))
    check_names("`set_ps_context` has no setting", given, names)
    for name, value in given.items():
        _CHECKS[name](name, value)
    if given.get("checkpoint_dir") is not None:
        given = {**given, "checkpoint_dir": Path(given["checkpoint_dir"])}
    _CONTEXT.settings = replace(_CONTEXT.settings, **given)


def reset() -> None:
    """Forget all settings."""
    _CONTEXT.settings = Settings()


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise wrong_value(name, value, "a text")


def _mapping(name: str, value: object) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise wrong_value(name, value, "a mapping")


def _folder(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str | Path):
        raise wrong_value(name, value, "the path of a folder")


_CHECKS = {
    "enable_ps": check_flag,
    "enable_ssl": check_flag,
    "config_file_path": _text,
    "security_ctx": _mapping,
    "server_password": _text,
    "client_password": _text,
    "synchronous": check_flag,
    "checkpoint_dir": _folder,
    "checkpoint_interval": POSITIVE_INTEGER.check,
    "resume": check_flag,
    "heartbeat_timeout": POSITIVE.check,
    "cache_rows": NOT_NEGATIVE_INTEGER.check,
    "hash_rows": check_flag,
}
