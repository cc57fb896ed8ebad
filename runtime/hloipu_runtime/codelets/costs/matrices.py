"""Cost of factoring and solving small dense matrices on a tile."""

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.costs import TileWork, single_vertices_cycles
from hloipu_runtime.machine.model import Machine


def cholesky_work(machine: Machine, matrices: int, n: int, element_type: str) -> TileWork:
    """Return the work of Cholesky decompositions, one worker a matrix.

    (graphcore/poplibs: lib/poplin/poplinCycleEstimators.cpp, Cholesky.) The formulas were fitted
    to small matrices. Assumed are types other than f32 and f16.
    """
    if element_type == "f16":
        slots = n**3 // 2 + 795 * n * n // 4 + 191 * n // 2 + 426
    else:
        slots = n**3 + 102 * n * n + 101 * n + 102
    return matrix_work(machine, matrices if n else 0, slots, n * n, element_type)


def solve_work(
    machine: Machine, systems: int, n: int, element_type: str, *, forward: bool
) -> TileWork:
    """Return the work of triangular solves, one worker a right-hand side.

    `forward`: from the first row on, as a lower triangle is solved
    (graphcore/poplibs: lib/poplin/poplinCycleEstimators.cpp, TriangularSolve). Assumed are types
    other than f32 and f16.
    """
    if element_type == "f16":
        lower = 3 * n * n // 4 + 318 * n - 150
        slots = lower if forward else 135 * n * n // 16 + 1089 * n // 4 + 12
    else:
        lower = 3 * n * n // 2 + 180 * n - 126
        slots = lower if forward else 27 * n * n // 4 + 327 * n // 2 + 54
    return matrix_work(machine, systems if n else 0, slots, 2 * n, element_type)


def matrix_work(
    machine: Machine,
    vertices: int,
    slots: int,
    elements: int,
    element_type: str,
    *,
    sourced: bool = True,
) -> TileWork:
    """Return the work of vertices of one worker each, their slots those of f32 (f16: of f16).

    `elements` are converted on the way in and out where the type is none of the chip's.
    """
    if vertices == 0:
        return TileWork(0)
    emulation = machine.emulation
    factor = {
        "f64": emulation.f64_factor,
        "c64": emulation.c64_factor,
        "c128": emulation.c128_factor,
    }.get(element_type, 1)
    convert = 0
    if element_type == "bf16":
        convert = emulation.bf16_convert_slots
    elif ELEMENT_TYPES[element_type].bits == 8:
        convert = emulation.f8_convert_slots
    elif ELEMENT_TYPES[element_type].bits < 8:
        convert = emulation.sub_byte_convert_slots
    cycles = single_vertices_cycles(machine, [(vertices, slots * factor + 2 * convert * elements)])
    known = sourced and element_type in ("f16", "f32")
    return TileWork(cycles, 0 if known else cycles)
