"""Lowers a step that is cut into micro-batches: a pipeline of its calls, then the update.

    repeat STEPS { zeros -> accumulators; pre; pipeline K { … }; update; new state home }

State lies on the IPU of the stage that reads it. What one position of the pipeline makes and
another reads goes through a channel; what does not vary is read where it lies, brought to the IPU
before the pipeline begins. Each micro-batch takes the next element of the feeds, in the first
position that reads it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hloipu_compiler.codegen.builder import Builder
from hloipu_compiler.codegen.control import brought_home
from hloipu_compiler.codegen.entry_calls import Element, EntryCalls
from hloipu_compiler.codegen.errors import CodegenError
from hloipu_compiler.codegen.gradient_sums import (
    COUNT_TYPE,
    accumulated,
    averaged,
    counted,
    emptied,
    finished_type,
)
from hloipu_compiler.codegen.leaves import Held, Leaf
from hloipu_compiler.codegen.lowering import lower_instructions, streamed_in
from hloipu_compiler.codegen.offloading import fetched, only_updated, remote_variable, stored
from hloipu_compiler.codegen.planned import Record
from hloipu_compiler.codegen.replica_means import mean_over_replicas
from hloipu_compiler.codegen.tuning import DEFAULT_TUNING, Tuning
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.plan.pipelining import RUNNING_MEAN, Pipelining, Position
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.wrapping import FeedBinding, Wrapping
from hloipu_compiler.staging.update_places import placed
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.loading import not_given
from hloipu_runtime.program.program import Port, Program, Queue, Role, StatePort
from hloipu_runtime.program.steps import ValueId

_LOOP, _PIPELINE = "loop", "micro-batches"
_Operands = Callable[[int], Leaf]
_COUNT = -1
"""Stands for the count of micro-batches, in place of the number of a gradient."""


@dataclass(frozen=True)
class _Kept:
    """One array of state: where it lies, what it holds before the loop and as a step begins."""

    name: str
    home: Held
    turn: Held
    parameter: int
    result: int


@dataclass
class _Stage:
    """One position under construction."""

    number: int
    position: Position
    known: dict[ValueId, Held] = field(default_factory=dict)
    """Values of earlier positions that have come here."""
    steps: list[s.Step] = field(default_factory=list)


class _PipelinedStep:
    """The program under construction."""

    def __init__(
        self,
        builder: Builder,
        module: Module,
        plan: Plan,
        wrapping: Wrapping,
        pipelining: Pipelining,
        *,
        offload: bool = False,
    ) -> None:
        self.builder = builder
        self.module = module
        self.entry = module.entry
        self.plan = plan
        self.wrapping = wrapping
        self.pipelining = pipelining
        self.calls = EntryCalls(self.entry)
        kept = {pair.parameter for pair in wrapping.state}
        kept -= {parameter for parameter, _ in pipelining.per_micro_batch}
        self.remote = (
            only_updated(self.entry, pipelining.update, dict(enumerate(self.calls.arrays)), kept)
            if offload
            else frozenset[int]()
        )
        """Parameters whose state lies in remote memory."""
        self.parameters: list[Port] = []
        self.results: list[Port] = []
        self.loaded: list[ValueId] = []
        self.queues: list[Queue] = []
        self.given: dict[int, Leaf] = {}
        """Arrays of the parameters that are there for the whole step."""
        self.made: dict[Element, Leaf] = {}
        """Results of calls."""
        self.maker: dict[ValueId, tuple[int, Held]] = {}
        """Values of the pipeline: the position that makes each, and where."""
        self.channels: list[s.Channel] = []
        self.fed: dict[int, Held] = {}
        self.streamed: dict[int, list[Port]] = {}
        """Of each outfeed, by its number."""

    # --- the whole --------------------------------------------------------------------------------

    def program(self) -> Program:
        builder, wrapping = self.builder, self.wrapping
        kept = [self._keep(pair.name, pair.parameter, pair.result) for pair in wrapping.state]
        for number in wrapping.constants:
            self.given[number] = self._constant(number)
        for number in wrapping.inputs:
            self.given[number] = self._streamed(number)
        self.given.update({item.parameter: item.turn for item in kept})
        with builder.block(turns=wrapping.loop is not None) as scope:
            scope.owned.update(item.home.variable for item in kept)
            following = self._step(kept)
            body = s.Sequence(tuple(scope.steps))
        final = following
        if wrapping.loop is None:
            builder.scope.steps += body.steps
        else:
            final = [builder.value(x.home.element_type, x.home.shape) for x in kept]
            carried = tuple(
                s.Carried(x.home.variable, x.home.value, x.turn.value, after, last)
                for x, after, last in zip(kept, following, final, strict=True)
            )
            builder.emit(s.Repeat(wrapping.loop, body, carried, _LOOP))
        ports = tuple(
            StatePort(
                x.name,
                x.home.variable,
                x.home.value,
                value,
                x.parameter,
                x.result,
                self.pipelining.whole.get(x.parameter, ()),
            )
            for x, value in zip(kept, final, strict=True)
        )
        return Program(
            self.module.name,
            builder.machine.name,
            self.pipelining.ipu_count,
            tuple(builder.variables),
            tuple(builder.values),
            builder.constants,
            s.Sequence(tuple(builder.scope.steps)),
            {},
            tuple(self.parameters),
            tuple(self.results),
            tuple(builder.elided),
            ports,
            tuple(self.queues),
            wrapping.loop or 1,
            tuple(self.loaded),
        )

    def _keep(self, name: str, parameter: int, result: int) -> _Kept:
        builder, kind = self.builder, self.calls.arrays[parameter]
        builder.origin = name
        builder.ipu = self.pipelining.homes.get(parameter, 0)
        initial = builder.value(*kind)
        turn = initial
        if self.wrapping.loop is not None:
            turn = builder.turn_value(Held(initial, -1, *kind)).value
        if parameter in self.remote:
            variable = remote_variable(builder, kind)
        else:
            variable = builder.variable(*kind, builder.home(*kind), Role.STATE)
        home = Held(initial, variable, *kind)
        return _Kept(name, home, replace(home, value=turn), parameter, result)

    def _constant(self, number: int) -> Leaf:
        builder = self.builder
        builder.ipu = self.pipelining.homes.get(number, 0)
        stream = builder.origin = f"parameter.{number}"
        self.parameters.append(Port(stream, *self.calls.arrays[number]))
        held = builder.constant(not_given(*self.calls.arrays[number]), self.calls.arrays[number][0])
        self.loaded.append(held.value)
        return held

    def _streamed(self, number: int) -> Leaf:
        stream = self.builder.origin = f"parameter.{number}"
        self.builder.ipu = self.pipelining.homes.get(number, 0)
        self.parameters.append(Port(stream, *self.calls.arrays[number]))
        return streamed_in(self.builder, stream, *self.calls.arrays[number])

    # --- one update -------------------------------------------------------------------------------

    def _step(self, kept: Sequence[_Kept]) -> list[ValueId]:
        """Write one update with its micro-batches; return the state after it."""
        plan = self.pipelining
        self._call(plan.pre, self._outside)
        finished = self._pipeline(kept)
        for item in kept:
            if item.parameter in self.remote:
                self.builder.origin = item.name
                self.given[item.parameter] = fetched(self.builder, item.turn)
        self._call(plan.update, lambda operand: self._after(operand, finished))
        leaves = self._result_leaves()
        self._hand_over(leaves, in_pipeline=False)
        pairs = []
        away: dict[int, ValueId] = {}
        for item in kept:
            done = finished.get(("", item.parameter))
            leaf = done if done is not None else leaves[item.result]
            if leaf is None:
                raise CodegenError("E0470", f"result {item.result} is a token")
            self.builder.ipu = self.builder.variables[item.home.variable].ipu
            held = self.builder.held(leaf)
            if item.parameter in self.remote:
                away[item.parameter] = stored(self.builder, held, item.home)
            else:
                pairs.append((held, item.turn))
        self.builder.origin = _LOOP
        home = iter(brought_home(self.builder, pairs))
        return [away[x.parameter] if x.parameter in away else next(home) for x in kept]

    def _call(self, name: str, operand_of: _Operands) -> None:
        """Lower what a call outside of the pipeline runs."""
        if not name:
            return
        x = self.entry[name]
        self.builder.ipu = 0
        operands = [[operand_of(position)] for position in x.operands]
        self._lower(x, operands, frozenset())

    def _lower(
        self, x: Instruction, operands: Sequence[Sequence[Leaf]], owned: frozenset[Leaf]
    ) -> list[Leaf]:
        computation = self.module.computation[x.attributes.called[0]]
        found = lower_instructions(
            self.builder, self.module, self.plan, computation, operands, owned
        )
        for number, leaf in enumerate(found):
            self.made[(x.name, number)] = leaf
        return found

    def _outside(self, position: int) -> Leaf:
        """Return a value of the entry that is there before the pipeline."""
        number = self.calls.parameter(position)
        if number is not None:
            return self.given[number]
        return self.made[self.calls.element(position)]

    def _after(self, position: int, finished: dict[Element, Held]) -> Leaf:
        """Return a value of the entry after the pipeline: gradients added up, state as it is."""
        number = self.calls.parameter(position)
        if number is not None:
            return finished.get(("", number), self.given.get(number, self.fed.get(number)))  # type: ignore[return-value]
        element = self.calls.element(position)
        return finished.get(element, self.made[element])

    # --- the pipeline -----------------------------------------------------------------------------

    def _pipeline(self, kept: Sequence[_Kept]) -> dict[Element, Held]:
        """Write the pipeline; return what gradients and carried state are after it.

        Carried state goes by the element ("", number of its parameter).
        """
        builder, plan = self.builder, self.pipelining
        homes = {item.parameter: item for item in kept}
        sums: dict[Element, tuple[Held, Held]] = {}
        for x in plan.accumulations:
            shape, name = self.calls.tensor_of(x)[1], f"accumulator.{x.call}.{x.element}"
            made = emptied(builder, self._ipu_of(x.call), x.element_type, shape, name)
            sums[(x.call, x.element)] = made
        if plan.reduction == RUNNING_MEAN:
            for call in dict.fromkeys(x.call for x in plan.accumulations):
                name = f"micro-batches.{call}"
                sums[(call, _COUNT)] = emptied(builder, self._ipu_of(call), COUNT_TYPE, (), name)
        carried: dict[Element, tuple[Held, Held, Held]] = {
            key: (home, turn, turn) for key, (home, turn) in sums.items()
        }
        for parameter, _ in plan.per_micro_batch:
            item = homes[parameter]
            turn = builder.turn_value(item.turn)
            carried[("", parameter)] = (item.turn, turn, turn)
        stages = []
        for number, position in enumerate(plan.positions):
            stages.append(self._position(number, position, carried))
        loops = []
        finished: dict[Element, Held] = {}
        for key, (home, turn, after) in carried.items():
            last = builder.value(home.element_type, home.shape)
            loops.append(s.Carried(home.variable, home.value, turn.value, after.value, last))
            finished[key] = replace(home, value=last)
        step = s.Pipeline(
            plan.micro_batches, plan.schedule.interval if len(plan.positions) > 1 else 1,
            tuple(stages), tuple(self.channels), tuple(loops), _PIPELINE,
        )  # fmt: skip
        builder.emit(step)
        if self.plan.averages_gradients:
            keys = [(x.call, x.element) for x in plan.accumulations]
            keys = [key for key in keys if key not in plan.combined]
            means = mean_over_replicas(builder, self.plan.replicas, [finished[k] for k in keys])
            finished.update(zip(keys, means, strict=True))
        for x in plan.accumulations:
            builder.origin = f"accumulator.{x.call}.{x.element}"
            key = (x.call, x.element)
            builder.ipu = self._ipu_of(x.call)
            finished[key] = finished_type(builder, finished[key], self.calls.tensor_of(x)[0])
        return finished

    def _position(
        self, number: int, position: Position, carried: dict[Element, tuple[Held, Held, Held]]
    ) -> s.Stage:
        """Write one position's body; `carried` gets what it leaves for the next micro-batch."""
        builder, plan = self.builder, self.pipelining
        if not position.call:
            return s.Stage(position.name, position.ipu, s.Sequence())
        stage = _Stage(number, position)
        with builder.block(turns=True) as scope:
            builder.ipu = position.ipu
            x = self.entry[position.call]
            mine = [k for k in carried if k[0] == position.call]
            mine += [("", p) for p, r in plan.per_micro_batch if self._is_made_by(r, position)]
            scope.owned.update(carried[key][0].variable for key in mine)
            operands = [[self._inside(i, stage, carried)] for i in x.operands]
            found = self._lower(x, operands, frozenset())
            for element, leaf in enumerate(found):
                held = builder.brought_here(builder.held(leaf))
                if not isinstance(held, Held):
                    raise CodegenError("E0470", f"{position.call} hands out a token")
                self.made[(x.name, element)] = held
                self.maker.setdefault(held.value, (number, held))
            self._hand_over(self._result_leaves(), in_pipeline=True, call=x.name)
            pairs = [(self._after_micro_batch(k, carried), carried[k][1]) for k in mine]
            after = brought_home(builder, pairs)
            for key, value in zip(mine, after, strict=True):
                home, turn, _ = carried[key]
                carried[key] = (home, turn, replace(home, value=value))
            return s.Stage(position.name, position.ipu, s.Sequence(tuple(scope.steps)))

    def _inside(
        self, position: int, stage: _Stage, carried: dict[Element, tuple[Held, Held, Held]]
    ) -> Leaf:
        """Return a value of the entry where a position of the pipeline reads it."""
        number = self.calls.parameter(position)
        if number is None:
            leaf = self.made[self.calls.element(position)]
        elif ("", number) in carried:
            leaf = carried[("", number)][1]
            self._require_owner(number, stage)
        elif number in self.given:
            leaf = self.given[number]
        else:
            leaf = self._next_element(number, stage)
        if not isinstance(leaf, Held):
            return leaf
        made = self.maker.get(leaf.value)
        if made is None or made[0] == stage.number:
            return self.builder.brought_here(leaf)
        return self._through_channel(*made, stage)

    def _through_channel(self, producer: int, source: Held, stage: _Stage) -> Held:
        """Return what another position made, as it comes to this one."""
        builder = self.builder
        if source.value not in stage.known:
            mapping = builder.variables[source.variable].mapping
            kind = (source.element_type, source.shape)
            builder.origin = builder.variables[source.variable].origin
            destination = builder.variable(*kind, mapping)
            timetable = self.pipelining.schedule.timetable
            count = timetable.held(producer, stage.number)
            places: tuple[int, ...] = (destination,)
            if count > 1:
                places = tuple(builder.variable(*kind, mapping) for _ in range(count))
            builder.scope.owned.difference_update((destination, *places))
            self.channels.append(
                s.Channel(
                    producer, stage.number, source.variable, places, destination, source.value
                )
            )
            stage.known[source.value] = replace(source, variable=destination)
        return stage.known[source.value]

    def _next_element(self, number: int, stage: _Stage) -> Held:
        """Return what a queue feeds, taken in by the first position that reads it."""
        if number not in self.fed:
            feed, k = next(
                (feed, feed.places.index(number))
                for feed in self.wrapping.feeds
                if number in feed.places
            )
            self.builder.origin = feed.name
            held = streamed_in(self.builder, f"{feed.name}.{k}", *self.calls.arrays[number])
            self.builder.scope.owned.discard(held.variable)
            self.fed[number] = held
            self.maker[held.value] = (stage.number, held)
        return self.fed[number]

    def _require_owner(self, number: int, stage: _Stage) -> None:
        """Raise where a position reads state that another one makes anew."""
        result = dict(self.pipelining.per_micro_batch)[number]
        if not self._is_made_by(result, stage.position):
            raise CodegenError(
                "E0508",
                f"{stage.position.name} reads parameter {number}, which another stage makes anew "
                "for each micro-batch",
                hint="keep what reads and what makes that state in one stage",
            )

    def _is_made_by(self, result: int, position: Position) -> bool:
        at = self.calls.result_positions[result]
        x = self.entry.instructions[at]
        return x.opcode == "get-tuple-element" and self.calls.element(at)[0] == position.call

    def _after_micro_batch(
        self, key: Element, carried: dict[Element, tuple[Held, Held, Held]]
    ) -> Held:
        """Return what carried state is after a micro-batch: a sum, or what the call made."""
        call, number = key
        total = carried[key][1]
        if call and number == _COUNT:
            return counted(self.builder, total)
        if call:
            plan = self.pipelining
            leaf = self.made[key]
            if not isinstance(leaf, Held):
                raise TypeError(f"gradient {key} is not on tiles")
            if plan.reduction == RUNNING_MEAN:
                return averaged(self.builder, total, leaf, carried[(call, _COUNT)][1])
            return accumulated(self.builder, total, leaf, plan.reduction, plan.micro_batches)
        result = dict(self.pipelining.per_micro_batch)[number]
        leaf = self.made[self.calls.element(self.calls.result_positions[result])]
        return self.builder.held(leaf)

    # --- results ----------------------------------------------------------------------------------

    def _result_leaves(self) -> list[Leaf | None]:
        """Return each result, as far as it is made."""
        found: list[Leaf | None] = []
        for position in self.calls.result_positions:
            number = self.calls.parameter(position)
            if number is not None:
                found.append(self.given.get(number))
            else:
                found.append(self.made.get(self.calls.element(position)))
        return found

    def _hand_over(
        self, leaves: Sequence[Leaf | None], *, in_pipeline: bool, call: str = ""
    ) -> None:
        """Write what goes out: of one position of the pipeline, or after the update."""
        calls = {position.call for position in self.pipelining.positions}
        at = self.calls.result_positions
        for number, outfeed in enumerate(self.wrapping.outfeeds):
            for k, place in enumerate(outfeed.places):
                maker = self.calls.maker(at[place])
                if (maker == call) if in_pipeline else (maker not in calls):
                    ports = self.streamed.setdefault(number, [])
                    ports.append(self._streamed_out(f"{outfeed.name}.{k}", leaves[place]))
        if in_pipeline:
            return
        for number, outfeed in enumerate(self.wrapping.outfeeds):
            ports = sorted(self.streamed[number], key=_place_in_queue)
            self.queues.append(
                Queue(outfeed.name, False, tuple(ports), outfeed.places, mode=outfeed.mode)
            )
        self.queues[:0] = [self._feed(feed) for feed in self.wrapping.feeds]
        for place in self.wrapping.results:
            self.results.append(self._streamed_out(f"result.{place}", leaves[place]))

    def _feed(self, feed: FeedBinding) -> Queue:
        ports = tuple(
            Port(f"{feed.name}.{k}", *self.calls.arrays[number])
            for k, number in enumerate(feed.places)
        )
        return Queue(feed.name, True, ports, feed.places)

    def _streamed_out(self, stream: str, leaf: Leaf | None) -> Port:
        if leaf is None:
            raise CodegenError("E0470", f"{stream} is a token, or is made nowhere")
        builder = self.builder
        held = builder.held(leaf)
        builder.emit(s.Sync())
        builder.emit(s.StreamOut(stream, held.variable, held.value))
        return Port(stream, held.element_type, held.shape)

    # --- looked up --------------------------------------------------------------------------------

    def _ipu_of(self, call: str) -> int:
        return next(x.ipu for x in self.pipelining.positions if x.call == call)


def _place_in_queue(port: Port) -> int:
    """Return the number that a stream's name ends in."""
    return int(port.stream.rpartition(".")[2])


def _require_lowered(wrapping: Wrapping) -> None:
    """Raise CodegenError E0513 for what loops around whole steps alone have."""
    reduced = next((x for x in wrapping.outfeeds if x.reduction), None)
    if reduced is not None:
        raise CodegenError(
            "E0513",
            f"outfeed {reduced.name!r} asks for a {reduced.reduction} made on the device, which "
            "steps on several replicas, or cut into micro-batches and stages, do not make",
            hint=f"take all elements (--outfeed {reduced.name}) or the last",
        )
    if wrapping.io_tiles:
        raise CodegenError(
            "E0513",
            f"{wrapping.io_tiles} tiles are to be set apart for the queues, which steps on several "
            "replicas, or cut into micro-batches and stages, do not do",
            hint="leave --io-tiles out",
        )


def lower_pipelined(
    module: Module,
    plan: Plan,
    machine: Machine,
    wrapping: Wrapping,
    pipelining: Pipelining,
    tuning: Tuning = DEFAULT_TUNING,
    plans: list[Record] | None = None,
    *,
    offload: bool = False,
) -> Program:
    """Return the program of a module of calls, on as many IPUs as its plan has.

    Feeds take one element for each micro-batch; outfeeds of what micro-batches make give as many.
    `offload`: state that only the update reads lies in remote buffers. Raises CodegenError E0513
    for sums that outfeeds are to make on the device, and for tiles set apart.
    """
    _require_lowered(wrapping)
    builder = Builder(machine, tuning)
    builder.plans = plans
    builder.ipus = pipelining.ipu_count
    builder.is_resident = True
    whole = replace(plan, ipus={**plan.ipus, **placed(module, pipelining)})
    step = _PipelinedStep(builder, module, whole, wrapping, pipelining, offload=offload)
    return step.program()
