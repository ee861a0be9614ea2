"""Training software: what a step takes beside the devices and links, by profile.

The default, `IDEAL`, is no profile: the host takes no time, and the timeline overlaps communication
as far as the program allows. A profile times the same program as that software runs it. Its figures
are fitted to published steps; each is one number for all models and plans.
"""

from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import yaml

from shardwright.cost_model.efficiency.figures import Description, Figure, Rate
from shardwright.ir.errors import ClusterError

IDEAL = "ideal"
_PRESETS = files("shardwright.cost_model") / "software"


class Software(Description):
    """What a training software adds to the operators of a program, and what it hides.

    Parameters
    ----------
    name : str
        Name of the profile.
    pointwise, copies : Figure
        Memory traffic of element-wise operators, normalizations and reductions, and that of copies
        and casts, over the traffic of the same operators one by one: less than 1 where fused.
    updates : Figure
        The same of the updates of parameters.
    attention : str
        ``fused`` is one kernel, ``separate`` is two products with the scores in memory.
    scores : Figure
        Bytes that are read and written for each score of separate attention.
    softmax : Figure
        Further operators that the host launches for separate attention whose matrices of scores
        are no multiple of four, for which fused kernels of masks and softmax do not apply.
    recompute : str
        Where blocks are recomputed: ``blocks`` computes them whole, ``reads`` what gradients read.
    host : Figure
        Seconds in which the host launches one operator.
    collective : Figure
        Further seconds of the host for each collective that computation waits for.
    exposed_parameters, exposed_activations : Rate
        Share of the communication of parameters and their gradients, and of that of activations,
        for which computation waits.
    transfers : str
        Where ranks of a stage send the same tensor to the next stage: ``whole`` sends it from each,
        ``scattered`` a part from each, and gathers the parts there.
    transfer : Figure
        Seconds of a transfer between stages beside those of its bytes.
    step : Figure
        Seconds once in a step.
    """

    name: str
    pointwise: Figure
    copies: Figure
    updates: Figure
    attention: Literal["fused", "separate"]
    scores: Figure
    softmax: Figure
    recompute: Literal["blocks", "reads"]
    host: Figure
    collective: Figure
    exposed_parameters: Rate
    exposed_activations: Rate
    transfers: Literal["whole", "scattered"]
    transfer: Figure
    step: Figure


def software_names() -> tuple[str, ...]:
    """Return the names of all profiles, the default first."""
    found = (Path(entry.name) for entry in _PRESETS.iterdir())
    return (IDEAL, *sorted(path.stem for path in found if path.suffix == ".yaml"))


def software(name: str) -> Software | None:
    """Return a profile by name; None for `IDEAL`.

    Raises
    ------
    ClusterError
        If there is no such profile.
    """
    names = software_names()
    if name not in names:
        close = get_close_matches(name, names, n=1)
        meant = f"did you mean `{close[0]}`? " if close else ""
        raise ClusterError(
            f"no software profile is called `{name}`", hint=f"{meant}there are {', '.join(names)}"
        )
    return None if name == IDEAL else _preset(name)


@cache
def _preset(name: str) -> Software:
    text = (_PRESETS / f"{name}.yaml").read_text(encoding="utf-8")
    return Software.model_validate(yaml.safe_load(text))
