"""A judge of configurations whose bounds, estimates and costs are drawn; bounds are true."""

import random
from dataclasses import dataclass, field
from math import inf

from shardwright.ir.errors import InfeasibleError, NotFoundError, ShardwrightError, StrategyError
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.planner.choice.best_first import BestFirst
from shardwright.planner.choice.configuration import Configuration
from shardwright.planner.choice.questions import Found
from shardwright.solver.work import Budget

FLOOR = 1.0


@dataclass(frozen=True)
class Drawn:
    """What is true of a configuration: bounds, an estimate, and the costs of plans, or errors."""

    free: float
    within: float
    searched: float | ShardwrightError
    estimate: float | None = None
    planned: float | ShardwrightError = 9.0


@dataclass(frozen=True)
class DrawnPrices:
    own: Configuration
    drawn: dict[Configuration, Drawn]
    proof: str = "blocks alone"
    known: dict[object, object] = field(default_factory=dict)

    def bound(self, other):
        if (other.mesh, other.micro_batches) == (self.own.mesh, self.own.micro_batches):
            return self.drawn[other].within
        return self.drawn[self.own].free if self.own.divides(other) else 0.0

    def estimate(self, other):
        return self.drawn[other].estimate

    def is_short_of_memory(self, other):
        return False


@dataclass
class DrawnJudge:
    drawn: dict[Configuration, Drawn]
    prices: bool = True
    blocks: bool = False
    named: tuple[Configuration, float] | None = None
    seconds: float = 0.0
    longer: dict[Configuration, float] = field(default_factory=dict)
    late: bool = False
    is_large: bool = False
    asked: list[tuple[str, Configuration]] = field(default_factory=list)

    def plans_blocks(self, configuration):
        return self.blocks

    def price(self, configuration, budget, below, known):
        self._note("price", configuration, budget)
        if self.drawn[configuration].within == inf:
            raise InfeasibleError("no plan fits", least_memory_bytes=2.0, least_memory_bound=1.0)
        return DrawnPrices(configuration, self.drawn)

    def plan(self, configuration, budget, below):
        self._note("plan", configuration, budget)
        return self._found(self.drawn[configuration].planned, 0.0)

    def search(self, configuration, budget):
        self._note("search", configuration, budget)
        drawn = self.drawn[configuration]
        return self._found(drawn.searched, drawn.within)

    def name(self, configurations, budget):
        self.asked.append(("name", None))
        if self.named is None or self.named[0] not in configurations:
            return None
        return self.named[0], Found(self.named[1], 0.0, 1.0, "named")

    def covers(self, one, other):
        return one.micro_batches == other.micro_batches and one.divides(other)

    def _note(self, question, configuration, budget):
        self.asked.append((question, configuration))
        budget.charge(self.longer.get(configuration, self.seconds))

    def _found(self, cost, bound):
        if isinstance(cost, ShardwrightError):
            raise cost
        return Found(cost, bound, 1.0, "a plan", self.late)


def one_axis(size: int = 8) -> Mesh:
    return Mesh((MeshAxis("x", size, 0),))


FINER = Mesh((MeshAxis("x", 2, 0), MeshAxis("y", 4, 0)))


def candidates(counts: int) -> list[Configuration]:
    """Return one stage on two meshes, and pipelines in two forms, in several micro-batches."""
    found = []
    for count in (2**number for number in range(counts)):
        found += [Configuration(one_axis(), count), Configuration(FINER, count)]
        forms = (1, "1f1b"), (2, "interleaved")
        found += [Configuration(one_axis(4), count, 2, *form) for form in forms]
    return found


def drawn_judge(seed: int) -> DrawnJudge:
    draw = random.Random(seed)
    drawn: dict[Configuration, Drawn] = {}
    # A bound holds for multiples and merged axes, so these are drawn after what bounds them.
    for one in sorted(candidates(draw.randint(1, 3)), key=lambda c: (c.micro_batches, -c.axes)):
        free = max(
            [draw.uniform(FLOOR, 2.0), *(d.free for c, d in drawn.items() if c.divides(one))]
        )
        finer = (c for c in drawn if c.micro_batches == one.micro_batches and c.divides(one))
        within = draw.choice([free, draw.uniform(free, 3.0), inf])
        within = max([within, *(drawn[c].within for c in finer)])
        cost: float | ShardwrightError = within * draw.choice([1.0, draw.uniform(1.0, 1.5)])
        if within == inf:
            cost = InfeasibleError("no plan fits")
        elif draw.random() < 0.2:
            cost = draw.choice([NotFoundError("none found"), StrategyError("no such split")])
        planned = NotFoundError("no plan of blocks")
        if isinstance(cost, float) and draw.random() < 0.7:
            planned = cost * draw.uniform(1.0, 1.2)
        estimate = draw.choice([None, draw.uniform(1.0, 3.0)])
        drawn[one] = Drawn(free, within, cost, estimate, planned)
    return DrawnJudge(drawn, blocks=draw.random() < 0.5, prices=draw.random() < 0.8)


def searched(judge: DrawnJudge, workers: int = 1, gap: float = 0.0, seconds: float = 1e3):
    where = judge, list(judge.drawn), lambda _: FLOOR, Budget(seconds), gap, workers
    search = BestFirst(*where)
    return search, search.run()
