"""The compact form of the page, which a notebook shows: tables of strategies and communication."""

from shardwright.compiler.page.page_communication import communication_document
from shardwright.compiler.page.strategies import strategies_document
from shardwright.compiler.plans.compiled import Compiled
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.ir.units import ROWS, bytes_text, html_table, seconds_text


def compact_tables(compiled: Compiled, cluster: AnyCluster) -> str:
    """Return the operators and the redistributions that take most time, as HTML."""
    operators = sorted(strategies_document(compiled, cluster), key=lambda row: -row["seconds"])
    moves = communication_document(compiled, cluster)
    chosen = [
        (_times(row["count"], row["path"]), row["strategy"], seconds_text(row["seconds"]))
        for row in operators[:ROWS]
    ]
    sent = [
        (
            _times(row["layers"], row["collectives"]),
            bytes_text(row["bytes"]),
            seconds_text(row["seconds"]),
            row["reason"],
        )
        for row in moves[:ROWS]
    ]
    tables = html_table(_title("strategies", operators), chosen, ("operator", "over axes", "time"))
    if sent:
        headings = ("collectives", "sends", "time", "reason")
        tables += html_table(_title("communication", moves), sent, headings)
    return tables


def _times(count: int, text: str) -> str:
    return f"{count}x {text}" if count > 1 else text


def _title(name: str, rows: list[dict[str, object]]) -> str:
    more = len(rows) - ROWS
    return f"{name}, and {more} more rows" if more > 0 else name
