import copy
import gzip
import json

import numpy as np
import pytest

from shardwright.ir.errors import SolverError
from shardwright.solver import Pair, Problem, Variable, evaluate, solve
from shardwright.solver.formats.contest import (
    contest_name,
    parse_contest,
    read_contest,
    write_contest,
)
from shardwright.solver.work import Budget

# In the contest's format; what is done to it below makes it wrong in one way each.
EXAMPLE = {
    "problem": {
        "name": "example",
        "nodes": {
            "intervals": [[30, 70], [40, 70], [40, 100], [60, 90], [60, 100]],
            "costs": [[15, 55, 75, 45], [80, 65], [20, 35, 25], [20, 75], [50, 60, 70]],
            "usages": [[10, 25, 35, 30], [25, 25], [20, 15, 10], [10, 15], [15, 10, 5]],
        },
        "edges": {
            "nodes": [[0, 1], [1, 2]],
            "costs": [[30, 5, 10, 20, 15, 35, 40, 25], [1, 2, 3, 4, 5, 6]],
        },
        "usage_limit": 50,
    }
}
# The example of the contest's own description, with the answer that is given there.
PUBLISHED = {
    "problem": {
        "name": "example",
        "nodes": {
            "intervals": [[30, 70], [40, 70], [50, 120], [110, 140], [110, 150]],
            "costs": [[15], [55, 65], [25, 45, 35], [85, 75], [95]],
            "usages": [[10], [25, 25], [15, 20, 15], [10, 10], [15]],
        },
        "edges": {
            "nodes": [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]],
            "costs": [[30, 40], [50, 10, 40], [90, 10, 20, 80], [60, 20, 30], [70, 60]],
        },
        "usage_limit": 50,
    }
}
PUBLISHED_ANSWER = (0, 0, 2, 1, 0)
PUBLISHED_COST = 445
BIG = 2**63 - 1


@pytest.mark.parametrize("method", ["exact", "anytime"])
def test_the_published_example_is_proven_optimal(method):
    problem = parse_contest(PUBLISHED, "example")
    assert evaluate(problem, PUBLISHED_ANSWER).cost == PUBLISHED_COST
    answer = solve(problem, method=method, budget=Budget(300))  # the first run compiles
    assert answer.status == "optimal"
    assert answer.assignment == PUBLISHED_ANSWER
    assert answer.cost == answer.lower_bound == PUBLISHED_COST


def test_a_file_is_read_as_it_stands(tmp_path):
    path = tmp_path / "example.json"
    path.write_text(json.dumps(EXAMPLE))
    problem = read_contest(path)
    assert problem.sizes == (4, 2, 3, 2, 3)
    assert problem.memory_limit == 50
    assert problem.pairs[0].table.tolist() == [[30, 5], [10, 20], [15, 35], [40, 25]]
    use = problem.variables[3].memory[0]
    assert (use.start, use.end, use.usage.tolist()) == (60, 90, [10, 15])


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_what_is_written_is_read_back(tmp_path, ending):
    document = copy.deepcopy(EXAMPLE)
    document["problem"]["nodes"]["costs"][1] = [BIG, -BIG - 1]
    problem = parse_contest(document, "here")
    path = tmp_path / f"again.{ending}"
    write_contest(problem, path)
    if ending == "json.gz":
        gzip.decompress(path.read_bytes())
    again = read_contest(path)
    assert again.variables[1].cost.tolist() == [BIG, -BIG - 1]
    assert again.variables[1].cost.dtype == np.int64
    assert again.pairs[1].table.tolist() == problem.pairs[1].table.tolist()
    assert again.memory_limit == 50
    assert contest_name(path) == "again"


def test_no_limit_is_null(tmp_path):
    write_contest(Problem((Variable("v", np.array([3, 4])),)), tmp_path / "one.json")
    assert json.loads((tmp_path / "one.json").read_text())["problem"]["usage_limit"] is None
    assert read_contest(tmp_path / "one.json").memory_limit is None


def test_sums_beyond_64_bits_are_exact():
    document = copy.deepcopy(EXAMPLE)
    document["problem"]["nodes"]["costs"] = [[BIG] * size for size in (4, 2, 3, 2, 3)]
    assert evaluate(parse_contest(document, "here"), [0] * 5).cost == 5 * BIG + 31


def test_the_format_holds_integers_only(tmp_path):
    with pytest.raises(SolverError, match="`v` holds float64, the format holds integers"):
        write_contest(Problem((Variable("v", np.array([0.5])),)), tmp_path / "half.json")


def change(document, path, value):
    """Replace (or, for None, remove) what stands at a path of keys."""
    *way, last = path
    place = document["problem"]
    for key in way:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value


MALFORMED = {
    "no_nodes": (["nodes"], None, "`problem` has no `nodes`"),
    "no_edges": (["edges"], None, "`problem` has no `edges`"),
    "no_limit": (["usage_limit"], None, "`problem` has no `usage_limit`; null stands for none"),
    "no_costs": (["nodes", "costs"], None, "`problem.nodes` has no `costs`"),
    "no_usages": (["nodes", "usages"], None, "`problem.nodes` has no `usages`"),
    "no_intervals": (["nodes", "intervals"], None, "`problem.nodes` has no `intervals`"),
    "no_edge_nodes": (["edges", "nodes"], None, "`problem.edges` has no `nodes`"),
    "nodes_no_object": (["nodes"], [], "`problem.nodes` is a list, expected an object"),
    "costs_no_list": (["nodes", "costs"], 7, "`problem.nodes.costs` is a number, expected a list"),
    "one_cost_no_list": (
        ["nodes", "costs", 2],
        7,
        "`problem.nodes.costs[2]` is a number, expected a list",
    ),
    "too_few_usages": (
        ["nodes", "usages", 4],
        None,
        "`problem.nodes.usages` has 4 entries, expected 5 as in `costs`",
    ),
    "usage_of_wrong_length": (
        ["nodes", "usages", 1],
        [1, 2, 3],
        "`problem.nodes.usages[1]` has 3 entries, expected 2 as in `costs`",
    ),
    "negative_usage": (
        ["nodes", "usages", 1],
        [1, -2],
        "the memory use holds -2, expected finite numbers of at least 0",
    ),
    "negative_interval": (
        ["nodes", "intervals", 1],
        [-4, 7],
        "`problem.nodes.intervals[1]` is [-4, 7], expected 0 <= start <= end",
    ),
    "backward_interval": (
        ["nodes", "intervals", 1],
        [9, 7],
        "`problem.nodes.intervals[1]` is [9, 7], expected 0 <= start <= end",
    ),
    "interval_of_three": (
        ["nodes", "intervals", 1],
        [1, 2, 3],
        "`problem.nodes.intervals[1]` has 3 entries, expected 2",
    ),
    "no_strategy": (
        ["nodes", "costs", 1],
        [],
        "`problem.nodes.usages[1]` has 2 entries, expected 0 as in `costs`",
    ),
    "edge_to_nowhere": (
        ["edges", "nodes", 1],
        [1, 5],
        "`problem.edges.nodes[1]` is [1, 5], expected numbers from 0 to 4",
    ),
    "table_of_wrong_size": (
        ["edges", "costs", 1],
        [1, 2, 3, 4, 5],
        "`problem.edges.costs[1]` has 5 entries, expected 2 x 3 = 6",
    ),
    "too_few_tables": (
        ["edges", "costs", 1],
        None,
        "`problem.edges.costs` has 1 entries, expected 2 as in `nodes`",
    ),
    "nan": (
        ["nodes", "costs", 1],
        [float("nan"), 1],
        "`problem.nodes.costs[1]` holds NaN, expected integers of 64 bits",
    ),
    "fraction": (
        ["edges", "costs", 0],
        [0.5] * 8,
        "`problem.edges.costs[0]` holds 0.5, expected integers of 64 bits",
    ),
    "text": (
        ["edges", "costs", 0],
        ["1"] * 8,
        "`problem.edges.costs[0]` holds a text, expected integers of 64 bits",
    ),
    "truth": (
        ["nodes", "costs", 1],
        [True, 1],
        "`problem.nodes.costs[1]` holds a truth value, expected integers of 64 bits",
    ),
    "beyond_64_bits": (
        ["nodes", "costs", 1],
        [2**63, 1],
        f"`problem.nodes.costs[1]` holds {2**63}, expected integers of 64 bits",
    ),
    "limit_beyond_64_bits": (
        ["usage_limit"],
        2**63,
        f"`problem.usage_limit` is {2**63}, expected 0 to 2^63 - 1",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_gives_one_clear_error(tmp_path, case):
    path, value, message = MALFORMED[case]
    document = copy.deepcopy(EXAMPLE)
    change(document, path, value)
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(document))
    with pytest.raises(SolverError) as caught:
        read_contest(file)
    assert caught.value.what == message
    assert caught.value.where.endswith(str(file))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cut.json", b'{"problem": {', "the file is not JSON: Expecting property name"),
        ("cut.json.gz", b"\x1f\x8b\x08", "the file is not compressed by gzip, or cut off"),
        ("plain.json.gz", b"{}", "the file is not compressed by gzip, or cut off"),
        ("empty.json", b"{}", "the document has no `problem`"),
        ("list.json", b"[]", "the document is a list, expected an object"),
        ("digits.json", b"1" * 5000, "the file is not JSON: Exceeds the limit"),
    ],
)
def test_what_is_no_instance_is_said(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SolverError) as caught:
        read_contest(tmp_path / name)
    assert caught.value.what.startswith(message)


def test_the_format_holds_pairs_of_a_variable_with_itself(tmp_path):
    problem = Problem((Variable("v", np.array([3, 4])),), (Pair(0, 0, np.eye(2, dtype=np.int64)),))
    write_contest(problem, tmp_path / "self.json")
    assert evaluate(read_contest(tmp_path / "self.json"), [0]).cost == 4
