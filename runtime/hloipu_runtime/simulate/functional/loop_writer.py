"""Writes a loop's nodes as one compiled function: small arrays, whatever they do step by step.

What is written has the bits of the plain path: the same instructions, numpy's own loops and
products on arrays that lie alike, and sums in the same order. What cannot be told to be so is
refused: the loop then stays Python's.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.arranging import arranged, sizes_of
from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.constants import value_of
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.native_lowering import Constant, lowered, storage_type
from hloipu_runtime.codelets.core.native_stages import KernelStage, Staged, staged
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.codelets.indexed.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.fused_reduce import FusedReduce, as_region
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.codelets.ops.row_region import RowRegion
from hloipu_runtime.kernels.contractions.blas_threads import ALWAYS_ONE_THREAD_FLOPS, SMALL_PRODUCTS
from hloipu_runtime.kernels.contractions.contraction import DotDimensions, arrangement
from hloipu_runtime.kernels.contractions.dot import is_matrix_product
from hloipu_runtime.kernels.contractions.matmul import is_one_call
from hloipu_runtime.kernels.core.rounding import is_narrow
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.native.instructions import is_known_type
from hloipu_runtime.kernels.native.numpy_loops import NumpyLoop
from hloipu_runtime.kernels.native.regions import (
    Held,
    Memory,
    Place,
    Region,
    Register,
    address_of,
)
from hloipu_runtime.kernels.reduction import folds_in_order, is_by_columns
from hloipu_runtime.kernels.reduction_regions import SEQUENTIAL_STEPS
from hloipu_runtime.program.program import Array, Value
from hloipu_runtime.program.steps import Definition, RepeatWhile, ValueId
from hloipu_runtime.simulate.functional.known_values import is_known
from hloipu_runtime.simulate.functional.nodes import Collapsed, Node
from hloipu_runtime.simulate.functional.whole_tensors import Values, cuts_of, whole_block

MOST_ELEMENTS = 1 << 14
"""Of what a node makes: larger arrays are better computed a few rows at a time, in cache, and
sums of more are the plain path's alone."""
MOST_NODES = 400
"""LLVM takes some milliseconds for each; assumed."""

Sizes = tuple[int, ...]


class Refused(Exception):
    """A node that no compiled function does."""


class Written(NamedTuple):
    """A loop as a compiled function's text."""

    region: Region
    memories: tuple[str, ...]
    """Names of the memory of `outside`, then of `turns`."""
    outside: tuple[ValueId, ...]
    """Values from around the loop that it reads."""
    turns: tuple[ValueId, ...]
    """Values that it carries from turn to turn, in row-major arrays."""
    multiplies: bool
    """Whether BLAS must be told to use one thread."""


def written(node: Node, table: Sequence[Value], first: Values, values: Values) -> Written:
    """Return a loop's text for outside values that lie as these; raises Refused."""
    loop = node.what
    assert not isinstance(loop, Codelet | Definition)
    return _Writer(node, table, first, values).written()


class _Writer:
    def __init__(self, node: Node, table: Sequence[Value], first: Values, values: Values) -> None:
        self.node, self.table, self.first, self.given = node, table, first, values
        self.region = Region()
        self.held: dict[ValueId, Held] = {}
        self.outside: dict[ValueId, str] = {}
        self.unsure: dict[int, Array] = {}
        """Stand-ins for memory of values that the plain path may lay otherwise."""
        self.last: dict[ValueId, float] = {}
        self.now = 0
        self.turn_of: dict[ValueId, ValueId] = {}
        """What is carried on in which turn's memory."""
        self.state: dict[ValueId, Place] = {}
        """Memory of what is carried."""
        self.multiplies = False
        self.halves = _halves()

    # --- the loop ---------------------------------------------------------------------------------
    def written(self) -> Written:
        loop, region = self.node.what, self.region
        carried = loop.carried  # type: ignore[union-attr]
        body = self.node.blocks[-1]
        if sum(len(block.nodes) for block in self.node.blocks) > MOST_NODES:
            raise Refused
        turns = tuple(x.turn for x in carried)
        for k, turn in enumerate(turns):
            self.state[turn] = self._carried(turn, f"%turn.{k}")
        following: dict[ValueId, list[ValueId]] = {}
        for x in carried:
            following.setdefault(x.following, []).append(x.turn)
        self.turn_of = {v: into[0] for v, into in following.items()}
        most, done_at, ended_at = (
            region.new(f"getelementptr i64, ptr %header, i64 {k}") if k else "%header"
            for k in range(3)
        )
        bound = region.new(f"load i64, ptr {most}")
        region.jump("head")
        region.begin("head")
        phi = len(region.text.lines)
        region.line("")
        for turn, place in self.state.items():
            self.held[turn] = place if prod(place.view.shape) > 1 else self._loaded(place)
        again = region.new(f"icmp ult i64 %done, {bound}")
        region.choose(again, "going", "stopped")
        region.begin("going")
        if isinstance(loop, RepeatWhile):
            self._block(self.node.blocks[0], (loop.predicate_value, *turns))
            region.choose(region.one(self._value(loop.predicate_value)), "body", "ended")
            region.begin("body")
        self._block(body, tuple(following))
        self._carry([(x.turn, x.following) for x in carried])
        following_turn = region.new("add nuw i64 %done, 1")
        region.text.lines[phi] = (
            f"  %done = phi i64 [0, %entry], [{following_turn}, %{region._label}]"
        )
        region.jump("head")
        for label, ended in (("ended", 1), ("stopped", 0)):
            if label == "ended" and not isinstance(loop, RepeatWhile):
                continue
            region.begin(label)
            region.line(f"store i64 %done, ptr {done_at}")
            region.line(f"store i64 {ended}, ptr {ended_at}")
            region.line("ret void")
        names = (*self.outside.values(), *(x.memory.pointer for x in self.state.values()))
        return Written(region, names, tuple(self.outside), turns, self.multiplies)

    def _carried(self, value: ValueId, name: str) -> Place:
        shape, kind = self._form(value)
        stand_in = np.empty(shape, storage_dtype(self.table[value].element_type))
        return Place(Memory(name, 0, stand_in), stand_in, kind)

    def _carry(self, pairs: Sequence[tuple[ValueId, ValueId]]) -> None:
        """Write what is carried on to where the next turn reads it."""
        moving: list[tuple[Held, Place]] = []
        for turn, following in pairs:
            source, target = self._value(following), self.state[turn]
            if isinstance(source, Place):
                if not source.view.flags.c_contiguous or self._is_unsure(source):
                    raise Refused  # the plain path would carry it on as it lies
                if source.memory is target.memory:
                    continue
            moving.append((source, target))
        targets = {id(target.memory) for _, target in moving}
        for k, (source, target) in enumerate(moving):
            if isinstance(source, Place) and id(source.memory) in targets:
                copy = self.region.temporary(source.view.shape, source.type)
                self.region.copy(source, copy)
                moving[k] = copy, target
        for source, target in moving:
            self.region.copy(source, target)

    def _block(self, block: Collapsed, kept: Sequence[ValueId]) -> None:
        """Write the nodes of a block; `kept` outlive it."""
        self.last = {}
        for n, node in enumerate(block.nodes):
            for value in node.reads:
                self.last[value] = n
        self.last |= dict.fromkeys(kept, float("inf"))
        for n, node in enumerate(block.nodes):
            self.now = n
            if not is_known(node, self.first):
                self._node(node)

    def _node(self, node: Node) -> None:
        what = node.what
        for v in (*node.reads, *node.writes):
            if 0 in self.table[v].shape:
                raise Refused
        large = [v for v in node.writes if prod(self.table[v].shape) > MOST_ELEMENTS]
        if large and not isinstance(what, DynamicUpdateSlice):
            raise Refused
        match what:
            case Definition():
                made = [self._definition(what, node)]
            case Elementwise():
                made = self._elementwise(what, node)
            case DynamicSlice():
                made = [self._slice(node)]
            case DynamicUpdateSlice():
                made = [self._update(node)]
            case Dot(part=0):
                made = [self._dot(what, node)]
            case Reduce(parts=()):
                made = self._reduce(what, node)
            case FusedReduce(parts=()):
                made = self._fused(what, node)
            case RowRegion():
                made = self._rows(what, node)
            case Codelet(rearranges=True):
                made = [self._seen(what, node)]
            case _:
                raise Refused
        for v, held in zip(node.writes, made, strict=True):
            shape, _ = self._form(v)
            if isinstance(held, Place):
                if held.view.shape != shape:
                    held = held.seen(held.view.reshape(shape, copy=False))
                if prod(shape) == 1:
                    held = self._loaded(held)
            self.held[v] = held

    # --- values -----------------------------------------------------------------------------------
    def _form(self, value: ValueId) -> tuple[Sizes, str]:
        """Return shape and storage type."""
        made = self.table[value]
        kind = storage_type(made.element_type)
        if not is_known_type(kind):
            raise Refused
        return made.shape, kind

    def _value(self, value: ValueId) -> Held:
        held = self.held.get(value)
        if held is not None:
            return held
        array = self.given[value] if self.first[value] is None else self.first[value]
        shape, kind = self._form(value)
        if not isinstance(array, np.ndarray) or array.shape != shape:
            raise Refused
        if array.dtype != storage_dtype(self.table[value].element_type):
            raise Refused
        name = self.outside[value] = f"%outside.{len(self.outside)}"
        held = self.held[value] = Place(Memory(name, 0, array), array, kind)
        return held

    def _loaded(self, place: Place) -> Register:
        return Register(self.region.one(place), place.type, place.view.shape)

    def _doubt(self, place: Place) -> None:
        self.unsure[id(place.memory.stand_in)] = place.memory.stand_in

    def _is_unsure(self, place: Place) -> bool:
        return id(place.memory.stand_in) in self.unsure

    def _is_dead(self, memory: Memory) -> bool:
        """Whether no later node, nor anybody after the block, reads what lies in a memory."""
        return not any(
            isinstance(held, Place)
            and held.memory is memory
            and self.last.get(value, -1) > self.now
            for value, held in self.held.items()
        )

    def _free_state(self, written: ValueId) -> Place | None:
        """Return the memory in which a value is to be carried on, if nothing later reads it."""
        turn = self.turn_of.get(written)
        if turn is None:
            return None
        place = self.state[turn]
        if place.view.shape != self.table[written].shape or prod(place.view.shape) == 1:
            return None
        if place.type != storage_type(self.table[written].element_type):
            return None
        return place if self._is_dead(place.memory) else None

    def _place_for(self, written: ValueId, reads: Sequence[Held]) -> Place:
        """Return memory for a result while `reads` are read; is theirs only element by element."""
        shape, kind = self._form(written)
        place = self._free_state(written)
        if place is None or any(isinstance(x, Place) and x.memory is place.memory for x in reads):
            return self.region.temporary(shape, kind)
        return place

    # --- nodes that move --------------------------------------------------------------------------
    def _seen(self, what: Codelet, node: Node) -> Held:
        """Return what only looks at its operand otherwise."""
        (source,), shape = map(self._value, node.reads), self.table[node.writes[0]].shape
        if isinstance(source, Register):
            if prod(shape) == 1:
                return source._replace(shape=shape)
            target = self.region.temporary(shape, source.type)
            self.region.fill(target, source.name)
            self._doubt(target)
            return target
        run = what.bound([whole_block(source.view.shape)], [whole_block(shape)])
        return self._view(source, run([source.view], [None])[0])

    def _view(self, source: Place, view: Array) -> Place:
        if not np.may_share_memory(view, source.memory.stand_in):
            raise Refused
        return source.seen(view)

    def _definition(self, what: Definition, node: Node) -> Held:
        shape = self._form(what.value)[0]
        if what.base is None and len(what.pieces) == 1:
            (piece,) = what.pieces
            source = self._value(piece.value)
            if isinstance(source, Register):
                return source._replace(shape=shape)
            view = source.view.reshape(piece.view)[cuts_of(piece)[0]]
            return self._view(source, view)
        pieces = [(self._value(p.value), p.view, *cuts_of(p)) for p in what.pieces]
        if what.base is None:
            target = self._place_for(what.value, [x for x, *_ in pieces])
        else:
            target = self._overwritten(what.value, what.base, [x for x, *_ in pieces])
        for source, viewed, origin, box in pieces:
            part = target.seen(target.view[box])
            if isinstance(source, Place):
                source = self._view(source, source.view.reshape(viewed)[origin])
            self.region.copy(source, part)
        return target

    def _overwritten(self, written: ValueId, base: ValueId, reads: Sequence[Held]) -> Place:
        """Return an array to be changed in part: its own memory if it is dead, else a copy."""
        source = self._value(base)
        if isinstance(source, Place) and not source.memory.pointer.startswith("%outside"):
            is_read = any(isinstance(x, Place) and x.memory is source.memory for x in reads)
            if source.view.flags.c_contiguous and not is_read and self._is_dead(source.memory):
                return source
        if prod(self.table[written].shape) > MOST_ELEMENTS:
            raise Refused
        target = self._place_for(written, [source, *reads])
        self.region.copy(source, target)
        return target

    def _start(self, value: ValueId, limit: int) -> str | None:
        """Return where a window begins, from 0 to a limit; None: at 0."""
        if not limit:
            return None
        held, (_, kind) = self._value(value), self._form(value)
        if kind[0] not in "su" or kind == "u64":
            raise Refused
        region, name = self.region, self.region.one(held)
        wide = region.op("convert", "s64", name, types=[kind])
        low = region.op("integer_extremum:max", "s64", wide, "0")
        return region.op("integer_extremum:min", "s64", low, str(limit))

    def _window(self, data: Place, sizes: Sizes, starts: Sequence[ValueId]) -> Place:
        """Return a window of an array as a place of its own."""
        region = self.region
        pointer = region.address(data)
        for value, size, whole, stride in zip(
            starts, sizes, data.view.shape, data.view.strides, strict=True
        ):
            start = self._start(value, whole - size)
            if start is not None:
                offset = region.new(f"mul nsw i64 {start}, {stride}")
                pointer = region.new(f"getelementptr i8, ptr {pointer}, i64 {offset}")
        view = data.view[tuple(slice(n) for n in sizes)]
        return Place(Memory(pointer, 0, view), view, data.type)

    def _slice(self, node: Node) -> Held:
        shape = self.table[node.writes[0]].shape
        data = self._value(node.reads[0])
        if isinstance(data, Register):
            return data._replace(shape=shape)
        window = self._window(data, shape, node.reads[1:])
        if prod(shape) == 1:
            return self._loaded(window)
        target = self.region.temporary(shape, data.type)
        self.region.copy(window, target)
        if not window.view.flags.c_contiguous or self._is_unsure(data):
            self._doubt(target)
        return target

    def _update(self, node: Node) -> Held:
        data, window, *starts = node.reads
        shape = self.table[node.writes[0]].shape
        if self.table[window].shape == shape:
            return self._value(window)
        update = self._value(window)
        target = self._overwritten(node.writes[0], data, [update])
        place = self._window(target, self.table[window].shape, starts)
        if isinstance(update, Register):
            update = update._replace(shape=place.view.shape)
        self.region.copy(update, place)
        return target

    # --- expressions ------------------------------------------------------------------------------
    def _elementwise(self, what: Elementwise, node: Node) -> list[Held]:
        shape = self.table[node.writes[0]].shape
        operands = [
            self._arranged(self._value(v), labels, what.rank)
            for v, labels in zip(node.reads, what.labels, strict=True)
        ]
        return self._expression(what.expression, operands, shape, node.writes)

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
                is_unsure |= self._is_unsure(held) or not _is_in_order(view)
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
        for position, stage in enumerate(steps.stages):
            if isinstance(stage, KernelStage):
                last = position == len(steps.stages) - 1
                outs = dict(zip(results, writes, strict=True)) if writes and last else {}
                self._kernel(stage, made, shape, outs)
            else:
                made[stage.number] = self._numpys(stage.part.function, stage, made, shape)
        long = {d for d, n in enumerate(shape) if n > 1}
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
        self, function: np.ufunc | None, stage: Any, made: dict[int, Held], shape: Sizes
    ) -> Held:
        """Call numpy's own loop."""
        kind = stage.part.type
        loop = None if function is None or kind not in ("f32", "f64") else NumpyLoop(function, kind)
        if loop is None or loop.address is None:
            raise Refused
        region = self.region
        arguments = [region.in_memory(made[x], shape) for x in stage.operands]
        target = region.temporary(shape, kind)
        pointers = [region.address(x) for x in (*arguments, target)]
        step = target.view.itemsize
        region.numpys(loop, pointers, [prod(shape)], [step] * len(pointers))
        return target if prod(shape) > 1 else self._loaded(target)

    # --- reductions -------------------------------------------------------------------------------
    def _reduce(self, what: Reduce, node: Node) -> list[Held]:
        count = len(node.writes)
        operands = [self._value(v) for v in node.reads[:count]]
        inits = [self._value(v) for v in node.reads[count:]]
        shape = self.table[node.reads[0]].shape
        if what.monoid:
            return [
                self._monoid(
                    what.monoid,
                    kind,
                    self._whole(x, shape, what.monoid),
                    what.dimensions,
                    self.region.one(init),
                )
                for x, init, kind in zip(operands, inits, what.element_types, strict=True)
            ]
        return self._region(what, [self._whole(x, shape) for x in operands], inits)

    def _whole(self, held: Held, shape: Sizes, monoid: str = "") -> Place:
        """Return a value as a row-major array, which for sums the plain path must have so too."""
        if monoid != "add" or held.type not in ("f32", "f64"):
            return self.region.in_memory(held, shape)
        if isinstance(held, Register):
            if prod(shape) > 1:
                raise Refused
        elif self._is_unsure(held) or not held.view.flags.c_contiguous or held.view.shape != shape:
            raise Refused
        return self.region.in_memory(held, shape)

    def _monoid(
        self, monoid: str, element: str, x: Place, dimensions: Sequence[int], init: str
    ) -> Held:
        """Reduce by a monoid, then take in the init value."""
        region, kind, shape = self.region, x.type, x.view.shape
        is_float = kind in ("f32", "f64")
        if is_float and monoid not in ("add", "maximum", "minimum"):
            raise Refused
        if not is_float and storage_type(element) != element:
            raise Refused
        folds = folds_in_order(shape, tuple(dimensions), rounds=is_float and monoid == "add")
        if folds is None or prod(shape) >= MOST_ELEMENTS:
            raise Refused
        kept = tuple(n for d, n in enumerate(shape) if d not in dimensions)
        current = x
        for outer, count, inner in folds:
            reduced = region.temporary((outer, inner), kind)
            rows = current.seen(current.view.reshape(outer, count, inner))
            if is_float and inner == 1:
                columns = monoid == "add" and is_by_columns(outer, count)
                with region.each((outer, 1), [rows.seen(rows.view[:, 0]), reduced]) as (at, access):
                    combine = region.paired if columns else region.reduced
                    one = combine(monoid, kind, at[0], count)
                    region.store(kind, one, at[1], access)
            else:
                self._fold(monoid, rows, reduced)
            current = reduced
        result = region.temporary(kept, kind)
        source = current.seen(current.view.reshape(kept))
        op = _op(monoid, kind)
        with region.each(kept, [source, result]) as ((one, other), access):
            value = region.load(kind, one, access)
            value = region.op(op, kind, init, value)
            if is_narrow(element) and monoid == "add":
                value = region.op(_rounding(element, self.halves), "f32", value)
            region.store(kind, value, other, access)
        return result

    def _fold(self, monoid: str, rows: Place, target: Place) -> None:
        """Reduce the middle axis one after another."""
        region, kind = self.region, rows.type
        outer, count, inner = rows.view.shape
        op = _op(monoid, kind)
        first = rows.seen(rows.view[:, 0])
        with region.each((outer, inner), [first, target]) as ((one, other), access):
            value = region.load(kind, one, access)
            if op == "fadd":  # as numpy's reductions begin with zero
                value = region.op("fadd", kind, "0.0", value)
            region.store(kind, value, other, access)
        if count == 1:
            return
        rest = rows.seen(rows.view[:, 1:].transpose(1, 0, 2))
        into = target.seen(np.broadcast_to(target.view, (count - 1, outer, inner)))
        with region.each((count - 1, outer, inner), [rest, into], is_parallel=False) as (
            (one, other), access,
        ):  # fmt: skip
            before, value = region.load(kind, other, access), region.load(kind, one, access)
            region.store(kind, region.op(op, kind, before, value), other, access)

    def _region(self, what: Reduce, operands: list[Place], inits: list[Held]) -> list[Held]:
        """Reduce by a body, as `reduce_region` does."""
        assert what.body is not None
        shape = operands[0].view.shape
        wanted = sorted(what.dimensions)
        kept = [d for d in range(len(shape)) if d not in wanted]
        kept_shape = tuple(shape[d] for d in kept)
        count = prod(shape[d] for d in wanted)
        slabs: list[Place] = []
        for x in operands:
            moved = self.region.row_major(x.seen(x.view.transpose((*wanted, *kept))))
            slabs.append(moved.seen(moved.view.reshape(count, *kept_shape)))
        associative = count > SEQUENTIAL_STEPS if what.associative is None else what.associative
        if not associative:
            return self._one_by_one(what.body, slabs, inits, kept_shape)
        while (count := len(slabs[0].view)) > 1:
            even = count - count % 2
            halves = [s.seen(s.view[start:even:2]) for start in (0, 1) for s in slabs]
            folded = self._expression(what.body, halves, (even // 2, *kept_shape))
            following: list[Place] = []
            for made, slab in zip(folded, slabs, strict=True):
                size = (count - even // 2, *kept_shape)
                if even == count and isinstance(made, Place):
                    following.append(made)
                    continue
                target = self.region.temporary(size, slab.type)
                self.region.copy(made, target.seen(target.view[: even // 2]))
                if even != count:
                    last = target.seen(target.view[even // 2 :])
                    self.region.copy(slab.seen(slab.view[-1:]), last)
                following.append(target)
            slabs = following
        whole: list[Held] = [s.seen(s.view[0, ...]) for s in slabs]
        return self._expression(what.body, [*inits, *whole], kept_shape)

    def _one_by_one(
        self, body: Expression, slabs: list[Place], inits: list[Held], shape: Sizes
    ) -> list[Held]:
        region = self.region
        accumulators = [region.temporary(shape, s.type) for s in slabs]
        for init, target in zip(inits, accumulators, strict=True):
            region.fill(target, region.one(init))
        with region.counted(str(slabs[0].view.shape[0])) as (turn, _):
            parts = []
            for slab in slabs:
                offset = region.new(f"mul nsw i64 {turn}, {slab.view.strides[0]}")
                pointer = region.new(f"getelementptr i8, ptr {region.address(slab)}, i64 {offset}")
                view = slab.view[0, ...]
                parts.append(Place(Memory(pointer, 0, view), view, slab.type))
            computed = self._expression(body, [*accumulators, *parts], shape)
            for held, target in zip(computed, accumulators, strict=True):
                region.copy(held, target)
        return list(accumulators)

    def _fused(self, what: FusedReduce, node: Node) -> list[Held]:
        count = len(what.labels)
        shapes = [self.table[v].shape for v in node.reads[:count]]
        region = as_region(what, ("0",) * len(node.writes))
        inits = [self.region.one(self._value(v)) for v in node.reads[count:]]
        return self._steps(region, node.reads[:count], shapes, inits)

    def _rows(self, what: RowRegion, node: Node) -> list[Held]:
        shapes = [self.table[v].shape for v in node.reads]
        return self._steps(what, node.reads, shapes, None)

    def _steps(
        self, what: RowRegion, reads: Sequence[ValueId], shapes: Sequence[Sizes],
        inits: Sequence[str] | None,
    ) -> list[Held]:  # fmt: skip
        """Write a region's steps; reductions begin with `inits`, or with what they say."""
        whole = sizes_of(what.labels, shapes, what.rank)
        single = tuple(1 if d in what.dimensions else n for d, n in enumerate(whole))
        if prod(whole) >= MOST_ELEMENTS:
            raise Refused
        values = [
            self._arranged(self._value(v), labels, what.rank)
            for v, labels in zip(reads, what.labels, strict=True)
        ]
        elements = list(what.operand_types)
        waiting = list(what.reductions)
        for step, (expression, sources) in enumerate(
            zip(what.expressions, what.sources, strict=True)
        ):
            given = [values[x] for x in sources]
            covers = [x.view.shape if isinstance(x, Place) else (1,) * what.rank for x in given]
            shape = np.broadcast_shapes((1,) * what.rank, *covers)
            values += self._expression(expression, given, shape)
            elements += expression.result_types
            while waiting and waiting[0][0] == step:
                _, value, monoid, text = waiting.pop(0)
                source, element = values[value], elements[value]
                taken = len(what.reductions) - len(waiting) - 1
                if inits is None:
                    start = self.region.constant(value_of(text, element), source.type)
                    init = self.region.one(start)
                else:
                    init = inits[taken]
                reduced = self._monoid(
                    monoid, element, self._whole(source, whole, monoid), what.dimensions, init
                )
                assert isinstance(reduced, Place)
                values.append(reduced.seen(reduced.view.reshape(single)))
                elements.append(element)
        results = []
        for x in what.results:
            held, size = values[x], whole if what.is_full(x) else single
            if isinstance(held, Place) and held.view.shape != size:
                copy = self.region.temporary(size, held.type)
                self.region.copy(held.seen(np.broadcast_to(held.view, size)), copy)
                held = copy
            results.append(self._written_out(held, size))
        return results

    def _written_out(self, held: Held, size: Sizes) -> Held:
        if isinstance(held, Register) and prod(size) > 1:
            return self.region.in_memory(held, size)
        return held

    # --- products ---------------------------------------------------------------------------------
    def _dot(self, what: Dot, node: Node) -> Held:
        kind = self._form(node.writes[0])[1]
        dims = DotDimensions(
            what.lhs_batch, what.rhs_batch, what.lhs_contracting, what.rhs_contracting
        )
        if kind not in ("f32", "f64"):
            raise Refused
        lhs, rhs = (self._operand(v, kind) for v in node.reads)
        a, b = lhs.view, rhs.view
        simple = is_matrix_product(a.shape, b.shape, dims, kind)
        if simple and a.flags.forc and b.flags.forc:
            left = lhs.seen(a.T if dims.lhs_contracting[0] == 0 else a)
            right = rhs.seen(b.T if dims.rhs_contracting[0] == 1 else b)
            product = self._product(left, right, node.writes[0], [lhs, rhs])
        else:
            how = arrangement(a, b, dims)
            left, right = (self._matrices(x, m) for x, m in ((lhs, how.left), (rhs, how.right)))
            if not is_one_call(left.view, right.view):
                raise Refused
            product = self._product(left, right, None, [lhs, rhs])
            product = product.seen(product.view.reshape(how.shape, copy=False))
            if how.order is not None:
                product = product.seen(product.view.transpose(how.order))
        element = self.table[node.writes[0]].element_type
        if is_narrow(element):
            op = _rounding(element, self.halves)
            with self.region.each(product.view.shape, [product]) as ((at,), access):
                value = self.region.load("f32", at, access)
                self.region.store("f32", self.region.op(op, "f32", value), at, access)
        return product

    def _operand(self, value: ValueId, kind: str) -> Place:
        held = self._value(value)
        if held.type != kind:
            raise Refused
        if isinstance(held, Register):
            return self.region.in_memory(held, self.table[value].shape)
        if self._is_unsure(held):
            raise Refused
        return held

    def _matrices(self, x: Place, matrices: Any) -> Place:
        """Return an operand as matrices, copied where the plain path copies it."""
        view = matrices.of(x.view)
        if np.may_share_memory(view, x.memory.stand_in):
            return x.seen(view)
        moved = x.seen(x.view.transpose(matrices.order))
        copy = self.region.temporary(moved.view.shape, x.type)
        self.region.copy(moved, copy)
        seen = copy.view.reshape(matrices.shape)
        return copy.seen(seen.swapaxes(-1, -2) if matrices.is_turned else seen)

    def _product(
        self, left: Place, right: Place, written: ValueId | None, reads: Sequence[Held]
    ) -> Place:
        """Multiply as `np.matmul` does, by its own loop."""
        a, b = left.view, right.view
        vector_left, vector_right = a.ndim == 1, b.ndim == 1
        rows = a[None] if vector_left else a
        columns = b[:, None] if vector_right else b
        m, k, n = rows.shape[-2], rows.shape[-1], columns.shape[-1]
        if m * k * n > SMALL_PRODUCTS:
            raise Refused
        self.multiplies |= 2 * m * k * n > ALWAYS_ONE_THREAD_FLOPS
        batch = rows.shape[:-2]
        shape = (*batch, *(() if vector_left else (m,)), *(() if vector_right else (n,)))
        if written is not None and self.table[written].shape == shape:
            target = self._place_for(written, reads)
        else:
            target = self.region.temporary(shape, left.type)
        out = target.view.reshape(*batch, m, n)
        whole = [left.seen(rows), right.seen(columns), target.seen(out)]
        matrices = merged_batches(batch, [x.view.strides[:-2] for x in whole])
        loop = NumpyLoop(np.matmul, left.type)
        if matrices is None or loop.address is None:
            raise Refused
        count, steps = matrices
        # Numpy takes 0 for the stride of a dimension of one element.
        strides = [
            0 if size == 1 else stride
            for x in whole
            for size, stride in zip(x.view.shape[-2:], x.view.strides[-2:], strict=True)
        ]
        pointers = [self.region.address(x) for x in whole]
        self.region.numpys(loop, pointers, [count, m, k, n], [*steps, *strides])
        return target


def merged_batches(batch: Sizes, strides: Sequence[Sizes]) -> tuple[int, Sizes] | None:
    """Return leading dimensions as one: how many, and its strides; None where they are not one."""
    from hloipu_runtime.kernels.native.regions import merged

    dimensions = merged(batch, strides)
    if len(dimensions) > 1:
        return None
    return dimensions[0] if dimensions else (1, (0,) * len(strides))


def _is_in_order(view: Array) -> bool:
    """Whether numpy lays what it makes of an array row-major."""
    strides = [x for n, x in zip(view.shape, view.strides, strict=True) if n > 1 and x]
    return all(x >= y > 0 for x, y in pairwise((*strides, 1)))


def _op(monoid: str, kind: str) -> str:
    is_float = kind in ("f32", "f64")
    if monoid in ("maximum", "minimum"):
        name = monoid[:3]
        if kind == "pred":
            return "or" if name == "max" else "and"
        return f"extremum:{name}" if is_float else f"integer_extremum:{name}"
    if kind == "pred" and monoid in ("add", "multiply"):
        raise Refused
    names = {"add": "fadd" if is_float else "add", "multiply": "mul"}
    return names.get(monoid, monoid)


def _rounding(element: str, halves: bool) -> str:
    return f"round:{element}{':half' if element == 'f16' and halves else ''}"


@lru_cache(maxsize=1024)
def _staged(expression: Expression, halves: bool) -> Staged:
    return staged(lowered(expression, halves=halves))


def _halves() -> bool:
    from hloipu_runtime.kernels.native.library import the_compiler

    compiler = the_compiler()
    if compiler is None:
        raise Refused
    return compiler.halves
