"""Random shardings of a module's parameters and results, as tile assignments on a random mesh."""

from dataclasses import replace

import numpy as np

from hloipu_compiler.ir.attributes import Raw
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape, leaves_of

MESHES = ((2,), (3,), (4,), (2, 2), (2, 3), (8,), (2, 4), (2, 2, 2))


def with_random_shardings(
    module: Module, draws: np.random.Generator, inside: float = 0.0
) -> Module:
    """Return the module with shardings of parameters, and often of the root, on one mesh.

    `inside`: the share of the entry's other ops that state one as well.
    """
    mesh = MESHES[draws.integers(len(MESHES))]
    grid = np.arange(int(np.prod(mesh))).reshape(mesh).transpose(draws.permutation(len(mesh)))
    entry = module.entry
    shown = {*entry.parameters, *([entry.root] if draws.random() < 0.7 else ())}
    shown |= {i for i in range(entry.root if inside else 0) if draws.random() < inside}

    def changed(position: int, x: Instruction) -> Instruction:
        if position not in shown:
            return x
        each = [_tiles(leaf, grid, draws) for leaf in leaves_of(x.shape)]
        text = each[0] if isinstance(x.shape, ArrayShape) else f"{{{', '.join(each)}}}"
        if isinstance(x.shape, TupleShape) and not each:
            return x
        return x._replace(attributes=x.attributes.replaced(sharding=Raw(text)))

    instructions = tuple(changed(i, x) for i, x in enumerate(entry.instructions))
    made = replace(entry, instructions=instructions)
    computations = tuple(made if c is entry else c for c in module.computations)
    return replace(module, computations=computations)


def _tiles(
    shape: ArrayShape, grid: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]",
    draws: np.random.Generator,
) -> str:  # fmt: skip
    """Return a sharding that gives each axis of the mesh to a dimension, or to none."""
    rank = len(shape.dimensions)
    owner = [int(draws.integers(-1, rank)) if rank else -1 for _ in grid.shape]
    order = [a for d in range(rank) for a in draws.permutation(len(owner)) if owner[a] == d]
    others = [a for a in range(len(owner)) if owner[a] < 0]
    if not order:
        return "{replicated}"
    tiles = [int(np.prod([grid.shape[a] for a in order if owner[a] == d])) for d in range(rank)]
    rest = int(np.prod([grid.shape[a] for a in others]))
    listed = ",".join(map(str, grid.transpose([*order, *others]).reshape(-1)))
    last, words = (f",{rest}", " last_tile_dim_replicate") if others else ("", "")
    return f"{{devices=[{','.join(map(str, tiles))}{last}]{listed}{words}}}"
