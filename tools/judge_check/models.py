"""Models to measure on: samples and dumps, recast to other types, with arguments for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hloipu.check.finite_draws import finite_draw
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import EvaluationLimits
from hloipu_compiler.interpret.planning.constants import constant_leaves
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.random_inputs import fill_elided
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.narrow_floats import floats_narrowed
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.element_types import F32, GRIDS

TYPES = ("f32", "bf16", "f16", "f8e5m2", "f8e4m3fn")
MOST_ITERATIONS = 10_000
LIMITS = EvaluationLimits(max_iterations=MOST_ITERATIONS)


@dataclass(frozen=True, slots=True)
class Model:
    """A module in one type, and the leaves of its arguments."""

    name: str
    kind: str
    module: Module
    arguments: list[Array]


def models(paths: Sequence[str], kinds: Sequence[str], seed: int = 0) -> Iterator[Model]:
    """Yield each module in each type in which it has a form; f32 is the module as it stands."""
    for path in _files(paths):
        plain = parse(path.read_text(encoding="utf-8"))
        verify(plain)
        plain = fill_elided(plain, seed)
        for kind in kinds:
            module = plain if kind == "f32" else recast(plain, kind)
            if kind != "f32" and not _changed(plain, module):
                continue
            yield Model(path.stem, kind, module, finite_draw(module, seed, LIMITS).leaves)


def _files(paths: Sequence[str]) -> list[Path]:
    """Return the files of paths and folders, small ones first."""
    files = [
        file
        for path in map(Path, paths)
        for file in (path.glob("*.hlo") if path.is_dir() else [path])
    ]
    return sorted(files, key=lambda file: (file.stat().st_size, file))


def recast(module: Module, kind: str) -> Module:
    """Return the module with every f32 as another type, constants within its range."""
    if GRIDS[kind].overflow == "infinity":
        return floats_narrowed(module, kind)
    largest = GRIDS[kind].largest
    computations = tuple(
        replace(
            c, instructions=tuple(_clipped(instruction, largest) for instruction in c.instructions)
        )
        for c in module.computations
    )
    return floats_narrowed(replace(module, computations=computations), kind)


def _changed(old: Module, new: Module) -> bool:
    shapes = [
        [instruction.shape for c in m.computations for instruction in c.instructions]
        for m in (old, new)
    ]
    return shapes[0] != shapes[1]


def _clipped(instruction: Instruction, largest: float) -> Instruction:
    if instruction.opcode != "constant" or not isinstance(instruction.shape, ArrayShape):
        return instruction
    if instruction.shape.element_type is not F32:
        return instruction
    (value,) = constant_leaves(instruction)
    return instruction._replace(literal=Literal(array=np.array(np.clip(value, -largest, largest))))
