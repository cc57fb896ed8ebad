"""Static costs of every step, in one walk over the program."""

from collections.abc import Callable, Iterable

from hloipu_runtime.costs.costs import (
    Apart,
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
from hloipu_runtime.costs.deciding import branches
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.overlapping import Hosted, SetApart, longest
from hloipu_runtime.costs.single_steps import (
    Transfers,
    collecting,
    computing,
    deciding,
    exchanging,
    plain,
)
from hloipu_runtime.costs.spent import Spent, sum_of
from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import host_call
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.channels import fetched, is_offloaded, paged, popped, taken_before
from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.faults import Fault, ProgramError
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.uses import used
from hloipu_runtime.watching import telling


def step_charges(program: Program, machine: Machine, forms: Forms | None = None) -> Costs:
    """Return what every step of a verified program costs on a machine.

    `forms`: those of its transfers, where they are known already. Raises ProgramError E4050 where
    functions call each other in a circle or are not there.
    """
    walk = _Walk(program, machine, forms or Forms(program, machine))
    call = plain("body/call", "host call", "", Spent(host=host_call(machine)))
    walk.block(program.body, "body", (lambda _: call) if program.is_resident else None)
    return Costs(program, machine, tuple(walk.steps), tuple(walk.blocks))


class _Walk:
    """The steps and blocks found so far; a block's number comes after those inside it."""

    def __init__(self, program: Program, machine: Machine, forms: Forms) -> None:
        self.program = program
        self.machine = machine
        self.forms = forms
        self.steps: list[StepCost] = []
        self.blocks: list[BlockCost] = []
        self.functions: dict[str, BlockNumber] = {}
        self.calling: set[str] = set()
        self.kept: list[s.Exchange] = []
        self.here: tuple[int, ...] = ()
        """IPUs of the position of a pipeline that is at hand, or of its branch; none outside."""
        self.set_apart = SetApart(program, machine.links.ipus_per_machine)
        self.beside: set[str] = set()
        """Paths of transfers that go on beside what they stand in."""
        self.around: dict[str, list[Apart]] = {}
        """Of pipelines right in loops: what the loop pays for before and after all iterations."""
        self.beside_iterations: set[str] = set()
        """Of these pipelines, those whose transfers have the whole iteration of the loop."""

    def block(
        self,
        body: s.Sequence,
        path: str,
        closing: Callable[[frozenset[int]], StepCost] | None = None,
    ) -> BlockNumber:
        """Return the number of a body's block.

        `closing` gives a step that each execution pays besides, from the IPUs that take part.
        """
        telling("costs of steps")
        new_block = _Block(self)
        new_block.sequence(body, path)
        if closing is not None:
            new_block.add(closing(frozenset(new_block.ipus)))
        self.blocks.append(new_block.cost(path))
        return len(self.blocks) - 1

    def function(self, name: str, path: str) -> BlockNumber:
        if name not in self.functions:
            body = self.program.functions.get(name)
            if body is None or name in self.calling:
                raise ProgramError([Fault("call", path, f"cannot call function {name!r}")])
            self.calling.add(name)
            self.functions[name] = self.block(body, s.function_path(name))
            self.calling.remove(name)
        return self.functions[name]

    def exchanging(self, step: s.Exchange, path: str) -> StepCost:
        """Return the cost of an exchange, which is kept: costs of transfers go by identity."""
        self.kept.append(step)
        return exchanging(self.program, step, self.machine, self.forms, path)

    def position(self, step: s.Pipeline, number: int, path: str) -> BlockNumber:
        """Return the block of a position: its body, and what it takes from its channels."""
        stage = step.stages[number]
        taken = [c for c in step.channels if c.consumer == number]
        new_block = _Block(self)
        for place, copy in enumerate(fetched(self.program, taken)):
            new_block.add(new_block.transfers.remote_copy(copy, f"{path}/fetched/{place}"))
        new_block.transfers.remote = None
        self.here = stage.ipus
        new_block.sequence(stage.body, path)
        self.here = ()
        for place, channels in taken_before(self.program, step, number).items():
            copies = popped(self.program, channels, name=stage.name)
            new_block.add(self.exchanging(copies, f"{path}/taken/{place}"))
        self.blocks.append(new_block.cost(path))
        return len(self.blocks) - 1

    def around_loop(self, path: str, *, is_iteration: bool) -> list[Apart]:
        """Return where to find what goes on beside a pipeline, when it has been walked."""
        if is_iteration:
            self.beside_iterations.add(path)
        return self.around.setdefault(path, [])

    def begin_beside(self, hosted: Iterable[Hosted]) -> int:
        """Leave transfers out of what they stand in; return the number of the next step."""
        self.beside.update(transferring.path for each in hosted for transferring in each.transfers)
        return len(self.steps)

    def apart(self, position: int, hosted: Hosted, begin: int, path: str) -> Apart:
        """Return what tiles set apart do beside a block whose steps are those from `begin` on."""
        new_block = _Block(self)
        around = self.here
        for each in hosted.transfers:
            self.here = (each.ipu,)
            new_block.timed(each.step, each.path)
        self.here = around
        handed = [
            step_cost for step_cost in self.steps[begin:] if step_cost.path in hosted.handing_over
        ]
        spent, name = (
            sum_of(step_cost.spent for step_cost in handed),
            handed[-1].shares[0][0] if handed else "",
        )
        place = f"{path}/beside/{hosted.chassis}"
        new_block.add(
            plain(f"{place}/handing", "exchange", name, spent, 0, tuple(sorted(new_block.ipus)))
        )
        self.blocks.append(new_block.cost(place))
        return Apart(position, hosted.chassis, len(self.blocks) - 1)

    def shared_in_turn(self, beside: Iterable[Apart], path: str) -> list[BlockNumber]:
        """Return a block for each chassis, whose IPUs share the lines to the host."""
        by_chassis: dict[int, list[Apart]] = {}
        for each in beside:
            by_chassis.setdefault(each.chassis, []).append(each)
        numbers = []
        for number, several in enumerate(by_chassis.values(), 1):
            if len(several) == 1:
                numbers.append(several[0].block)
                continue
            block = _Block(self)
            for each in several:
                block.add_inner(Called(each.block))
            self.blocks.append(block.cost(f"{path}|{number}"))
            numbers.append(len(self.blocks) - 1)
        return numbers

    def fill_and_drain(self, beside: Iterable[Apart], path: str, name: str) -> StepCost:
        """Return what transfers take that have nothing to go on beside: the first and the last."""
        transfers = ((apart.chassis, self.blocks[apart.block].steps[:-1]) for apart in beside)
        spent = longest(
            (chassis, sum_of(self.steps[n].spent for n in steps)) for chassis, steps in transfers
        )
        return plain(f"{path}/fill", "fill and drain", name, spent)

    def group(self, stage: s.Stage, path: str) -> BlockNumber:
        """Return the block of what a position does besides for each group of micro-batches."""
        new_block = _Block(self)
        new_block.sequence(stage.first, path)
        copies = (*paged(stage, comes=True), *paged(stage, comes=False))
        for place, copy in enumerate(copies):
            new_block.add(new_block.transfers.remote_copy(copy, f"{path}/paged/{place}"))
        self.blocks.append(new_block.cost(path))
        return len(self.blocks) - 1

    def branch(self, body: s.Sequence, path: str) -> BlockNumber:
        """Return the block of what runs on IPUs of its own, beside others."""
        here = self.here
        self.here = tuple(sorted({self.program.variables[v].ipu for v in used(body, self.program)}))
        block = self.block(body, path)
        self.here = here
        return block

    def who_meet(self, ipus: int) -> tuple[int, ...]:
        """Return which IPUs a barrier of so many is for."""
        return self.here[:ipus] if ipus <= len(self.here) else tuple(range(ipus))


class _Block:
    """A block in the making."""

    def __init__(self, walk: "_Walk") -> None:
        self.walk = walk
        self.steps: list[int] = []
        self.inner: list[Inner] = []
        self.ipus: set[int] = set()
        self.transfers = Transfers(walk.program, walk.machine)

    def cost(self, path: str) -> BlockCost:
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

    def sequence(self, body: s.Sequence, path: str) -> None:
        self.some(body, path, range(len(body.steps)))

    def some(self, body: s.Sequence, path: str, places: Iterable[int]) -> None:
        """Add some steps of a sequence, in order."""
        for number in places:
            place, step = f"{path}/{number}", body.steps[number]
            if isinstance(step, s.Sequence):
                self.sequence(step, place)
            elif place not in self.walk.beside:
                self.timed(step, place)

    def timed(self, step: s.Step, path: str) -> None:
        """Add a step that may go on with what the one before it does."""
        self.transfers.follow(step)
        self.step(step, path)

    def step(self, step: s.Step, path: str) -> None:
        program, machine = self.walk.program, self.walk.machine
        match step:
            case s.ComputeSet():
                self.add(computing(program, step, machine, path))
            case s.Exchange():
                self.add(exchanging(program, step, machine, self.walk.forms, path))
            case s.Sync():
                spent = Spent(sync=sync(machine, step.ipus))
                self.add(plain(path, "sync", "", spent, ipus=self.walk.who_meet(step.ipus)))
            case s.StreamIn() | s.StreamOut():
                self.add(self.transfers.streaming(step, path))
            case Collective():
                self.add(collecting(program, step, machine, path))
            case RemoteCopy():
                self.add(self.transfers.remote_copy(step, path))
            case s.Call():
                self.add(plain(path, "call", step.function, branches(machine, 2)))
                self.add_inner(Called(self.walk.function(step.function, path)))
            case s.Parallel():
                blocks = tuple(
                    self.walk.branch(b, f"{path}|{n}") for n, b in enumerate(step.branches)
                )
                self.add_inner(Together(path, blocks))
            case _:
                self.control(step, path)

    def overlapping(
        self, step: s.Repeat, hosted: list[Hosted], path: str, iteration: StepCost
    ) -> BlockNumber:
        """Return the block of iterations that compute beside transfers; add their cost around it.

        Before the first iteration and after the last, transfers have nothing to go on beside.
        Pipelines of several slots have their own beside these.
        """
        walk, place = self.walk, f"{path}/repeat"
        pipelines = walk.set_apart.pipelines(step.body)
        several = [n for n, pipeline in pipelines.items() if pipeline.timetable.slots > 1]
        around = {
            n: walk.around_loop(f"{place}/{n}", is_iteration=n not in several) for n in pipelines
        }
        begin = walk.begin_beside(hosted)
        rest = _Block(walk)
        rest.some(step.body, place, (n for n in range(len(step.body.steps)) if n not in several))
        walk.blocks.append(rest.cost(f"{place}|0"))
        branches = [len(walk.blocks) - 1]
        beside = [walk.apart(-1, each, begin, place) for each in hosted]
        beside += (
            apart for n, apart_steps in around.items() if n not in several for apart in apart_steps
        )
        branches += walk.shared_in_turn(beside, place)
        outer = _Block(walk)
        outer.some(step.body, place, several)
        outer.add_inner(Together(place, tuple(branches)))
        outer.add(iteration)
        walk.blocks.append(outer.cost(place))
        beside += (apart for n in several for apart in around[n])
        self.add(walk.fill_and_drain(beside, path, step.name))
        return len(walk.blocks) - 1

    def control(self, step: s.Step, path: str) -> None:
        walk = self.walk
        match step:
            case s.Repeat():
                iteration = plain(f"{path}/turn", "repeat", step.name, branches(walk.machine, 1))
                hosted = walk.set_apart.hosted(step.body, f"{path}/repeat")
                if step.count and (hosted or walk.set_apart.pipelines(step.body)):
                    body = self.overlapping(step, hosted, path, iteration)
                else:
                    body = walk.block(step.body, f"{path}/repeat", lambda _: iteration)
                self.add_inner(Loop(path, step.name, step.count, body))
            case s.Pipeline():
                self.pipeline(step, path)
            case s.RepeatWhile():
                body = walk.block(step.body, f"{path}/while")
                inside = walk.blocks[body].ipus
                condition = walk.block(
                    step.condition,
                    f"{path}/condition",
                    lambda ipus: deciding(
                        walk.program,
                        step.predicate,
                        ipus | inside,
                        walk.machine,
                        plain(f"{path}/turn", "while", step.name)._replace(step=step),
                    ),
                )
                self.add_inner(DataLoop(path, step.name, condition, body))
            case s.If() | s.Switch():
                blocks = tuple(walk.block(b, f"{path}?{n}") for n, b in enumerate(step.branches))
                ipus = frozenset().union(*(walk.blocks[b].ipus for b in blocks))
                kind = "if" if isinstance(step, s.If) else "switch"
                what = step.predicate if isinstance(step, s.If) else step.index
                place = plain(path, kind, step.name)._replace(step=step)
                self.add(deciding(walk.program, what, ipus, walk.machine, place))
                self.add_inner(Choice(path, step.name, blocks))

    def pipeline(self, step: s.Pipeline, path: str) -> None:
        """Add a pipeline: its bodies with what they take in, and the copies that end its slots."""
        walk = self.walk
        bodies: list[BlockNumber] = []
        beside: list[Apart] = []
        for position, stage in enumerate(step.stages):
            place = f"{path}/repeat/{position}"
            hosted = walk.set_apart.hosted(stage.body, place)
            begin = walk.begin_beside(hosted)
            if stage.first.steps or stage.paged:
                # One position works at a time where there are groups: beside nothing.
                first = walk.group(stage, f"{place}/first")
                self.add_inner(Loop(f"{place}/groups", stage.name, step.timetable.groups, first))
            bodies.append(walk.position(step, position, place))
            beside += (walk.apart(position, each, begin, place) for each in hosted)
        patterns = tuple(step.timetable.patterns())
        ipus = tuple(stage.ipus for stage in step.stages)
        from hloipu_runtime.costs.slot_ends import slot_ends, stored

        self.add(slot_ends(walk.program, step, patterns, walk.machine, walk.forms, f"{path}/slots"))
        if any(is_offloaded(walk.program, c) for c in step.channels):
            self.add(stored(walk.program, step, patterns, walk.machine, f"{path}/stored"))
        if path in walk.around:
            walk.around[path] += beside
        elif beside:
            self.add(walk.fill_and_drain(beside, path, step.name))
        apart = () if path in walk.beside_iterations else tuple(beside)
        self.add_inner(
            Pipelined(path, step.name, step.count, tuple(bodies), ipus, patterns, step, apart)
        )
