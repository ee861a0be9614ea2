import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from shardwright.runtime.agreement import checksum, wait_until_read

ENDING = """
import os, sys, termios
from fcntl import ioctl
from types import SimpleNamespace
from shardwright.runtime import agreement

def abort(code):
    if code != 7 or any(any(ioctl(pipe, termios.FIONREAD, bytes(4))) for pipe in (1, 2)):
        os._exit(100)

agreement._world = lambda: SimpleNamespace(Abort=abort)
sys.stdout.write("a step")
sys.stderr.write("rank 0: a sentence")
try:
    agreement.end_all(7)
finally:
    print("MPI's call may return")
"""


@pytest.mark.parametrize("shape", [(), (3,), (64, 28, 28), (32, 1024)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
def test_a_checksum_tells_one_element_and_the_order_of_rows(shape, dtype):
    random = np.random.default_rng(0)
    array = np.asarray(random.integers(0, 250, shape), dtype)
    labels = random.integers(0, 10, 5)
    right = checksum([array, labels])
    assert checksum([array.copy(), labels]) == right
    other = array.copy()
    other[...] = other + (np.arange(other.size).reshape(shape) == other.size // 2)
    assert checksum([other, labels]) != right
    assert checksum([array, labels[::-1]]) != right
    if array.ndim:
        assert checksum([np.roll(array, 1, 0), labels]) != right


def test_mpi_ends_the_processes_when_the_launcher_has_read_what_they_wrote():
    process = subprocess.Popen(
        [sys.executable, "-c", ENDING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    for pipe, text in ((process.stdout, "a step"), (process.stderr, "rank 0: a sentence")):
        time.sleep(0.1)  # a slow launcher
        assert pipe.read(len(text)) == text
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 7


def test_what_nobody_reads_is_not_waited_for_forever(tmp_path):
    reading, writing = os.pipe()
    os.write(writing, b"text")
    wait_until_read(writing, 0.01)
    threading.Timer(0.05, os.read, (reading, 4)).start()
    wait_until_read(writing, 60.0)
    os.set_blocking(reading, False)
    with pytest.raises(BlockingIOError):
        os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    with (tmp_path / "file").open("w") as file:
        file.write("text")
        file.flush()
        wait_until_read(file.fileno(), 60.0)  # of which nothing is read
