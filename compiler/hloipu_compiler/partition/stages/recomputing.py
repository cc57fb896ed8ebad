"""Recomputation: forward values that a backward stage computes again instead of stashing.

With `full` everything, from the inputs of the stage. With `cheap` only ops that take little beside
products, and those of them with which fewest bytes are stashed: a minimum cut between what the
forward part must make and what the backward part reads, as PyTorch's partitioner of joint graphs
cuts (pytorch/pytorch: torch/_functorch/partitioners.py). What state of micro-batches goes into
(keys of random numbers) cannot be made again: by then the state is another; it is stashed, and so
is what an op with an effect makes. The last stage works backward as soon as it is through and keeps
what it has; with `full`, where memory lacks, it makes again what is cheap.
"""

from collections.abc import Mapping, Sequence

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.ops import Trait, with_trait
from hloipu_compiler.ir.shapes import TupleShape, byte_count
from hloipu_compiler.memo import Memo, Same
from hloipu_compiler.partition.stages.assignment import Stages
from hloipu_compiler.partition.stages.minimum_cut import INFINITE, MinimumCut
from hloipu_compiler.partition.training.reach import parameter_positions
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, FREE, Phases

NONE, CHEAP, BLOCKS, FULL = "none", "cheap", "blocks", "full"
_CHEAP = with_trait(Trait.ELEMENTWISE) | frozenset(
    "broadcast reshape bitcast copy convert transpose slice concatenate pad reverse iota "
    "get-tuple-element tuple".split()
)
_UNIT = 16
"""Cost of a stashed byte; a byte that is made again costs 1: see `handing` for what these take."""
_NEVER = frozenset(
    "infeed outfeed send recv send-done recv-done rng rng-get-and-update-state custom-call "
    "after-all all-reduce all-gather reduce-scatter all-to-all collective-permute".split()
)


def made_again(
    entry: Computation, phases: Phases, stages: Stages, count: int, kind: str, *, last: bool = False
) -> Mapping[int, frozenset[int]]:
    """Return for each stage the forward positions that its backward part makes again.

    `last`: whether, with `full`, the last stage makes again what is cheap.
    """
    if kind not in (CHEAP, FULL) or count == 1:
        return {}
    read: dict[int, list[int]] = {stage: [] for stage in range(count - (not last or kind != FULL))}
    for position, stage in enumerate(stages):
        if stage in read and phases.phase[position] == FORWARD:
            users = entry.users[position]
            if any(phases.phase[i] == BACKWARD and stages[i] == stage for i in users):
                read[stage].append(position)
    fit = {each: recomputable(entry, phases, each) for each in {CHEAP, kind}}
    positions_by_stage = {
        stage: _all_made_again(entry, stages, fit[FULL], roots)
        if kind == FULL and stage < count - 1
        else _made_again_for_fewest_bytes(entry, phases, stages, fit[CHEAP], roots)
        for stage, roots in read.items()
    }
    return {stage: positions for stage, positions in positions_by_stage.items() if positions}


def _all_made_again(
    entry: Computation, stages: Stages, fit: Sequence[int], roots: Sequence[int]
) -> frozenset[int]:
    """Return all that one stage can make again for what its backward part reads."""
    again: set[int] = set()
    waiting = [i for i in roots if fit[i]]
    while waiting:
        position = waiting.pop()
        if position not in again:
            again.add(position)
            same = stages[position]
            waiting += [
                i for i in entry.instructions[position].operands if fit[i] and stages[i] == same
            ]
    return frozenset(again)


def _made_again_for_fewest_bytes(
    entry: Computation, phases: Phases, stages: Stages, fit: Sequence[int], roots: Sequence[int]
) -> frozenset[int]:
    """Return what one stage makes again so that it stashes least, and of that makes least."""
    state = {pair.parameter for pair in (*phases.updated, *phases.kept)}
    cut = MinimumCut()
    seen, waiting = set(roots), list(roots)
    for root in roots:
        cut.require(root)
    while waiting:
        position = waiting.pop()
        op = entry.instructions[position]
        is_stashed = phases.phase[position] == FORWARD or (
            op.parameter_number >= 0 and op.parameter_number not in state
        )
        is_array = not isinstance(op.shape, TupleShape)
        stash = (
            byte_count(op.shape) * _UNIT if is_array and is_stashed else 0 if is_array else INFINITE
        )
        if not fit[position] or stages[position] != stages[roots[0]]:
            cut.link(position, MinimumCut.END, stash)
            continue
        cut.link(position, ~position, stash)
        cut.link(~position, MinimumCut.END, byte_count(op.shape) if is_array else 0)
        for operand in op.operands:
            cut.link(~position, operand, INFINITE)
            if operand not in seen:
                seen.add(operand)
                waiting.append(operand)
    needed = cut.solved() if roots else frozenset[object]()
    return frozenset(i for i in seen if ~i in needed)


def recomputable(entry: Computation, phases: Phases, kind: str) -> Sequence[int]:
    """Return which forward ops may be made again from what they read."""
    key = Same(entry), Same(phases), kind
    return RECOMPUTABLE_MEMO.of(key, lambda: _recomputable(entry, phases, kind))


RECOMPUTABLE_MEMO: Memo[bytes] = Memo(4)
"""Of steps that are cut in many ways."""


def _recomputable(entry: Computation, phases: Phases, kind: str) -> bytes:
    places = parameter_positions(entry)
    moving = {i for pair in phases.per_micro_batch for i in places[pair.parameter]}
    is_recomputable = bytearray(len(entry.instructions))
    for position, op in enumerate(entry.instructions):
        if phases.phase[position] != FORWARD or op.opcode in _NEVER:
            if phases.phase[position] in (FREE, "") and moving.intersection(op.operands):
                moving.add(position)
            continue
        if moving.intersection(op.operands):
            continue
        if kind == CHEAP and op.opcode not in _CHEAP:
            continue
        # No tuple passes from one call to another: its elements are made where it is.
        tuples = [i for i in op.operands if isinstance(entry.instructions[i].shape, TupleShape)]
        is_recomputable[position] = all(
            is_recomputable[i] or entry.instructions[i].parameter_number >= 0
            for i in tuples
            if phases.phase[i] == FORWARD
        )
    return bytes(is_recomputable)
