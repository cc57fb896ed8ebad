"""The machine's limits: fewest cycles in which work can be done, in closed form.

Each is spread over all tiles of one IPU, without any overhead. What a kernel needs at least is the
largest of its three.
"""

from dataclasses import dataclass

from hloipu_runtime.machine.model import Machine


@dataclass(frozen=True, slots=True)
class Needs:
    """What a kernel cannot do without."""

    products: int = 0
    """Multiply-adds that the AMP does."""
    element_type: str = "f16"
    """Of the products' operands."""
    loaded_bytes: int = 0
    """Every operand once."""
    stored_bytes: int = 0
    """Every result once."""
    exchanged_bytes: int = 0
    """That some other tile has to have, wherever operands and results lie."""
    because: str = ""
    """Where the numbers come from, in a formula."""
    wide_loads: bool = False
    """Whether the loads may be of two words at once, from interleaved memory, as sums' are."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The most binding limit."""

    kind: str
    cycles: float


def amp_products_per_cycle(machine: Machine, element_type: str) -> float:
    """Return the multiply-adds of a tile: channels x units over the slots of a position.

    One worker issues in each cycle: channels of a group times units, once in so many slots.
    """
    amp = machine.amp
    if element_type == "f32":
        return amp.f32_channels_per_group * amp.f32_conv_units / amp.f32_position_slots
    return amp.f16_channels_per_group * amp.f16_to_f16_conv_units / amp.f16_position_slots


def limit_of(machine: Machine, needs: Needs) -> Limit:
    """Return the largest of the AMP's, the load and store path's and the exchange's limits."""
    tiles = machine.chip.tiles_per_ipu
    tile, exchange = machine.tile, machine.exchange
    load = tile.interleaved_load_bytes_per_cycle if needs.wide_loads else tile.load_bytes_per_cycle
    found = (
        Limit("AMP", needs.products / amp_products_per_cycle(machine, needs.element_type) / tiles),
        Limit("load", needs.loaded_bytes / load / tiles),
        Limit("store", needs.stored_bytes / tile.store_bytes_per_cycle / tiles),
        Limit("exchange", needs.exchanged_bytes / exchange.receive_bytes_per_cycle / tiles),
    )
    return max(found, key=lambda x: x.cycles)
