"""Custom calls by target: a registry that users may add to.

@register("my_target")
def double(call: Call) -> list[Array]:
    return [2 * call.operands[0]]
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from hloipu_compiler.interpret.ops.routine_forms import (
    how_to_define,
    require_library_form,
    typed_attributes,
)
from hloipu_compiler.interpret.planning.plan import Action, Array
from hloipu_compiler.interpret.planning.site import Lowering, Site, array_leaves, leaf_count, lowers
from hloipu_compiler.ir.annotations import BORDERS, IDENTITY_TARGETS
from hloipu_compiler.ir.graph import Instruction
from hloipu_runtime.arguments import checked
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.linear_algebra.lapack import LAPACK_TARGETS
from hloipu_runtime.kernels.linear_algebra.lapack_forms import batch_rank, call_lapack


@dataclass(frozen=True)
class Call:
    """One custom call as its implementation sees it."""

    site: Site
    operands: list[Array]
    """Leaves of the operands in storage form."""

    @property
    def instruction(self) -> Instruction:
        """The instruction, with its shape and attributes."""
        return self.site.instruction

    @cached_property
    def config(self) -> Mapping[str, object]:
        """Attributes of a typed-FFI call: what `backend_config` or its frontend form holds."""
        return typed_attributes(self.instruction.backend_config)


Implementation = Callable[[Call], Sequence[Array]]

REGISTRY: dict[str, Implementation] = {}
"""Target -> implementation, for every target that hloipu knows but those in `LOWERED`."""

LOWERED: dict[str, Lowering] = {}
"""Target -> lowering, for targets that look at where they stand while planning."""


def register(*targets: str) -> Callable[[Implementation], Implementation]:
    """Register an implementation; a later one for the same target takes the earlier one's place."""

    def keep(implementation: Implementation) -> Implementation:
        for target in targets:
            REGISTRY[target] = implementation
            LOWERED.pop(target, None)
        return implementation

    return keep


def register_lowering(*targets: str) -> Callable[[Lowering], Lowering]:
    """Register what makes an action from a site, as for an opcode."""

    def keep(lowering: Lowering) -> Lowering:
        LOWERED.update(dict.fromkeys(targets, lowering))
        return lowering

    return keep


@checked
def register_custom_call(target: str, implementation: Implementation) -> None:
    """Teach the evaluator a custom call: `implementation` takes a `Call`, returns result leaves."""
    register(target)(implementation)


@lowers("custom-call")
def _custom_call(site: Site) -> Action:
    target = site.attributes.text("custom_call_target")
    if target in BORDERS:
        from hloipu_compiler.interpret.ops import manual_sharding  # noqa: F401  (it fills LOWERED)
    if target in LOWERED:
        return LOWERED[target](site)
    implementation = REGISTRY.get(target)
    if implementation is None:
        error = UnsupportedError(
            "E0456",
            f"custom call {site.instruction.name!r}: nothing is known of the target {target!r}",
            hint="register an implementation, hloipu.register_custom_call(target, function), or "
            + how_to_define(target, site.operand_shapes, site.instruction.shape),
        )
        error.span = site.module.span(site.instruction)
        raise error
    return lambda x: implementation(Call(site, x))


OPAQUE = "hloipu.opaque"
"""A call of which nothing is known but its cycles, which its configuration states: for estimates.

Takes and gives f32 without dimensions.
"""


@register(OPAQUE)
def _opaque(call: Call) -> Sequence[Array]:
    return [np.full((), np.nan, np.float32)]


@register(*IDENTITY_TARGETS)
def _identity(call: Call) -> Sequence[Array]:
    return call.operands[: leaf_count(call.instruction.shape)]


@register_lowering(*LAPACK_TARGETS)
def _lapack(site: Site) -> Action:
    instruction = site.instruction
    require_library_form(instruction, site.operand_shapes)
    target = site.attributes.text("custom_call_target")
    attributes = typed_attributes(instruction.backend_config)
    batch = batch_rank(target, array_leaves(site.operand_shapes[0])[0].dimensions)
    matrices = [leaf.dimensions[batch:] for leaf in array_leaves(instruction.shape)]
    return lambda x: call_lapack(target, x, attributes, matrices)
