import pytest

import shardwright.mindspore as ms


@pytest.fixture(autouse=True)
def fresh_context():
    """Begin each test with the context of a script that has said nothing, and end so."""
    ms.reset_auto_parallel_context()
    yield
    ms.reset_auto_parallel_context()
    ms.set_context(device_target="CPU")
