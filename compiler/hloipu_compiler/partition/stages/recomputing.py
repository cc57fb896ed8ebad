"""Recomputation: forward values that a backward stage computes again instead of stashing.

With `full` everything, from the inputs of the stage; with `cheap` only ops that take little beside
products. What state of micro-batches goes into (keys of random numbers) cannot be made again: by
then the state is another; it is stashed, and so is what an op with an effect makes. The last stage
works backward as soon as it is through and keeps what it has.
"""

from collections.abc import Mapping

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.ops import Trait, with_trait
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.partition.stages.assignment import Stages
from hloipu_compiler.partition.training.reach import parameter_positions
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, FREE, Phases

NONE, CHEAP, BLOCKS, FULL = "none", "cheap", "blocks", "full"
_CHEAP = with_trait(Trait.ELEMENTWISE) | frozenset(
    "broadcast reshape bitcast copy convert transpose slice concatenate pad reverse iota "
    "get-tuple-element tuple".split()
)
_NEVER = frozenset(
    "infeed outfeed send recv send-done recv-done rng rng-get-and-update-state custom-call "
    "after-all all-reduce all-gather reduce-scatter all-to-all collective-permute".split()
)


def made_again(
    entry: Computation, phases: Phases, stages: Stages, count: int, kind: str
) -> Mapping[int, frozenset[int]]:
    """Return for each stage the forward positions that its backward part makes again."""
    if kind not in (CHEAP, FULL) or count == 1:
        return {}
    fit = recomputable(entry, phases, kind)
    found: dict[int, set[int]] = {stage: set() for stage in range(count - 1)}
    for position in range(len(entry.instructions) - 1, -1, -1):
        stage = stages[position]
        if not 0 <= stage < count - 1 or not fit[position]:
            continue
        for user in entry.users[position]:
            is_behind = phases.phase[user] == BACKWARD and stages[user] == stage
            if is_behind or user in found[stage]:
                found[stage].add(position)
                break
    return {stage: frozenset(positions) for stage, positions in found.items() if positions}


def recomputable(entry: Computation, phases: Phases, kind: str) -> bytearray:
    """Return which forward ops may be made again from what they read."""
    places = parameter_positions(entry)
    moving = {i for pair in phases.per_micro_batch for i in places[pair.parameter]}
    found = bytearray(len(entry.instructions))
    for position, x in enumerate(entry.instructions):
        if phases.phase[position] != FORWARD or x.opcode in _NEVER:
            if phases.phase[position] in (FREE, "") and moving.intersection(x.operands):
                moving.add(position)
            continue
        if moving.intersection(x.operands):
            continue
        if kind == CHEAP and x.opcode not in _CHEAP:
            continue
        # No tuple passes from one call to another: its elements are made where it is.
        tuples = [i for i in x.operands if isinstance(entry.instructions[i].shape, TupleShape)]
        found[position] = all(
            found[i] or entry.instructions[i].parameter_number >= 0
            for i in tuples
            if phases.phase[i] == FORWARD
        )
    return found
