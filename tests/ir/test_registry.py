import importlib
from abc import ABC, abstractmethod

import pytest

from shardwright.ir.errors import PassError
from shardwright.ir.registry import Registry
from shardwright.search.driver import SEARCHES


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


class Base:
    name = "base"


class Nameless(Base):
    name = ""


class Abstract(ABC, Base):
    name = "abstract"

    @abstractmethod
    def run(self):
        pass


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (first, "it is no pass (in class first); derive it from `"),
        (Nameless, "the name of the pass is '', expected lower case such as `my_name` (in class "),
        (Abstract, "the pass has no `run` (in class Abstract); define what is missing"),
    ],
)
def test_only_complete_classes_are_registered(item, message):
    passes = Registry("pass", PassError, base=Base)
    with pytest.raises(PassError) as error:
        passes.register(item)
    assert str(error.value).startswith(message)
    assert not passes.register(Base)
    assert passes["base"] is Base


def test_an_entry_that_is_not_listed_is_found_and_not_told_of(registry):
    class Hidden:
        name = "hidden"
        is_listed = False

    registry.register(Hidden)
    assert "hidden" in registry
    assert registry["hidden"] is Hidden
    assert "hidden" not in list(registry)
    assert len(registry) == len(list(registry))
    with pytest.raises(PassError) as error:
        registry["hiddn"]
    assert "hidden" not in str(error.value)


def test_lists_of_searches_do_not_depend_on_what_is_imported():
    listed = list(SEARCHES)
    importlib.import_module("shardwright.mindspore")
    assert list(SEARCHES) == listed
    assert "sharding_propagation_alone" in SEARCHES
