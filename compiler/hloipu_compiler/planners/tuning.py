"""Tuning options of planners and lowerings."""

from dataclasses import replace

from hloipu_runtime.costs.exchange_price import NO_CODE_PRICE, CodePrice
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine

_UNEVEN_PERCENT = 125
"""The fullest tile's share of values against the mean. Assumed."""

_LEAST_PERCENT = 15
"""Of a tile's memory that a product may always take: with less it would be done in crumbs, whose
code takes more than they spare. Steps of ResNet-50 and EfficientNet that just fit set 0.15 or 0.16
(graphcore/examples: vision/cnns/pytorch/train/configs.yml)."""

_LEAST_ROOM_PERCENT = 5
"""The same where a program told what is left. Assumed."""

_CODE_PRICES = (0, 8, 64)
"""Cycles for a byte of exchange code, by how much of the memory for code a program takes: less than
a third, less than two, or more. Assumed: at these, networks of a thousand ops just fit."""

_STEP_PERCENT = 5
"""Shares are multiples of this, so that equal products have equal plans."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Choices for products, which default to poplibs's own, and for the steps of all programs."""

    partials_type: str = "f32"
    """In which f16 products add up between tiles; `f16` takes half of the memory and exchange."""
    memory_percent: int = 60
    """Share of a tile's memory that one plan may take (`availableMemoryProportion`)."""
    code_price: CodePrice = NO_CODE_PRICE
    """What exchange code is worth, which stays in memory: nothing in small programs."""
    merge_steps: bool = True
    """Whether vertices and transfers that do not wait for each other go into one step."""
    hoist: str = "auto"
    """Whether copies of what loops do not change are made before them: `all`, `none`, or `auto`:
    as many as there is room for."""
    code_memory: bool = True
    """Whether code takes of that room, and is worth cycles."""
    counts_called_code: bool = False
    """Whether code of loops, branches and stages counts where code is weighed: in programs that
    lack room."""
    random_bits: str = "hardware"
    """What takes the time of drawing bits by `rng_default`: the chip's generator, or `philox`."""

    def partial_type(self, kind: str) -> str:
        """Return the type of partial sums of a result: f32 for narrower floats, but as chosen."""
        element = ELEMENT_TYPES[kind]
        if kind == "f16":
            return self.partials_type
        return "f32" if element.is_float and element.bits < 32 else kind


DEFAULT_TUNING = Tuning()


def free_percent(machine: Machine, alive_bytes: int, code_bytes: int) -> int:
    """Return the share of a tile's memory that code and values that are alive leave over."""
    values = over(alive_bytes, machine.chip.tiles_per_ipu) * _UNEVEN_PERCENT // 100
    code = min(machine.memory.executable_bytes, code_bytes)
    return (machine.usable_bytes - code - values) * 100 // machine.memory.bytes_per_tile


def tuning_within(machine: Machine, tuning: Tuning, alive_bytes: int, code_bytes: int) -> Tuning:
    """Return a tuning that asks for no more memory than code and values that are alive leave over.

    Where code is not counted it takes nothing, and costs nothing. A least share may always be had:
    finer slices take more code than they spare.
    """
    code_bytes = code_bytes if tuning.code_memory else 0
    code_cycles = _code_cycles(machine, code_bytes)
    percent = free_percent(machine, alive_bytes, code_bytes) // _STEP_PERCENT * _STEP_PERCENT
    return replace(
        tuning,
        memory_percent=min(tuning.memory_percent, max(_LEAST_PERCENT, percent)),
        code_price=CodePrice(code_cycles, code_cycles),
    )


def tuning_in_room(machine: Machine, tuning: Tuning, room_bytes: int) -> Tuning:
    """Return a tuning that asks for no more than so many bytes of a tile, or for a least share."""
    percent = max(_LEAST_ROOM_PERCENT, 100 * room_bytes // machine.memory.bytes_per_tile)
    return replace(tuning, memory_percent=min(tuning.memory_percent, percent))


def fast_tuning(machine: Machine, tuning: Tuning, code_bytes: int) -> Tuning:
    """Return a tuning for a program that no plan makes fit: all plans may be fast.

    Exchanges take forms whose code fits whatever becomes of the values.
    """
    code_bytes = code_bytes if tuning.code_memory else 0
    return replace(tuning, code_price=CodePrice(of_forms=_code_cycles(machine, code_bytes)))


def _code_cycles(machine: Machine, code_bytes: int) -> int:
    """Return the cycles that a byte of exchange code is worth in a program with so much code."""
    return _CODE_PRICES[min(2, 3 * code_bytes // machine.memory.executable_bytes)]
