"""The kinds of mutants: what is changed in a program's descriptors, its logical form untouched.

Each kind draws one place and one change there; None where the program has no such place.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

from hloipu_runtime.program.mapping import Span, Tiles
from hloipu_runtime.program.program import Array, Program, Variable
from hloipu_runtime.program.steps import (
    ComputeSet,
    Exchange,
    Operand,
    Step,
    Transfer,
    VariableId,
    VertexGroup,
)
from hloipu_runtime.program.uses import used, written
from tools.prove_exchanges.editing import Block, Path, blocks_of, with_steps

T = TypeVar("T")


class TransferPlace(NamedTuple):
    """One transfer of one exchange."""

    block: Block
    step: int
    transfer: int


class GroupPlace(NamedTuple):
    """One vertex group of one compute set."""

    block: Block
    step: int
    group: int


@dataclass(frozen=True)
class Subject:
    """A program to tamper with, and the places where that can be done."""

    name: str
    program: Program
    tiles_per_ipu: int
    inputs: tuple[dict[str, Array], ...] = ()
    """Sets of arrays that suit the program, by stream, in storage form."""

    @cached_property
    def blocks(self) -> list[Block]:
        """Every sequence of the program."""
        return blocks_of(self.program)

    @cached_property
    def transfers(self) -> list[TransferPlace]:
        """Every transfer."""
        return [
            TransferPlace(block, number, which)
            for block in self.blocks
            for number, step in enumerate(block.steps)
            if isinstance(step, Exchange)
            for which in range(len(step.transfers))
        ]

    @cached_property
    def groups(self) -> list[GroupPlace]:
        """Every vertex group."""
        return [
            GroupPlace(block, number, which)
            for block in self.blocks
            for number, step in enumerate(block.steps)
            if isinstance(step, ComputeSet)
            for which in range(len(step.groups))
        ]

    @cached_property
    def alike(self) -> dict[tuple[object, ...], list[VariableId]]:
        """Variables by type, shape and IPU, and by these with the mapping."""
        found: dict[tuple[object, ...], list[VariableId]] = {}
        for number, x in enumerate(self.program.variables):
            for key in (_looks(x), (*_looks(x), x.mapping)):
                found.setdefault(key, []).append(number)
        return found

    def variable(self, number: VariableId) -> Variable:
        """Return the record of a variable."""
        return self.program.variables[number]


def _looks(x: Variable) -> tuple[object, ...]:
    return (x.element_type, x.shape, x.ipu)


Tamper = Callable[[Subject, random.Random], Program | None]


def mutant(subject: Subject, kind: str, rng: random.Random) -> Program | None:
    """Return a tampered program of one kind, or None where the draw finds no place for it."""
    made = KINDS[kind](subject, rng)
    return None if made == subject.program else made


def _drawn(items: Sequence[T], rng: random.Random) -> T | None:
    return rng.choice(items) if items else None


def _step_replaced(subject: Subject, path: Path, number: int, step: Step) -> Program:
    block = next(b for b in subject.blocks if b.path == path)
    steps = (*block.steps[:number], step, *block.steps[number + 1 :])
    return with_steps(subject.program, path, steps)


def _on_transfer(
    change: Callable[[Subject, Transfer, random.Random], Transfer | None],
) -> Tamper:
    """Return the kind that changes one transfer."""

    def tamper(subject: Subject, rng: random.Random) -> Program | None:
        place = _drawn(subject.transfers, rng)
        if place is None:
            return None
        step = place.block.steps[place.step]
        assert isinstance(step, Exchange)
        changed = change(subject, step.transfers[place.transfer], rng)
        if changed is None:
            return None
        transfers = list(step.transfers)
        transfers[place.transfer] = changed
        new = replace(step, transfers=tuple(transfers))
        return _step_replaced(subject, place.block.path, place.step, new)

    return tamper


def _on_group(
    change: Callable[[Subject, VertexGroup, random.Random], VertexGroup | None],
) -> Tamper:
    """Return the kind that changes one vertex group."""

    def tamper(subject: Subject, rng: random.Random) -> Program | None:
        place = _drawn(subject.groups, rng)
        if place is None:
            return None
        step = place.block.steps[place.step]
        assert isinstance(step, ComputeSet)
        changed = change(subject, step.groups[place.group], rng)
        if changed is None:
            return None
        groups = list(step.groups)
        groups[place.group] = changed
        new = ComputeSet(tuple(groups))
        return _step_replaced(subject, place.block.path, place.step, new)

    return tamper


def transfer_dropped(subject: Subject, rng: random.Random) -> Program | None:
    """Leave out one transfer of an exchange."""
    place = _drawn(subject.transfers, rng)
    if place is None:
        return None
    step = place.block.steps[place.step]
    assert isinstance(step, Exchange)
    kept = step.transfers[: place.transfer] + step.transfers[place.transfer + 1 :]
    return _step_replaced(subject, place.block.path, place.step, replace(step, transfers=kept))


def _shortened(subject: Subject, transfer: Transfer, rng: random.Random) -> Transfer | None:
    """Cut some elements from an end of the box, or of every tile's part."""
    long = [d for d, (low, high) in enumerate(transfer.box) if high - low > 1]
    wide = [d for d, span in enumerate(transfer.spans) if span.size > 1]
    if long and (not wide or rng.random() < 0.5):
        d = rng.choice(long)
        low, high = transfer.box[d]
        cut = rng.choice((1, (high - low) // 2))
        kept = (low + cut, high) if rng.random() < 0.5 else (low, high - cut)
        return replace(transfer, box=_put(transfer.box, d, kept))
    if not wide:
        return None
    d = rng.choice(wide)
    span = transfer.spans[d]
    cut = rng.choice((1, span.size // 2))
    return replace(transfer, spans=_put(transfer.spans, d, span._replace(size=span.size - cut)))


def _shifted(subject: Subject, transfer: Transfer, rng: random.Random) -> Transfer | None:
    """Take from one block, or one element, further on or further back."""
    if not transfer.box:
        return None
    d = rng.randrange(len(transfer.box))
    far = rng.choice((1, transfer.spans[d].size)) * rng.choice((1, -1))
    if rng.random() < 0.7:
        return replace(transfer, shift=_put(transfer.shift, d, transfer.shift[d] + far))
    low, high = transfer.box[d]
    size = subject.variable(transfer.destination).shape[d]
    if low + far < 0 or high + far > size:
        return None
    return replace(transfer, box=_put(transfer.box, d, (low + far, high + far)))


def _redirected(subject: Subject, transfer: Transfer, rng: random.Random) -> Transfer | None:
    """Send to the tiles beside the right ones, or to another variable."""
    x = subject.variable(transfer.destination)
    others = [v for v in subject.alike[_looks(x)] if v != transfer.destination]
    if others and rng.random() < 0.4:
        return replace(transfer, destination=rng.choice(others))
    moved = _moved(transfer.tiles, subject.tiles_per_ipu, rng)
    return None if moved is None else replace(transfer, tiles=moved)


def _stale_source(subject: Subject, transfer: Transfer, rng: random.Random) -> Transfer | None:
    """Send what another variable of the same type and shape holds."""
    x = subject.variable(transfer.source)
    others = [v for v in subject.alike[_looks(x)] if v != transfer.source]
    return replace(transfer, source=rng.choice(others)) if others else None


def _receivers_cut(subject: Subject, transfer: Transfer, rng: random.Random) -> Transfer | None:
    """Leave the first or the last tiles along an axis of the grid out."""
    if not transfer.receivers:
        return None
    axis = rng.randrange(len(transfer.receivers))
    low, high = transfer.receivers[axis]
    kept = (low + 1, high) if rng.random() < 0.5 else (low, high - 1)
    return replace(transfer, receivers=_put(transfer.receivers, axis, kept))


def _stale_operand(subject: Subject, group: VertexGroup, rng: random.Random) -> VertexGroup | None:
    """Read another variable of the same type, shape and mapping."""
    choices = [
        (number, v)
        for number, operand in enumerate(group.inputs)
        for x in [subject.variable(operand.variable)]
        for v in subject.alike[*_looks(x), x.mapping]
        if v != operand.variable
    ]
    if not choices:
        return None
    number, v = rng.choice(choices)
    return replace(
        group, inputs=_put(group.inputs, number, group.inputs[number]._replace(variable=v))
    )


def _operand_moved(subject: Subject, group: VertexGroup, rng: random.Random) -> VertexGroup | None:
    """Read or write parts that begin elsewhere, are shorter, or follow another grid axis."""
    places = [
        (side, number, d)
        for side in ("inputs", "outputs")
        for number, operand in enumerate(getattr(group, side))
        for d in range(len(operand.spans))
    ]
    if not places:
        return None
    side, number, d = rng.choice(places)
    operands: tuple[Operand, ...] = getattr(group, side)
    span = operands[number].spans[d]
    changed = _span_moved(span, len(group.tiles.extents), rng)
    if changed is None:
        return None
    operand = operands[number]._replace(spans=_put(operands[number].spans, d, changed))
    put = _put(operands, number, operand)
    return replace(group, inputs=put) if side == "inputs" else replace(group, outputs=put)


def _span_moved(span: Span, axes: int, rng: random.Random) -> Span | None:
    way = rng.randrange(4)
    if way == 0 and span.size > 1:
        return span._replace(size=span.size - 1)
    if way == 1 and axes > 1:
        return span._replace(axis=rng.choice([a for a in range(axes) if a != span.axis]))
    if way == 2 and span.size:
        return span._replace(offset=span.offset + rng.choice((1, -1)) * span.size)
    return span._replace(offset=span.offset + rng.choice((1, -1)))


def _grid_moved(subject: Subject, group: VertexGroup, rng: random.Random) -> VertexGroup | None:
    """Put the vertices on other tiles than their operands."""
    moved = _moved(group.tiles, subject.tiles_per_ipu, rng)
    return None if moved is None else replace(group, tiles=moved)


def _moved(tiles: Tiles, tiles_per_ipu: int, rng: random.Random) -> Tiles | None:
    """Return the grid one tile further, or with two axes exchanged, within the machine."""
    choices = [replace(tiles, first=tiles.first + by) for by in (1, -1)]
    if len(tiles.extents) > 1 and tiles.extents[0] == tiles.extents[1]:
        first, second, *rest = tiles.strides
        choices.append(replace(tiles, strides=(second, first, *rest)))
    return _drawn([t for t in choices if t.first >= 0 and t.last < tiles_per_ipu], rng)


def steps_swapped(subject: Subject, rng: random.Random) -> Program | None:
    """Exchange two neighbours of which one reads or writes what the other writes."""
    block = _drawn([b for b in subject.blocks if len(b.steps) > 1], rng)
    if block is None:
        return None
    pairs = [
        n
        for n in range(len(block.steps) - 1)
        if _depend(subject.program, block.steps[n], block.steps[n + 1])
    ]
    n = _drawn(pairs, rng)
    if n is None:
        return None
    steps = list(block.steps)
    steps[n], steps[n + 1] = steps[n + 1], steps[n]
    return with_steps(subject.program, block.path, tuple(steps))


def _depend(program: Program, first: Step, second: Step) -> bool:
    return bool(
        written(first, program) & used(second, program)
        or used(first, program) & written(second, program)
    )


def exchange_moved(subject: Subject, rng: random.Random) -> Program | None:
    """Put an exchange before a step that writes what it sends, or after its first reader."""
    places = [
        (block, n)
        for block in subject.blocks
        for n, step in enumerate(block.steps)
        if isinstance(step, Exchange)
    ]
    place = _drawn(places, rng)
    if place is None:
        return None
    block, n = place
    step, program = block.steps[n], subject.program
    before = [k for k in range(n) if _depend(program, block.steps[k], step)]
    after = [k for k in range(n + 1, len(block.steps)) if _depend(program, step, block.steps[k])]
    targets = [*before[-1:], *after[:1]]
    target = _drawn(targets, rng)
    if target is None:
        return None
    steps = list(block.steps)
    steps.insert(target, steps.pop(n))
    return with_steps(program, block.path, tuple(steps))


def _put(items: tuple[T, ...], number: int, item: T) -> tuple[T, ...]:
    return (*items[:number], item, *items[number + 1 :])


KINDS: dict[str, Tamper] = {
    "transfer dropped": transfer_dropped,
    "transfer shortened": _on_transfer(_shortened),
    "transfer shifted": _on_transfer(_shifted),
    "transfer redirected": _on_transfer(_redirected),
    "multicast group cut": _on_transfer(_receivers_cut),
    "stale version sent": _on_transfer(_stale_source),
    "stale version read": _on_group(_stale_operand),
    "operand moved": _on_group(_operand_moved),
    "vertices moved": _on_group(_grid_moved),
    "steps swapped": steps_swapped,
    "exchange moved": exchange_moved,
}
"""The published list; mutants are drawn uniformly over it."""
