"""Progress of long commands on standard error, if it is a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from shardwright.solver.solution import relative_gap


@contextmanager
def following_search(
    what: str, first: str = "compiling"
) -> Iterator[Callable[[float, float, float], None]]:
    """Show the best cost and the bound of a search while it runs."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda seconds, cost, bound: None
        return
    with console.status(f"{what}: {first}") as status:

        def show(seconds: float, cost: float, bound: float) -> None:
            gap = relative_gap(cost, bound)
            status.update(f"{what}: {seconds:.0f} s, cost {cost:.6g}, gap {gap:.2%}")

        yield show


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar that advances by one at each call, with a text."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[now]}"), console=console) as progress:
        task = progress.add_task(what, total=total, now="")

        def advance(text: str) -> None:
            progress.update(task, advance=1, now=text)

        yield advance
