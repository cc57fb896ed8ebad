"""Lowering of random ops; those without a state of their own share the program's.

The program's state is a variable that each drawing op replaces by the one after: key, and a 128-bit
position in its stream. It starts as `hloipu eval` starts by default: key 0, position 0. Loops and
branches carry it like any other value (`control.py`).
"""

from collections.abc import Sequence

import numpy as np

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import TileTensor, Value
from hloipu_runtime.codelets.ops.random import RngBits, RngState, RngValues
from hloipu_runtime.kernels.random_values import state_units
from hloipu_runtime.program.program import RANDOM_STATE
from hloipu_runtime.reached import reached


@lowers("rng-bit-generator")
def _rng_bit_generator(context: LoweringContext) -> Sequence[Value]:
    """Make (state, bits), or bits alone where the result is no tuple."""
    state = context.tile_tensor(0)
    element_type, shape = context.results[-1]
    algorithm = context.attributes.text("algorithm").lower()
    if algorithm == "rng_default" and context.builder.tuning.random_bits == "philox":
        algorithm = "rng_philox"
    codelet = RngBits(algorithm, element_type)
    results = [(state.element_type, state.shape), (element_type, shape)]
    after, bits = context.builder.compute(codelet, [state], results)
    return [after, bits] if isinstance(context.instruction.shape, TupleShape) else [bits]


@lowers("rng")
def _rng(context: LoweringContext) -> Sequence[Value]:
    """Draw from the program's state, then move it on by the words drawn."""
    element_type, shape = context.shape.element_type.name, context.shape.dimensions
    uniform = context.attributes.text("distribution") == "rng_uniform"
    codelet = RngValues("uniform" if uniform else "normal", element_type)
    operands = [context.tile_tensor(0), context.tile_tensor(1), state_in(context.builder)]
    (values,) = context.builder.compute(codelet, operands, [(element_type, shape)])
    _advance(context, state_units(shape, element_type))
    return [values]


@lowers("rng-get-and-update-state")
def _rng_get_and_update_state(context: LoweringContext) -> Sequence[Value]:
    before = _advance(context, context.attributes.integer("delta"))
    return [before]


def draws(module: Module, computations: Sequence[str]) -> bool:
    """Whether one of these computations, or one that they call, draws on the program's state."""
    return any(
        op.opcode in ("rng", "rng-get-and-update-state")
        for name in reached(computations, lambda name: module.computation[name].called)
        for op in module.computation[name].instructions
    )


def check_condition(module: Module, condition: str, loop: str) -> None:
    """Raise CodegenError E0470 where a loop's condition draws: it has nothing to carry out."""
    if draws(module, (condition,)):
        raise CodegenError(
            "E0470",
            f"instruction {loop!r}: its condition {condition!r} draws random numbers",
            hint="draw them in the loop's body, and carry them in its state",
        )


def state_in(builder: Builder) -> TileTensor:
    """Return the program's random state as it is at this point of the program."""
    if builder.random_state is None:
        origin, builder.origin = builder.origin, RANDOM_STATE
        builder.random_state = builder.constant(np.zeros(3, np.uint64), "u64")
        builder.origin = origin
    return builder.random_state


def _advance(context: LoweringContext, delta: int) -> TileTensor:
    """Replace the program's state by one further on; return the position before."""
    builder = context.builder
    results = [("u64", (2,)), ("u64", (3,))]
    before, after = builder.compute(RngState(delta), [state_in(builder)], results)
    builder.random_state = after
    return before
