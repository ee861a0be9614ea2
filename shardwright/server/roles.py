"""The roles of processes: scheduler, servers and workers, and how they begin and end."""

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from shardwright.communication.processes import (
    Processes,
    joined,
    joined_servers,
    launched,
    meet_by,
)
from shardwright.communication.secret import secret_at
from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.files.waiting import ARRIVAL, RETRY, SAVING
from shardwright.ir.values import check_choice
from shardwright.operators.info import Array
from shardwright.runtime.encrypted import Library, Links, address_of, send_with
from shardwright.runtime.encrypted.door import BACKLOG
from shardwright.server.callers import Caller
from shardwright.server.checkpoints import Checkpoints
from shardwright.server.client import Client
from shardwright.server.context import SCHEDULER, Roles, Settings, reset, settings, update
from shardwright.server.deaths import note_deaths
from shardwright.server.member import Member
from shardwright.server.scheduler import SERVER, WORKER, Members
from shardwright.server.security import PLAIN, Security
from shardwright.server.service import ParameterServer
from shardwright.server.store import Store, Task
from shardwright.server.transport import WAIT, CallError, Service


@dataclass
class _Part:
    """The part of this process, once it has one."""

    member: Member | None = None
    client: Client | None = None
    security: Security = PLAIN
    late: str = ""  # what went wrong after the end of the script


_PART = _Part()


def say(line: str) -> None:
    """Write a line of a log."""
    print(line, flush=True)


def take_part() -> Member:
    """Join the others as a worker; a scheduler or a server serves them, and ends here.

    Raises
    ------
    ModelError
        If the variables are wrong, or the others cannot be met.
    """
    if _PART.member is None:
        how, roles = settings(), Roles.of_environment()
        _PART.security = how.security()
        if roles.role == SCHEDULER:
            raise SystemExit(schedule(how, roles, _PART.security))
        if roles.role == SERVER:
            raise SystemExit(serve(how, roles, _PART.security))
        member = Member(
            WORKER,
            roles.scheduler,
            roles.servers,
            roles.workers,
            _PART.security,
            roles.number,
            silence=how.heartbeat_timeout,
            secret=_secret(roles, _PART.security),
        )
        _PART.member = member
        joined_servers(Processes(member.number, roles.workers))
        atexit.register(_leave, member)
    return _PART.member


def _leave(member: Member) -> None:
    """End as a worker; an error that ended the script ends the part of this worker early."""
    error = getattr(sys, "last_value", None)
    if _PART.client is not None:
        _PART.client.close()
    member.leave(_PART.late if error is None else f"{type(error).__name__}: {error}")


def _settle_at_end(client: Client) -> None:
    """Wait for the end of the script, and until the servers have saved what this worker has sent.

    Nobody can send it again later. gRPC starts threads for it: functions of `atexit` cannot.
    """
    threading.main_thread().join()
    if getattr(sys, "last_value", None) is None:
        try:
            client.settle()
        except ModelError as error:
            _PART.late = str(error)


def client_for(task: Task, initial: Callable[[int], Array]) -> Client:
    """Return the servers, which hold the tables of a task.

    Raises
    ------
    ModelError
        If they hold those of another task, or the run ends early.
    """
    member = take_part()
    if _PART.client is None:
        cached = settings().cache_rows
        _PART.client = Client(member, task, _PART.security, initial, cached)
        threading.Thread(target=_settle_at_end, args=(_PART.client,), name="settle").start()
    elif _PART.client.task != task:
        raise ModelError(
            "the servers hold the parameters of another model, or another optimizer updates them",
            hint="train one model in a run",
        )
    return _PART.client


def set_ps_context(**given: Any) -> None:
    """Set how parameters are trained on servers.

    Parameters
    ----------
    **given
        ``enable_ps``: whether parameters may be on servers; ``enable_ssl``, ``config_file_path``,
        ``server_password``, ``client_password``, ``security_ctx``: encryption; ``synchronous``,
        ``checkpoint_dir``, ``checkpoint_interval``, ``resume``, ``heartbeat_timeout``,
        ``cache_rows``, ``hash_rows``: see `Settings`.

    Raises
    ------
    OptionError
        If a setting is unknown or has a value that is not allowed.
    """
    update(**given)
    how = settings()
    meet_by(take_part if how.enable_ps else join_encrypted if how.enable_ssl else None)


def join_encrypted() -> None:
    """Join the other workers, whose messages are encrypted; a scheduler serves them, and ends here.

    A process that runs alone joins none.

    Raises
    ------
    OptionError
        If MPI's launcher started the processes, or there are no certificates.
    ModelError
        If the variables are wrong, or the others cannot be met.
    """
    how = settings()
    if launched() is not None:
        raise OptionError(
            "`enable_ssl` is True, expected False where MPI's launcher starts the processes: "
            "messages of MPI are not encrypted",
            hint="start a scheduler and workers by the variable `MS_ROLE`",
        )
    security = how.security()
    if _PART.member is not None or "MS_ROLE" not in os.environ:
        return
    roles = Roles.of_environment(with_servers=False)
    if roles.role == SERVER:
        raise ModelError("the variable `MS_ROLE` is `MS_PSERVER`, expected MS_SCHED or MS_WORKER")
    if roles.role == SCHEDULER:
        raise SystemExit(schedule(how, roles, security))
    with socket.create_server((_own_host(roles), 0), backlog=BACKLOG) as listener:
        _PART.member = _linked(listener, how, roles, security)


def _linked(listener: socket.socket, how: Settings, roles: Roles, security: Security) -> Member:
    """Join as a worker that listens, and connect to the others."""
    host, port = listener.getsockname()[:2]
    member = Member(
        WORKER,
        roles.scheduler,
        0,
        roles.workers,
        security,
        roles.number,
        f"{host}:{port}",
        how.heartbeat_timeout,
        _secret(roles, security),
    )
    atexit.register(_leave, member)
    if roles.workers == 1:
        return member
    member.wait_for(lambda: member.view.ready, ARRIVAL, "not all workers have arrived")
    addresses = [address_of(peer) for peer in member.view.peers]
    links = Links(
        listener,
        *security.of_sockets(),
        member.run,
        member.number,
        addresses,
        lambda: member.failure,
    )
    atexit.register(links.part)
    send_with(Library(links, lambda: member.leave("an error has ended it")))
    joined(Processes(member.number, roles.workers))
    return member


def _secret(roles: Roles, security: Security) -> bytes:
    """Return the secret of the run; with certificates there need be none.

    Raises
    ------
    ModelError
        If it is missing where processes of other hosts can reach the scheduler, or short.
    """
    return secret_at("localhost" if security.is_on else roles.host)


def get_ps_context(attr_key: str) -> Any:
    """Return a setting of `set_ps_context`."""
    check_choice("attr_key", attr_key, [item.name for item in fields(Settings)])
    return getattr(settings(), attr_key)


def reset_ps_context() -> None:
    """Forget the settings of `set_ps_context`."""
    reset()
    meet_by(None)


# The scheduler


def schedule(how: Settings, roles: Roles, security: Security) -> int:
    """Serve the members of a run until they have ended; return 0, or 1 if it ends early."""

    def log(line: str) -> None:
        say(f"scheduler: {line}")

    members = Members(
        roles.servers,
        roles.workers,
        how.synchronous,
        how.checkpoint_dir is not None,
        how.heartbeat_timeout,
        log,
        _secret(roles, security),
    )
    service = Service(
        "Scheduler",
        members.handlers,
        members.admit,
        roles.scheduler,
        security,
        roles.servers + roles.workers,
    )
    note_deaths(members)
    log(f"listening at {roles.scheduler} for {roles.servers} servers and {roles.workers} workers")
    code = _followed(members)
    service.stop()
    log("the run has ended early" if code else "all members have ended")
    return code


def _followed(members: Members) -> int:
    begin = time.monotonic()
    while not (members.failure or members.workers_ended):
        time.sleep(RETRY)
        members.look()
        if not members.is_ready and time.monotonic() - begin > ARRIVAL:
            members.fail("not all members have arrived")
    end = time.monotonic() + SAVING
    while not (members.servers_ended and members.workers_ended) and time.monotonic() < end:
        time.sleep(RETRY)
        members.look()
    return int(bool(members.failure))


# A server


class _Server:
    """A parameter server: it listens, joins, and answers until the workers have ended."""

    def __init__(self, how: Settings, roles: Roles, security: Security) -> None:
        self.how, self.roles, self.security = how, roles, security
        self.member: Member | None = None
        self.answers = ParameterServer(-1, roles.servers, self._store)
        self.service = Service(
            "ParameterServer",
            self.answers.handlers,
            self._admit,
            f"{_own_host(roles)}:0",
            security,
            roles.workers,
        )

    def _admit(self, method: str, caller: Caller) -> None:
        if self.member is None:
            raise CallError("this server has not joined yet", WAIT)
        self.member.admit(method, caller)

    def _store(self, task: Task) -> Store:
        how, number, servers = self.how, self.answers.number, self.roles.servers
        if how.checkpoint_dir is None:
            return Store(task, number, servers)
        assert self.member is not None
        checkpoints = Checkpoints(
            how.checkpoint_dir,
            number,
            servers,
            self.member.run,
            how.checkpoint_interval,
            how.resume,
        )
        store = checkpoints.begin(task)
        say(f"server {number}: begins with {store.clock} updates")
        return store

    def run(self) -> int:
        """Answer calls until the run ends; return 0, or 1 if it ends early."""
        roles = self.roles
        member = Member(
            SERVER,
            roles.scheduler,
            roles.servers,
            roles.workers,
            self.security,
            roles.number,
            f"{_own_host(roles)}:{self.service.port}",
            self.how.heartbeat_timeout,
            _secret(roles, self.security),
        )
        self.answers.number, self.member = member.number, member
        say(f"server {member.number}: listening at {_own_host(roles)}:{self.service.port}")
        try:
            why = self._followed(member)
            store = self.answers.store
            if store is not None:
                if why:
                    store.fail(why)
                if not store.wanted:
                    store.save()
        except BaseException:  # an interrupt: workers see that it is lost, and its threads end
            self.service.stop(0)
            if self.answers.store is not None:
                self.answers.store.fail("this server ends early")
            raise
        self.service.stop()
        member.leave()
        say(f"server {member.number}: {why or 'the workers have ended'}")
        return int(bool(why))

    def _followed(self, member: Member) -> str:
        """Answer calls until the workers have ended; return why, if that is early."""
        while not (member.failure or member.view.ended):
            with member.changed:
                member.changed.wait(RETRY * 5)
            if self.answers.store is not None:
                self.answers.store.note_gone(member.view.gone)
        return member.failure


def serve(how: Settings, roles: Roles, security: Security) -> int:
    """Be a parameter server until the workers have ended; return 0, or 1 if that is early."""
    return _Server(how, roles, security).run()


def _own_host(roles: Roles) -> str:
    """Return the address of this host, as the scheduler sees it."""
    host, _, port = roles.scheduler.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, int(port)))  # sends nothing
        except OSError as error:
            raise ModelError(f"the host `{host}` of the scheduler is not known: {error}") from None
        return str(probe.getsockname()[0])
