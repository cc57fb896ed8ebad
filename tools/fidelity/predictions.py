"""What the model says of each measurement, in the measurement's own unit."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import hloipu
from hloipu_compiler.planners.placing import mapping_of
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.costs.spent import Spent
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.costs import TileTraffic, copy_on_tile, exchange, sync
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping as Layout
from hloipu_runtime.program.mapping import Tiles, whole
from hloipu_runtime.program.steps import StreamIn, StreamOut, Sync
from tools.fidelity.elsewhere import brought_from_elsewhere
from tools.fidelity.measurements import Measurement
from tools.fidelity.modules import attention, matrix_product, repeated_convolution, triad
from tools.fidelity.programs import ONE_TILE, barrier, blocks, moved

STEPS = 200
"""Applications of a stencil or convolution that the measurements of images time."""

IMAGES = {"bricks": (302, 499), "leaf": (1024, 768), "cheese": (1122, 2200), "weak": (1000, 500)}
"""Height and width (thorbenlouw/lbm-graphcore: experiments)."""

_TYPES = {"fp16": "f16", "fp32": "f32"}
_ISLANDS = (32, 38)
"""Rows and columns of the tiles that share an image: any near-square grid of 1,216 does."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says."""

    value: float
    """In the unit of the measurement."""
    parts: str
    """Where cycles go."""


def product(x: Measurement, partials_type: str = "f16") -> Prediction:
    """Return the throughput of one matrix product, in TFLOP/s."""
    machine = load_machine(x.device)
    program = _compiled(
        matrix_product(x.m, x.k, x.n, _TYPES[x.dtype]), x.device, ("partials_type", partials_type)
    )
    brought = brought_from_elsewhere(program.program)
    program = replace(program, program=brought, known_memory=None)
    spent = device_spent(program)
    rate = 2 * x.m * x.k * x.n / (spent.total.cycles / machine.chip.clock_hz) / 1e12
    return Prediction(rate, told(spent))


def fits(x: Measurement) -> Prediction:
    """Return whether a product of f32 fits, as 1 or 0, or the columns that the measurement had."""
    square = "4096" in x.id
    sizes = (4096, 4096, 4096) if square else (8192, 8192, 1024)
    text = matrix_product(*sizes, "f32")
    program = hloipu.compile(text, target=x.device, over_memory="allow", cache=False)
    value = float(program.fits) * (1 if square else sizes[2])
    return Prediction(value, "all of the program's memory")


def convolution(x: Measurement) -> Prediction:
    """Return the seconds of 200 convolutions of an image, each with the copy back."""
    height, width = IMAGES[x.id.split("-")[2]]
    program = _compiled(repeated_convolution(height, width, "f16", STEPS), x.device)
    return _seconds(program)


def stencil(x: Measurement) -> Prediction:
    """Return the seconds of 200 convolutions of each channel for itself, as a stencil."""
    height, width = IMAGES[x.id.split("-")[2]]
    kind = "f16" if "half" in x.id else "f32"
    program = _compiled(repeated_convolution(height, width, kind, STEPS, groups=4), x.device)
    return _seconds(program)


def stencil_compute(x: Measurement) -> Prediction:
    """Return the cycles that one application of a stencil computes."""
    height, width = IMAGES["cheese"]
    kind = "f16" if "half" in x.id else "f32"
    program = _compiled(repeated_convolution(height, width, kind, STEPS, groups=4), x.device)
    spent = device_spent(program)
    return Prediction(spent.compute.cycles / STEPS, told(spent))


def stream_triad(x: Measurement) -> Prediction:
    """Return the bytes that a triad reads and writes in a second, in GB/s."""
    machine = load_machine(x.device)
    kind = "f16" if "fp16" in x.id else "f32"
    size = ELEMENT_TYPES[kind].bits // 8
    # Three arrays that fill a third of the memory.
    each = machine.memory.bytes_per_tile // (9 * size) // 48 * 48
    elements = each * machine.chip.tiles_per_ipu
    program = _compiled(triad(elements, kind), x.device)
    spent = device_spent(program)
    rate = 3 * size * elements / (spent.total.cycles / machine.chip.clock_hz) / 1e9
    return Prediction(rate, told(spent))


def halo_exchange(x: Measurement) -> Prediction:
    """Return the cycles of an exchange of one pixel all around each tile's part of an image.

    Tiles send and receive eight messages; what is rearranged before and after is timed apart.
    """
    machine = load_machine(x.device)
    height, width = (
        -(-size // parts) for size, parts in zip(IMAGES["cheese"], _ISLANDS, strict=True)
    )
    size = 2 * (height + width + 2) * 4 * 2
    charge = exchange(machine, [TileTraffic(size, size, received_fragments=8)])
    return Prediction(charge.cycles, f"{size} bytes in 8 messages")


def halo_rearranging(x: Measurement) -> Prediction:
    """Return the cycles that tiles spend on copies within themselves for that exchange."""
    spent = _halo(load_machine(x.device))
    return Prediction(spent.compute.cycles, told(spent))


def matrix_vector_exchange(x: Measurement) -> Prediction:
    """Return the cycles of bringing rows of a matrix, and the vector, to those who multiply them.

    The matrix lies in equal runs over all tiles, and each tile takes as many whole rows.
    """
    machine = load_machine(x.device)
    tiles = machine.chip.tiles_per_ipu
    rows, columns = 10_000, 1_000
    runs = blocks((rows * columns,), (tiles,))
    by_rows = blocks((rows, columns), (tiles, 1))
    vector = mapping_of((columns,), 32, tiles)
    everywhere = Layout(by_rows.tiles, (whole(columns),))
    matrix = moved(machine, "f32", (rows * columns,), runs, by_rows, (rows, columns))
    spent = matrix.plus(moved(machine, "f32", (columns,), vector, everywhere))
    return Prediction(spent.exchange.cycles, told(spent))


def message(x: Measurement) -> Prediction:
    """Return the nanoseconds of a barrier and a word from one tile to another."""
    machine = load_machine(x.device)
    there = Layout(Tiles((), (), 1), (whole(1),))
    spent = moved(machine, "f32", (1,), Layout(ONE_TILE, (whole(1),)), there)
    cycles = spent.exchange.cycles + sync(machine).cycles
    return Prediction(1e9 * cycles / machine.chip.clock_hz, told(spent))


def barrier_of_ipus(x: Measurement) -> Prediction:
    """Return the cycles of a barrier of 16 IPUs."""
    spent = barrier(load_machine(x.device), 16)
    return Prediction(spent.sync.cycles, told(spent))


def copy_of_panel(x: Measurement) -> Prediction:
    """Return the cycles of a copy of 8 KiB within a tile, on the machine nearest to the device."""
    cycles = copy_on_tile(load_machine("bow"), 8192).cycles
    return Prediction(cycles, f"compute {cycles}")


def large_product(x: Measurement) -> Prediction:
    """Return the cycles of a product of f16 squares, on the machine nearest to the device."""
    program = _compiled(matrix_product(4096, 4096, 4096, "f16"), "bow")
    spent = device_spent(program)
    return Prediction(spent.total.cycles, told(spent))


def attention_of_heads(x: Measurement) -> Prediction:
    """Return the cycles of attention, on the machine nearest to the device."""
    spent = device_spent(_compiled(attention(16, 1024, 72, "f16"), "bow"))
    return Prediction(spent.total.cycles, told(spent))


def device_spent(program: CompiledProgram) -> Spent:
    """Return what a program spends without its host streams and the barriers before them."""
    spent = program.estimate().spent
    barriers = sync(program.machine).times(_stream_barriers(program))
    left = spent.sync._replace(
        cycles=spent.sync.cycles - barriers.cycles,
        assumed_cycles=spent.sync.assumed_cycles - barriers.assumed_cycles,
    )
    return Spent(spent.compute, spent.exchange, left)


def _stream_barriers(program: CompiledProgram) -> int:
    """Return how many barriers stand right before a host stream."""
    steps = program.program.body.steps
    return sum(
        isinstance(step, Sync) and isinstance(following, StreamIn | StreamOut)
        for step, following in pairwise(steps)
    )


def told(spent: Spent) -> str:
    """Return cycles by what they go into."""
    return ", ".join(
        f"{name} {charge.cycles:,}"
        for name, charge in zip(spent._fields, spent, strict=True)
        if charge.cycles
    )


def _seconds(program: CompiledProgram) -> Prediction:
    spent = device_spent(program)
    return Prediction(spent.total.cycles / program.machine.chip.clock_hz, told(spent))


@lru_cache(8)
def _halo(machine: Machine) -> Spent:
    height, width = IMAGES["cheese"]
    shape = (height, width, 4)
    source = blocks(shape, (*_ISLANDS, 1))
    wanted = blocks(shape, (*_ISLANDS, 1), halo=1)
    return moved(machine, "f16", shape, source, wanted)


@lru_cache(32)
def _compiled(text: str, target: str, *options: tuple[str, Any]) -> CompiledProgram:
    return hloipu.compile(text, target=target, over_memory="allow", cache=False, **dict(options))


Predict = Callable[[Measurement], Prediction]
