"""Memory of a one-op program besides its inputs and outputs."""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.charges import Charges, charges_of
from hloipu_runtime.memory.liveness import Ranges, liveness_of
from hloipu_runtime.memory.messages import points_of
from hloipu_runtime.memory.plan import kept_bytes, rounded
from hloipu_runtime.program.mapping import Tiles
from hloipu_runtime.program.program import Program, Variable
from hloipu_runtime.program.steps import Sequence, StreamIn, StreamOut


class ProgramBytes(NamedTuple):
    """Bytes of one program."""

    working: int
    """Of all tiles together: the most that is there at once beside parameters and results."""
    code: int
    """On a tile, without that of vertices."""
    vertex_code: dict[Hashable, int]
    parameter_bytes: tuple[int, ...]
    """Of all tiles together, each parameter where the op wants it, by number."""


def program_bytes(program: Program, machine: Machine, forms: Forms) -> ProgramBytes:
    """Return what a program of one IPU takes; streams and what they carry are left out."""
    streams = (StreamIn, StreamOut)
    bytes_by_parameter = {
        int(step.stream.rpartition(".")[2]): on_all_tiles(program.variables[step.variable], machine)
        for step in program.body.steps
        if isinstance(step, StreamIn)
    }
    outside = {step.variable for step in program.body.steps if isinstance(step, streams)}
    inner = Sequence(tuple(step for step in program.body.steps if not isinstance(step, streams)))
    liveness = liveness_of(program)
    charges = charges_of(replace(program, body=inner), machine, forms).ipus[0]
    points = points_of(liveness.region, {id(step): step for step, *_ in charges.messages})
    spans: list[tuple[int, Ranges]] = [
        (on_all_tiles(variable, machine), liveness.ranges[number])
        for number, variable in enumerate(program.variables)
        if number not in outside
    ]
    spans += [
        (rounded(size, machine) * tiles.count, points[id(step)])
        for step, tiles, size, _ in charges.messages
    ]
    tiles = machine.chip.tiles_per_ipu
    return ProgramBytes(
        most_at_once(spans),
        round(sum(own_code(charges, tiles).values())),
        vertex_code(charges),
        tuple(
            bytes_by_parameter.get(number, 0)
            for number in range(max(bytes_by_parameter, default=-1) + 1)
        ),
    )


def on_all_tiles(variable: Variable, machine: Machine) -> int:
    """Return the bytes that a variable takes of all tiles together."""
    return kept_bytes(variable, machine) * variable.mapping.tiles.count


def own_code(charges: Charges, tiles: int) -> Counter[str]:
    """Return bytes of exchange code, of control and of vertex state, on an average tile."""

    def mean(sizes: Iterable[tuple[Tiles, int]]) -> float:
        return sum(size * grid.count for grid, size in sizes) / tiles

    bytes_by_kind: Counter[str] = Counter()
    bytes_by_kind["exchange"] += round(mean(charges.exchange_code.items()))
    bytes_by_kind["state"] += round(mean(charges.vertex_state.items()))
    bytes_by_kind["control"] += round(
        mean((grid, size) for (_, grid), size in charges.control_code.items())
    )
    bytes_by_kind["control"] += charges.common_code_bytes
    return bytes_by_kind


class MostCode(NamedTuple):
    """Bytes of code on the tile of an IPU that has most."""

    besides_vertices: int
    """What `own_code` is, on the tile that has most of that."""
    vertices: int
    """Of all codelets that run anywhere."""
    together: int
    """Of both, on one tile, which need not run all codelets."""


def most_code(charges: Charges, tiles: int) -> MostCode:
    """Return the most code that a tile has."""
    own_bytes = np.full(tiles, charges.common_code_bytes, np.int64)
    sizes = Counter(charges.exchange_code)
    sizes.update(charges.vertex_state)
    for (_, grid), size in charges.control_code.items():
        sizes[grid] += size
    for grid, size in sizes.items():
        own_bytes[grid.numbers] += size
    grids: dict[Hashable, list[Tiles]] = {}
    for key, grid in charges.vertex_code:
        grids.setdefault(key, []).append(grid)
    known, together = vertex_code(charges), own_bytes.copy()
    for key, several in grids.items():
        has_vertex = np.zeros(tiles, np.bool_)
        for grid in several:
            has_vertex[grid.numbers] = True
        together[has_vertex] += known[key]
    return MostCode(int(own_bytes.max()), sum(known.values()), int(together.max()))


def vertex_code(charges: Charges) -> dict[Hashable, int]:
    """Return the bytes of each codelet that runs anywhere."""
    return {key: size for (key, _), size in charges.vertex_code.items()}


def most_at_once(spans: Iterable[tuple[int, Ranges]]) -> int:
    """Return the most bytes that are there at one point."""
    change: Counter[int] = Counter()
    for size, ranges in spans:
        for first, last in ranges:
            change[first] += size
            change[last + 1] -= size
    most = level = 0
    for point in sorted(change):
        level += change[point]
        most = max(most, level)
    return most
