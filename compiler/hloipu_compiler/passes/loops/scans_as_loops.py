"""Writes scans as ops that are divided dimension by dimension: running totals, or loops.

scan(x, i), to_apply: (t, c) -> (t + c, t + c)     reduce-window(x) + i
scan of any other body, or not associative         while: a slice of each input in each turn
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hloipu_compiler.ir.attributes import Attributes, SliceRange, Value, Window
from hloipu_compiler.ir.graph import Computation, Instruction, Module, element_of
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, array_shape, leaves_of
from hloipu_compiler.passes.algebra.expand_bitcasts import plain
from hloipu_compiler.passes.algebra.movement import spread
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import Draft, rewritten
from hloipu_runtime.element_types import ELEMENT_TYPES, ElementType
from hloipu_runtime.kernels.core.monoids import identity
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.windows_geometry import WindowDimension

_TOTALS = frozenset("add multiply maximum minimum and or".split())
_S32, _PRED = ELEMENT_TYPES["s32"], ELEMENT_TYPES["pred"]


def scans_as_loops(module: Module) -> Module:
    """Return a verified module without scans; the same, where it has none."""
    if not any(x.opcode == "scan" for c in module.computations for x in c.instructions):
        return module
    names = Names(module.computation)
    computations: list[Computation] = []
    for old in module.computations:
        bodies: list[Computation] = []

        def scan(draft: Draft, x: Instruction, bodies: list[Computation] = bodies) -> int:
            return _Scan(module, draft, x, names, bodies).written()

        new = rewritten(module, old, {"scan": scan})
        computations += [*bodies, new]
    entry = next(i for i, c in enumerate(computations) if c.name == module.entry.name)
    return replace(module, computations=tuple(computations), entry_position=entry)


class _Scan:
    """One scan in the making."""

    def __init__(
        self, module: Module, draft: Draft, x: Instruction, names: Names, bodies: list[Computation]
    ) -> None:
        self.draft, self.x, self.names, self.bodies = draft, x, names, bodies
        self.body = module.computation[x.attributes.text("to_apply")]
        (self.d,) = x.attributes.integers("dimensions")
        self.inputs = len(x.operands) - x.attributes.integer("num_carries")
        self.results = leaves_of(x.shape)
        self.is_reverse = x.attributes.flag("is_reverse")
        stacked = [*(draft.shape(i) for i in x.operands[: self.inputs]), *self.results]
        assert isinstance(stacked[0], ArrayShape)
        self.length = stacked[0].dimensions[self.d]

    def written(self) -> int:
        """Write it; return where its value is."""
        total = self._total()
        leaves = self._loop() if total is None else self._running(total)
        said = {k: v for k, v in self.x.attributes.items() if k == "sharding"}
        if not isinstance(self.x.shape, TupleShape):
            op = self.draft.made[leaves[0]]
            self.draft.made[leaves[0]] = op._replace(attributes=op.attributes.replaced(**said))
            return leaves[0]
        return self.draft.add(self.x, "tuple", self.x.shape, leaves, Attributes(said))

    def _total(self) -> str | None:
        """Return what a running total combines with; None: it is none."""
        root = self.body.instructions[self.body.root]
        if (self.inputs, len(self.x.operands), len(self.results)) != (1, 2, 2) or not self.length:
            return None
        if root.opcode != "tuple" or len(set(root.operands)) != 1:
            return None
        op = self.body.instructions[root.operands[0]]
        alike = {str(x.shape) for x in (op, *(self.body.instructions[i] for i in op.operands))}
        takes_both = sorted(op.operands) == sorted(self.body.parameters)
        # In another order sums and products of floats round otherwise, or overflow on the way.
        in_any_order = (
            op.opcode not in ("add", "multiply")
            or self.results[0].element_type.is_integer
            or self.x.attributes.flag("is_associative")
        )
        is_total = op.opcode in _TOTALS and takes_both and len(alike) == 1 and in_any_order
        return op.opcode if is_total else None

    def _running(self, opcode: str) -> list[int]:
        given, first = self.x.operands
        shape, d, n = self.results[0], self.d, self.length
        kind, rank = shape.element_type, len(shape.dimensions)
        scalar = plain(kind, ())
        parts = [
            Instruction(s, "parameter", scalar, parameter_number=i) for i, s in enumerate("ab")
        ]
        parts.append(Instruction("both", opcode, scalar, (0, 1)))
        reducer = self._computation(f"{opcode}.{kind.name}", parts)
        windows = [WindowDimension(1)] * rank
        windows[d] = WindowDimension(
            n, pad_low=(n - 1) * (not self.is_reverse), pad_high=(n - 1) * self.is_reverse
        )
        neutral = self._constant(kind, identity(opcode, storage_dtype(kind.name)))
        stated: dict[str, Value] = {"window": Window(tuple(windows)), "to_apply": reducer}
        totals = self._add("reduce-window", shape, (given, neutral), Attributes(stated, (reducer,)))
        others = tuple(i for i in range(rank) if i != d)
        begun = spread(self.draft, self.x, first, shape, others)
        every = self._add(opcode, shape, (begun, totals))
        last = 0 if self.is_reverse else n - 1
        ranges = [SliceRange(0, size) for size in shape.dimensions]
        ranges[d] = SliceRange(last, last + 1)
        end = self._add("slice", self._row(shape), (every,), Attributes({"slice": tuple(ranges)}))
        return [every, self._add("reshape", self.results[1], (end,))]

    def _loop(self) -> list[int]:
        carries, outputs = self.x.operands[self.inputs :], self.results
        outputs = outputs[: len(outputs) - len(carries)]
        start = [self._constant(_S32, 0), *self.x.operands]
        for shape in outputs:
            zero = self._constant(shape.element_type, 0)
            start.append(spread(self.draft, self.x, zero, shape))
        state = TupleShape(tuple(map(self.draft.shape, start)))
        called = self._computation("turn", self._turn(state, len(outputs)))
        parts = [Instruction("state", "parameter", state, parameter_number=0)]
        parts.append(element_of("i", 0, 0, state.elements[0]))
        parts.append(
            Instruction("end", "constant", plain(_S32, ()), literal=Literal(str(self.length)))
        )
        less = Attributes({"direction": "LT"})
        parts.append(Instruction("goes_on", "compare", plain(_PRED, ()), (1, 2), less))
        goes_on = self._computation("goes_on", parts)
        stated: dict[str, Value] = {"condition": goes_on, "body": called}
        given = self._add("tuple", state, start)
        loop = self._add("while", state, (given,), Attributes(stated, (goes_on, called)))
        ends = [*range(len(start) - len(outputs), len(start))]
        ends += range(1 + self.inputs, 1 + self.inputs + len(carries))
        return [
            self._add("get-tuple-element", state.elements[i], (loop,), Attributes({"index": i}))
            for i in ends
        ]

    def _turn(self, state: TupleShape, outputs: int) -> list[Instruction]:
        ops = [Instruction("state", "parameter", state, parameter_number=0)]
        scalar = plain(_S32, ())

        def add(opcode: str, shape: Shape, operands: Sequence[int], **said: Value) -> int:
            called = (str(said["to_apply"]),) if "to_apply" in said else ()
            attributes = Attributes(said, called)
            ops.append(Instruction(f"v{len(ops)}", opcode, shape, tuple(operands), attributes))
            return len(ops) - 1

        def number(n: int) -> int:
            ops.append(Instruction(f"v{len(ops)}", "constant", scalar, literal=Literal(str(n))))
            return len(ops) - 1

        parts = [
            add("get-tuple-element", shape, (0,), index=i) for i, shape in enumerate(state.elements)
        ]
        after = add("add", scalar, (parts[0], number(1)))
        at = parts[0]
        if self.is_reverse:
            at = add("subtract", scalar, (number(self.length - 1), at))
        zero = number(0)

        def starts(shape: ArrayShape) -> list[int]:
            return [at if i == self.d else zero for i in range(len(shape.dimensions))]

        first_carry = 1 + self.inputs
        rows = []
        for i in range(1, first_carry):
            shape, own = state.elements[i], self.body.parameters[i - 1]
            assert isinstance(shape, ArrayShape)
            row = self._row(shape)
            cut = add(
                "dynamic-slice", row, (parts[i], *starts(shape)), dynamic_slice_sizes=row.dimensions
            )
            rows.append(add("reshape", self.body.instructions[own].shape, (cut,)))
        root = self.body.instructions[self.body.root].shape
        end = len(parts) - outputs
        called = add("call", root, (*rows, *parts[first_carry:end]), to_apply=self.body.name)
        values = [called]
        if isinstance(root, TupleShape):
            values = [
                add("get-tuple-element", shape, (called,), index=i)
                for i, shape in enumerate(root.elements)
            ]
        stacks = []
        for whole, value in zip(parts[end:], values, strict=False):
            shape = array_shape(ops[whole].shape)
            row_at = add("reshape", self._row(shape), (value,))
            stacks.append(add("dynamic-update-slice", shape, (whole, row_at, *starts(shape))))
        add("tuple", state, (after, *parts[1:first_carry], *values[outputs:], *stacks))
        return ops

    # ---- ops --------------------------------------------------------------------------------

    def _row(self, shape: ArrayShape) -> ArrayShape:
        sizes = [1 if i == self.d else n for i, n in enumerate(shape.dimensions)]
        return plain(shape.element_type, tuple(sizes))

    def _add(
        self, opcode: str, shape: Shape, operands: Sequence[int], said: Attributes | None = None
    ) -> int:
        return self.draft.add(self.x, opcode, shape, operands, said or Attributes({}))

    def _constant(self, kind: ElementType, value: object) -> int:
        array = np.asarray(value).astype(storage_dtype(kind.name))
        return self.draft.add(self.x, "constant", plain(kind, ()), literal=Literal(array=array))

    def _computation(self, stem: str, ops: Sequence[Instruction]) -> str:
        name = self.names.fresh(f"{self.x.name}.{stem}")
        self.bodies.append(Computation(name, tuple(ops), len(ops) - 1))
        return name
