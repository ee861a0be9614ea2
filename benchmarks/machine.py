"""What a benchmark's table says of where it was measured."""

import os
import platform

import numpy as np


def machine() -> str:
    """Return a sentence about the processor and the versions."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
        model = names[0] if names else model
    except OSError:
        pass  # not Linux
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    return f"{os.cpu_count()} cores of {model}, {platform.system()}, {versions}"
