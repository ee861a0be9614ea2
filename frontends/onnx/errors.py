"""What a converter refuses; `import_model` tells where."""


class NeedsConstantError(Exception):
    """A converter needs the elements of a tensor that is computed only when the program runs.

    Parameters
    ----------
    name : str
        The tensor, as the model calls it.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"the elements of `{name}` must be known when the model is imported")
        self.name = name


class UnsupportedError(Exception):
    """A converter was asked for something that cannot be said in our IR.

    Parameters
    ----------
    what : str
        What it was asked for.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} cannot be imported")
