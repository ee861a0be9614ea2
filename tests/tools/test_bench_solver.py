"""``shardwright bench solver`` on small files."""

import json

import pytest

from shardwright.tools.main import main

CHAIN = {
    "problem": {
        "name": "chain",
        "nodes": {
            "intervals": [[0, 2], [1, 3], [0, 0]],
            "costs": [[5, 1], [5, 2], [0, 9]],
            "usages": [[1, 6], [1, 6], [50, 50]],
        },
        "edges": {"nodes": [[0, 1], [1, 2]], "costs": [[0, 0, 0, 0], [0, 0, 8, 0]]},
        "usage_limit": 7,
    }
}


@pytest.fixture
def chain(tmp_path):
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(CHAIN))
    return path


def test_one_document_with_the_promised_keys(chain, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["bench", "solver", str(chain), "--json", "--solution-out", str(out)]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    seconds = row.pop("seconds")
    assert seconds >= 0
    assert 1 <= row.pop("nodes_after_presolve") <= 3
    assert row == {
        "instance": "chain",
        "status": "optimal",
        "cost": 6,
        "lower_bound": 6,
        "gap": 0.0,
        "feasible": True,
        "nodes": 3,
        "reason": None,
    }
    assert json.loads((out / "chain.json").read_text()) == [1, 0, 0]


def test_a_person_sees_a_table(chain, capsys):
    assert main(["bench", "solver", str(chain)]) == 0
    *_, last = capsys.readouterr().out.strip().splitlines()
    assert last.split()[:5] == ["chain", "optimal", "6", "6", "0.0000%"]


def test_where_nothing_fits_that_is_said(chain, capsys, tmp_path):
    document = json.loads(chain.read_text())
    document["problem"]["usage_limit"] = 1
    chain.write_text(json.dumps(document))
    arguments = ["bench", "solver", str(chain), "--json", "--solution-out", str(tmp_path / "out")]
    assert main(arguments) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["status"], row["cost"], row["feasible"]) == ("infeasible", None, False)
    assert json.loads((tmp_path / "out" / "chain.json").read_text()) == []


def test_a_person_is_told_why_nothing_fits(chain, capsys):
    document = json.loads(chain.read_text())
    document["problem"]["usage_limit"] = 1
    chain.write_text(json.dumps(document))
    assert main(["bench", "solver", str(chain)]) == 0
    assert capsys.readouterr().out.startswith(
        "chain: no assignment fits: at time 1, `node 0`, `node 1` need at least 2, and the limit "
        "is 1\n"
    )


def test_a_wrong_file_is_one_line_and_exit_code_2(chain, capsys):
    chain.write_text("{}")
    assert main(["bench", "solver", str(chain), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"shardwright: the document has no `problem` (in {chain})\n"


def test_a_missing_file_is_said(tmp_path, capsys):
    assert main(["bench", "solver", str(tmp_path / "none.json")]) == 2
    assert "no such file" in capsys.readouterr().err
