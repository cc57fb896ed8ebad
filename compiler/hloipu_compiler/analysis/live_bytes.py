"""Live bytes of a computation in a given order of its instructions.

Bytes are those of whole tensors, over all tiles together: where they lie is decided later. What
only hands its operand on (tuples, reshapes, broadcasts, copies) makes no bytes of its own, as in
lowering; constants are there all the time and do not count.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import Shape, TupleShape, byte_count
from hloipu_runtime.frozen import dataclass

Parts = tuple[tuple[int, ...], ...]
"""Of each element of a value, the buffers that it lies in; an array has one element."""

RUNNING = frozenset({"while", "conditional", "call", "async-start"})
"""Ops whose computations run step by step, beside the buffers of the caller."""
FORWARDING = frozenset(
    {"bitcast", "reshape", "broadcast", "copy", "opt-barrier", "domain", "add-dependency"}
)
"""Ops of one array whose result lies where the operand does."""
_IN_PLACE = frozenset(
    {name for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits}
    | {"fusion", "dynamic-update-slice", "while"}
)
"""Ops whose result may take the place of an operand that dies."""


class Buffers(NamedTuple):
    """The memory of one computation, by instruction."""

    sizes: tuple[int, ...]
    """Bytes of each buffer."""
    holds: tuple[Parts, ...]
    """Where the value of an instruction lies."""
    makes: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    """Each buffer once. Where instructions read the same operands, one tuple stands for all."""
    given: tuple[int, ...]
    """There from the start: parameters."""
    kept: frozenset[int]
    """There at the end: the result."""
    extra: tuple[int, ...]
    """Bytes that the computations which an instruction runs need besides."""
    in_place: tuple[bool, ...]

    @property
    def given_bytes(self) -> int:
        """Bytes that are there from the start."""
        return sum(self.sizes[b] for b in self.given)


def buffers_of(
    computation: Computation,
    bodies: Mapping[str, Computation],
    extra_of: Mapping[str, int],
    taken_elements: frozenset[int] = frozenset(),
) -> Buffers:
    """Return the buffers of a computation.

    `bodies`: those of loops, by name; `extra_of`: bytes that running a computation takes besides
    its parameters; `taken_elements`: arrays of the result that are taken away at once.
    """
    return _Making(computation, bodies, extra_of).buffers(taken_elements)


class _Making:
    """Buffers in the making."""

    def __init__(
        self,
        computation: Computation,
        bodies: Mapping[str, Computation],
        extra_of: Mapping[str, int],
    ) -> None:
        self.computation = computation
        self.bodies = bodies
        self.extra_of = extra_of
        self.sizes: list[int] = []
        self.parts: list[Parts] = []

    def buffers(self, taken_elements: frozenset[int]) -> Buffers:
        instructions = self.computation.instructions
        makes: list[tuple[int, ...]] = []
        reads: list[tuple[int, ...]] = []
        entry_buffers: list[int] = []
        read_by: dict[tuple[int, ...], tuple[int, ...]] = {}
        for instruction in instructions:
            first = len(self.sizes)
            self.parts.append(self._parts(instruction))
            new = tuple(range(first, len(self.sizes)))
            if instruction.parameter_number >= 0:
                entry_buffers += new
                new = ()
            makes.append(new)
            if instruction.opcode == "get-tuple-element":
                # Of one element alone: taken late, it keeps none of the others until then.
                reads.append(self.parts[-1][0])
                continue
            read_buffers = read_by.get(instruction.operands)
            if read_buffers is None:
                every = [b for i in instruction.operands for part in self.parts[i] for b in part]
                read_buffers = read_by[instruction.operands] = tuple(dict.fromkeys(every))
            reads.append(read_buffers)
        root = self.computation.root
        result = enumerate(self.parts[root])
        result_buffers = frozenset(
            b for number, part in result if number not in taken_elements for b in part
        )
        if taken_elements:
            reads[root] = tuple([b for b in reads[root] if b in result_buffers])
        return Buffers(
            tuple(self.sizes),
            tuple(self.parts),
            tuple(makes),
            tuple(reads),
            tuple(entry_buffers),
            result_buffers,
            tuple([self._extra(instruction) for instruction in instructions]),
            tuple([instruction.opcode in _IN_PLACE for instruction in instructions]),
        )

    def _extra(self, instruction: Instruction) -> int:
        if instruction.opcode not in RUNNING:
            return 0
        return max(
            (self.extra_of.get(name, 0) for name in instruction.attributes.called), default=0
        )

    def _parts(self, instruction: Instruction) -> Parts:
        """Return where a value lies; adds the buffers that it is the first in."""
        opcode = instruction.opcode
        if opcode == "constant":
            return ((),)
        if opcode == "tuple":
            return tuple(
                tuple(b for part in self.parts[i] for b in part) for i in instruction.operands
            )
        if opcode == "get-tuple-element":
            tuple_parts = self.parts[instruction.operands[0]]
            index = instruction.attributes.integer("index")
            return (tuple_parts[index],) if index < len(tuple_parts) else tuple_parts
        if opcode in FORWARDING and instruction.operands:
            return self.parts[instruction.operands[0]]
        same = self._unchanged(instruction) if opcode == "while" else frozenset[int]()
        return tuple(
            self.parts[instruction.operands[0]][number] if number in same else (self._new(shape),)
            for number, shape in enumerate(_elements(instruction.shape))
        )

    def _new(self, shape: Shape) -> int:
        self.sizes.append(byte_count(shape))
        return len(self.sizes) - 1

    def _unchanged(self, instruction: Instruction) -> frozenset[int]:
        """Return the elements of a loop's state that every iteration hands on as they are."""
        body = self.bodies.get(instruction.attributes.text("body"))
        known = range(len(self.parts[instruction.operands[0]]))
        return frozenset() if body is None else unchanged_elements(body).intersection(known)


def unchanged_elements(body: Computation) -> frozenset[int]:
    """Return the elements of a loop's state that its body hands on as they are."""
    root, parameter = body.instructions[body.root], body.parameters[0]
    if root.opcode != "tuple":
        return frozenset()
    elements = [body.instructions[i] for i in root.operands]
    return frozenset(
        number
        for number, x in enumerate(elements)
        if x.opcode == "get-tuple-element"
        and x.operands[0] == parameter
        and x.attributes.integer("index") == number
    )


def _elements(shape: Shape) -> tuple[Shape, ...]:
    return shape.elements if isinstance(shape, TupleShape) else (shape,)


def live_bytes(buffers: Buffers, order: Sequence[int]) -> list[int]:
    """Return the bytes that are live while each instruction runs, in an order, from first to last.

    A result may take the place of an operand that dies, where the op computes in place.
    """
    sizes = buffers.sizes
    # What is read together dies no sooner than its last reader is through.
    waiting: dict[int, int] = {}
    left = [0] * len(sizes)
    for read_buffers in buffers.reads:
        readers = waiting[id(read_buffers)] = waiting.get(id(read_buffers), 0) + 1
        if readers == 1:
            for b in read_buffers:
                left[b] += 1
    for b in buffers.kept:
        left[b] += 1
    live = sum([sizes[b] for b in buffers.given if left[b]])
    bytes_live = []
    for at in order:
        dying = largest = bytes_made = 0
        read_buffers = buffers.reads[at]
        waiting[id(read_buffers)] -= 1
        if not waiting[id(read_buffers)]:
            for b in read_buffers:
                left[b] -= 1
                if not left[b]:
                    dying += sizes[b]
                    largest = max(largest, sizes[b])
        for b in buffers.makes[at]:
            bytes_made += sizes[b]
        spared = min(bytes_made, largest) if buffers.in_place[at] else 0
        bytes_live.append(live + bytes_made - spared + buffers.extra[at])
        live += bytes_made - dying
        for b in buffers.makes[at]:
            if not left[b]:
                live -= sizes[b]
    return bytes_live


@dataclass(frozen=True)
class Running:
    """The computations of a module that run on arrays: the entry, loops' and branches'."""

    module: Module

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Their names, callees before callers."""
        reached = {self.module.entry.name}
        order = callees_first(self.module, only_reachable=True)
        for computation in reversed(order):
            if computation.name in reached:
                for instruction in computation.instructions:
                    if instruction.opcode in RUNNING:
                        reached.update(instruction.attributes.called)
        return tuple(c.name for c in order if c.name in reached)


def extra_bytes(buffers: Buffers, order: Sequence[int]) -> int:
    """Return the bytes that running a computation takes besides its parameters."""
    return max(0, max(live_bytes(buffers, order), default=0) - buffers.given_bytes)


def peak_bytes(
    module: Module, sized: Callable[[Computation, Buffers], Buffers] | None = None
) -> int:
    """Return the peak of live bytes of a module's entry in its order.

    `sized`: gives buffers of the entry other sizes.
    """
    extra: dict[str, int] = {}
    peak = 0
    for name in Running(module).names:
        buffers = buffers_of(module.computation[name], module.computation, extra)
        if sized is not None and name == module.entry.name:
            buffers = sized(module.entry, buffers)
        live = live_bytes(buffers, range(len(module.computation[name].instructions)))
        peak = max(live, default=0)
        extra[name] = max(0, peak - buffers.given_bytes)
    return peak
