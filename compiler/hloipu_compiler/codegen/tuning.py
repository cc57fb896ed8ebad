"""What users may choose of how programs are written."""

from dataclasses import dataclass, replace

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine

_CODE_BYTES = 200
"""Code and state of vertices for an instruction. Assumed: what networks of some thousand take."""

_UNEVEN_PERCENT = 125
"""The fullest tile's share of values against the mean. Assumed."""

_LEAST_PERCENT = 15
"""Of a tile's memory that a product may always take: with less it would be done in crumbs."""

_STEP_PERCENT = 5
"""Shares are multiples of this, so that equal products have equal plans."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Choices for products, which default to poplibs's own, and for the steps of all programs."""

    partials_type: str = "f32"
    """In which f16 products add up between tiles; `f16` takes half of the memory and exchange."""
    memory_percent: int = 60
    """Share of a tile's memory that one plan may take (`availableMemoryProportion`)."""
    merge_steps: bool = True
    """Whether vertices and transfers that do not wait for each other go into one step."""

    def partial_type(self, kind: str) -> str:
        """Return the type of partial sums of a result: f32 for narrower floats, but as chosen."""
        element = ELEMENT_TYPES[kind]
        if kind == "f16":
            return self.partials_type
        return "f32" if element.is_float and element.bits < 32 else kind


DEFAULT_TUNING = Tuning()


def tuning_within(machine: Machine, tuning: Tuning, alive_bytes: int, instructions: int) -> Tuning:
    """Return a tuning that asks for no more memory than values that are alive leave over."""
    memory = machine.memory
    code = min(memory.executable_bytes, instructions * _CODE_BYTES)
    values = over(alive_bytes, machine.chip.tiles_per_ipu) * _UNEVEN_PERCENT // 100
    free = max(0, machine.usable_bytes - code - values)
    percent = free * 100 // memory.bytes_per_tile // _STEP_PERCENT * _STEP_PERCENT
    percent = max(_LEAST_PERCENT, percent)
    if percent >= tuning.memory_percent:
        return tuning
    return replace(tuning, memory_percent=percent)
