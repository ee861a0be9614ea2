import pytest

from shardwright.ir.errors import PassError
from shardwright.ir.registry import Registry


def first():
    pass


def second():
    pass


@pytest.fixture
def registry():
    passes = Registry("pass", PassError)
    assert not passes.add("canonicalize", first)
    assert not passes.add("partition", second)
    return passes


def test_entries_by_name_in_the_order_of_registration(registry):
    assert list(registry) == ["canonicalize", "partition"]
    assert registry["partition"] is second
    assert "lower" not in registry


def test_a_definition_read_again_replaces_itself(registry):
    assert registry.add("canonicalize", first)
    assert len(registry) == 2


def test_two_definitions_cannot_have_one_name(registry):
    with pytest.raises(PassError) as error:
        registry.add("canonicalize", second)
    assert str(error.value) == (
        f"the pass `canonicalize` is registered already, by `first` of {__file__}; "
        "choose another name"
    )
    assert registry["canonicalize"] is first


def test_an_unknown_name_gets_the_nearest_or_the_list(registry):
    with pytest.raises(PassError) as error:
        registry["partitoin"]
    assert str(error.value) == "unknown pass `partitoin`; did you mean `partition`?"
    with pytest.raises(PassError) as error:
        registry["fuse"]
    assert str(error.value) == "unknown pass `fuse`; expected one of canonicalize, partition"
