"""The weights of modules of transformers by the names of the zoo's decoder."""

from collections.abc import Mapping

import numpy as np

from shardwright.frontends.configs.architecture import Architecture
from shardwright.frontends.configs.weights import sources

Array = np.ndarray


def weights(arrays: Mapping[str, Array], architecture: Architecture) -> dict[str, Array]:
    """Return arrays by the names of the zoo."""
    return {name: source.of(arrays) for name, source in sources(arrays, architecture).items()}
