"""Findings on memory: tiles that are fuller than others, code, constants."""

from collections.abc import Iterator

from hloipu_runtime.findings.facts import Facts
from hloipu_runtime.memory.categories import CODE, Category
from hloipu_runtime.report.change import Finding

_UNEVEN = 2.0
_WORTH_A_LINE = 0.25
"""Of a tile's memory: a fullest tile that needs less has room enough."""


def uneven_memory(facts: Facts) -> Iterator[Finding]:
    """Find a tile that needs far more than the mean."""
    memory = facts.memory
    peak, mean = memory.peak.total_bytes, memory.total_bytes / facts.tiles
    if peak < _UNEVEN * mean or peak < _WORTH_A_LINE * memory.available_bytes:
        return
    first = memory.culprits[0] if memory.culprits else None
    largest = f"; {first.name} takes {first.size_bytes:,}" if first else ""
    yield Finding(
        "uneven-memory",
        first.origin if first else "",
        first.source if first else "",
        f"tile {memory.peak.tile} needs {peak:,} bytes, a tile on average {mean:,.0f}{largest}",
        "spread it over more tiles: more rows, or products in smaller slices "
        "(--available-memory-proportion)",
        0,
        round(peak - mean),
        {"peak_bytes": peak, "mean_bytes": round(mean)},
        (("available_memory_proportion", 0.3),),
    )


def code_memory(facts: Facts) -> Iterator[Finding]:
    """Find tiles that hold more code than most programs hold data."""
    memory = facts.memory
    code = sum(memory.code_peak.parts[category] for category in CODE)
    if code < _WORTH_A_LINE * memory.available_bytes:
        return
    of_exchanges = memory.code_peak.parts[Category.EXCHANGE_CODE]
    first = memory.exchange_culprits[0] if memory.exchange_culprits else None
    most = f", {first.size_bytes:,} of these for {first.origin}" if first else ""
    yield Finding(
        "code-memory",
        first.origin if first else "",
        first.source if first else "",
        f"code takes {code:,} bytes of tile {memory.code_peak.tile}: {of_exchanges:,} for "
        f"exchanges{most}",
        "run equal layers in one loop (a scan over stacked weights): a loop's code is there once",
        0,
        code,
        {"code_bytes": code, "exchange_code_bytes": of_exchanges},
    )


def large_constants(facts: Facts) -> Iterator[Finding]:
    """Find constants that take memory all the time."""
    memory = facts.memory
    size = memory.peak.parts[Category.CONSTANTS]
    if size < _WORTH_A_LINE * memory.available_bytes / 4:
        return
    arrays = facts.program.constants
    largest = max(arrays, key=lambda n: (arrays[n][1].nbytes, -n)) if arrays else -1
    variable = facts.program.variables[largest] if largest >= 0 else None
    name = variable.origin if variable else ""
    yield Finding(
        "large-constants",
        name,
        facts.source_of.get(name, ""),
        f"constants take {size:,} bytes of tile {memory.peak.tile} all the time; "
        f"the largest is {name}",
        "compute it on the device (iota, broadcast), or make it a parameter of narrower type",
        0,
        size,
        {"constant_bytes": size},
    )


RULES = (uneven_memory, code_memory, large_constants)
