"""Borders of manually sharded regions written out: the values stay, whoever owns which block."""

import numpy as np
import pytest

from hloipu_compiler.compilation import CompileRequest
from hloipu_compiler.driver import compile_module
from hloipu_compiler.interpret.participants import evaluate_participants, participants_of
from hloipu_compiler.ir.annotations import is_border
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import run_passes
from hloipu_compiler.passes.expand_borders import borders_expanded
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.machine.load import load_machine
from tests.support.shardings import BY_AXES, BY_TILES, X, gspmd, numbered, shardy

MACHINE = load_machine("tiny")


def check(module: Module) -> None:
    """Compare values before and after the pass, and on tiles, at every participant."""
    after, _ = run_passes(module, None, "expand-borders")
    verify(after)
    assert not any(is_border(x) for c in after.computations for x in c.instructions)
    assert borders_expanded(after) is after
    replicas, partitions = participants_of(module)
    wanted = evaluate_participants(module, [[X]], replicas=replicas, partitions=partitions)
    program = compile_module(module, CompileRequest(MACHINE)).program
    assert (program.replicas, program.partitions) == (replicas, partitions)
    for found in (
        evaluate_participants(after, [[X]], replicas=replicas, partitions=partitions),
        CompiledProgram(program, MACHINE).run(X).everyone,
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("sharding", "block", "wanted"), BY_AXES)
def test_blocks_by_axes(sharding: str, block: str, wanted: object) -> None:
    if block != "f32[16,8]":  # each device has a whole of its own there
        check(shardy(numbered(block), sharding, block))
    check(shardy(f"r = {block} negate(q)", sharding, block))


@pytest.mark.parametrize(("sharding", "block", "wanted"), BY_TILES)
def test_blocks_by_tiles(sharding: str, block: str, wanted: object) -> None:
    check(gspmd(f"r = {block} negate(q)", sharding, block))


def test_a_module_without_borders_stays() -> None:
    module = borders_expanded(shardy("r = f32[16,8] negate(q)", "[{}, {}]", "f32[16,8]"))
    assert borders_expanded(module) is module
