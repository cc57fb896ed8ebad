"""Lowers a step of micro-batches: a pipeline of its calls, then the update.

    repeat STEPS { zeros -> accumulators; pre; pipeline K { … }; update; new state home }

State lies on the IPU of the stage that reads it. What one position of the pipeline makes and
another reads goes through a channel; what does not vary is read where it lies, brought to the IPU
before the pipeline begins. Each micro-batch takes the next element of the feeds, in the first
position that reads it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.io_tiles import io_tiles_of, without_them
from hloipu_compiler.lowering.core.late_copies import late_copies
from hloipu_compiler.lowering.core.lowering import streamed_in
from hloipu_compiler.lowering.core.offloading import (
    NOTHING_OFFLOADED,
    Offloads,
    fetched,
    is_large,
    remote_variable,
    stored,
)
from hloipu_compiler.lowering.core.scalars import zero_text
from hloipu_compiler.lowering.core.values import Scalar, Spread, TileTensor, Value
from hloipu_compiler.lowering.pipelines.draft import Making
from hloipu_compiler.lowering.pipelines.entry_calls import EntryCalls
from hloipu_compiler.lowering.pipelines.gradient_sums import (
    COUNT_TYPE,
    emptied,
    finished_type,
    mean_over_replicas,
)
from hloipu_compiler.lowering.pipelines.positions import (
    Carried,
    CarriedTensor,
    Key,
    Kind,
    Positions,
)
from hloipu_compiler.lowering.pipelines.remote_parameters import RemoteParameters
from hloipu_compiler.lowering.pipelines.results import Kept, Results, Sum, added, begun, carried_on
from hloipu_compiler.lowering.regions.control import copied_to_storage
from hloipu_compiler.partition.stages.update_places import placed
from hloipu_compiler.plan.pipelining import RUNNING_MEAN, Accumulation, Pipelining
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_compiler.planners.planned import Record
from hloipu_compiler.planners.tuning import DEFAULT_TUNING, Tuning
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.loading import not_given
from hloipu_runtime.program.program import Port, Program, Role, StatePort
from hloipu_runtime.program.steps import ValueId

_LOOP, _PIPELINE = "loop", "micro-batches"


class _PipelinedStep:
    """The program under construction."""

    def __init__(self, making: Making) -> None:
        self.making = making
        self.builder = making.builder
        self.results = Results(making)
        self.sums: list[Sum] = []
        """That outfeeds take."""
        self.joined = _joined(making)
        self.remote = RemoteParameters(making)

    # --- the whole --------------------------------------------------------------------------------

    def program(self) -> Program:
        making, builder, wrapping = self.making, self.builder, self.making.wrapping
        kept = [self._keep(pair.name, pair.parameter, pair.result) for pair in wrapping.state]
        for number in wrapping.constants:
            if number in self.remote.constants:
                self.remote.constant(number, self._parameter(number))
            else:
                making.given[number] = self._constant(number)
        for number in wrapping.inputs:
            making.given[number] = self._streamed(number)
        making.given.update({item.parameter: item.in_loop for item in kept})
        self._begin_sums()
        carried_arrays: list[Kept | Sum] = [*kept, *self.sums]
        with builder.block(repeats=True) as scope:
            scope.owned.update(item.storage.variable for item in carried_arrays)
            following = self._step(kept)
            body = s.Sequence(tuple(late_copies(scope.steps, builder.variables, builder.machine)))
        carried, final = carried_on(builder, carried_arrays, following)
        iterations = wrapping.loop or 1
        builder.emit(s.Repeat(iterations, body, carried, _LOOP))
        self.results.sums(self.sums, final[len(kept) :], iterations)
        return Program(
            making.module.name,
            builder.machine.name,
            making.pipelining.ipu_count,
            tuple(builder.variables),
            tuple(builder.values),
            builder.constants,
            s.Sequence(tuple(builder.scope.steps)),
            builder.function_bodies,
            tuple(making.parameters),
            tuple(making.results),
            tuple(builder.elided),
            tuple(self._port(x, value) for x, value in zip(kept, final, strict=False)),
            self.results.queues(),
            iterations,
            tuple(making.loaded),
        )

    def _keep(self, name: str, parameter: int, result: int) -> Kept:
        builder, kind = self.builder, self.making.calls.arrays[parameter]
        builder.origin = name
        builder.ipu = self.making.pipelining.homes.get(parameter, 0)
        initial = builder.value(*kind)
        in_loop = builder.loop_value(TileTensor(initial, -1, *kind)).value
        if parameter in self.remote.state:
            variable = remote_variable(builder, kind)
        else:
            variable = builder.variable(*kind, builder.default_mapping(*kind), Role.STATE)
        storage = TileTensor(initial, variable, *kind)
        return Kept(name, storage, replace(storage, value=in_loop), parameter, result)

    def _port(self, x: Kept, final: ValueId) -> StatePort:
        whole = self.making.pipelining.whole.get(x.parameter, ())
        return StatePort(
            x.name, x.storage.variable, x.storage.value, final, x.parameter, x.result, whole
        )

    def _constant(self, number: int) -> Value:
        kind = self._parameter(number)
        constant = self.builder.constant(not_given(*kind), kind[0])
        self.making.loaded.append(constant.value)
        return constant

    def _streamed(self, number: int) -> Value:
        kind = self._parameter(number)
        return streamed_in(self.builder, f"parameter.{number}", *kind)

    def _parameter(self, number: int) -> tuple[str, tuple[int, ...]]:
        """Begin an array of the parameters that no queue feeds; return its kind."""
        kind = self.making.calls.arrays[number]
        self.builder.origin = f"parameter.{number}"
        self.builder.ipu = self.making.pipelining.homes.get(number, 0)
        self.making.parameters.append(Port(f"parameter.{number}", *kind))
        return kind

    def _begin_sums(self) -> None:
        """Write the zeros of what outfeeds add up, where that is made."""
        making, calls = self.making, self.making.calls
        for outfeed in making.wrapping.outfeeds:
            for number in outfeed.places if outfeed.reduction else ():
                position = calls.result_positions[number]
                self.builder.ipu = making.ipu_at(position)
                self.builder.origin = outfeed.name
                self.sums.append(begun(self.builder, outfeed, number, *calls.array_at(position)))

    # --- one update -------------------------------------------------------------------------------

    def _step(self, kept: Sequence[Kept]) -> list[ValueId]:
        """Write one update with its micro-batches; return state and sums after it."""
        making, plan = self.making, self.making.pipelining
        in_loop = {x.parameter: x.in_loop for x in kept}
        self.remote.fetch_before(in_loop)
        self._call(plan.pre, self._outside)
        self.remote.leave(in_loop)
        self.remote.begin_update(in_loop)
        finished = self._pipeline(kept)
        handed_out = set(map(making.calls.parameter, making.calls.result_positions))
        dying: set[Value] = set()
        for item in kept:
            if item.parameter in self.remote.state:
                self.builder.origin = item.name
                there = making.given[item.parameter] = fetched(self.builder, item.in_loop)
                if item.parameter not in handed_out:
                    dying.add(there)
        self._call(plan.update, lambda operand: self._after(operand, finished), frozenset(dying))
        leaves = making.result_leaves()
        self.results.after_update(leaves)
        pairs = []
        away: dict[int, ValueId] = {}
        for item in kept:
            done = finished.get(Key(Kind.STATE, item.parameter))
            leaf = done if done is not None else leaves[item.result]
            if leaf is None:
                raise CodegenError("E0470", f"result {item.result} is a token")
            self.builder.ipu = self.builder.variables[item.storage.variable].ipu
            tensor = self.builder.tile_tensor(leaf)
            if item.parameter in self.remote.state:
                away[item.parameter] = stored(self.builder, tensor, item.storage)
            else:
                pairs.append((tensor, item.in_loop))
        for number, total in enumerate(self.sums):
            pairs.append((self._sum_after(number, leaves[total.place], finished), total.in_loop))
        self.builder.origin = _LOOP
        storage = iter(copied_to_storage(self.builder, pairs))
        state_values = [away[x.parameter] if x.parameter in away else next(storage) for x in kept]
        return [*state_values, *storage]

    def _sum_after(
        self, number: int, leaf: Value | None, finished: Mapping[Key, TileTensor]
    ) -> TileTensor:
        """Return a sum of an outfeed after an update, which adds to it what it made itself."""
        item = self.sums[number]
        call = self.making.maker_of(item.place)
        if call in self.making.in_pipeline:
            return finished[Key(Kind.OUTFEED, number, call)]
        if leaf is None:
            raise CodegenError("E0470", f"result {item.place} is a token")
        self.builder.ipu = self.builder.variables[item.storage.variable].ipu
        self.builder.origin = item.outfeed.name
        return added(self.builder, item, self.builder.tile_tensor(self.builder.brought_here(leaf)))

    def _call(
        self, name: str, operand_of: Callable[[int], Value], dying: frozenset[Value] = frozenset()
    ) -> None:
        """Write what a call outside of the pipeline runs; `dying`: operands that only it reads."""
        if not name:
            return
        x = self.making.calls[name]
        self.builder.ipu = 0
        operands = [[operand_of(position)] for position in x.operands]
        self.making.lower(x, operands, dying)

    def _outside(self, position: int) -> Value:
        """Return a value of the entry that is there before the pipeline."""
        making = self.making
        number = making.calls.parameter(position)
        if number is not None:
            return making.given[number]
        return making.made[making.calls.element(position)]

    def _after(self, position: int, finished: Mapping[Key, TileTensor]) -> Value:
        """Return a value of the entry after the pipeline: gradients added up, state as it is."""
        making = self.making
        number = making.calls.parameter(position)
        if number is None:
            call, element = making.calls.element(position)
            key = Key(Kind.GRADIENT, element, call)
            if key in self.joined:  # its sum has it already
                kind, shape = making.calls.array_at(position)
                return Spread(Scalar(kind, zero_text(kind)), (), shape)
            return finished.get(key, making.made[(call, element)])
        if Key(Kind.STATE, number) in finished:
            return finished[Key(Kind.STATE, number)]
        return making.given[number] if number in making.given else making.fed[number]

    # --- the pipeline -----------------------------------------------------------------------------

    def _pipeline(self, kept: Sequence[Kept]) -> dict[Key, TileTensor]:
        """Write the pipeline; return what gradients and carried state are after it."""
        making, builder, plan = self.making, self.builder, self.making.pipelining
        carried = self._begun({item.parameter: item for item in kept})
        making.standing += [x.storage.variable for x in kept]
        making.standing += [x.storage.variable for x in carried.values()]
        positions = Positions(making, self.results, carried, self.sums, self.joined)
        stages = tuple(positions.stage(n, x) for n, x in enumerate(plan.positions))
        loops = []
        finished: dict[Key, TileTensor] = {}
        away: list[Key] = []
        for key, x in carried.items():
            last = builder.value(x.storage.element_type, x.storage.shape)
            loops.append(
                s.Carried(x.storage.variable, x.storage.value, x.in_loop.value, x.after.value, last)
            )
            finished[key] = replace(x.storage, value=last)
            if builder.variables[x.storage.variable].role is Role.REMOTE:
                away.append(key)
        interval = plan.schedule.interval if len(plan.positions) > 1 else 1
        group = plan.schedule.group
        builder.emit(
            s.Pipeline(
                plan.micro_batches, interval, stages, tuple(making.channels), tuple(loops),
                _PIPELINE, group,
            )
        )  # fmt: skip
        finished.update({key: fetched(builder, finished[key]) for key in away})
        return self._combined(finished)

    def _begun(self, kept: dict[int, Kept]) -> Carried:
        """Write what accumulators begin with; return all that goes on to the next micro-batch."""
        making, builder, plan = self.making, self.builder, self.making.pipelining
        carried: Carried = {}
        for x in plan.accumulations:
            if _key(x) in self.joined:
                continue
            shape, name = making.calls.tensor_of(x)[1], f"accumulator.{x.call}.{x.element}"
            storage, in_loop = emptied(builder, x.ipu, x.element_type, shape, name)
            if making.offloads.accumulators and is_large((storage.element_type, shape)):
                away = replace(
                    storage, variable=remote_variable(builder, (storage.element_type, shape))
                )
                stored(builder, storage, away)
                storage, in_loop = away, replace(in_loop, variable=away.variable)
            carried[_key(x)] = CarriedTensor(storage, in_loop, in_loop)
        if plan.reduction == RUNNING_MEAN:
            for call, ipu in dict.fromkeys((x.call, x.ipu) for x in plan.accumulations):
                storage, in_loop = emptied(builder, ipu, COUNT_TYPE, (), f"micro-batches.{call}")
                carried[Key(Kind.COUNT, ipu, call)] = CarriedTensor(storage, in_loop, in_loop)
        for parameter, _ in plan.per_micro_batch:
            in_loop = builder.loop_value(kept[parameter].in_loop)
            carried[Key(Kind.STATE, parameter)] = CarriedTensor(
                kept[parameter].in_loop, in_loop, in_loop
            )
        for number, item in enumerate(self.sums):
            call = making.maker_of(item.place)
            if call in making.in_pipeline:
                in_loop = builder.loop_value(item.in_loop)
                carried[Key(Kind.OUTFEED, number, call)] = CarriedTensor(
                    item.in_loop, in_loop, in_loop
                )
        return carried

    def _combined(self, finished: Mapping[Key, TileTensor]) -> dict[Key, TileTensor]:
        """Write how replicas average their gradients; return these in their own types."""
        making, builder, plan = self.making, self.builder, self.making.pipelining
        combined = dict(finished)
        accumulations = [x for x in plan.accumulations if _key(x) not in self.joined]
        if making.plan.averages_gradients:
            keys = [_key(x) for x in accumulations if (x.call, x.element) not in plan.combined]
            counts = making.plan.replicas, making.plan.partitions
            means = mean_over_replicas(builder, *counts, [combined[k] for k in keys])
            combined.update(zip(keys, means, strict=True))
        for x in accumulations:
            builder.origin, key = f"accumulator.{x.call}.{x.element}", _key(x)
            builder.ipu = x.ipu
            combined[key] = finished_type(builder, combined[key], making.calls.tensor_of(x)[0])
        return combined


def _key(x: Accumulation) -> Key:
    return Key(Kind.GRADIENT, x.element, x.call)


def _joined(making: Making) -> dict[Key, Key]:
    """Return the gradients that are added to the accumulator of another one, and that one.

    Terms of one sum on one IPU, such as both gradients of a tied weight, go to the accumulator of
    the first position that makes one. Running means depend on the order, and what lies in remote
    memory would not take turns there.
    """
    plan = making.pipelining
    if plan.reduction == RUNNING_MEAN or making.offloads.accumulators:
        return {}
    place = {part.call: number for number, part in enumerate(plan.parts)}
    first: dict[tuple[int, int, bool], Key] = {}
    joined: dict[Key, Key] = {}
    for x in sorted(plan.accumulations, key=lambda x: place[x.call]):
        if x.total >= 0:
            alike = x.total, x.ipu, (x.call, x.element) in plan.combined
            if (home := first.setdefault(alike, _key(x))) != _key(x):
                joined[_key(x)] = home
    return joined


def lower_pipelined(
    module: Module,
    plan: Plan,
    machine: Machine,
    wrapping: Wrapping,
    pipelining: Pipelining,
    tuning: Tuning = DEFAULT_TUNING,
    plans: list[Record] | None = None,
    *,
    offload: Offloads = NOTHING_OFFLOADED,
) -> Program:
    """Return the program of a module of calls, on as many IPUs as its plan has.

    Feeds take one element for each micro-batch; outfeeds of what micro-batches make give as many.
    `offload`: what of it lies in remote buffers. Raises UsageError E2044 where no tiles are left
    beside those set apart for queues.
    """
    apart = io_tiles_of(machine, wrapping.io_tiles) if wrapping.io_tiles else None
    builder = Builder(without_them(machine, apart) if apart else machine, tuning)
    builder.plans = plans
    builder.ipus = pipelining.ipu_count
    builder.go_by(plan)
    builder.is_resident = True
    if not plan.ipus:
        plan = replace(plan, ipus=placed(module, pipelining))
    making = Making(
        builder, module, plan, wrapping, pipelining, EntryCalls(module.entry), offloads=offload,
        apart=apart,
    )  # fmt: skip
    return _PipelinedStep(making).program()
