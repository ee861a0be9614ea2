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

from shardwright.cost_model.mindspore.profile import MindSporeProfile
from shardwright.cost_model.profile import CostProfile
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.ir.registry import Registry

PROFILES: Registry[type[CostProfile]] = Registry("cost model", base=CostProfile)
"""The profiles by name; the names are the values of the option ``cost_model``."""

register_profile = PROFILES.registered
"""Register a cost profile, a class, under its name; a decorator."""

register_profile(TimeProfile)
register_profile(MindSporeProfile)
