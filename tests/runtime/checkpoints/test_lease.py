"""The lease of a folder of checkpoints: who came last writes there."""

import re

import pytest

from shardwright.ir.errors import OutputError
from shardwright.runtime.checkpoints.lease import LEASE, Start, holding, take

REFUSED = (
    "the checkpoint cannot be written: a later start of the training run writes there (in {}); "
    "end this process, or name another folder"
)


def is_refused(folder):
    return pytest.raises(OutputError, match=f"^{re.escape(REFUSED.format(folder))}$")


def test_who_came_last_has_the_lease(tmp_path):
    first, second = Start("aa"), Start("bb")
    take(tmp_path, first)
    with holding(tmp_path, first):
        pass
    take(tmp_path, second)
    with holding(tmp_path, second):
        pass
    with is_refused(tmp_path), holding(tmp_path, first):
        pass


def test_a_start_does_not_take_the_lease_from_a_later_one_of_its_launcher(tmp_path):
    take(tmp_path, Start("bb", "launcher", 1))
    with is_refused(tmp_path):
        take(tmp_path, Start("aa", "launcher", 0))
    take(tmp_path, Start("cc", "another launcher", 0))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"attempt": 1, "more": 2}', b"\xff"])
def test_a_lease_that_cannot_be_read_is_nobodys(tmp_path, content):
    (tmp_path / LEASE).write_bytes(content)
    with is_refused(tmp_path), holding(tmp_path, Start("aa")):
        pass
    take(tmp_path, Start("aa"))
    with holding(tmp_path, Start("aa")):
        pass
