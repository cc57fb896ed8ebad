"""Summary of a module as records, for `hloipu show`."""

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest

from hloipu_compiler.analysis.op_cost import CALLS, FREE, CostSum, OpCost, is_opaque
from hloipu_compiler.analysis.source_lines import SourceLines
from hloipu_compiler.analysis.tally import Tally, tally
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import Shape, byte_count


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """One entry parameter and what the header says about it."""

    number: int
    name: str
    path: str
    """Where it stood in the caller's arguments, from `op_name`; empty where nobody wrote it."""
    shape: Shape
    bytes: int
    role: str
    """`state` where an output takes its place, `donated` where it may be overwritten, or empty."""


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One large tensor and who makes it."""

    computation: str
    name: str
    opcode: str
    shape: Shape
    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class SourceRow:
    """The work that one line of the user's program asks for."""

    source: str
    instructions: int
    cost: OpCost
    exact: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """All that `hloipu show` says."""

    module: Module
    parameters: tuple[ParameterRow, ...]
    tally: Tally
    largest: tuple[TensorRow, ...]
    source_lines: tuple[SourceRow, ...]
    output_bytes: int
    attributes: Mapping[str, str]


def summarise(module: Module, *, most: int = 10, assume_trips: int | None = None) -> Summary:
    """Gather the facts; `most` bounds each list of largest things."""
    counted = tally(module, assume_trips=assume_trips)
    lines = SourceLines(module)
    return Summary(
        module,
        parameter_rows(module, lines),
        counted,
        _largest(module, counted, lines, most),
        _by_source_line(module, counted, lines, most),
        byte_count(module.entry.program_shape.result),
        {key: str(value) for key, value in module.attributes.items() if key in _SHOWN},
    )


_SHOWN = ("is_scheduled", "replica_count", "num_partitions")


def parameter_rows(module: Module, lines: SourceLines) -> tuple[ParameterRow, ...]:
    """Return the entry's parameters by number with the roles that aliasing gives them."""
    state = {alias.parameter for alias in module.attributes.aliases()}
    donated = {donor.parameter for donor in module.attributes.donors()}
    rows = []
    for position in module.entry.parameters:
        instruction = module.entry.instructions[position]
        role = "state" if instruction.parameter_number in state else ""
        if not role and instruction.parameter_number in donated:
            role = "donated"
        rows.append(
            ParameterRow(
                instruction.parameter_number,
                instruction.name,
                lines.op_name(instruction),
                instruction.shape,
                byte_count(instruction.shape),
                role,
            )
        )
    return tuple(rows)


def _runs_somewhere(module: Module, counted: Tally) -> list[Computation]:
    return [c for c in module.computations if c.name in counted.runs]


def _largest(
    module: Module, counted: Tally, lines: SourceLines, most: int
) -> tuple[TensorRow, ...]:
    sized: list[tuple[int, Computation, Instruction]] = []
    sizes: dict[Shape, int] = {}
    for computation in _runs_somewhere(module, counted):
        # What a called computation takes as a parameter, its caller has made.
        counted_in_caller = {"parameter"} if computation is not module.entry else set()
        for instruction in computation.instructions:
            if instruction.opcode in _NOT_MADE or instruction.opcode in counted_in_caller:
                continue
            size = sizes.get(instruction.shape)
            if size is None:
                size = sizes[instruction.shape] = byte_count(instruction.shape)
            sized.append((size, computation, instruction))
    return tuple(
        TensorRow(c.name, op.name, op.opcode, op.shape, size, lines.line(op))
        for size, c, op in nlargest(most, sized, key=lambda row: row[0])
    )


_NOT_MADE = (FREE | CALLS) - {"parameter", "constant"}


def _by_source_line(
    module: Module, counted: Tally, lines: SourceLines, most: int
) -> tuple[SourceRow, ...]:
    sums: dict[str, CostSum] = {}
    for computation in _runs_somewhere(module, counted):
        runs = counted.runs[computation.name]
        costs = counted.costs[computation.name]
        for instruction, cost in zip(computation.instructions, costs, strict=True):
            if instruction.opcode in FREE:
                continue
            source = lines.line(instruction)
            if not source:
                continue
            row = sums.get(source)
            if row is None:
                row = sums[source] = CostSum()
            row.add(cost, runs.count, exact=runs.exact and not is_opaque(instruction))
    rows = (SourceRow(s, row.instructions, row.total, row.exact) for s, row in sums.items())
    return tuple(nlargest(most, rows, key=lambda r: (r.cost.flops, r.cost.bytes_written)))
