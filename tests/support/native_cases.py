"""Expressions of one op, by numpy and by compiled kernels, whose results must have equal bits."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.expression import plan_of
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.core.native_lowering import LOWERINGS, lowered
from hloipu_runtime.codelets.core.native_running import Compile, Prepared, layout_of, whole_call
from hloipu_runtime.codelets.core.native_stages import KernelStage, Staged, staged
from hloipu_runtime.element_types import ELEMENT_TYPES, GRIDS
from hloipu_runtime.kernels.core.rounding import round_to
from hloipu_runtime.kernels.core.storage import from_bits, storage_dtype
from hloipu_runtime.kernels.elementwise.binary import binary_has_meaning
from hloipu_runtime.kernels.elementwise.unary import unary_has_meaning
from hloipu_runtime.kernels.native.combining import combine_natively, combining_kernel
from hloipu_runtime.kernels.native.llvm import CodePointer, the_compiler
from hloipu_runtime.kernels.native.loop import text_of
from hloipu_runtime.kernels.native.settings import Settings, native_kernels
from hloipu_runtime.kernels.native.targets import Targets
from hloipu_runtime.kernels.scatter_rows import combine_rows

Array = np.ndarray[Any, Any]

FLOATS = ("f32", "f64", *GRIDS)
INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")
TYPES = (*FLOATS, *INTEGERS, "pred")
AT_ONCE = 1 << 40
"""So much work that compiling pays."""
_OTHER = {"select", "clamp", "compare", "convert", "bitcast-convert"}


def every_op(element_type: str) -> Expression:
    """Return all that kernels know to do with a type, as results of one expression.

    Its operands are three of the type and a pred; extrema with constants have shorter forms.
    """
    nodes: list[Node] = []
    results: list[int] = []

    def add(op: str, arguments: tuple[int, ...], result: str, **parameters: str) -> int:
        nodes.append(Node(op, arguments, result, tuple(parameters.items())))
        if op != "constant":
            results.append(3 + len(nodes))
        return 3 + len(nodes)

    for op in LOWERINGS:
        if op in _OTHER:
            continue
        if op == "is-finite" and ELEMENT_TYPES[element_type].is_float:
            add(op, (0,), "pred")
        elif unary_has_meaning(op, element_type):
            add(op, (0,), element_type)
        elif binary_has_meaning(op, element_type):
            add(op, (0, 1), element_type)
    add("select", (3, 0, 1), element_type)
    for direction in ("EQ", "NE", "GE", "GT", "LE", "LT"):
        add("compare", (0, 1), "pred", direction=direction)
        if ELEMENT_TYPES[element_type].is_float:
            add("compare", (0, 1), "pred", direction=direction, type="TOTALORDER")
    if element_type != "pred":
        add("clamp", (0, 1, 2), element_type)
    for other in TYPES:
        add("convert", (0,), other)
        if ELEMENT_TYPES[element_type].bits == ELEMENT_TYPES[other].bits:
            add("bitcast-convert", (0,), other)
    if ELEMENT_TYPES[element_type].is_float:
        nan = "nan:0x7ff8000000000000" if element_type == "f64" else "nan:0x7fc00000"
        for text in ("0x0p+0", "-0x0p+0", "0x1p-1", "-0x1p+0", "inf", nan):
            constant = add("constant", (), element_type, value=text)
            for op in ("maximum", "minimum"):
                add(op, (0, constant), element_type)
                add(op, (constant, 1), element_type)
    return Expression((element_type,) * 3 + ("pred",), tuple(nodes), tuple(results))


def all_values(element_type: str) -> Array:
    """Return every value of a type of at most 16 bits, in storage form."""
    bits = ELEMENT_TYPES[element_type].bits
    dtype = np.uint8 if bits <= 8 else np.uint16
    if element_type == "pred":
        return np.array([False, True])
    return from_bits(np.arange(1 << bits, dtype=dtype), element_type)


def some_values(element_type: str, count: int, generator: np.random.Generator) -> Array:
    """Return random values: any bits, those of moderate sizes, and special ones."""
    dtype = storage_dtype(element_type)
    if element_type == "pred":
        return generator.integers(0, 2, count).astype(np.bool_)
    any_bits = generator.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)
    if dtype.kind != "f":
        small = generator.integers(0, 70, count).astype(dtype)
        limits = np.iinfo(dtype)
        special = np.array([0, 1, 2, limits.min, limits.max], dtype)
        special = np.append(special, ~dtype.type(0))  # -1 where there are signs
        mixed = np.where(generator.random(count) < 0.5, any_bits, small)
        return np.where(generator.random(count) > 0.8, generator.choice(special, count), mixed)
    moderate = (
        np.exp2(generator.uniform(-20, 8, count)) * generator.choice([-1, 1], count)
    ).astype(dtype)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -0.5, 2.0**-126, 2.0**-140], dtype)
    picked = generator.random(count)
    mixed = np.where(picked < 0.5, any_bits, moderate)
    mixed = np.where(picked > 0.97, generator.choice(special, count), mixed)
    return round_to(mixed, element_type) if element_type in GRIDS else mixed


def by_numpy(expression: Expression, arrays: Sequence[Array]) -> list[Array]:
    """Return results without compiled kernels."""
    with native_kernels(Settings(is_on=False)):
        return [np.array(x) for x in plan_of(expression).run(arrays)]  # of their own, as they lie


def by_kernels(
    expression: Expression, arrays: Sequence[Array], places: Sequence[Array] = ()
) -> list[Array]:
    """Return results by compiled kernels, in arrays of their own or where they are to be."""
    compiler = the_compiler()
    assert compiler is not None
    stages = staged(lowered(expression, halves=compiler.halves))

    def compile(
        stage: KernelStage,
        shared: tuple[bool, ...],
        planed: tuple[int, ...],
        *,
        boxed: bool = False,
    ) -> CodePointer | None:
        kernel = stage.kernel(shared, planed, boxed=boxed)
        return compiler.code(lambda name: text_of(kernel, name), None, compiles=True)

    shape = np.broadcast_shapes(*[x.shape for x in arrays])
    types = expression.result_types
    made = [*places] or [np.empty(shape, storage_dtype(x)) for x in types]
    found = layout_of(stages, shape, [*arrays, *made])
    assert found is not None
    Prepared(stages, found, compile).run([*arrays, *made], shape)
    _same_in_one_call(stages, compile, arrays, made)
    return made


def _same_in_one_call(
    stages: Staged, compile: Compile, arrays: Sequence[Array], made: Sequence[Array]
) -> None:
    """Where an expression is one kernel, run it as one call too: it is to compute the same bits."""
    whole = whole_call(stages, [x.shape for x in arrays], made[0].shape, compile)
    if whole is not None:
        again = whole(
            [np.ascontiguousarray(x).reshape(x.shape) for x in arrays], [None] * len(made)
        )
        assert again is not None
        assert [differences(x, y) for x, y in zip(again, made, strict=True)] == [0] * len(made)


def combined_rows(
    table: Array, targets: Targets, rows: Array, monoid: str, element_type: str
) -> tuple[Array, Array]:
    """Return rows combined into a table by numpy, and by the compiled kernel."""
    bits = 8 * targets.numbers.itemsize
    plain, fast = table.copy(), table.copy()
    with native_kernels(Settings(is_on=False)):
        combine_rows([plain], targets, [rows], monoid, [element_type], False)
    with native_kernels(Settings(keeps=False)):
        kernel = combining_kernel(monoid, element_type, bits, int(table.shape[1] == 1))
        assert kernel is not None
        assert kernel.code_for(AT_ONCE)
        assert combine_natively(fast, targets, rows, monoid, element_type)
    return plain, fast


def monoids_of(element_type: str) -> tuple[str, ...]:
    """Return those whose rows kernels combine."""
    every = ("add", "multiply", "minimum", "maximum", "and", "or", "xor")
    return every[:4] if storage_dtype(element_type).kind == "f" else every


def differences(first: Array, second: Array) -> int:
    """Return how many elements have other bits; one NaN is like another."""
    if first.dtype.kind == "c":
        parts = ((x.real, x.imag) for x in (first, second))
        return sum(differences(a, b) for a, b in zip(*parts, strict=True))
    if first.dtype.kind == "f":
        bits = np.dtype(f"u{first.dtype.itemsize}")
        same = np.ascontiguousarray(first).view(bits) == np.ascontiguousarray(second).view(bits)
        same |= np.isnan(first) & np.isnan(second)
    else:
        same = first == second
    return int(np.count_nonzero(~same))


def wrong_nodes(
    expression: Expression, first: Sequence[Array], second: Sequence[Array]
) -> dict[Node, int]:
    """Return how many elements of which results have other bits."""
    count = len(expression.operand_types)
    found = {
        expression.nodes[x - count]: differences(a, b)
        for x, a, b in zip(expression.results, first, second, strict=True)
    }
    return {node: wrong for node, wrong in found.items() if wrong}
