"""Programs drawn at random, with loops, branches, calls and several IPUs, that are all proved."""

from random import Random

from hloipu_runtime.program.mapping import Mapping, Sizes, Tiles
from hloipu_runtime.program.program import Program, Role, Variable
from hloipu_runtime.program.steps import (
    Call,
    Carried,
    If,
    Merged,
    Parallel,
    Passed,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    StreamIn,
    Switch,
    Sync,
)
from hloipu_runtime.program.uses import written
from tests.support.program_builder import ProgramBuilder, blocks


def random_mapping(draw: Random, shape: Sizes, tiles: int) -> Mapping:
    """Return parts on a random grid: some dimensions split, some blocks held by several tiles."""
    parts: list[int] = []
    room = tiles
    for size in shape:
        count = draw.choice([n for n in (1, 1, 2, 3, 4) if n <= min(room, size)])
        count = -(-size // -(-size // count))
        parts.append(count)
        room //= count
    made = blocks(shape, tuple(parts))
    extents, strides = made.tiles.extents, made.tiles.strides
    if room > 1 and draw.random() < 0.3:
        copies = draw.randint(2, room)
        extents, strides = (*extents, copies), (*(s * copies for s in strides), 1)
    room = tiles - Tiles(extents, strides).last
    return Mapping(Tiles(extents, strides, draw.randrange(room)), made.spans)


class RandomProgram:
    """Draws steps of all kinds; every program is one that the verifier proves."""

    def __init__(self, draw: Random, tiles: int, ipus: int = 1) -> None:
        self.draw = draw
        self.tiles = tiles
        self.make = ProgramBuilder(ipus)
        self.shapes: list[Sizes] = [(), (5,), (7, 3), (2, 4, 3)]

    def new(self, shape: Sizes, ipu: int = 0, role: Role = Role.TEMPORARY) -> int:
        mapping = random_mapping(self.draw, shape, self.tiles)
        return self.make.variable(shape, mapping, ipu=ipu, role=role)

    def known(self, shape: Sizes, ipu: int) -> list[int]:
        variables = self.make.variables
        return [
            v
            for v in self.make.held
            if variables[v].ipu == ipu
            and variables[v].shape == shape
            and variables[v].element_type == "f32"
        ]

    def start(self) -> None:
        """Begin with two parameters and a constant of every shape on every IPU."""
        for ipu in range(self.make.ipus):
            for shape in self.shapes:
                self.make.constant(shape, random_mapping(self.draw, shape, self.tiles), ipu)
                self.make.stream_in(self.new(shape, ipu, Role.PARAMETER))

    def steps(self, count: int, level: int, ipu: int) -> None:
        for _ in range(count):
            kinds = [self.compute] * 5 + [self.move] * 3 + [self.mend] * 2 + [self.hand_out]
            if level:
                kinds += [self.repeat, self.repeat_while, self.branches, self.call]
            self.draw.choice(kinds)(level, ipu)

    def writable(self, shape: Sizes, ipu: int) -> list[int]:
        """Return variables that may be given another value here; their old one is forgotten."""
        variables = self.make.variables
        return [v for v in self.known(shape, ipu) if variables[v].role is Role.TEMPORARY]

    def target(self, like: int) -> int:
        """Return a variable with the shape and mapping of another: a new one, or an old one."""
        x = self.make.variables[like]
        same = [
            v
            for v in self.writable(x.shape, x.ipu)
            if self.make.variables[v].mapping == x.mapping and v != like
        ]
        if same and self.draw.random() < 0.4:
            return self.draw.choice(same)
        return self.make.variable(x.shape, x.mapping, ipu=x.ipu)

    def compute(self, level: int, ipu: int) -> None:
        shape = self.draw.choice(self.shapes)
        first = self.draw.choice(self.known(shape, ipu))
        if first in self.writable(shape, ipu) and self.draw.random() < 0.3:
            self.make.add([first], first)
            return
        second = self.target(first)
        if second not in self.make.held:
            self.make.copy(self.draw.choice(self.known(shape, ipu)), second)
        self.make.add(
            [first, second], self.make.variable(shape, self.make.variables[first].mapping, ipu=ipu)
        )

    def move(self, level: int, ipu: int) -> None:
        shape = self.draw.choice(self.shapes)
        source = self.draw.choice(self.known(shape, ipu))
        others = [v for v in self.writable(shape, ipu) if v != source]
        if others and self.draw.random() < 0.3:
            self.make.copy(source, self.draw.choice(others))
        else:
            self.make.copy(source, self.new(shape, ipu))

    def mend(self, level: int, ipu: int) -> None:
        shape = self.draw.choice(self.shapes)
        targets = self.writable(shape, ipu)
        if not targets:
            return
        target = self.draw.choice(targets)
        sources = [v for v in self.known(shape, ipu) if v != target]
        box = []
        for size in shape:
            low = self.draw.randrange(size)
            box.append((low, self.draw.randint(low + 1, size)))
        self.make.place([(self.draw.choice(sources), tuple(box))], target, keep=True)

    def hand_out(self, level: int, ipu: int) -> None:
        self.make.emit(Sync())
        self.make.stream_out(self.draw.choice(self.known(self.draw.choice(self.shapes), ipu)))

    def _carried(self, ipu: int) -> list[int]:
        found = [v for shape in self.shapes for v in self.writable(shape, ipu)]
        return sorted(self.draw.sample(found, min(len(found), self.draw.randint(0, 3))))

    def _loop(
        self, level: int, ipu: int, *, condition: bool
    ) -> tuple[list[Step], list[Step], tuple[Carried, ...], int]:
        """Write a body in which only what is carried is overwritten, and a condition before it."""
        make = self.make
        carried = self._carried(ipu)
        outside = dict(make.held)
        frozen = {v for v in outside if v not in carried}
        initial = {v: make.held[v] for v in carried}
        turn = {v: make.value_like(v) for v in carried}
        make.held.update(turn)
        hidden = self._hide(frozen)
        predicate = -1
        with make.block() as test:
            if condition:
                predicate = self.predicate(ipu)
                hidden_too = self._hide(set(carried))
                self.steps(self.draw.randint(0, 2), 0, ipu)
                self._show(hidden_too)
        with make.block() as body:
            self.steps(self.draw.randint(1, 4), level - 1, ipu)
            for v in carried:
                make.add([v], v)
            following = {v: make.held[v] for v in carried}
        self._show(hidden)
        final = {v: make.value_like(v) for v in carried}
        make.held.clear()
        make.held.update(outside)
        make.held.update(final)
        items = tuple(Carried(v, initial[v], turn[v], following[v], final[v]) for v in carried)
        return test, body, items, predicate

    def _hide(self, variables: set[int]) -> dict[int, Variable]:
        """Make variables read-only for a while, by another role."""
        hidden = {}
        for v in variables:
            x = self.make.variables[v]
            if x.role is Role.TEMPORARY:
                hidden[v] = x
                self.make.variables[v] = Variable(
                    x.name, x.element_type, x.shape, x.mapping, Role.STATE, x.ipu, x.origin
                )
        return hidden

    def _show(self, hidden: dict[int, Variable]) -> None:
        for v, x in hidden.items():
            self.make.variables[v] = x

    def predicate(self, ipu: int, kind: str = "pred") -> int:
        tile = self.draw.randrange(self.tiles)
        made = self.make.variable((), Mapping(Tiles((), (), tile), ()), kind=kind, ipu=ipu)
        return self.make.stream_in(made)

    def repeat(self, level: int, ipu: int) -> None:
        _, body, carried, _ = self._loop(level, ipu, condition=False)
        count = self.draw.randint(0, 3)
        self.make.emit(Repeat(count, Sequence(tuple(body)), carried))

    def repeat_while(self, level: int, ipu: int) -> None:
        test, body, carried, predicate = self._loop(level, ipu, condition=True)
        value = next(s.value for s in test if isinstance(s, StreamIn))
        self.make.emit(
            RepeatWhile(Sequence(tuple(test)), predicate, value, Sequence(tuple(body)), carried)
        )

    def branches(self, level: int, ipu: int) -> None:
        make = self.make
        two = self.draw.random() < 0.5
        chooser = self.predicate(ipu, "pred" if two else "s32")
        outside = dict(make.held)
        fresh = self.new(self.draw.choice(self.shapes), ipu)
        results: list[dict[int, int]] = []
        bodies: list[Sequence] = []
        changed: set[int] = set()
        for _ in range(2 if two else self.draw.randint(1, 3)):
            make.held.clear()
            make.held.update(outside)
            with make.block() as body:
                self.steps(self.draw.randint(0, 3), level - 1, ipu)
                source = self.draw.choice(self.known(make.variables[fresh].shape, ipu))
                make.copy(source, fresh)
            results.append(dict(make.held))
            bodies.append(Sequence(tuple(body)))
            changed |= written(bodies[-1], make.program())
        make.held.clear()
        make.held.update(outside)
        kept = [*sorted(changed & outside.keys()), fresh]
        values = {v: make.value_like(v) for v in kept}
        items = tuple(Merged(v, tuple(r[v] for r in results), values[v]) for v in kept)
        make.held.update(values)
        value = outside[chooser]
        if two:
            make.emit(If(chooser, value, bodies[0], bodies[1], items))
        else:
            make.emit(Switch(chooser, value, tuple(bodies), items))

    def call(self, level: int, ipu: int) -> None:
        """Draw a function of all that is known, and call it once or twice."""
        make = self.make
        name = f"f{len(make.functions)}"
        make.functions[name] = Sequence()
        outside = dict(make.held)
        here = [v for v in outside if make.variables[v].ipu == ipu and v not in make.constants]
        inner = {v: make.value_like(v) for v in here}
        make.held.update(inner)
        with make.block() as steps:
            self.steps(self.draw.randint(1, 3), level - 1, ipu)
        body = make.functions[name] = Sequence(tuple(steps))
        changed = written(body, make.program())
        ends = {v: value for v, value in make.held.items() if v in changed}
        new_constants = make.constants.keys() - outside.keys()
        make.held.clear()
        make.held.update(outside)
        for v in new_constants:
            make.held[v] = make.constants[v][0]
        for _ in range(self.draw.randint(1, 2)):
            arguments = tuple(Passed(v, make.held[v], value) for v, value in inner.items())
            results = tuple(Passed(v, make.value_like(v), value) for v, value in ends.items())
            make.emit(Call(name, arguments, results))
            make.held.update((item.variable, item.outer) for item in results)

    def parallel(self) -> None:
        bodies = []
        for ipu in range(self.make.ipus):
            with self.make.block() as body:
                self.steps(3, 1, ipu)
            bodies.append(Sequence(tuple(body)))
        self.make.emit(Parallel(tuple(bodies)))


def random_program(seed: int, *, tiles: int = 4, ipus: int = 1, steps: int = 12) -> Program:
    """Return a drawn program that `faults_of` finds nothing in."""
    drawn = RandomProgram(Random(seed), tiles, ipus)
    drawn.start()
    for ipu in range(ipus):
        drawn.steps(steps, 2, ipu)
    if ipus > 1:
        drawn.parallel()
        for ipu in range(ipus):
            drawn.steps(2, 1, ipu)
    drawn.make.stream_out(drawn.draw.choice(list(drawn.make.held)))
    return drawn.make.program()
