"""Custom calls by target: a registry that users may add to.

@register("my_target")
def double(call: Call) -> list[Array]:
    return [2 * call.operands[0]]
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hloipu_compiler.evaluate.plan import Action, Array
from hloipu_compiler.evaluate.site import Lowering, Site, leaf_count, lowers
from hloipu_compiler.evaluate.skeletons import how_to_define
from hloipu_compiler.ir.annotations import IDENTITY_TARGETS
from hloipu_compiler.ir.graph import Instruction
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.lapack import LAPACK_TARGETS
from hloipu_runtime.kernels.topk import topk


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


def register_custom_call(target: str, implementation: Implementation) -> None:
    """Teach the evaluator a custom call: `implementation` takes a `Call`, returns result leaves."""
    register(target)(implementation)


@lowers("custom-call")
def _custom_call(site: Site) -> Action:
    target = site.attributes.text("custom_call_target")
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


@register("TopK")
def _topk(call: Call) -> Sequence[Array]:
    sizes = call.site.sizes()
    return topk(call.operands[0], sizes[-1])


def _lapack(target: str) -> Implementation:
    kernel = LAPACK_TARGETS[target]
    return lambda call: kernel(call.operands, dict(call.config))


for _target in LAPACK_TARGETS:
    register(_target)(_lapack(_target))


_ENTRY = re.compile(
    r"\s*([\w.\-]+)\s*=\s*(\"(?:[^\"\\]|\\.)*\"|-?[\d.]+(?:e[+-]?\d+)?|true|false|[^,{}]+?)"
    r"(?:\s*:\s*(\w+))?\s*(?:,|$)"
)


def typed_attributes(text: str) -> dict[str, object]:
    """Return the entries of an MLIR attribute dictionary such as `{mode = 65 : ui8, n = "x"}`.

    Entries of other forms are kept as text.
    """
    inner = text.strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        return {}
    found: dict[str, object] = {}
    for key, value, kind in _ENTRY.findall(inner[1:-1]):
        found[key] = _attribute_value(value, kind)
    return found


def _attribute_value(value: str, kind: str) -> object:
    if value.startswith('"'):
        return value[1:-1]
    if value in ("true", "false"):
        return value == "true"
    try:
        return float(value) if kind.startswith(("f", "bf")) else int(value)
    except ValueError:
        return value
