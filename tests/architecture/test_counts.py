"""What makes the source hard to read does not grow: a lower count is written down here."""

from itertools import pairwise

from tests.architecture import counts

MOST = {"constants": 286, "long_modules": 41, "chain": 45, "pairs": 37, "shared": 240}


def test_no_count_grows():
    found = counts.counts()._asdict()
    assert {name: max(found[name] - most, 0) for name, most in MOST.items()} == dict.fromkeys(
        MOST, 0
    )


def test_the_chain_is_one_of_imports():
    chain = counts.longest_chain()
    edges = counts.imports()
    for one, other in pairwise(chain):
        # A package may be a link together with its modules, any of which imports the next.
        inside = [name for name in edges if name == one or name.startswith(one.rpartition(".")[0])]
        assert any(reached.startswith(other) for name in inside for reached in edges[name])


def test_pairs_of_folders_import_each_other():
    edges = counts.imports()
    for pair in counts.mutual_folders():
        for one, other in (pair, pair[::-1]):
            assert any(
                name.rpartition(".")[0] == one and reached.rpartition(".")[0] == other
                for name, all_reached in edges.items()
                for reached in all_reached
            )
