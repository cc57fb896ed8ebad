"""Findings on single instructions: few tiles, much exchange, conversions, repeated work."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.findings.facts import Facts
from hloipu_runtime.program.steps import ValueId
from hloipu_runtime.report.change import Finding
from hloipu_runtime.report.profile import ONE_TILE_BYTES

_FEW_TILES = 0.25
_MOVING = frozenset({"transpose", "reshape", "copy", "reverse", "concatenate", "pad", "slice"})
"""Codelets that compute nothing."""
_BY_ROW = frozenset({"gather", "gather-candidates", "scatter"})
"""Codelets that go through many indices, which are data."""
_BY_INDEX = _BY_ROW | {"dynamic-slice", "dynamic-slice-candidates", "dynamic-update-slice"}
"""Codelets whose indices are data, so that what they index has to lie where it may be wanted."""

_OPAQUE = "opaque"
"""Name of `codelets.opaque.OpaqueWork`, which few programs have, so that it is not imported."""


def few_tiles(facts: Facts) -> Iterator[Finding]:
    """Find instructions that keep few tiles busy."""
    stated = {
        row.name
        for row, groups in facts.computing
        if any(group.codelet.name == _OPAQUE for group in groups)
    }
    for name, work in facts.works.items():
        if not work.compute or name in stated:
            continue
        used = work.tile_cycles / work.compute
        if used >= _FEW_TILES * facts.tiles:
            continue
        yield Finding(
            "few-tiles",
            name,
            facts.source_of.get(name, ""),
            f"{name} computes for {work.compute:,} cycles on {used:,.0f} of {facts.tiles:,} tiles",
            "give it more independent rows: a larger batch, or several such ops as one batched op",
            round(work.compute * (1 - used / facts.tiles)),
            0,
            {"compute_cycles": work.compute, "tiles": round(used), "of_tiles": facts.tiles},
        )


def exchange_bound(facts: Facts) -> Iterator[Finding]:
    """Find instructions whose operands take longer to come than to be computed with."""
    indexing = {
        row.name
        for row, groups in facts.computing
        if any(group.codelet.name in _BY_INDEX for group in groups)
    }
    for name, work in facts.works.items():
        exchange = work.exchange - work.conversions
        if exchange <= work.compute:
            continue
        by_index = name in indexing
        yield Finding(
            "gather-bound" if by_index else "exchange-bound",
            name,
            facts.source_of.get(name, ""),
            f"{name} exchanges {work.bytes_moved:,} bytes between tiles for {exchange:,} cycles "
            f"and computes for {work.compute:,}",
            "index fewer rows at a time, or a narrower or smaller table"
            if by_index
            else "join products that share an operand, use narrower types, or let its plan keep "
            "more of its operands on a tile (--available-memory-proportion)",
            exchange,
            0,
            {
                "exchange_cycles": exchange,
                "compute_cycles": work.compute,
                "bytes_moved": work.bytes_moved,
            },
            () if by_index else (("available_memory_proportion", 0.9),),
        )


def indexed(facts: Facts) -> Iterator[Finding]:
    """Find what picks or changes rows by indices that are data, one after the other."""
    cycles: Counter[str] = Counter()
    for row, groups in facts.computing:
        if row.cycles and any(group.codelet.name in _BY_ROW for group in groups):
            cycles[row.name] += row.cycles
    for name, spent in cycles.items():
        yield Finding(
            "index-bound",
            name,
            facts.source_of.get(name, ""),
            f"{name} looks up its indices one by one, {spent:,} cycles on every tile",
            "index fewer or unique rows, sort them before, or multiply by a one-hot matrix where "
            "the table is small",
            spent,
            0,
            {"cycles": spent},
        )


def conversions(facts: Facts) -> Iterator[Finding]:
    """Find values that are moved as they are, to lie otherwise, and ops that only move."""
    moved = Counter({name: work.conversions for name, work in facts.works.items()})
    for row, groups in facts.computing:
        if row.cycles and all(group.codelet.name in _MOVING for group in groups):
            moved[row.name] += row.cycles
    for name, cycles in moved.items():
        if not cycles:
            continue
        yield Finding(
            "layout-conversion",
            name,
            facts.source_of.get(name, ""),
            f"moving {name} into the layout that the ops after it read takes {cycles:,} cycles",
            "give it and the ops that read it the same order of dimensions: contract the dimension "
            "that is innermost already, leave out transposes between products",
            cycles,
            0,
            {"cycles": cycles},
        )


def one_tile(facts: Facts) -> Iterator[Finding]:
    """Find what one tile takes in alone though it is large."""
    for row in facts.profile.gathered:
        yield Finding(
            "one-tile",
            row.name,
            facts.source_of.get(row.name, ""),
            f"{row.name} collects {row.one_tile_bytes:,} bytes on a single tile (more than "
            f"{ONE_TILE_BYTES:,}) and takes {row.cycles:,} cycles there",
            "make it independent along one dimension, as by a batch, or do it on smaller parts",
            row.cycles,
            row.one_tile_bytes,
            {"cycles": row.cycles, "one_tile_bytes": row.one_tile_bytes},
        )


def repeated_work(facts: Facts) -> Iterator[Finding]:
    """Find compute sets that make again what an earlier one has made of the same values."""
    first: dict[tuple[Codelet, tuple[ValueId, ...]], str] = {}
    again: defaultdict[str, _Again] = defaultdict(_Again)
    for row, groups in facts.computing:
        if len(groups) != 1 or not row.cycles or not groups[0].reads:
            continue
        key = (groups[0].codelet, groups[0].reads)
        if key not in first:
            first[key] = row.name
            continue
        repeated = again[first[key]]
        repeated.cycles += row.cycles
        repeated.times += 1
    for name, repeated in again.items():
        yield Finding(
            "repeated-work",
            name,
            facts.source_of.get(name, ""),
            f"the values of {name} are computed {repeated.times} more times from the same "
            "operands: "
            f"{repeated.cycles:,} cycles",
            "use its result again; --recompute=none where recomputation made the copies",
            repeated.cycles,
            0,
            {"cycles": repeated.cycles, "times": repeated.times},
            (("recompute", "none"),),
        )


@dataclass
class _Again:
    cycles: int = 0
    times: int = 0


RULES = (few_tiles, exchange_bound, indexed, conversions, one_tile, repeated_work)
