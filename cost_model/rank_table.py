"""HCCL's rank tables: JSON files that list the servers of a cluster and their devices.

A table names no rates. The devices and links are those of the cluster ``ascend910-racks``; its
servers get as many devices as those of the table, and one network joins all servers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.ir.errors import ClusterError


def is_rank_table(content: Mapping[str, Any]) -> bool:
    """Return whether the content of a JSON file is a rank table."""
    return "server_list" in content or "group_list" in content


def described_by(
    table: Mapping[str, Any], like: Mapping[str, Any], name: str, where: str
) -> dict[str, Any]:
    """Return the description of the cluster in a rank table.

    Parameters
    ----------
    table : mapping
        The content of the file, of version 1.0 or later.
    like : mapping
        The description of a cluster with the same devices: its first two levels join the devices of
        a server, and servers.
    name : str
        The name of the cluster.
    where : str
        The file, for messages.

    Raises
    ------
    ClusterError
        If the table is incomplete, or its servers are not alike.
    """
    if "group_list" in table:
        raise ClusterError(
            "the rank table is of a version before 1.0, with a `group_list`",
            where=where,
            hint="write it anew with a `server_list`, as MindSpore's `hccl_tools` does",
        )
    if table.get("status", "completed") != "completed":
        raise ClusterError(
            f"the rank table has the status `{table['status']}`, expected `completed`", where=where
        )
    servers = _servers(table["server_list"], where)
    if str(table.get("server_count", len(servers))) != str(len(servers)):
        raise ClusterError(
            f"`server_count` of the rank table is {table['server_count']}, it lists "
            f"{len(servers)} servers",
            where=where,
        )
    _check_ranks(servers, where)
    server, network, *_ = like["levels"]
    levels = [{**server, "size": len(next(iter(servers.values())))}]
    if len(servers) > 1:
        levels.append({**network, "name": "network", "size": len(servers)})
    return {"name": name, "device": like["device"], "levels": levels}


def _servers(listed: object, where: str) -> dict[str, tuple[int, ...]]:
    """Return the ranks of the devices of each server."""
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
        raise ClusterError("`server_list` of the rank table has no servers", where=where)
    servers: dict[str, tuple[int, ...]] = {}
    for number, server in enumerate(listed):
        try:
            name = str(server["server_id"])
            ranks = tuple(int(device["rank_id"]) for device in server["device"])
        except (KeyError, TypeError, ValueError) as error:
            raise ClusterError(
                f"server {number} of the rank table has no `server_id`, or a device of it no "
                f"`rank_id`: {error}",
                where=where,
            ) from error
        if name in servers:
            raise ClusterError(f"the rank table lists the server `{name}` twice", where=where)
        servers[name] = ranks
    return servers


def _check_ranks(servers: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Refuse servers with different numbers of devices, and ranks in another order."""
    counts = {name: len(ranks) for name, ranks in servers.items()}
    if len(set(counts.values())) > 1 or not all(counts.values()):
        said = ", ".join(f"`{name}` {count}" for name, count in counts.items())
        raise ClusterError(
            f"the servers of the rank table have different numbers of devices: {said}",
            where=where,
            hint="a cluster has servers of one kind",
        )
    found = [rank for ranks in servers.values() for rank in ranks]
    wrong = next((i for i, rank in enumerate(found) if rank != i), None)
    if wrong is not None:
        raise ClusterError(
            f"device {wrong} of the rank table has rank {found[wrong]}, expected ranks from 0 in "
            f"the order of the servers",
            where=where,
        )
