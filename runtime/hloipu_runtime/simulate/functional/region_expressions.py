"""Writes expressions of a region: loops of instructions, and calls of numpy's own loops."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.arranging import arranged
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.native_lowering import Constant, lowered
from hloipu_runtime.codelets.core.native_stages import KernelStage, Staged, staged
from hloipu_runtime.kernels.native.numpy_loops import NumpyLoop
from hloipu_runtime.kernels.native.regions import Held, Place, Register, address_of
from hloipu_runtime.program.steps import ValueId
from hloipu_runtime.simulate.functional.region_values import (
    Refused,
    RegionValues,
    Sizes,
    is_in_order,
)


class RegionExpressions(RegionValues):
    """Expressions on values that broadcast."""

    def _arranged(self, held: Held, labels: Sequence[int], rank: int) -> Held:
        if isinstance(held, Register):
            return held
        return held.seen(arranged(held.view, labels, rank, 0))

    def _expression(
        self, expression: Expression, operands: Sequence[Held], shape: Sizes,
        writes: Sequence[ValueId] = (),
    ) -> list[Held]:  # fmt: skip
        """Write an expression on operands that broadcast to a shape."""
        steps = _staged(expression, self.halves)
        made: dict[int, Held] = {}
        is_unsure = False
        covers: dict[int, set[int]] = {}
        for k, held in enumerate(operands):
            if isinstance(held, Place):
                view = np.broadcast_to(held.view, shape)
                is_unsure |= self._is_unsure(held, of_order=True) or not is_in_order(view)
                covers[k] = {d for d, stride in enumerate(view.strides) if stride and shape[d] > 1}
                held = held.seen(view)
            made[k] = held
        for number, part in enumerate(steps.lowered.parts, len(operands)):
            given = () if isinstance(part, Constant) else part.arguments
            covers[number] = set().union(*(covers.get(x, set()) for x in given))
        for number, value in steps.constants.items():
            place = self.region.constant(value, steps.lowered.type_of(number))
            made[number] = place.seen(np.broadcast_to(place.view, shape))
        results = steps.lowered.results
        long = {d for d, n in enumerate(shape) if n > 1}
        for position, stage in enumerate(steps.stages):
            if isinstance(stage, KernelStage):
                last = position == len(steps.stages) - 1
                outs = dict(zip(results, writes, strict=True)) if writes and last else {}
                self._kernel(stage, made, shape, outs)
            else:
                alone = set(steps.constants) if shape else set(made)
                exponent = stage.operands[-1]
                is_one = not covers.get(exponent, set()) & long and exponent not in alone
                if is_one and stage.part.function is np.power:
                    raise Refused  # whether numpy is given a number or an array is not known here
                made[stage.number] = self._numpys(stage, made, shape, alone)
        held_results = []
        for number in results:
            held = made[number]
            if isinstance(held, Place):
                if number in steps.constants:
                    copy = self.region.temporary(shape, held.type)
                    self.region.copy(held, copy)
                    held = copy
                if is_unsure or covers.get(number, set()) != long:
                    self._doubt(held)
            held_results.append(held)
        return held_results

    def _kernel(
        self, stage: KernelStage, made: dict[int, Held], shape: Sizes, outs: dict[int, ValueId]
    ) -> None:
        region = self.region
        names = {number: text for number, _, text in stage.literals}
        types = {number: kind for number, kind, _ in stage.literals}
        types |= dict(zip(stage.operands, stage.types, strict=True))
        if prod(shape) == 1:
            names |= {x: region.one(made[x]) for x in stage.operands}
            region.instructions(stage.instructions, names, types)
            made |= {x: Register(names[x], types[x], shape) for x in stage.results}
            return
        places = {x: held for x in stage.operands if isinstance(held := made[x], Place)}
        names |= {x: held.name for x in stage.operands if isinstance(held := made[x], Register)}
        kinds = {number: part.type for number, part in stage.instructions}
        for x in stage.results:
            made[x] = self._kernel_result(x, kinds[x], places, shape, outs)
        targets = {x: made[x] for x in stage.results}
        every = [*places.values(), *targets.values()]
        with region.each(shape, every) as (pointers, access):  # type: ignore[arg-type]
            for (x, place), pointer in zip(places.items(), pointers, strict=False):
                names[x] = region.load(place.type, pointer, access)
            region.instructions(stage.instructions, names, types)
            for x, pointer in zip(targets, pointers[len(places) :], strict=True):
                region.store(types[x], names[x], pointer, access)

    def _kernel_result(
        self, number: int, kind: str, places: dict[int, Place], shape: Sizes,
        outs: dict[int, ValueId],
    ) -> Place:  # fmt: skip
        """Return memory for a result of a kernel, perhaps that of an operand it is in place of."""
        state = self._free_state(outs[number]) if number in outs else None
        if state is None or state.view.shape != shape:
            return self.region.temporary(shape, kind)
        for place in places.values():
            if place.memory is state.memory and not (
                place.view.strides == state.view.strides
                and address_of(place.view) == address_of(state.view)
            ):
                return self.region.temporary(shape, kind)
        return state

    def _numpys(
        self, stage: Any, made: dict[int, Held], shape: Sizes, alone: Collection[int]
    ) -> Held:
        """Call numpy's own loop; `alone` are the operands that it is given as numbers.

        Their stride is 0, by which it takes square roots and squares in place of powers.
        """
        function, kind = stage.part.function, stage.part.type
        loop = None if function is None or kind not in ("f32", "f64") else NumpyLoop(function, kind)
        if loop is None or loop.address is None:
            raise Refused
        region = self.region
        target = region.temporary(shape, kind)
        pointers = [
            region.address(
                held
                if x in alone and isinstance(held := made[x], Place)
                else region.in_memory(made[x], shape)
            )
            for x in stage.operands
        ]
        pointers.append(region.address(target))
        step = target.view.itemsize
        steps = [*(0 if x in alone else step for x in stage.operands), step]
        region.numpys(loop, pointers, [prod(shape)], steps)
        return target if prod(shape) > 1 else self._loaded(target)


@lru_cache(maxsize=1024)
def _staged(expression: Expression, halves: bool) -> Staged:
    return staged(lowered(expression, halves=halves))


def rounding(element: str, halves: bool) -> str:
    """Return the instruction that rounds to a narrow float."""
    return f"round:{element}{':half' if element == 'f16' and halves else ''}"
