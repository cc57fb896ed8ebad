"""Steps on small tile memories, and loops of them: calls until compiling pays, then one function.

See `functional/loop_turns.py`, which does the same for whole tensors.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from hloipu_runtime.kernels.native.settings import settings
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.simulate.exact.copying import views_of
from hloipu_runtime.simulate.exact.storage import TileStorage
from hloipu_runtime.simulate.exact.vertices import calls_of
from hloipu_runtime.simulate.functional.loop_turns import (
    FEWEST_OPS,
    FEWEST_SECONDS,
    Compiled,
    LoopTurns,
)

if TYPE_CHECKING:
    from hloipu_runtime.simulate.exact.tile_regions import TileRegion
    from hloipu_runtime.simulate.functional.loop_writer import Written

Action = Callable[[], object]
Prepared = tuple[s.Step, list[Action]]
"""A step, and the calls that it is."""

_SIMPLE = (s.ComputeSet, s.Exchange, s.Sync)

MOST_NODES_TOGETHER = 40
"""Usual ones: LLVM takes some 0.4 seconds."""


class TileProgram:
    """A program, and the memories of its variables."""

    def __init__(self, program: Program, memory: Callable[[s.VariableId], TileStorage]) -> None:
        self.program, self.memory = program, memory

    def together(self, steps: Iterable[Prepared]) -> list[Action]:
        """Return the calls of steps, with those one after another that may be compiled as one."""
        actions: list[Action] = []
        for are_simple, group in groupby(steps, lambda x: isinstance(x[0], _SIMPLE)):
            prepared = list(group)
            calls = called(prepared)
            if are_simple and len(calls) >= FEWEST_OPS:
                actions.append(SmallSteps(self, prepared))
            else:
                actions += calls
        return actions

    def write(self, region: "TileRegion", step: s.Step) -> None:
        """Write a step; raises Refused."""
        from hloipu_runtime.simulate.functional.region_values import Refused

        variables = self.program.variables
        if isinstance(step, s.ComputeSet):
            for group in step.groups:
                operands = (*group.inputs, *group.outputs)
                types = [variables[x.variable].element_type for x in operands]
                storages = [self.memory(x.variable) for x in operands]
                count = len(group.inputs)
                if any(x.memory is None for x in storages[count:]):
                    continue  # the result lies in its operand
                for call in calls_of(group, storages[:count], storages[count:]):
                    if any(call.moving) or call.before:
                        raise Refused
                    region.compute(group.codelet, call.blocks[:count], call.blocks[count:], types)
        elif isinstance(step, s.Exchange):
            for transfer in step.transfers:
                source, target = map(self.memory, (transfer.source, transfer.destination))
                kind = variables[transfer.source].element_type
                if target.memory is None:
                    continue  # it lies in its source
                views = views_of(transfer, source, target, step.name)
                if source.moving or target.moving or not isinstance(views, tuple):
                    raise Refused
                to, taken = views
                if to.size:
                    taken = np.broadcast_to(taken, to.shape)
                    region.put([region.place(taken, kind)], [region.place(to, kind)])
        elif isinstance(step, s.Sequence):
            for each in step.steps:
                self.write(region, each)
        elif not isinstance(step, s.Sync):
            raise Refused


class SmallSteps:
    """Compute sets and exchanges one after another, to be called."""

    def __init__(self, tiles: TileProgram, steps: Sequence[Prepared]) -> None:
        self._tiles, self._steps = tiles, steps
        self._actions = called(steps)
        self._seconds = 0.0
        self._parts: list[Action] = []

    def __call__(self) -> None:
        """Run them."""
        if not settings().compiles:
            for action in self._actions:
                action()
            return
        if self._parts:
            for action in self._parts:
                action()
            return
        began = perf_counter()
        for action in self._actions:
            action()
        self._seconds += perf_counter() - began
        if self._seconds >= FEWEST_SECONDS:
            self._parts = self._compiled_parts()

    def _compiled_parts(self) -> list[Action]:
        """Return the calls, as few functions of those that can be compiled."""
        from hloipu_runtime.simulate.exact.tile_regions import TileRegion
        from hloipu_runtime.simulate.functional.region_values import Refused

        parts: list[Action] = []
        waiting: list[Prepared] = []
        nodes = 0.0

        def end() -> None:
            nonlocal nodes
            calls = called(waiting)
            if len(calls) < FEWEST_OPS:
                parts.extend(calls)
            else:
                parts.append(_CompiledSteps(self._tiles, [step for step, _ in waiting], calls))
            waiting.clear()
            nodes = 0.0

        for step, actions in self._steps:
            alone = TileRegion()
            try:
                self._tiles.write(alone, step)
                if alone.is_large:
                    raise Refused
            except Refused:
                end()
                parts += actions
                continue
            if nodes + alone.region.usual_nodes > MOST_NODES_TOGETHER:
                end()
            waiting.append((step, actions))
            nodes += alone.region.usual_nodes
        end()
        return parts


class _CompiledSteps:
    """Steps that can be compiled."""

    def __init__(
        self, tiles: TileProgram, steps: Sequence[s.Step], actions: Sequence[Action]
    ) -> None:
        self._actions = actions
        self._memories: list[Array] = []

        def write(memories: list[Array]) -> "Written":
            from hloipu_runtime.simulate.exact.tile_regions import TileRegion

            region = TileRegion()
            for step in steps:
                tiles.write(region, step)
            region.region.line("ret void")
            return region.written(memories)

        self._compiled = Compiled(len(actions), write)
        self._outside: list[Array] | None = None

    def __call__(self) -> None:
        """Run them."""
        if self._outside is None:
            self._outside = self._compiled.outside(self._memories)
        if self._outside is not None:
            self._compiled.run(self._outside, ())
            return
        began = perf_counter()
        for action in self._actions:
            action()
        self._compiled.seconds += perf_counter() - began


class SmallLoop(LoopTurns):
    """The turns of a loop over steps on tile memories."""

    def __init__(
        self, tiles: TileProgram, step: s.Repeat | s.RepeatWhile, places: Sequence[str]
    ) -> None:
        self._what, self._places, self._turns = step, list(places), []
        self.memories: list[Array] = []

        def write(memories: list[Array]) -> "Written":
            from hloipu_runtime.simulate.exact.tile_regions import TileRegion

            tile_region = TileRegion()
            condition: Callable[[], str] | None = None
            if isinstance(step, s.RepeatWhile):
                predicate, asked = tiles.memory(step.predicate).whole(), step.condition

                def condition() -> str:
                    tiles.write(tile_region, asked)
                    return tile_region.region.one(tile_region.place(predicate, "pred"))

            tile_region.region.turns(
                lambda: tiles.write(tile_region, step.body), condition=condition
            )
            return tile_region.written(memories)

        self._compiled = Compiled(_count(step.body), write)
        parts = (step.condition, step.body) if isinstance(step, s.RepeatWhile) else (step.body,)
        self._compiled.stays_in_python = not all(map(_is_plain, parts))

    @property
    def stays_in_python(self) -> bool:
        """Whether it is never compiled as a whole."""
        return self._compiled.stays_in_python


def parts_of(step: s.Step) -> list[s.Step]:
    """Return a step as several that come one after another: each group or transfer by itself."""
    match step:
        case s.ComputeSet():
            return [s.ComputeSet((group,)) for group in step.groups]
        case s.Exchange():
            return [replace(step, transfers=(transfer,)) for transfer in step.transfers]
    return [step]


def called(steps: Iterable[Prepared]) -> list[Action]:
    """Return the calls of steps."""
    return [action for _, own in steps for action in own]


def _is_plain(step: s.Step) -> bool:
    """Whether a step may be compiled: one of compute sets and exchanges alone."""
    if isinstance(step, s.Sequence):
        return all(map(_is_plain, step.steps))
    return isinstance(step, _SIMPLE)


def _count(step: s.Step) -> int:
    return sum(map(_count, step.steps)) if isinstance(step, s.Sequence) else 1
