"""Plans expressions: binds each node to its kernel and an output buffer."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.constants import value_of
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.core.expression_plan import Plan
from hloipu_runtime.codelets.core.expression_rewriting import (
    FLOORED,
    LOOKED_UP,
    MASKED,
    read_nodes,
    with_clamps,
    with_floored_divisions,
    with_masks,
    with_tables,
)
from hloipu_runtime.codelets.core.expression_steps import (
    STEPS,
    WRITES_OUT,
    OrZero,
    Plain,
    Step,
    never_warns,
    or_zero,
)
from hloipu_runtime.codelets.core.expression_walk import LookedUp, Move, Walk, operation
from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.rounding import is_narrow
from hloipu_runtime.kernels.core.storage import storage_dtype


@lru_cache(maxsize=4096)
def plan_of(expression: Expression) -> Plan:
    """Return how to compute an expression; UsageError E3091 where the data is none."""
    _check(expression)
    nodes, chains = with_tables(expression, [_work(expression, x) for x in expression.nodes])
    if not chains:
        return planned(expression)
    tabled = read_nodes(expression, nodes)
    return replace(planned(expression), by_tables=_planned(expression, tabled, chains))


@lru_cache(maxsize=4096)
def planned(expression: Expression) -> Plan:
    """Return how to compute an expression without tables."""
    return _planned(expression, with_clamps(with_floored_divisions(expression)), ())


def _planned(given: Expression, expression: Expression, chains: Sequence[Expression]) -> Plan:
    """Return how to compute a given expression as another one, in which there may be chains."""
    walk, masked = _walk_of(expression, chains), with_masks(expression)
    return Plan(
        *walk,
        masked=walk if masked is expression else _walk_of(masked, chains),
        warns=not all(
            never_warns(
                node.op,
                [expression.type_of(number) for number in node.arguments],
                node.element_type,
            )
            for node in expression.nodes
        ),
        walks=len(expression.nodes) > 1 and not _is_one_ufunc(walk.moves),
        expression=given,
        gain=_gain(given),
        saved_calls=sum(node.op in IN_KERNELS for node in given.nodes),
        is_one_kernel=all(node.op in IN_KERNELS or node.op == "constant" for node in given.nodes),
    )


def _walk_of(expression: Expression, chains: Sequence[Expression]) -> Walk:
    count = len(expression.operand_types)
    steps = [_step(expression, node, chains) for node in expression.nodes]
    buffers = _buffers(expression)
    first_result = {number: n for n, number in reversed(list(enumerate(expression.results)))}
    writes_out = [
        node.op in WRITES_OUT or isinstance(step, OrZero | LookedUp)
        for node, step in zip(expression.nodes, steps, strict=True)
    ]
    viewed = _viewed(expression, writes_out)
    later: set[int] = set().union(*(viewed[number] for number in expression.results))
    moves: list[Move] = []
    for position in range(len(steps) - 1, -1, -1):
        node, number = expression.nodes[position], count + position
        if node.op == "constant":
            continue
        moves.append(
            Move(
                step=steps[position],
                compute=operation(steps[position], node.arguments),
                writes_out=writes_out[position],
                number=number,
                arguments=node.arguments,
                result=first_result.get(number, -1),
                buffer=buffers[position],
                dtype=storage_dtype(node.element_type),
                read_later=tuple(sorted(later)) if number in first_result else (),
            )
        )
        later.update(*(viewed[number] for number in node.arguments))
    return Walk(
        count,
        tuple(
            step([], None) if node.op == "constant" else None
            for node, step in zip(expression.nodes, steps, strict=True)
        ),
        tuple(reversed(moves)),
        expression.results,
        tuple(storage_dtype(t) for t in expression.result_types),
    )


def _viewed(expression: Expression, writes_out: Sequence[bool]) -> list[frozenset[int]]:
    """Return, for each value, the operands that it may be a view of: itself, if it is one."""
    viewed = [frozenset((number,)) for number in range(len(expression.operand_types))]
    for node, is_fresh in zip(expression.nodes, writes_out, strict=True):
        shared = () if is_fresh else [viewed[number] for number in node.arguments]
        viewed.append(frozenset[int]().union(*shared))
    return viewed


def _gain(expression: Expression) -> float:
    """Return what a compiled kernel saves where there is nothing else: a single op is numpy's."""
    saved = saving(expression)
    return saved if saved > _UNROUNDED else 0.0


def saving(expression: Expression) -> float:
    """Return what a compiled kernel saves for each element, in roundings of narrow floats.

    An op that takes no rounding takes numpy about a sixteenth of one: 0.08 ns for an element in
    cache against 1.2 ns. To cut floats to integers, with bounds, takes as long as rounding, and so
    do products and magnitudes of complex numbers.
    """
    saved = 0.0
    for node in expression.nodes:
        is_rounded = is_narrow(node.element_type) and node.op not in _NEVER_ROUNDED
        is_long = node.op in ("abs", "multiply") and "c64" in _types(expression, node)
        if is_rounded or is_long or (node.op == "convert" and _cuts_floats(expression, node)):
            saved += 1
        elif node.op == "select" or _orders_zeros(expression, node):
            saved += 4 * _UNROUNDED  # takes numpy a mask and three passes, or two choices and two
        elif node.op not in TRANSCENDENTAL and node.op not in ("constant", "copy"):
            saved += _UNROUNDED
    return saved


def _work(expression: Expression, node: Node) -> int:
    """Return how many roundings and transcendental functions a node is."""
    is_rounded = is_narrow(node.element_type) and node.op not in _NEVER_ROUNDED
    return is_rounded + (node.op in TRANSCENDENTAL or node.op in ("erf", "logistic"))


def _types(expression: Expression, node: Node) -> list[str]:
    return [expression.type_of(number) for number in node.arguments]


def _cuts_floats(expression: Expression, node: Node) -> bool:
    (source,) = _types(expression, node)
    return ELEMENT_TYPES[node.element_type].is_integer and ELEMENT_TYPES[source].is_float


def _orders_zeros(expression: Expression, node: Node) -> bool:
    """Whether a node is an extremum in which zeros of two signs may meet."""
    if node.op not in ("maximum", "minimum") or not ELEMENT_TYPES[node.element_type].is_float:
        return False
    return all(_constant(expression, x) is None for x in node.arguments)


IN_KERNELS = frozenset(
    "abs add and bitcast-convert ceil clamp compare convert divide floor is-finite maximum minimum "
    "multiply negate not or round-nearest-afz round-nearest-even rsqrt select shift-left "
    "shift-right-arithmetic shift-right-logical sign sqrt subtract xor".split()
)
"""What numpy has no part in, where kernels compute it."""
_UNROUNDED = 1 / 16
_NEVER_ROUNDED = frozenset("constant copy maximum minimum select negate abs clamp".split())
TRANSCENDENTAL = frozenset(
    "acos acosh asin asinh atanh cbrt cosine cosh exponential exponential-minus-one log "
    "log-plus-one sine sinh tan tanh atan2 power remainder".split()
)
"""What numpy computes for kernels too."""


def _is_one_ufunc(moves: Sequence[Move]) -> bool:
    """Whether all but constants is one op that numpy computes in one go."""
    return len(moves) == 1 and isinstance(moves[0].step, Plain)


def _check(expression: Expression) -> None:
    count = len(expression.operand_types)
    for number, node in enumerate(expression.nodes, count):
        known = node.op in STEPS and node.op not in (*FLOORED, *MASKED)
        if not known or any(not 0 <= x < number for x in node.arguments):
            raise UsageError(
                "E3091",
                f"node {number} of an expression is {node.op!r} of {node.arguments}",
                hint="nodes are elementwise ops on operands and earlier nodes",
            )
    if any(not 0 <= number < count + len(expression.nodes) for number in expression.results):
        raise UsageError(
            "E3091",
            f"results {expression.results} of an expression name none of its values",
            hint="results are numbers of operands and nodes",
        )


def _step(expression: Expression, node: Node, chains: Sequence[Expression]) -> Step:
    """Bind a node, by a faster step where a constant argument allows one."""
    if node.op == LOOKED_UP:
        return LookedUp(chains[int(dict(node.parameters)["chain"])])
    types = _types(expression, node)
    if node.op == "select":
        chosen = or_zero(node, [_constant(expression, number) for number in node.arguments])
        if chosen is not None:
            return chosen
    if node.op == "divide" and ELEMENT_TYPES[node.element_type].kind is Kind.UNSIGNED:
        divisor = _constant(expression, node.arguments[1])
        if divisor is not None and divisor and ELEMENT_TYPES[node.element_type].bits >= 8:
            return Plain(np.floor_divide)
    if node.op in ("maximum", "minimum", "clamp"):
        within = _bounded(node.op, [_constant(expression, number) for number in node.arguments])
        if within is not None:
            return within
    return STEPS[node.op](types, node.element_type, dict(node.parameters))


def _constant(expression: Expression, number: int) -> Array | None:
    count = len(expression.operand_types)
    node = expression.nodes[number - count] if number >= count else None
    if node is None or node.op != "constant":
        return None
    return value_of(str(dict(node.parameters)["value"]), node.element_type)


def _buffers(expression: Expression) -> list[int]:
    """Give each node's value a buffer that no value still needed stands in; -1: none.

    A node that may return its argument keeps the argument's buffer in use. A node may write over
    an argument that it is the last to read.
    """
    count = len(expression.operand_types)
    last = [-1] * (count + len(expression.nodes))
    for x in expression.results:
        last[x] = len(expression.nodes)
    for position in range(len(expression.nodes) - 1, -1, -1):
        node = expression.nodes[position]
        is_fresh = node.op in (*WRITES_OUT, LOOKED_UP)
        until = position if is_fresh else max(position, last[count + position])
        for x in node.arguments:
            last[x] = max(last[x], until)
        if node.op == "choose-by-mask":  # reads these after it has begun to write
            for x in (node.arguments[0], node.arguments[2]):
                last[x] = max(last[x], position + 1)
    free: dict[np.dtype[Any], list[int]] = {}
    ends: list[list[int]] = [[] for _ in range(len(expression.nodes) + 1)]
    chosen: list[int] = []
    buffer_count = 0
    for position, node in enumerate(expression.nodes):
        for x in ends[position]:
            free.setdefault(storage_dtype(expression.nodes[x].element_type), []).append(chosen[x])
        if node.op not in (*WRITES_OUT, LOOKED_UP):
            chosen.append(-1)
            continue
        dtype = storage_dtype(node.element_type)
        if free.get(dtype):
            chosen.append(free[dtype].pop())
        else:
            chosen.append(buffer_count)
            buffer_count += 1
        if last[count + position] >= 0:
            ends[last[count + position]].append(position)
    return chosen


# --- bounds ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Bounded:
    """A step that keeps values between two constants."""

    low: Array
    high: Array
    value: int
    """Which argument is bounded; the others are the constants."""
    extreme: np.ufunc | None
    """numpy's with one constant, where the other end is no bound."""
    positive_zeros: bool
    """Whether every zero becomes +0."""

    def __call__(self, x: list[Array], out: Array | None) -> Array:
        """Bound the values; numbers become arrays."""
        value = x[self.value]
        if self.extreme is not None and value.size < _FEW_BOUNDED:
            made = np.asarray(self.extreme(*x, out=out))
        else:
            made = np.asarray(value.clip(self.low, self.high, out=out))
        if self.positive_zeros:
            np.add(made, _ZERO[made.itemsize], out=made)
        return made


_FEW_BOUNDED = 1 << 11
"""Elements from which on `clip` is quicker than an extremum with a number: to a third of its time.
"""
_ZERO = {size: np.zeros((), f"f{size}") for size in (4, 8)}


def _bounded(op: str, values: Sequence[Array | None]) -> _Bounded | None:
    """Return the step of a `maximum`, `minimum` or `clamp` of one value and constants, else None.

    None as well where zeros of two signs confuse it. numpy leaves open which of two equal numbers
    it returns; with a number other than zero that does not show, and adding +0 makes either zero
    +0, which is larger than -0.
    """
    known = [value for value in values if value is not None]
    if len(known) != len(values) - 1 or any(value != value for value in known):
        return None
    if op == "clamp" and values[2] is None:
        return None  # two constants, of which one is the lower bound of the other
    dtype = known[0].dtype
    if dtype.kind not in "fiu":
        return None
    is_float = dtype.kind == "f"
    ends = (-np.inf, np.inf) if is_float else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    low = np.array(ends[0], dtype) if op == "minimum" else known[0]
    high = np.array(ends[1], dtype) if op == "maximum" else known[-1]
    if is_float and (high == 0 or (low == 0 and np.signbit(low))):
        return None
    extreme = {"maximum": np.maximum, "minimum": np.minimum}.get(op)
    return _Bounded(low, high, values.index(None), extreme, is_float and bool(low == 0))
