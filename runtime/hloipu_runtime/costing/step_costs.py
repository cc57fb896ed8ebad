"""The static cost of every step of a program, in one walk over its tree."""

from collections.abc import Callable, Iterable
from math import prod

from hloipu_runtime.costing.collecting import RemotePhase, collective_cost, stored_cost
from hloipu_runtime.costing.computing import compute_cost
from hloipu_runtime.costing.costs import (
    BlockCost,
    BlockNumber,
    Called,
    Choice,
    Costs,
    DataLoop,
    Inner,
    Loop,
    Pipelined,
    StepCost,
    Together,
    blocks_inside,
)
from hloipu_runtime.costing.deciding import branches, decision
from hloipu_runtime.costing.exchanging import exchange_cost
from hloipu_runtime.costing.forms import Forms
from hloipu_runtime.costing.hosting import HostPhase
from hloipu_runtime.costing.overlapping import Turn, overlapped
from hloipu_runtime.costing.spent import Spent, sum_of
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import host_call
from hloipu_runtime.program.channels import fetched, is_offloaded, popped, pushed
from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.faults import Fault, ProgramError
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import (
    Call,
    ComputeSet,
    Exchange,
    If,
    Parallel,
    Pipeline,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Switch,
    Sync,
    VariableId,
)
from hloipu_runtime.program.timetable import Pattern
from hloipu_runtime.program.uses import used


def step_charges(program: Program, machine: Machine, forms: Forms | None = None) -> Costs:
    """Return what every step of a verified program costs on a machine.

    `forms`: those of its transfers, where they are known already. Raises ProgramError E4050 where
    functions call each other in a circle or are not there.
    """
    walk = _Walk(program, machine, forms or Forms(program, machine))
    call = _plain("body/call", "host call", "", Spent(host=host_call(machine)))
    walk.block(program.body, "body", (lambda _: call) if program.is_resident else None)
    return Costs(program, machine, tuple(walk.steps), tuple(walk.blocks), walk.calls)


class _Walk:
    """The steps and blocks found so far; a block's number comes after those inside it."""

    def __init__(self, program: Program, machine: Machine, forms: Forms) -> None:
        self.program = program
        self.machine = machine
        self.forms = forms
        self.steps: list[StepCost] = []
        self.blocks: list[BlockCost] = []
        self.functions: dict[str, BlockNumber] = {}
        self.calls: dict[str, str] = {}
        self.calling: set[str] = set()
        self.kept: list[Exchange] = []
        self.here: tuple[int, ...] = ()
        """IPUs of the position of a pipeline that is at hand, or of its branch; none outside."""

    def block(
        self,
        body: Sequence,
        path: str,
        closing: Callable[[frozenset[int]], StepCost] | None = None,
    ) -> BlockNumber:
        """Return the number of a body's block.

        `closing` gives a step that each execution pays besides, from the IPUs that take part.
        """
        found = _Block(self)
        found.sequence(body, path)
        if closing is not None:
            found.add(closing(frozenset(found.ipus)))
        self.blocks.append(found.made(path))
        return len(self.blocks) - 1

    def function(self, name: str, path: str) -> BlockNumber:
        """Return the block of a function, which is one wherever it is called from."""
        self.calls[f"{path}/{name}"] = f"{name}()"
        if name not in self.functions:
            body = self.program.functions.get(name)
            if body is None or name in self.calling:
                raise ProgramError([Fault("call", path, f"cannot call function {name!r}")])
            self.calling.add(name)
            self.functions[name] = self.block(body, f"{name}()")
            self.calling.remove(name)
        return self.functions[name]

    def exchanging(self, step: Exchange, path: str) -> StepCost:
        """Return the cost of an exchange, which is kept: costs of transfers go by identity."""
        self.kept.append(step)
        return _exchanging(self.program, step, self.machine, self.forms, path)

    def position(self, step: Pipeline, number: int, path: str) -> BlockNumber:
        """Return the block of a position: its body, and what it takes from its channels."""
        stage = step.stages[number]
        taken = [c for c in step.channels if c.consumer == number]
        found = _Block(self)
        for place, copy in enumerate(fetched(self.program, taken)):
            found.add(found.remote_copy(copy, f"{path}/fetched/{place}"))
        found.remote = None
        self.here = stage.ipus
        found.sequence(stage.body, path)
        self.here = ()
        found.add(self.exchanging(popped(self.program, taken, name=stage.name), f"{path}/taken"))
        self.blocks.append(found.made(path))
        return len(self.blocks) - 1

    def branch(self, body: Sequence, path: str) -> BlockNumber:
        """Return the block of what runs on IPUs of its own, beside others."""
        here = self.here
        if here:
            self.here = tuple(
                sorted({self.program.variables[v].ipu for v in used(body, self.program)})
            )
        found = self.block(body, path)
        self.here = here
        return found

    def who_meet(self, ipus: int) -> tuple[int, ...]:
        """Return which IPUs a barrier of so many is for."""
        return self.here[:ipus] if ipus <= len(self.here) else tuple(range(ipus))

    def storing(self, step: Pipeline, patterns: tuple[Pattern, ...], path: str) -> StepCost:
        """Return what the ends of all slots cost to bring to remote memory what waits there."""
        ipus = tuple(sorted({ipu for stage in step.stages for ipu in stage.ipus}))
        total, moved = stored_cost(self.program, step, patterns, self.machine)
        return _plain(path, "remote out", step.name, Spent(host=total), 0, ipus, moved)

    def slots(self, step: Pipeline, patterns: tuple[Pattern, ...], path: str) -> StepCost:
        """Return what the ends of all slots of a pipeline cost: copies, and a meeting of all."""
        ipus = tuple(sorted({ipu for stage in step.stages for ipu in stage.ipus}))
        meeting = Spent(sync=sync(self.machine, len(ipus)))
        turn = branches(self.machine, 1)
        total, moved = Spent(), 0
        # Each copy is made once: costs of transfers go by identity.
        made = [(c.producer, pushed(self.program, (c,))) for c in step.channels]
        for pattern in patterns:
            active = [copy for producer, copy in made if producer in pattern.positions]
            transfers = tuple(x for copy in active for x in copy.transfers)
            copies = self.exchanging(Exchange(transfers, ()), path)
            total = total.plus(copies.spent.plus(meeting).plus(turn).times(pattern.slots))
            moved += pattern.slots * copies.moved_bytes
        tiles = len(ipus) * self.machine.chip.tiles_per_ipu
        return _plain(path, "slots", step.name, total, tiles, ipus, moved)

    def deciding(
        self, variable: VariableId, ipus: frozenset[int], path: str, kind: str, name: str
    ) -> StepCost:
        """Return the cost of handing what a variable says to all tiles that follow it."""
        at = self.program.variables[variable].ipu
        program = self.program
        there = frozenset(map(program.place, ipus))
        system = program.system_ipus or program.ipus
        spent = decision(self.machine, program.place(at), there, system)
        everyone = tuple(sorted(ipus | {at}))
        tiles = len(everyone) * self.machine.chip.tiles_per_ipu
        return _plain(path, kind, name, spent, tiles, everyone)


class _Block:
    """A block in the making."""

    def __init__(self, walk: "_Walk") -> None:
        self.walk = walk
        self.steps: list[int] = []
        self.inner: list[Inner] = []
        self.ipus: set[int] = set()
        self.phase: HostPhase | None = None
        self.remote: RemotePhase | None = None

    def made(self, path: str) -> BlockCost:
        spent = sum_of(self.walk.steps[number].spent for number in self.steps)
        return BlockCost(path, spent, tuple(self.steps), tuple(self.inner), frozenset(self.ipus))

    def add(self, step: StepCost) -> None:
        self.steps.append(len(self.walk.steps))
        self.walk.steps.append(step)
        self.ipus.update(step.ipus)

    def add_inner(self, inner: Inner) -> None:
        self.inner.append(inner)
        for number in blocks_inside(inner):
            self.ipus |= self.walk.blocks[number].ipus

    def sequence(self, body: Sequence, path: str) -> None:
        for number, step in enumerate(body.steps):
            place = f"{path}/{number}"
            if isinstance(step, Sequence):
                self.sequence(step, place)
                continue
            if not isinstance(step, StreamIn | StreamOut | Sync):
                self.phase = None
            if not isinstance(step, RemoteCopy):
                self.remote = None
            self.step(step, place)

    def step(self, step: Step, path: str) -> None:
        program, machine = self.walk.program, self.walk.machine
        match step:
            case ComputeSet():
                self.add(_computing(program, step, machine, path))
            case Exchange():
                self.add(_exchanging(program, step, machine, self.walk.forms, path))
            case Sync():
                spent = Spent(sync=sync(machine, step.ipus))
                self.add(_plain(path, "sync", "", spent, ipus=self.walk.who_meet(step.ipus)))
            case StreamIn() | StreamOut():
                self.add(self.streaming(step, path))
            case Collective():
                self.add(_collecting(program, step, machine, path))
            case RemoteCopy():
                self.add(self.remote_copy(step, path))
            case Call():
                self.add(_plain(path, "call", step.function, branches(machine, 2)))
                self.add_inner(Called(self.walk.function(step.function, path)))
            case Parallel():
                found = tuple(
                    self.walk.branch(b, f"{path}|{n}") for n, b in enumerate(step.branches)
                )
                self.add_inner(Together(path, found))
            case _:
                self.control(step, path)

    def overlapping(self, step: Repeat, parts: Turn, path: str, turn: StepCost) -> BlockNumber:
        """Return the block of turns that compute beside transfers; add what these cost around it.

        Before the first turn and after the last, transfers have nothing to go on beside.
        """
        walk, place = self.walk, f"{path}/repeat"
        everything = range(len(step.body.steps))
        rest = [n for n in everything if n not in parts.transfers | parts.handing_over]
        beside = []
        for number, places in enumerate((sorted(parts.transfers), rest)):
            found = _Block(walk)
            found.some(step.body, place, places)
            walk.blocks.append(found.made(f"{place}|{number}"))
            beside.append(len(walk.blocks) - 1)
        outer = _Block(walk)
        outer.some(step.body, place, sorted(parts.handing_over))
        outer.add_inner(Together(place, tuple(beside)))
        outer.add(turn)
        walk.blocks.append(outer.made(place))
        around = walk.blocks[beside[0]].spent
        self.add(_plain(f"{path}/fill", "fill and drain", step.name, around))
        return len(walk.blocks) - 1

    def some(self, body: Sequence, path: str, places: Iterable[int]) -> None:
        """Add some steps of a sequence, in order."""
        for number in places:
            if not isinstance(body.steps[number], StreamIn | StreamOut | Sync):
                self.phase = None
            self.step(body.steps[number], f"{path}/{number}")

    def control(self, step: Step, path: str) -> None:
        walk, program = self.walk, self.walk.program
        match step:
            case Repeat():
                turn = _plain(f"{path}/turn", "repeat", step.name, branches(walk.machine, 1))
                parts = overlapped(program, step.body)
                if parts is None or not step.count:
                    body = walk.block(step.body, f"{path}/repeat", lambda _: turn)
                else:
                    body = self.overlapping(step, parts, path, turn)
                self.add_inner(Loop(path, step.name, step.count, body))
            case Pipeline():
                self.pipeline(step, path)
            case RepeatWhile():
                body = walk.block(step.body, f"{path}/while")
                inside = walk.blocks[body].ipus
                condition = walk.block(
                    step.condition,
                    f"{path}/condition",
                    lambda ipus: walk.deciding(
                        step.predicate, ipus | inside, f"{path}/turn", "while", step.name
                    ),
                )
                self.add_inner(DataLoop(path, step.name, condition, body))
            case If() | Switch():
                found = tuple(walk.block(b, f"{path}?{n}") for n, b in enumerate(step.branches))
                ipus = frozenset().union(*(walk.blocks[b].ipus for b in found))
                kind = "if" if isinstance(step, If) else "switch"
                what = step.predicate if isinstance(step, If) else step.index
                self.add(walk.deciding(what, ipus, path, kind, step.name))
                self.add_inner(Choice(path, step.name, found))

    def pipeline(self, step: Pipeline, path: str) -> None:
        """Add a pipeline: its bodies with what they take in, and the copies that end its slots."""
        walk = self.walk
        bodies = []
        for position, stage in enumerate(step.stages):
            place = f"{path}/repeat/{position}"
            if stage.first.steps:
                # One position works at a time where there are groups: beside nothing.
                first = walk.block(stage.first, f"{place}/first")
                self.add_inner(Loop(f"{place}/groups", stage.name, step.timetable.groups, first))
            bodies.append(walk.position(step, position, place))
        patterns = tuple(step.timetable.patterns())
        ipus = tuple(stage.ipus for stage in step.stages)
        self.add(walk.slots(step, patterns, f"{path}/slots"))
        if any(is_offloaded(walk.program, c) for c in step.channels):
            self.add(walk.storing(step, patterns, f"{path}/stored"))
        self.add_inner(Pipelined(path, step.name, step.count, tuple(bodies), ipus, patterns, step))

    def remote_copy(self, step: RemoteCopy, path: str) -> StepCost:
        variables = self.walk.program.variables
        source, destination = variables[step.source], variables[step.destination]
        write = destination.role is Role.REMOTE
        here = source if write else destination
        phase = self.remote
        if phase is None or (phase.ipu, phase.write) != (here.ipu, write):
            phase = self.remote = RemotePhase(self.walk.machine, here.ipu, write=write)
        spent = Spent(host=phase.add(here))
        bits = prod(here.shape) * ELEMENT_TYPES[here.element_type].bits
        kind = "remote out" if write else "remote in"
        name, tiles = here.origin or here.name, here.mapping.tiles.count
        return _plain(path, kind, name, spent, tiles, (here.ipu,), -(-bits // 8))

    def streaming(self, step: StreamIn | StreamOut, path: str) -> StepCost:
        program, machine = self.walk.program, self.walk.machine
        to_device = isinstance(step, StreamIn)
        if self.phase is None or self.phase.to_device != to_device:
            self.phase = HostPhase(
                machine,
                program.ipus,
                to_device=to_device,
                is_connected=program.is_resident,
                participants=program.participants,
            )
        variable = program.variables[step.variable]
        spent = Spent(host=self.phase.add(variable))
        bits = prod(variable.shape) * ELEMENT_TYPES[variable.element_type].bits
        return StepCost(
            path,
            "stream in" if to_device else "stream out",
            "",
            spent,
            ((variable.origin or step.stream, spent.total),),
            variable.mapping.tiles.count,
            (variable.ipu,),
            -(-bits // 8),
        )


def _computing(program: Program, step: ComputeSet, machine: Machine, path: str) -> StepCost:
    cost = compute_cost(program, step, machine)
    codelets = dict.fromkeys(group.codelet.name for group in step.groups)
    return StepCost(
        path,
        "compute",
        ", ".join(codelets),
        Spent(compute=cost.charge),
        tuple((step.groups[number].name, charge) for number, charge in cost.shares),
        cost.busy_tiles,
        cost.ipus,
        0,
        cost.one_tile_bytes,
    )


def _exchanging(
    program: Program, step: Exchange, machine: Machine, forms: Forms, path: str
) -> StepCost:
    cost = exchange_cost(program, step, machine, forms)
    name = step.name
    if not name and step.definitions:
        definition = step.definitions[0]
        name = program.values[definition.value].origin
        name = name or program.variables[definition.variable].origin
    return _plain(path, "exchange", name, cost.spent, cost.tiles, cost.ipus, cost.moved_bytes)


def _collecting(program: Program, step: Collective, machine: Machine, path: str) -> StepCost:
    cost = collective_cost(program, step, machine)
    kind = step.form.kind
    return _plain(path, kind, step.name, cost.spent, cost.tiles, cost.ipus, cost.moved_bytes)


def _plain(
    path: str,
    kind: str,
    name: str,
    spent: Spent,
    tiles: int = 0,
    ipus: tuple[int, ...] = (),
    moved_bytes: int = 0,
) -> StepCost:
    return StepCost(path, kind, "", spent, ((name, spent.total),), tiles, ipus, moved_bytes)
