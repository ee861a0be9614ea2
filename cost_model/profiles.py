"""The registry of cost profiles.

A profile from outside the package:

    @register_profile
    class Money(TimeProfile):
        name = "money"

        def operator_cost(self, info, operands, results):
            return DOLLARS_PER_SECOND * super().operator_cost(info, operands, results)

        def move_costs(self, operator, axes, local_bytes):
            return DOLLARS_PER_BYTE * local_bytes
"""

from typing import TypeVar

from shardwright.cost_model.mindspore.profile import MindSporeProfile
from shardwright.cost_model.profile import CostProfile
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.ir.registry import Registry

PROFILES: Registry[type[CostProfile]] = Registry("cost model", base=CostProfile)
"""The profiles by name; the names are the values of the option ``cost_model``."""

Profile = TypeVar("Profile", bound=type[CostProfile])


def register_profile(profile: Profile) -> Profile:
    """Register a cost profile under its name.

    Raises
    ------
    OptionError
        If another profile has that name.
    """
    PROFILES.register(profile)
    return profile


register_profile(TimeProfile)
register_profile(MindSporeProfile)
