"""HCCL's rank tables, read as clusters."""

import json

import pytest

from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.ir.errors import ClusterError
from shardwright.tools.main import main


def table(servers=2, devices=8, **changes):
    """Return a rank table as MindSpore's `hccl_tools` writes it."""
    listed = [
        {
            "server_id": f"10.155.111.{s}",
            "device": [
                {
                    "device_id": str(d),
                    "device_ip": f"192.{s}.27.{d}",
                    "rank_id": str(s * devices + d),
                }
                for d in range(devices)
            ],
            "host_nic_ip": "reserve",
        }
        for s in range(servers)
    ]
    whole = {"version": "1.0", "server_count": str(servers), "server_list": listed}
    return {**whole, "status": "completed", **changes}


def written(directory, content):
    path = directory / "rank_table_16pcs.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_a_rank_table_is_a_cluster(tmp_path):
    found, preset = cluster(written(tmp_path, table())), cluster("ascend910-racks")
    assert (found.name, found.size, found.device) == ("rank_table_16pcs", 16, preset.device)
    assert [level.size for level in found.levels] == [8, 2]
    for own, theirs in zip(found.levels, preset.levels, strict=False):
        assert (own.bandwidth, own.latency) == (theirs.bandwidth, theirs.latency)
    assert str(mesh_for(found, 16)) == "x=2 x y=8"
    assert cluster(written(tmp_path, table(1, 4))).size == 4


def test_a_plan_for_a_rank_table(tmp_path, capsys):
    out = str(tmp_path / "plan")
    options = ["--devices", "16", "--cluster", written(tmp_path, table()), "--out", out, "--json"]
    assert main(["compile", "mlp", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["cluster"], document["fits"]) == ("rank_table_16pcs", True)
    assert main(["prove", out]) == 0


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (
            {"group_list": []},
            "the rank table is of a version before 1.0, with a `group_list`",
        ),
        (
            table(status="initializing"),
            "the rank table has the status `initializing`, expected `completed`",
        ),
        (table(server_count="3"), "`server_count` of the rank table is 3, it lists 2 servers"),
        (table(server_list=[]), "`server_list` of the rank table has no servers"),
        (
            table(server_list=[{"server_id": "a"}]),
            "server 0 of the rank table has no `server_id`, or a device of it no `rank_id`: "
            "'device'",
        ),
        (
            table(server_list=[table()["server_list"][0]] * 2),
            "the rank table lists the server `10.155.111.0` twice",
        ),
        (
            table(server_list=[*table(1, 4)["server_list"], {"server_id": "b", "device": []}]),
            "the servers of the rank table have different numbers of devices: `10.155.111.0` 4, "
            "`b` 0",
        ),
        (
            table(server_list=table()["server_list"][::-1]),
            "device 0 of the rank table has rank 8, expected ranks from 0 in the order of the "
            "servers",
        ),
    ],
)
def test_wrong_rank_tables_are_refused(tmp_path, content, what):
    with pytest.raises(ClusterError) as caught:
        cluster(written(tmp_path, content))
    assert caught.value.what == what
