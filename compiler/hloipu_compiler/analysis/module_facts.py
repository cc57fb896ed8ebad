"""Module facts for reports: ops with their work, source places, and edges."""

from typing import Any

from hloipu_compiler.analysis.op_cost import NO_COST
from hloipu_compiler.analysis.source_lines import SourceLines
from hloipu_compiler.analysis.tally import tally
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_runtime.plain_text import printable

SCHEMA = "hloipu.module/1"
MOST_INSTRUCTIONS = 200_000
"""Of a module that is described; a page of more would not open."""
_COLUMNS = (
    "name", "opcode", "shape", "scope", "frame", "computation", "operands", "calls", "runs",
    "flops", "bytes",
)  # fmt: skip
_LONGEST_SHAPE = 120
_DEEPEST_STACK = 64


def module_facts(module: Module) -> dict[str, Any]:
    """Return the instructions of a module as JSON data, in columns of equal length.

    `name`, `opcode` (number in `opcodes`), `shape`, `scope` (number in `scopes`: the op's path in
    the user's program), `frame` (number in `frames`, -1: unknown), `computation` (number in
    `computations`), `operands` (lists of rows), `calls` (lists of computations), `runs`, and of all
    runs together `flops` and `bytes`. `frames` are `[parent, function, file, line]`, outermost
    first. Work in loops that data ends counts once.
    """
    work, lines = tally(module), SourceLines(module)
    frames, scopes, opcodes = _Frames(lines), _Numbers(), _Numbers()
    computations = {c.name: number for number, c in enumerate(module.computations)}
    columns: dict[str, list[Any]] = {key: [] for key in _COLUMNS}
    left_out = 0
    for number, computation in enumerate(module.computations):
        base = len(columns["name"])
        if base + len(computation.instructions) > MOST_INSTRUCTIONS:
            left_out += len(computation.instructions)
            continue
        runs = work.runs[computation.name].count if computation.name in work.runs else 0
        costs = work.costs.get(computation.name)
        for position, instruction in enumerate(computation.instructions):
            cost = costs[position] if costs else NO_COST
            row = (
                printable(instruction.name),
                opcodes.number(instruction.opcode),
                _shape(instruction),
                scopes.number(lines.op_name(instruction)),
                frames.number(instruction),
                number,
                [base + operand for operand in instruction.operands],
                [
                    computations[name]
                    for name in instruction.attributes.called
                    if name in computations
                ],
                runs,
                float((cost.flops + cost.transcendentals) * runs),
                float((cost.bytes_read + cost.bytes_written) * runs),
            )
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
    return {
        "schema": SCHEMA,
        "entry": computations[module.entry.name],
        "computations": [printable(c.name) for c in module.computations],
        "roots": _roots(module, left_out),
        "opcodes": opcodes.values,
        "scopes": scopes.values,
        "frames": frames.rows,
        "left_out": left_out,
        **columns,
    }


def _roots(module: Module, left_out: int) -> list[int]:
    """Return the row of each computation's root; none where rows were left out."""
    rows, base = [], 0
    for computation in () if left_out else module.computations:
        rows.append(base + computation.root)
        base += len(computation.instructions)
    return rows


def _shape(instruction: Instruction) -> str:
    text = str(instruction.shape)
    return text if len(text) <= _LONGEST_SHAPE else f"{text[: _LONGEST_SHAPE - 1]}…"


class _Numbers:
    """Numbers for values, in the order in which they come."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    def number(self, value: str) -> int:
        return self._of.setdefault(value, len(self._of))

    @property
    def values(self) -> list[str]:
        return list(self._of)


class _Frames:
    """Call stacks as a tree: each frame once for each way in which it is reached."""

    def __init__(self, lines: SourceLines) -> None:
        self.lines = lines
        self.rows: list[tuple[int, str, str, int]] = []
        self._of: dict[tuple[int, str, str, int], int] = {}
        self._known: dict[str, int] = {}

    def number(self, instruction: Instruction) -> int:
        """Return the innermost frame of an instruction, or -1."""
        row_number = self._known.get(instruction.metadata)
        if row_number is None:
            row_number = -1
            for frame in reversed(self.lines.frames(instruction, _DEEPEST_STACK)):
                row = (row_number, printable(frame.function), printable(frame.file), frame.line)
                row_number = self._of.setdefault(row, len(self.rows))
                if row_number == len(self.rows):
                    self.rows.append(row)
            self._known[instruction.metadata] = row_number
        return row_number
