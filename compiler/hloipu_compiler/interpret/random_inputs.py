"""Random values that suit a module, for its arguments and for constants that the text leaves out.

They are reproducible on every machine: only the raw 64-bit stream of PCG64 is used, whose values
numpy promises to keep, and only exact arithmetic on it.
"""

from dataclasses import replace
from math import log2, prod
from typing import Any

import numpy as np

from hloipu_compiler.interpret.input_roles import InputRole, input_roles, role_at
from hloipu_compiler.interpret.planning.plan import TOKEN_VALUE, Array
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.element_types import Kind
from hloipu_runtime.kernels.core.rounding import round_to
from hloipu_runtime.kernels.core.storage import from_storage, to_storage

SMALL_INTEGERS = 8
"""Integers without a role are drawn from -8..8 (0..8 unsigned): sums and products stay readable."""

MOST_SHUFFLED = 1 << 24
"""Distinct indices are the first of so many in random order, no more."""


def random_arguments(module: Module, seed: int) -> list[Any]:
    """Return one argument for each entry parameter: an array, or a list of leaves for a tuple."""
    source = np.random.PCG64(seed)
    arguments: list[Any] = []
    shapes = module.entry.program_shape.parameters
    for shape, roles in zip(shapes, input_roles(module), strict=True):
        leaves = [
            random_leaf(source, leaf, role)
            for leaf, role in zip(array_leaves(shape), roles, strict=True)
        ]
        arguments.append(leaves[0] if isinstance(shape, ArrayShape) else leaves)
    return arguments


def random_leaf(source: np.random.PCG64, shape: ArrayShape, role: InputRole) -> Array:
    """Draw one array in the user's dtype."""
    kind = shape.element_type.kind
    if not shape.element_type.is_array:
        return TOKEN_VALUE
    count = prod(shape.dimensions)
    if kind is Kind.PREDICATE:
        values: Array = (_raw(source, count) >> np.uint64(63)).astype(bool)
    elif shape.element_type.is_integer:
        values = _integers(source, count, shape, role)
    elif kind is Kind.COMPLEX:
        real, imag = _uniform(source, count), _uniform(source, count)
        values = (real + 1j * imag).astype(shape.element_type.storage)
    else:
        values = _floats(source, count, shape, role)
    values = values.reshape(shape.dimensions)
    if role.positive_definite or role.triangular:
        values = _conditioned(values, definite=role.positive_definite)
        if kind is Kind.FLOAT:
            values = round_to(values, shape.element_type.name)
    return from_storage(values, shape.element_type.name)


def _raw(source: np.random.PCG64, count: int) -> Array:
    return np.asarray(source.random_raw(count), np.uint64).reshape(count)


def _uniform(source: np.random.PCG64, count: int) -> Array:
    """Draw multiples of 2**-23 from [-1, 1): exact in float32 and float64."""
    return (_raw(source, count) >> np.uint64(40)).astype(np.float64) / 2**23 - 1


def _integers(source: np.random.PCG64, count: int, shape: ArrayShape, role: InputRole) -> Array:
    element = shape.element_type
    signed = element.kind is Kind.SIGNED
    storage = np.dtype(element.storage)
    if role.below is not None:
        values = _indices(source, count, max(1, role.below), distinct=role.distinct)
        values = np.sort(values) if role.ascending else values
        return values.astype(storage)
    if element.bits >= 32 and not signed:
        # Unsigned words are mostly random state or hashes: draw all of their bits.
        return (_raw(source, count) >> np.uint64(64 - element.bits)).astype(storage)
    highest = min(SMALL_INTEGERS, 2 ** (element.bits - signed) - 1)
    lowest = -min(SMALL_INTEGERS, 2 ** (element.bits - 1)) if signed else 0
    span = np.uint64(highest - lowest + 1)
    drawn = (_raw(source, count) % span).astype(np.int64) + lowest
    if role.positive:
        drawn = np.maximum(np.abs(drawn), 1)
    if role.divisor:
        drawn[drawn == 0] = 1
    return drawn.astype(storage)


def _indices(source: np.random.PCG64, count: int, below: int, *, distinct: bool) -> Array:
    """Draw from 0 to below `below`; distinct where asked, if there are enough."""
    if distinct and count <= below <= MOST_SHUFFLED:
        shuffled: Array = np.argsort(_raw(source, below), kind="stable")[:count]
        return shuffled
    return _raw(source, count) % np.uint64(below)


def _floats(source: np.random.PCG64, count: int, shape: ArrayShape, role: InputRole) -> Array:
    values = _uniform(source, count)
    if role.positive:
        values = np.abs(values) + 0.5
    elif role.divisor:
        values = np.copysign(np.abs(values) + 0.5, values)
    elif role.terms > 1:
        # So that sums of products have the size of their data, however deep a model is: weights
        # are divided by the root of the number of terms, to a power of two, which is exact.
        values = values * 2.0 ** -round(log2(role.terms) / 2)
    stored = values.astype(shape.element_type.storage)
    return round_to(stored, shape.element_type.name)


def _conditioned(values: Array, *, definite: bool) -> Array:
    """Make square matrices symmetric where asked, and their diagonals dominate."""
    if values.ndim < 2 or values.shape[-1] != values.shape[-2]:
        return values
    if definite:
        values = (values + np.conj(np.swapaxes(values, -1, -2))) / 2
    raised: Array = values + np.eye(values.shape[-1]) * values.shape[-1]
    return raised.astype(values.dtype)


def fill_elided(module: Module, seed: int) -> Module:
    """Return the module with random values in place of elided array constants.

    The values suit what the constant is used for (indices in range and so on), but they are not
    the program's own: results mean nothing, only times, sizes and agreement do.
    """
    source = np.random.PCG64(seed)

    def filled(computation: Computation, position: int, instruction: Instruction) -> Instruction:
        if (
            instruction.literal is None
            or not instruction.literal.is_elided
            or not isinstance(instruction.shape, ArrayShape)
        ):
            return instruction
        role = role_at(module, (computation.name, position, 0))
        (leaf,) = array_leaves(instruction.shape)
        values = random_leaf(source, leaf, role)
        return instruction._replace(
            literal=Literal(array=to_storage(values, leaf.element_type.name))
        )

    computations = tuple(
        replace(c, instructions=tuple(filled(c, i, op) for i, op in enumerate(c.instructions)))
        for c in module.computations
    )
    return replace(module, computations=computations)
