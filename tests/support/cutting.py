"""Cuts one instruction along a factor: its operands, by shares; joins or combines what comes out.

A referee for dimension rules: the verifier says whether the op on parts is an op at all, and the
interpreter what it computes.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, product
from math import prod
from typing import Any

import numpy as np

from hloipu_compiler.errors import VerifyError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import evaluate_participants, participants_of
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.ir.attributes import Attributes, ConvolutionLabels, SliceRange, Window
from hloipu_compiler.ir.dimension_rules import dimension_rule
from hloipu_compiler.ir.factors import Dimensions, FactorKind
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, leaves_of
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UsageError

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]
Place = tuple[int, int]
"""An array, operands before results, and one of its dimensions."""
FAULTS = (VerifyError, UsageError, ValueError)
"""What is raised of parts that are no op; the last two by the interpreter."""
_OTHER_SEEDS = range(1, 20)
"""So that no lucky draw makes a rule look weak."""


class Cutting:
    """The root of a module, an op on parameters, and what it computes of random arguments."""

    def __init__(self, text: str, seed: int = 0) -> None:
        self.text, self.seed = text, seed
        self.module = parse(text)
        verify(self.module)
        entry = self.module.entry
        self.x = entry.instructions[entry.root]
        self.shapes = [entry.instructions[i].shape for i in self.x.operands]
        leaves = [leaf for shape in (*self.shapes, self.x.shape) for leaf in leaves_of(shape)]
        self.sizes = [leaf.dimensions for leaf in leaves]
        self.first_result = sum(len(leaves_of(shape)) for shape in self.shapes)
        self.results = range(self.first_result, len(self.sizes))
        self.rule = dimension_rule(self.x, self.shapes)
        self.dimensions: list[Dimensions] = [*self.rule.operands, *self.rule.results]

    @cached_property
    def participants(self) -> tuple[int, int]:
        """Replicas and partitions."""
        return participants_of(self.module)

    @cached_property
    def arguments(self) -> list[list[Array]]:
        """For each participant the operands' leaves: whole numbers, so that sums are exact."""
        alone = self._resized(self.sizes)
        count = prod(self.participants)
        return [self._drawn(alone, count * self.seed + n) for n in range(count)]

    @cached_property
    def whole(self) -> list[list[Array]]:
        """What each participant computes, uncut."""
        return self.computed(self.sizes, self.arguments)

    def _drawn(self, module: Module, seed: int) -> list[Array]:
        leaves: list[Array] = []
        for argument in random_arguments(module, seed):
            leaves += argument if isinstance(argument, list) else [argument]
        if self.x.opcode != "cholesky":
            leaves = [_whole_numbers(leaf) for leaf in leaves]
        if self.x.opcode == "triangular-solve":  # exact, too
            one: Array = np.eye(leaves[0].shape[-1], dtype=leaves[0].dtype)
            leaves[0] = np.where(one == 1, one, leaves[0])
        if self.x.opcode == "ragged-all-to-all":  # rows that are there: the first of each
            for number, first in enumerate((0, 1, 0, 1), 2):
                leaves[number] = np.full_like(leaves[number], first)
        if self.x.opcode == "reduce":  # each part begins with it
            body = self.module.computation[self.x.attributes.text("to_apply")]
            root = body.instructions[body.root]
            roots = root.operands if root.opcode == "tuple" else (body.root,)
            for number, at in enumerate(roots, len(leaves) // 2):
                is_product = body.instructions[at].opcode == "multiply"
                leaves[number] = np.full_like(leaves[number], is_product)
        return leaves

    def computed(
        self, sizes: Sequence[Sizes], arguments: Sequence[Sequence[Array]]
    ) -> list[list[Array]]:
        """Compute the op on arrays of these sizes; VerifyError where that is no op."""
        module = self._resized(sizes)
        verify(module)
        given = [list(self._nested(leaves)) for leaves in arguments]
        replicas, partitions = self.participants
        return evaluate_participants(module, given, replicas=replicas, partitions=partitions)

    def _nested(self, leaves: Sequence[Array]) -> Iterator[object]:
        at = 0
        for shape in self.shapes:
            count = len(leaves_of(shape))
            yield leaves[at] if isinstance(shape, ArrayShape) else list(leaves[at : at + count])
            at += count

    def _resized(self, sizes: Sequence[Sizes]) -> Module:
        """Return a module of the op alone, with other sizes."""
        each = iter(sizes)
        shapes = [_with_sizes(shape, each) for shape in self.shapes]
        result = _with_sizes(self.x.shape, each)
        inputs = [
            Instruction(f"p{n}", "parameter", shape, parameter_number=n)
            for n, shape in enumerate(shapes)
        ]
        root = self.x._replace(
            shape=result, operands=tuple(range(len(inputs))), attributes=self._attributes(sizes)
        )
        entry = Computation("main", (*inputs, root), len(inputs))
        others = tuple(c for c in self.module.computations if c is not self.module.entry)
        header = {k: v for k, v in self.module.attributes.items() if k.endswith(("count", "ions"))}
        return Module("part", (*others, entry), len(others), Attributes(header))

    def _attributes(self, sizes: Sequence[Sizes]) -> Attributes:
        """Return the attributes that state sizes for other ones; what took all takes all."""
        old, attributes = self.sizes, self.x.attributes
        changes: dict[str, Any] = {}
        if "slice" in attributes:
            changes["slice"] = tuple(
                SliceRange(0, new) if r == (0, size, 1) else r
                for r, size, new in zip(attributes["slice"], old[0], sizes[0], strict=True)  # type: ignore[arg-type]
            )
        if "dynamic_slice_sizes" in attributes:
            changes["dynamic_slice_sizes"] = sizes[-1]
        if "slice_sizes" in attributes:
            changes["slice_sizes"] = tuple(
                new if n == size else n
                for n, size, new in zip(
                    attributes.integers("slice_sizes"), old[0], sizes[0], strict=True
                )
            )
        labels = attributes.get("dim_labels")
        if isinstance(labels, ConvolutionLabels):
            features = sizes[0][labels.lhs.index("f")], sizes[1][labels.rhs.index("i")]
            batches = sizes[0][labels.lhs.index("b")], sizes[2][labels.out.index("b")]
            for key, (a, b) in (("feature_group_count", features), ("batch_group_count", batches)):
                if key in attributes:
                    changes[key] = a // b
            if attributes.window().dimensions:
                windows = (
                    w.__class__(
                        sizes[1][labels.rhs.index(str(n))], w.stride, w.pad_low, w.pad_high,
                        w.base_dilation, w.window_dilation, w.reversal,
                    )
                    for n, w in enumerate(attributes.window().dimensions)
                )  # fmt: skip
                changes["window"] = Window(tuple(windows))
        return attributes.replaced(**changes)

    # Cuts

    def factor_fault(self, number: int) -> str:
        """Say what is wrong with a factor that is passed through or reduced; "" if nothing."""
        factor = self.rule.factors[number]
        if self._uneven(number):
            return "factors do not make the dimension"
        axes = [self._axis(array, number) for array in range(len(self.sizes))]
        if any(axes[r] for r in self.results) != (factor.kind is FactorKind.PASS_THROUGH):
            return "results have the factors that are passed through, and no others"
        return self._either_fault(axes, factor.size)

    def _uneven(self, number: int) -> bool:
        """Whether the factors of a dimension that has this one do not multiply to its size."""
        return any(
            number in factors and prod(self.rule.factors[f].size for f in factors) != size
            for sizes, dimensions in zip(self.sizes, self.dimensions, strict=True)
            for size, factors in zip(sizes, dimensions, strict=True)
        )

    def _axis(self, array: int, number: int) -> "_Axis | None":
        """Return a factor as an axis of an array whose dimensions are taken apart into factors."""
        for d, factors in enumerate(self.dimensions[array]):
            if number in factors:
                sizes = [self.rule.factors[f].size for f in factors]
                return _Axis(d, tuple(sizes), factors.index(number))
        return None

    def weaker_than_need_be(self) -> Iterator[list[Place]]:
        """Yield dimensions of equal size that the rule does not cut though they can be.

        With results as if passed through, else as if reduced; and of other arguments, too.
        """
        settled = {
            (array, d)
            for array, dimensions in enumerate(self.dimensions)
            for d, factors in enumerate(dimensions)
            if self.rule.kind(factors[0]) in (FactorKind.PASS_THROUGH, FactorKind.REDUCTION)
        }
        for size in {n for sizes in self.sizes for n in sizes if n > 1}:
            free = [
                [
                    d
                    for d, n in enumerate(sizes)
                    if n == size and (array, d) not in settled
                ]
                for array, sizes in enumerate(self.sizes)
            ]  # fmt: skip
            for chosen in product(*([-1, *dimensions] for dimensions in free)):
                places = [(a, d) for a, d in enumerate(chosen) if d >= 0]
                if not places:
                    continue
                axes = [_Axis(d, (size,), 0) if d >= 0 else None for d in chosen]
                others = (Cutting(self.text, n) for n in _OTHER_SEEDS)
                if not any(c._either_fault(axes, size) for c in chain((self,), others)):
                    yield places

    def _either_fault(self, axes: Sequence["_Axis | None"], size: int) -> str:
        joins = any(axes[r] for r in self.results)
        return self._cut_fault(axes, size) if joins else self._combined_fault(axes, size)

    def _cut_fault(self, axes: Sequence["_Axis | None"], size: int) -> str:
        try:
            parts = [self._part(axes, rows) for rows in ((0, 1), (1, size))]
        except FAULTS as error:
            return f"a part is no op: {error}"
        for participant, whole in enumerate(self.whole):
            for number, expected in enumerate(whole):
                axis = axes[self.first_result + number]
                made = [part[participant][number] for part in parts]
                again = [axis.joined(made)] if axis is not None else made
                if any(x.tobytes() != expected.tobytes() for x in again):
                    return f"result {number} is {again}, uncut it is {expected}"
        return ""

    def _combined_fault(self, axes: Sequence["_Axis | None"], size: int) -> str:
        ranges = (0, 1), (1, size)
        try:
            if self.x.opcode == "scatter":
                made = self._part(axes, ranges[0])
                given = [
                    [*results, *leaves[len(results) :]]
                    for results, leaves in zip(made, self.arguments, strict=True)
                ]
                made = self._part(axes, ranges[1], given)
            else:
                parts = [self._part(axes, rows) for rows in ranges]
                made = [self._together(*both) for both in zip(*parts, strict=True)]
        except FAULTS as error:
            return f"a part is no op: {error}"
        for results, whole in zip(made, self.whole, strict=True):
            for result, expected in zip(results, whole, strict=True):
                if result.tobytes() != expected.tobytes():
                    return f"combined it is {result}, uncut {expected}"
        return ""

    def _together(self, a: list[Array], b: list[Array]) -> list[Array]:
        """Combine two parts' results: add them, or reduce them once more."""
        if self.x.opcode != "reduce":
            return [(x + y).astype(x.dtype) for x, y in zip(a, b, strict=True)]
        stacks = [np.stack([x, y]) for x, y in zip(a, b, strict=True)]
        sizes = [*(x.shape for x in stacks), *((),) * len(a), *(x.shape for x in a)]
        over = Cutting.__new__(Cutting)
        over.__dict__.update(
            self.__dict__,
            x=self.x._replace(attributes=self.x.attributes.replaced(dimensions=(0,))),
        )
        return over.computed(sizes, [[*stacks, *self.arguments[0][len(a) :]]])[0]

    def _part(
        self,
        axes: Sequence["_Axis | None"],
        rows: tuple[int, int],
        arguments: Sequence[Sequence[Array]] = (),
    ) -> list[list[Array]]:
        """Compute the op on a range of some axes."""
        count = rows[1] - rows[0]
        sizes = [
            axis.resized(own, count) if axis is not None else own
            for axis, own in zip(axes, self.sizes, strict=True)
        ]
        given = [
            [
                axis.part(leaf, rows) if axis is not None else leaf
                for axis, leaf in zip(axes, leaves, strict=False)
            ]
            for leaves in arguments or self.arguments
        ]
        return self.computed(sizes, given)


class _Axis:
    """One factor of a dimension."""

    def __init__(self, dimension: int, sizes: Sizes, place: int) -> None:
        self.dimension, self.sizes, self.place = dimension, sizes, place
        self.axis = dimension + place

    def resized(self, own: Sizes, count: int) -> Sizes:
        """Return an array's sizes with so many of the factor."""
        n = own[self.dimension] // self.sizes[self.place] * count
        return (*own[: self.dimension], n, *own[self.dimension + 1 :])

    def part(self, array: Array, rows: tuple[int, int]) -> Array:
        """Return a range of the factor, all of the others."""
        apart = self._apart(array, self.sizes)
        taken = apart[(slice(None),) * self.axis + (slice(*rows),)]
        return np.ascontiguousarray(taken.reshape(self.resized(array.shape, rows[1] - rows[0])))

    def joined(self, parts: Sequence[Array]) -> Array:
        """Return the whole of two parts, the first of which has one of the factor."""
        one, rest = parts
        n = self.sizes[self.place]
        if one.shape[self.dimension] * (n - 1) != rest.shape[self.dimension]:
            return one
        own = [
            (*self.sizes[: self.place], k, *self.sizes[self.place + 1 :]) for k in (1, n - 1)
        ]  # fmt: skip
        apart = [self._apart(x, sizes) for x, sizes in zip(parts, own, strict=True)]
        shape = (*one.shape[: self.dimension], prod(self.sizes), *one.shape[self.dimension + 1 :])
        joined: Array = np.concatenate(apart, self.axis)
        return joined.reshape(shape)

    def _apart(self, array: Array, sizes: Sizes) -> Array:
        d = self.dimension
        return array.reshape(*array.shape[:d], *sizes, *array.shape[d + 1 :])


def _with_sizes(shape: Shape, sizes: Iterator[Sizes]) -> Shape:
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(_with_sizes(each, sizes) for each in shape.elements))
    assert isinstance(shape, ArrayShape)
    return ArrayShape(shape.element_type, next(sizes), None, shape.dynamic)


def _whole_numbers(values: Array) -> Array:
    if values.dtype.kind in "biu":
        return values
    if "e8m0" in values.dtype.name:  # powers of two only
        whole: Array = np.nan_to_num(values.astype(np.float64), nan=2.0)
    elif values.dtype.kind == "c":
        whole = np.rint(values.real * 4) + 1j * np.rint(values.imag * 4)
    else:
        whole = np.rint(values.astype(np.float64) * 4)
    return whole.astype(values.dtype)
