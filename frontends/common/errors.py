"""Errors of converters; `import_model` adds the place."""

MOST_REPEATED = 10_000
"""Layers of a description, or iterations of a loop, each of which is traced: the deepest published
models have some 1,000. Half would refuse none of them; twice as many take twice the time."""

MOST_STEPS = 1024
"""Steps of loops and recurrent layers that are unrolled: each is a copy of their operators.

Half would refuse sequences of 1,024, which are common; twice as many double what is compiled."""


class NeedsConstantError(Exception):
    """A converter needs the elements of a tensor that is computed only when the program runs.

    Parameters
    ----------
    name : str
        Name of the tensor in the model.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"the elements of `{name}` must be known when the model is imported")
        self.name = name


class UnsupportedError(Exception):
    """A converter met something that our IR cannot express.

    Parameters
    ----------
    what : str
        The unsupported feature.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} cannot be imported")
