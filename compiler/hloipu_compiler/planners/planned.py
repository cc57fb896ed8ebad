"""Records of plans for users, made on request only.

A planner calls `Builder.explains` with a function that makes its record; without a reader the
function is not called, so that a record may take longer to make than the choice did.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from hloipu_compiler.planners.placing import Placement
from hloipu_runtime.codelets.core.tensors import Sizes
from hloipu_runtime.costs.exchange_price import ExchangePrice
from hloipu_runtime.element_types import shape_text
from hloipu_runtime.frozen import dataclass

MOST_ALTERNATIVES = 4
"""How many of those that lost are kept."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """Predicted cycles by what they are spent on, or in sum where a planner has no more."""

    compute: int = 0
    exchange: int = 0
    sync: int = 0
    together: int = 0
    """Of a planner that prices all at once."""

    @property
    def total(self) -> int:
        """All cycles."""
        return self.compute + self.exchange + self.sync + self.together

    def plus(self, other: "Cycles") -> "Cycles":
        """Return the sum of both, kind by kind."""
        return Cycles(
            self.compute + other.compute,
            self.exchange + other.exchange,
            self.sync + other.sync,
            self.together + other.together,
        )

    def times(self, count: int) -> "Cycles":
        """Return as many times the cycles, kind by kind."""
        kinds = (self.compute, self.exchange, self.sync, self.together)
        return Cycles(*(count * cycles for cycles in kinds))


def cycles_of(price: ExchangePrice) -> Cycles:
    """Return the cycles of an exchange, with those of copies before and after it."""
    return Cycles(exchange=price.copying_cycles + price.exchange_cycles, sync=price.sync_cycles)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to spread an op over tiles, with its price."""

    words: str
    """What is done, in a few words: `rows kept whole`, `in two stages`."""
    splits: tuple[tuple[str, int], ...]
    """Parts of each named dimension that is split."""
    tiles: int
    cycles: Cycles
    bytes_per_tile: int
    """Of operands, results and what comes between, on the fullest tile."""
    details: tuple[tuple[str, str | int], ...] = ()
    """What else was chosen: slices, kind of vertex, type of partial results."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way that lost, and why."""

    choice: Choice
    lost: str
    """`slower`, `does not fit`, or `takes more code`: that of exchanges has its price."""


@dataclass(frozen=True, slots=True)
class PlannedOp:
    """How one op was planned."""

    op: str
    """Name of the instruction."""
    opcode: str
    operands: tuple[str, ...]
    """Type and sizes of each, as HLO writes them: `f32[8,16]`."""
    results: tuple[str, ...]
    chosen: Choice
    alternatives: tuple[Alternative, ...] = ()
    """The best of those that lost, cheapest first."""


@dataclass(frozen=True, slots=True)
class PlacedValue:
    """Where a value lies, and on whose account."""

    value: str
    """Name of the instruction that makes it."""
    shape: str
    mapping: str
    """Which dimension is split over how many tiles, in words."""
    decided_by: str
    """Name of the instruction that it lies for; empty: nobody's preference was known."""
    reason: str
    saved_cycles: int = 0
    """Of exchange, against the default mapping."""


@dataclass(frozen=True, slots=True)
class HoistedCopy:
    """A copy of what a loop does not change, and whether it is made before the loop."""

    value: str
    """Name of the instruction that makes what is copied."""
    op: str
    """Name of the instruction that it was first made for."""
    shape: str
    tiles: int
    bytes_per_tile: int
    readings: int
    """How often it would be made in a run, if ops that read it made it."""
    cycles: int
    """Of exchange, each time that it is made."""
    is_hoisted: bool
    """Whether it is made before all loops that it could be made in, or loaded with the program."""


Record = PlannedOp | PlacedValue | HoistedCopy


class Shaped(Protocol):
    """An array as far as a record names it: a tensor, or a value under construction."""

    @property
    def element_type(self) -> str:
        """Name of the element type."""

    @property
    def shape(self) -> Sizes:
        """The sizes of all dimensions."""


def shape_texts(arrays: Iterable[Shaped]) -> tuple[str, ...]:
    """Return types and sizes of arrays, as HLO writes them."""
    return tuple(shape_text(x.element_type, x.shape) for x in arrays)


def splits_of(placement: Placement, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Return the parts of each label that a placement splits, under the labels' names."""
    extents = placement.tiles.extents
    return tuple(
        (names[label] if label < len(names) else f"dimension {label}", extents[span.axis])
        for label, span in placement.labels
    )


def losers(
    chosen: Choice, others: Iterable[Choice], budget_bytes: int | None = None
) -> tuple[Alternative, ...]:
    """Return the best of the choices that lost; `budget_bytes`: what one may take of a tile."""
    ordered = sorted(
        (x for x in others if x != chosen), key=lambda x: (x.cycles.total, x.bytes_per_tile)
    )
    kept: list[Alternative] = []
    shown = {_looks(chosen)}
    for choice in ordered:
        too_large = budget_bytes is not None and choice.bytes_per_tile > budget_bytes
        if _looks(choice) in shown:
            continue
        shown.add(_looks(choice))
        faster = choice.cycles.total < chosen.cycles.total
        lost = "does not fit" if too_large else "takes more code" if faster else "slower"
        kept.append(Alternative(choice, lost))
        if len(kept) == MOST_ALTERNATIVES:
            break
    return tuple(kept)


def _looks(choice: Choice) -> tuple[object, ...]:
    return choice.words, choice.splits, choice.details


# --- for readers ----------------------------------------------------------------------------------


def plans_text(records: Sequence[Record]) -> str:
    """Return all records as text, a block for each op, then a line for each placed value."""
    blocks = [_op_text(x) for x in records if isinstance(x, PlannedOp)]
    values = [_value_text(x) for x in records if isinstance(x, PlacedValue)]
    if values:
        blocks.append("\n".join(["values placed for their users", *values]))
    copies = [_copy_text(x) for x in records if isinstance(x, HoistedCopy)]
    if copies:
        blocks.append("\n".join(["copies of what loops do not change", *copies]))
    return "\n\n".join(blocks) + "\n" if blocks else "no op of this program was planned\n"


def plans_record(records: Sequence[Record]) -> dict[str, Any]:
    """Return all records as data for JSON."""
    return {
        "schema": "hloipu.plans/1",
        "ops": [_op_record(x) for x in records if isinstance(x, PlannedOp)],
        "values": [_value_record(x) for x in records if isinstance(x, PlacedValue)],
        "copies": [asdict(x) for x in records if isinstance(x, HoistedCopy)],
    }


def _op_text(x: PlannedOp) -> str:
    lines = [f"{x.op} = {', '.join(x.results)} {x.opcode}({', '.join(x.operands)})"]
    lines += _choice_lines("chosen", x.chosen)
    for other in x.alternatives:
        lines += _choice_lines(other.lost, other.choice, against=x.chosen.cycles.total)
    return "\n".join(lines)


def _choice_lines(heading: str, choice: Choice, against: int = 0) -> list[str]:
    cycles = choice.cycles
    parts = [f"{count} x {name}" for name, count in choice.splits]
    parts += [f"{name} {value}" for name, value in choice.details]
    tiles = "1 tile" if choice.tiles == 1 else f"{choice.tiles:,} tiles"
    kinds = (("compute", cycles.compute), ("exchange", cycles.exchange), ("sync", cycles.sync))
    by_kind = ", ".join(f"{name} {n:,}" for name, n in kinds if n)
    price = f"{cycles.total:,} cycles"
    if by_kind:
        price += f" ({by_kind})"
    if against and cycles.total:
        price += f", {cycles.total / against:.2f} times"
    return [
        f"  {heading}: {choice.words}, on {tiles}" + (f": {', '.join(parts)}" if parts else ""),
        f"    {price}; {choice.bytes_per_tile:,} bytes a tile",
    ]


def _value_text(x: PlacedValue) -> str:
    user = f" for {x.decided_by}" if x.decided_by else ""
    saved = f", saves {x.saved_cycles:,} cycles" if x.saved_cycles else ""
    return f"  {x.value} {x.shape}: {x.mapping}{user}, {x.reason}{saved}"


def _copy_text(x: HoistedCopy) -> str:
    how_often = "once" if x.is_hoisted else f"{x.readings:,} times, where it is read"
    return (
        f"  {x.value} {x.shape} for {x.op}: made {how_often}; {x.bytes_per_tile:,} bytes a tile on "
        f"{x.tiles:,} tiles, {x.cycles:,} cycles each time, {x.readings:,} readings"
    )


def _op_record(x: PlannedOp) -> dict[str, Any]:
    return {
        "op": x.op,
        "opcode": x.opcode,
        "operands": list(x.operands),
        "results": list(x.results),
        "chosen": _choice_record(x.chosen),
        "alternatives": [{**_choice_record(a.choice), "lost": a.lost} for a in x.alternatives],
    }


def _choice_record(x: Choice) -> dict[str, Any]:
    cycles = x.cycles
    kinds: Mapping[str, int] = {
        "compute": cycles.compute,
        "exchange": cycles.exchange,
        "sync": cycles.sync,
    }
    return {
        "words": x.words,
        "splits": dict(x.splits),
        "tiles": x.tiles,
        "cycles": {"total": cycles.total, **({} if cycles.together else kinds)},
        "bytes_per_tile": x.bytes_per_tile,
        "details": dict(x.details),
    }


def _value_record(x: PlacedValue) -> dict[str, Any]:
    return {
        "value": x.value,
        "shape": x.shape,
        "mapping": x.mapping,
        "decided_by": x.decided_by,
        "reason": x.reason,
        "saved_cycles": x.saved_cycles,
    }
