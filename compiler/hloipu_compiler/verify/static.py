"""Refuses valid HLO whose sizes are not fixed at compile time."""

from contextlib import suppress
from typing import NamedTuple

from hloipu_compiler.errors import MOST_FAULTS_SHOWN, Fault
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import UNBOUNDED, ArrayShape, BufferShape, Shape, TupleShape, leaves
from hloipu_compiler.source import Span
from hloipu_compiler.verify.places import opcode_span, shape_span
from hloipu_compiler.verify.survey import MOST_FAULTS, Report, ReportFullError
from hloipu_runtime.errors import UnsupportedError

BOUNDED, UNBOUNDED_SIZE, RESIZING = "E0401", "E0402", "E0403"
_RESIZES = frozenset({"dynamic-reshape", "set-dimension-size"})


class NotStaticError(UnsupportedError):
    """The module has sizes that are known only while running; carries each source of one."""

    def __init__(self, faults: list[Fault]) -> None:
        first = faults[0]
        super().__init__(first.code, first.message, hint=first.hint)
        self.faults = tuple(faults)
        self.span: Span | None = first.span

    def __str__(self) -> str:
        shown = [str(fault) for fault in self.faults[:MOST_FAULTS_SHOWN]]
        if len(self.faults) > MOST_FAULTS_SHOWN:
            shown.append(f"… and {len(self.faults) - MOST_FAULTS_SHOWN} more")
        return "\n".join(shown)


def require_static(module: Module) -> None:
    """Raise NotStaticError, exit code 4, if a module has sizes known only while running."""
    faults = unsupported(module)
    if faults:
        raise NotStaticError(faults)


def unsupported(module: Module, *, most: int = MOST_FAULTS) -> list[Fault]:
    """Return what brings dynamic sizes into a module, in text order.

    An instruction that merely computes with dynamic operands is not listed: whoever made them is.
    """
    report = Report(most)
    with suppress(ReportFullError):
        _look(module, report)
    return report.in_text_order()


def _look(module: Module, report: Report) -> None:
    known: dict[int, bool | None] = {}
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode in _RESIZES:
                _report_resizing(module, computation, instruction, known, report)
            elif _dynamism(instruction.shape, known) is not None:
                _report_source(module, computation, instruction, known, report)


def _dynamism(shape: Shape, known: dict[int, bool | None]) -> bool | None:
    """Return None for a static shape, else whether every dynamic size has a bound."""
    # Shapes live as long as the module, so their identities are stable keys.
    if id(shape) in known:
        return known[id(shape)]
    leaf = _dynamic_leaf(shape)
    known[id(shape)] = None if leaf is None else UNBOUNDED not in leaf.shape.dimensions
    return known[id(shape)]


class _Leaf(NamedTuple):
    path: tuple[int, ...]
    shape: ArrayShape


def _dynamic_leaf(shape: Shape) -> _Leaf | None:
    first: _Leaf | None = None
    for path, leaf in leaves(shape):
        array = leaf.contents if isinstance(leaf, BufferShape) else leaf
        if array.dynamic is None:
            continue
        if UNBOUNDED in array.dimensions:
            return _Leaf(path, array)
        first = first or _Leaf(path, array)
    return first


def _report_source(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    known: dict[int, bool | None],
    report: Report,
) -> None:
    shapes = [computation.instructions[i].shape for i in instruction.operands]
    if any(_dynamism(shape, known) is not None for shape in shapes):
        return
    if instruction.opcode == "parameter" and computation is not module.entry:
        return  # its callers' operands are the source
    leaf = _dynamic_leaf(instruction.shape)
    if leaf is None:
        return
    which = next(i for i, dynamic in enumerate(leaf.shape.dynamic or ()) if dynamic)
    size = leaf.shape.dimensions[which]
    where = f" of element {{{','.join(map(str, leaf.path))}}}" if leaf.path else ""
    bound = "no bound" if size == UNBOUNDED else f"only a bound, {size}"
    report.add(
        UNBOUNDED_SIZE if UNBOUNDED in leaf.shape.dimensions else BOUNDED,
        f"{instruction.name} ({instruction.opcode}) has {bound}, for dimension {which}{where}",
        shape_span(module, instruction),
        expected="sizes that are known when compiling",
        hint="trace the model with static shapes"
        + ("" if isinstance(instruction.shape, TupleShape) else ", padded to the bound"),
    )


def _report_resizing(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    known: dict[int, bool | None],
    report: Report,
) -> None:
    shapes = [computation.instructions[i].shape for i in instruction.operands]
    everything_static = all(
        _dynamism(shape, known) is None for shape in (instruction.shape, *shapes)
    )
    if instruction.opcode == "set-dimension-size" and everything_static:
        return  # sets a size to what it is
    report.add(
        RESIZING,
        f"{instruction.name} ({instruction.opcode}) makes a size depend on data",
        opcode_span(module, instruction),
        expected="sizes that are known when compiling",
        hint="trace the model with static shapes",
    )
