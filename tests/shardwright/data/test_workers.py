import json
import logging
import multiprocessing
import os
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright.dataset as ds
from shardwright.communication import Rank
from shardwright.dataset import transforms
from shardwright.dataset.configuration import SETTINGS, Settings
from shardwright.dataset.tuning import Measurement, Tuner, next_count
from shardwright.ir.errors import ModelError, OptionError, OutputError


@pytest.fixture(autouse=True)
def as_begun(monkeypatch):
    for name, value in vars(Settings()).items():
        monkeypatch.setattr(SETTINGS, name, value)
    yield
    assert multiprocessing.active_children() == []


def pictures(count=12, **options):
    random = np.random.default_rng(1)
    columns = {
        "image": random.integers(0, 256, (count, 6, 6, 3), np.uint8),
        "label": np.arange(count),
    }
    return ds.ArrayDataset(columns, **options)


def rows():
    return [(np.full(3, i, np.float32), i) for i in range(7)]


OPERATIONS = [
    transforms.RandomCrop(4, padding=1),
    transforms.RandomHorizontalFlip(0.5),
    transforms.Rescale(1 / 255, 0),
    transforms.HWC2CHW(),
]
PIPELINES = {
    "plain": lambda: pictures(),
    "mapped": lambda: pictures(shuffle=True).map(OPERATIONS).batch(4),
    "after": lambda: pictures().batch(3).map(lambda x: x + 1, "label").shuffle(2, 3),
    "shuffled": lambda: pictures().map(OPERATIONS).shuffle(5, 3).batch(5, drop_remainder=False),
    "repeated": lambda: pictures().shuffle(4).repeat(2).take(17).map(OPERATIONS).batch(2),
    "generator": lambda: ds.GeneratorDataset(rows, ["x", "y"], shuffle=True).batch(2),
    "shards": lambda: pictures(num_shards=3, shard_id=Rank(3)).map(OPERATIONS).batch(2),
}


def read(dataset, workers, epoch=1, begin=0):
    dataset.workers = workers
    return [
        {name: (array.dtype.name, array.tolist()) for name, array in sample.items()}
        for sample in dataset.resumed(epoch, begin)
    ]


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(PIPELINES)), st.integers(1, 3), st.integers(0, 6), st.integers(0, 3))
def test_samples_do_not_depend_on_who_makes_them(name, workers, begin, epoch):
    expected = read(PIPELINES[name](), 0, epoch)
    assert len(expected) == len(PIPELINES[name]())
    assert read(PIPELINES[name](), workers, epoch, begin) == expected[begin:]


def drawing(x):
    return x + np.random.normal(size=x.shape)


def test_code_that_draws_has_the_same_numbers_with_any_number_of_processes():
    dataset = ds.ArrayDataset({"x": np.zeros((8, 2))}).map(drawing).batch(2)
    first = read(dataset, 1)
    assert read(dataset, 3) == first
    assert read(dataset, 1, epoch=2) != first
    values = np.concatenate([np.array(batch["x"][1]) for batch in first])
    assert len(np.unique(values)) == values.size


def test_large_samples_pass(monkeypatch):
    large = [(np.full((300, 1000), i, np.float64),) for i in range(5)]  # 2.4 MB each
    for workers in (1, 2):
        dataset = ds.GeneratorDataset(lambda: iter(large), ["x"])
        dataset.workers = workers
        assert [sample["x"][0, 0] for sample in dataset.samples(0)] == [0, 1, 2, 3, 4]


def failing(x):
    if x == 3:
        raise ValueError("three")
    return x


def test_an_error_of_a_process_is_raised_with_its_traceback():
    dataset = ds.ArrayDataset({"x": np.arange(8)}).map(failing)
    dataset.workers = 2
    with pytest.raises(ValueError, match="three") as caught:
        list(dataset.samples(0))
    assert "in failing" in caught.value.__notes__[0]


class OddError(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def odd(x):
    raise OddError(1, 2)


def test_an_error_that_cannot_be_sent_is_told():
    dataset = ds.ArrayDataset({"x": np.arange(8)}).map(odd)
    dataset.workers = 1
    with pytest.raises(ModelError, match="a process that makes samples failed: OddError: 1"):
        list(dataset.samples(0))


def dying(x):
    os._exit(7)


def test_a_process_that_dies_is_told():
    dataset = ds.ArrayDataset({"x": np.arange(8)}).map(dying)
    dataset.workers = 2
    with pytest.raises(ModelError) as caught:
        list(dataset.samples(0))
    assert str(caught.value) == (
        "a process that makes samples died with the code 7; use fewer `num_parallel_workers` if "
        "memory is short"
    )


def test_processes_end_with_an_epoch_that_is_broken_off():
    dataset = pictures().batch(2)
    dataset.workers = 2
    samples = dataset.samples(0)
    next(samples)
    assert len(multiprocessing.active_children()) == 2
    samples.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("value", [-1, 1.5, "two", True])
def test_wrong_numbers_of_processes(value):
    with pytest.raises(OptionError, match="`num_parallel_workers` is"):
        pictures().map(OPERATIONS, num_parallel_workers=value)
    with pytest.raises(OptionError, match="`num_parallel_workers` is"):
        pictures().batch(2, num_parallel_workers=value)


def test_the_step_that_asks_for_most_processes_decides():
    dataset = pictures().map(OPERATIONS, num_parallel_workers=3).batch(2, num_parallel_workers=1)
    assert dataset.workers == 3
    assert dataset.take(2).workers == 3


# Autotune


def slow(x):
    time.sleep(0.02)
    return x


def test_more_processes_where_the_training_waits(tmp_path, caplog):
    SETTINGS.autotune, SETTINGS.interval = True, 2
    SETTINGS.tuned_file = str(tmp_path / "tuned")
    dataset = ds.ArrayDataset({"x": np.arange(12)}).map(slow).batch(1)
    with caplog.at_level(logging.WARNING, "shardwright.dataset"):
        found = [int(sample["x"][0]) for sample in dataset.samples(0)]
    assert found == list(range(12))
    assert caplog.messages[0].startswith("autotune: `map(1)` is slow, the training waits ")
    assert caplog.messages[0].endswith(" num_parallel_workers from 1 to 2")
    written = json.loads((tmp_path / "tuned_0.json").read_text())
    assert written["num_parallel_workers"] == dataset._tuner.count
    assert set(written["seconds"]) == {"read", "map(1)", "batch(2)"}
    (tmp_path / "tuned_0.json").write_text("mine")
    with pytest.raises(OutputError, match="a file that is something else is there"):
        list(dataset.samples(2))


def measured(wait, busy, rate, processor=0.1):
    return Measurement(wait, busy, processor, {"map(1)": 1.0}, rate)


def decided(*measurements, count=1):
    """Return the numbers of processes after some intervals."""
    tuner, found = Tuner(count), []
    for measurement in measurements:
        tuner.count = tuner.decide(measurement, processors=2)
        found.append(tuner.count)
    return found


def test_twice_as_many_stay_if_they_make_more_samples():
    waits = [measured(0.9, 1.0, rate) for rate in (10, 20, 21, 20, 20)]
    assert decided(*waits) == [2, 4, 2, 2, 2]


def test_fewer_processes_where_they_are_idle():
    assert decided(*[measured(0.0, 0.2, 10)] * 3, count=3) == [2, 1, 1]
    assert decided(measured(0.0, 0.9, 10), count=3) == [3]


@given(
    st.integers(1, 40),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 64),
)
def test_the_next_number_of_processes(count, wait, busy, processor, processors):
    found = next_count(count, Measurement(wait, busy, processor, {}), processors)
    assert found >= 1
    assert count - 1 <= found <= 2 * count
    if found > count:
        assert wait > 0.05
        assert found <= 32
        assert found * processor <= processors
