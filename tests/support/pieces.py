"""Steps in pieces beside the whole ones: what the evaluator makes of both."""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

import hloipu
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.scans.pieces import InPieces, step_in_pieces
from hloipu_compiler.partition.scans.staged_loops import StagedStep, staged_step, step_apart
from hloipu_compiler.partition.stages.pipelining import Cutting, cutting_of, uncut_step
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.wrapping import FeedBinding, StatePair, Wrapping
from hloipu_runtime.program.stacks import PARAMETER, RESULT

Array = np.ndarray[Any, Any]


def wrapping_with(
    state: int = 0, feeds: tuple[int, ...] = (), constants: tuple[int, ...] = (), results: int = 0
) -> Wrapping:
    """Return a wrapping whose first parameters are the first results, other results queued."""
    pairs = tuple(StatePair(f"s{n}", n, n) for n in range(state))
    outfeeds = tuple(FeedBinding(f"out{n}", (n,)) for n in range(state, results))
    bound = (FeedBinding("data", feeds),) if feeds else ()
    return Wrapping(1, pairs, bound, constants, outfeeds, ())


def front(text: str) -> Module:
    """Return a verified text after the passes that come before pieces."""
    return run_passes(hloipu.verify(text), Plan(), "front")[0]


def staged(module: Module, wrapping: Wrapping, request: PipelineRequest) -> StagedStep:
    """Return a flat step in its stages, which are found by what ops make and read."""
    apart = step_apart(module, wrapping, request)
    if apart.pieces is None:
        return staged_step(apart)
    return staged_step(apart, stages_of(apart.pieces, apart.request, apart.trips))


def stages_of(pieces: InPieces, request: PipelineRequest, trips: Mapping[str, Hashable]) -> Cutting:
    """Return the stages of a step apart; `request` is by the numbers before."""
    asked = pieces.request(request)
    uncut = uncut_step(pieces.module, pieces.wrapping, asked)
    return cutting_of(uncut, pieces.wrapping, asked, trips=trips)


def whole_results(made: InPieces, *arguments: Array) -> list[Array]:
    """Return what a step in pieces computes, given and taken as the whole one's."""
    again = hloipu.verify(print_module(made.module))
    if made.numbers is None:
        return [np.asarray(x) for x in evaluate_everywhere(again, *arguments)]
    given = {x.first: x for x in made.stacks if x.kind == PARAMETER}
    taken = {x.first: x for x in made.stacks if x.kind == RESULT}
    pieces: list[Array] = []
    for numbers, array in zip(made.numbers.parameters, arguments, strict=True):
        pieces += given[numbers[0]].pieces(array) if len(numbers) > 1 else [array]
    found = [np.asarray(x) for x in evaluate_everywhere(again, *pieces)]
    return [
        taken[numbers[0]].joined(found[n] for n in numbers) if len(numbers) > 1
        else found[numbers[0]]
        for numbers in made.numbers.results
    ]  # fmt: skip


def in_pieces_alike(text: str, wrapping: Wrapping, cuts: frozenset[str] | None = None) -> InPieces:
    """Return a flat text in pieces, after seeing that it computes the same bits as before."""
    module = hloipu.verify(text)
    made = step_in_pieces(module, wrapping, cuts)
    arguments = [np.asarray(x) for x in random_arguments(module, 3)]
    expected = [np.asarray(x) for x in evaluate_everywhere(module, *arguments)]
    for want, got in zip(expected, whole_results(made, *arguments), strict=True):
        np.testing.assert_array_equal(want, got)
    return made


def opcodes(made: InPieces) -> set[str]:
    """Return the ops of the entry."""
    return {x.opcode for x in made.module.entry.instructions}
