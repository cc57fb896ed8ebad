"""Evaluation of random ops; stateful ones draw from the evaluation's seed."""

from typing import cast

import numpy as np

from hloipu_compiler.interpret.planning.plan import Action, Array
from hloipu_compiler.interpret.planning.site import Effects, Site, array_leaves, lowers
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_runtime.kernels.core.storage import from_bits
from hloipu_runtime.kernels.random_bits import Algorithm, rng_bit_generator
from hloipu_runtime.kernels.random_values import (
    rng_get_and_update_state,
    rng_normal,
    rng_uniform,
    state_units,
)

_STATE = "rng"


@lowers("rng-bit-generator")
def _rng_bit_generator(site: Site) -> Action:
    """Make (state, bits), or bits alone where the result is no tuple."""
    algorithm = cast(Algorithm, site.attributes.text("algorithm").lower())
    leaf = array_leaves(site.instruction.shape)[-1]
    with_state = isinstance(site.instruction.shape, TupleShape)
    element = leaf.element_type
    state_shape = site.sizes(0)
    narrow = site.element_type(0) == "u32"

    def run(x: list[Array]) -> list[Array]:
        words = x[0].reshape(-1).view(np.uint64) if narrow else x[0].reshape(-1)
        after, bits = rng_bit_generator(words, leaf.dimensions, element.bits, algorithm)
        values = from_bits(bits, element.name)
        if not with_state:
            return [values]
        state = after.view(np.uint32) if narrow else after
        return [state.reshape(state_shape), values]

    return run


def _advance(effects: Effects, units: int) -> int:
    """Return where the shared stream stands, and move it on."""
    before = cast(int, effects.state.get(_STATE, 0))
    effects.state[_STATE] = before + units
    return before


@lowers("rng")
def _rng(site: Site) -> Action:
    shape, element_type = site.sizes(), site.element_type()
    draw = rng_normal if site.attributes.text("distribution") == "rng_normal" else rng_uniform
    effects, units = site.effects, state_units(shape, element_type)

    def run(x: list[Array]) -> tuple[Array]:
        state = _advance(effects, units)
        return (draw(x[0], x[1], shape, element_type, key=effects.seed, state=state),)

    return run


@lowers("rng-get-and-update-state")
def _rng_get_and_update_state(site: Site) -> Action:
    delta, effects = site.attributes.integer("delta"), site.effects

    def run(_: list[Array]) -> tuple[Array]:
        words, after = rng_get_and_update_state(_advance(effects, 0), delta)
        effects.state[_STATE] = after
        return (words,)

    return run
