"""Lowering of calls: a computation that is called again and again is one function of the program.

Its code is there once. What differs from call to call, weights above all, is copied to variables of
the function's own before a call, as PopART's outlining does; what a call leaves there is copied out
before the next one, unless that is all who reads it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hloipu_compiler.analysis.live_bytes import RUNNING
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.shapes import TupleShape, leaf_range, leaves_of
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.lowering import lower_computation
from hloipu_compiler.lowering.core.values import Function, Spread, TileTensor, Token, Value
from hloipu_compiler.plan.alive_values import alive_bytes
from hloipu_compiler.planners.spreading import spread_over_copies
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.steps import VariableId

_SHARE_OF_MEMORY = 256
"""What takes more than one part in so many of a tile's memory is copied by itself. Assumed: a copy
of less takes hardly longer than the sync before it."""


class _CallSite(NamedTuple):
    """A call, and all calls of the same computation in the same one."""

    context: LoweringContext
    calls: tuple[int, ...]
    """Positions, in order."""
    only: bool
    """Whether no other computation calls it."""

    @property
    def position(self) -> int:
        return self.context.computation.position[self.context.instruction.name]

    @property
    def next_call(self) -> int | None:
        """Position of the next call, which overwrites what this one leaves.

        None if others may do that before.
        """
        position = self.position
        number = bisect_right(self.calls, position)
        after = self.calls[number] if number < len(self.calls) else None
        if self.only or after is None:
            return after
        between = self.context.computation.instructions[position + 1 : after]
        called = {name for op in between if op.opcode in RUNNING for name in op.attributes.called}
        inside = self.context.module.computation
        calls_more = any(
            op.opcode in RUNNING for name in called for op in inside[name].instructions
        )
        return None if calls_more else after


@lowers("call")
def _call(context: LoweringContext) -> Sequence[Value]:
    builder = context.builder
    (callee,) = context.attributes.called
    name = callee if builder.ipus == 1 else f"{callee} on ipu {builder.ipu}"
    if builder.callers is None:
        builder.callers = _callers(context.module)
    is_only = len(builder.callers[callee]) == 1
    site = _CallSite(context, context.computation.calls[callee], is_only)
    if name not in builder.functions:
        builder.functions[name] = _lowered(site, context.module.computation[callee])
    return _passed(site, builder.functions[name], name)


def _callers(module: Module) -> dict[str, list[str]]:
    """Return the names of computations that call others, by what they call."""
    callers: dict[str, list[str]] = {}
    for computation in module.computations:
        for callee in computation.calls:
            callers.setdefault(callee, []).append(computation.name)
    return callers


def _lowered(site: _CallSite, callee: Computation) -> Function:
    context, builder = site.context, site.context.builder
    computation = context.computation
    alive, outside = builder.alive_at, builder.alive_bytes
    arguments: list[TileTensor | None] = []
    in_place: dict[VariableId, TileTensor] = {}
    """What stays where it is, once: operands may be the same array."""
    given: list[list[Value]] = []
    with builder.function() as scope:
        for slot, leaves in enumerate(context.operands):
            passed = {computation.instructions[at].operands[slot] for at in site.calls}
            is_shared = site.only and len(passed) == 1
            inner: list[Value] = []
            for leaf in leaves:
                variable = _variable(leaf)
                argument = in_place.get(variable) if is_shared and variable is not None else None
                argument = argument or _argument(
                    builder, _source(leaf) if is_shared else leaf, is_shared=is_shared
                )
                if argument is not None and argument.variable == variable:
                    in_place[variable] = argument
                arguments.append(argument)
                if argument is None:
                    inner.append(leaf)
                    continue
                if is_shared and isinstance(leaf, Spread):
                    inner.append(replace(leaf, source=argument))
                else:
                    inner.append(argument)
            given.append(inner)
        owned = frozenset(
            tensor for tensor in arguments if tensor is not None and tensor.variable not in in_place
        )
        scope.owned.update(tensor.variable for tensor in owned)
        # Plans must fit into what is left at the call that has least.
        fullest = max(alive[at] for at in site.calls)
        builder.alive_bytes = outside + max(fullest, _alive_elsewhere(site)) - alive[site.position]
        written = lower_computation(context, callee, given, owned)
        results = tuple(
            builder.tile_tensor(x) if isinstance(x, Spread) and _variable(x) is not None else x
            for x in written
        )
        body = s.Sequence(tuple(scope.steps))
    builder.alive_bytes, builder.origin = outside, context.instruction.name
    return Function(tuple(arguments), frozenset(in_place), results, body)


def _alive_elsewhere(site: _CallSite) -> int:
    """Return most bytes that are alive at a call in another computation, in that one."""
    if site.only:
        return 0
    context, builder = site.context, site.context.builder
    (callee,) = context.attributes.called
    most = 0
    for name in (builder.callers or {})[callee]:
        if name != context.computation.name:
            caller = context.module.computation[name]
            if name not in builder.alive_in:
                builder.alive_in[name] = alive_bytes(
                    context.module, context.plan, caller, late=False
                )
            most = max(most, *(builder.alive_in[name][at] for at in caller.calls[callee]))
    return most


def _source(leaf: Value) -> Value:
    """Return what a broadcast that is not written out spreads, and anything else as it is."""
    return leaf.source if isinstance(leaf, Spread) else leaf


def _variable(leaf: Value) -> VariableId | None:
    source = _source(leaf)
    return source.variable if isinstance(source, TileTensor) else None


def _argument(builder: Builder, leaf: Value, *, is_shared: bool) -> TileTensor | None:
    """Return where a function finds an argument, as a value of its own; None: in no memory.

    It lies as the first call has it: what other calls pass lies alike, layer by layer, so that
    copies stay on their tiles.
    """
    kind, shape = leaf.element_type, leaf.shape
    if not isinstance(leaf, TileTensor):
        if is_shared or isinstance(leaf, Token):
            return None
        mapping = builder.default_mapping(kind, shape)
    else:
        mapping = spread_over_copies(builder.variables[leaf.variable].mapping, shape, kind)
    value = builder.value(kind, shape)
    if is_shared and isinstance(leaf, TileTensor):
        return TileTensor(value, leaf.variable, kind, shape)
    return TileTensor(value, builder.variable(kind, shape, mapping), kind, shape)


def _passed(site: _CallSite, function: Function, name: str) -> Sequence[Value]:
    """Write a call: copies in, the step, copies out."""
    builder = site.context.builder
    operands = [leaf for leaves in site.context.operands for leaf in leaves]
    passed: list[s.Passed] = []
    moved: list[tuple[TileTensor, VariableId]] = []
    for leaf, inner in zip(operands, function.arguments, strict=True):
        if inner is None:
            continue
        is_in_place = inner.variable in function.in_place
        tensor = builder.tile_tensor(_source(leaf) if is_in_place else leaf)
        if tensor.variable != inner.variable:
            moved.append((tensor, inner.variable))
        passed.append(s.Passed(inner.variable, tensor.value, inner.value))
    _copy(builder, moved)
    back: dict[int, s.Passed] = {}
    results: list[Value] = []
    arguments = {
        tensor.value: leaf
        for leaf, tensor in zip(operands, function.arguments, strict=True)
        if tensor
    }
    for leaf in function.results:
        if not isinstance(leaf, TileTensor) or leaf.variable in builder.constants:
            results.append(leaf)
        elif leaf.variable in function.in_place:
            results.append(arguments[leaf.value])
        else:
            if leaf.value not in back:
                outer = builder.value(leaf.element_type, leaf.shape)
                back[leaf.value] = s.Passed(leaf.variable, outer, leaf.value)
            results.append(
                TileTensor(back[leaf.value].outer, leaf.variable, leaf.element_type, leaf.shape)
            )
    builder.emit(s.Call(name, tuple(dict.fromkeys(passed)), tuple(back.values())))
    return _kept(site, function, results)


def _kept(site: _CallSite, function: Function, results: list[Value]) -> list[Value]:
    """Copy out what the next call would overwrite and others read than that call."""
    next_call = site.next_call
    if next_call is None and site.only:
        return results
    builder = site.context.builder
    own = {x.variable for x in function.results if isinstance(x, TileTensor)}
    moved: list[tuple[TileTensor, VariableId]] = []
    outside: dict[Value, Value] = {}
    for leaf in dict.fromkeys(results):
        if not isinstance(leaf, TileTensor) or leaf.variable not in own:
            continue
        numbers = [n for n, other in enumerate(results) if other == leaf]
        if all(_is_taken_in_time(site, function, n, leaf.variable, next_call) for n in numbers):
            continue
        mapping = spread_over_copies(
            builder.variables[leaf.variable].mapping, leaf.shape, leaf.element_type
        )
        variable = builder.variable(leaf.element_type, leaf.shape, mapping)
        moved.append((leaf, variable))
        outside[leaf] = replace(leaf, variable=variable)
    _copy(builder, moved)
    return [outside.get(leaf, leaf) for leaf in results]


def _is_taken_in_time(
    site: _CallSite, function: Function, leaf: int, variable: VariableId, next_call: int | None
) -> bool:
    """Whether a leaf of the result is read by nobody, or by the next call, which takes it safely.

    A copy to another argument must not come from where an argument is copied to.
    """
    computation = site.context.computation
    parts = _parts(computation, site.position, leaf)
    readers = {user for at, _ in parts for user in computation.users[at]}
    if computation.root in {at for at, _ in parts}:
        return False
    if not readers:
        return True
    if next_call is None or readers != {next_call}:
        return False
    call = computation.instructions[next_call]
    inside = dict(parts)
    places: list[TileTensor | None] = []
    first = 0
    for at in call.operands:
        if at in inside:
            places.append(function.arguments[first + inside[at]])
        first += len(leaves_of(computation.instructions[at].shape))
    taken = {tensor.variable for tensor in function.arguments if tensor is not None}
    return variable not in taken or all(
        tensor is not None and tensor.variable == variable for tensor in places
    )


def _parts(computation: Computation, call: int, leaf: int) -> list[tuple[int, int]]:
    """Return the positions that take a leaf of a call's result, and its number in each.

    The call's own where it is no tuple, or is read as a whole.
    """
    shape = computation.instructions[call].shape
    parts: list[tuple[int, int]] = []
    for user in computation.users[call]:
        instruction = computation.instructions[user]
        if instruction.opcode != "get-tuple-element" or not isinstance(shape, TupleShape):
            return [(call, leaf)]
        places = leaf_range(shape, instruction.attributes.integer("index"))
        if places.start <= leaf < places.stop:
            parts.append((user, leaf - places.start))
    return parts


def _copy(builder: Builder, moved: Sequence[tuple[TileTensor, VariableId]]) -> None:
    """Copy what is small at once, and what is large one by one: each source may be free by then.

    Merging joins these exchanges where there is room.
    """
    small = builder.machine.memory.bytes_per_tile // _SHARE_OF_MEMORY
    together: list[tuple[TileTensor, VariableId]] = []
    for leaf, variable in moved:
        if builder.variables[variable].bytes_per_tile > small:
            _copy_at_once(builder, [(leaf, variable)])
        else:
            together.append((leaf, variable))
    if together:
        _copy_at_once(builder, together)


def _copy_at_once(builder: Builder, moved: Sequence[tuple[TileTensor, VariableId]]) -> None:
    copies = [builder.plain_copy(leaf, variable) for leaf, variable in moved]
    builder.exchange([transfer for transfer, _ in copies], [definition for _, definition in copies])
