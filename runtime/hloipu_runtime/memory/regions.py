"""The step tree as straight pieces of time, with first reads and overwrites.

Time is counted in *points*: one for each leaf step, in the order of the text, functions put in at
every call. A region's points are counted from its own start, so that a function is taken apart
once, however often it is called.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from hloipu_runtime.errors import LimitError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.channels import crosses, is_offloaded, taken_before
from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.program import Program

MOST_LEVELS = 64
"""Deepest nesting of steps; lowering makes one or two levels for each loop of the module."""
MOST_ACCESSES = 20_000_000
"""Most reads and writes, with functions put in at every call."""

Ids = frozenset[s.VariableId]
NO_IDS: Ids = frozenset()


class Item(NamedTuple):
    """One step of a region, or several regions that stand for it.

    `exposed` are variables that it may read before it writes them, `killed` those that it surely
    writes whole, `forced` those that take memory from its first point to its last.
    """

    length: int
    path: str
    step: s.Step
    touched: Ids
    exposed: Ids
    killed: Ids
    forced: Ids = NO_IDS
    children: tuple[tuple[str, "Region"], ...] = ()
    """Regions at its points, one behind the other; several are alternatives."""
    repeats: bool = False
    """Whether its region starts again when it has ended."""
    offset: int = 0
    """Its first point, from the start of the region that it is in."""


@dataclass(frozen=True, eq=False)
class Region:
    """Items one after the other."""

    items: tuple[Item, ...]
    length: int
    accesses: int
    levels: int
    """Regions within each other, this one included."""
    touched: Ids
    exposed: Ids
    killed: Ids

    def items_by_variable(self, live_after: Ids) -> dict[s.VariableId, list[int]]:
        """Return the numbers of the items that touch each variable, in order.

        Left out is what lives within one item with regions of its own, as what waits in a pipeline
        does: it is in no other item, is not read from before, and is not `live_after` the region.
        """
        once: set[s.VariableId] = set()
        again: set[s.VariableId] = set()
        for item in self.items:
            again |= once & item.touched
            once |= item.touched
        numbers_by_variable: dict[s.VariableId, list[int]] = {}
        for number, item in enumerate(self.items):
            touched = item.touched
            if item.children:
                touched = (touched & again) | (touched & item.exposed) | (touched & live_after)
            for variable in touched:
                numbers_by_variable.setdefault(variable, []).append(number)
        return numbers_by_variable


def region_of(program: Program) -> Region:
    """Return the region of a program's body.

    Raises LimitError E5021 for steps nested too deep (or functions that call each other in a
    circle), E5022 for more reads and writes than anyone's program has.
    """
    builder = _Builder(program)
    for name in program.functions:
        builder.function(name, 0)
    return builder.sequence(program.body, 0)


class _Builder:
    """Takes the tree apart."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.functions: dict[str, Region] = {}

    def region(self, parts: Iterable[tuple[str, s.Step]], level: int) -> Region:
        _check_levels(level)
        return _joined(item for path, step in parts for item in self.items(path, step, level))

    def sequence(self, sequence: s.Sequence, level: int) -> Region:
        return self.region(((f"/{n}", step) for n, step in enumerate(sequence.steps)), level)

    def items(self, path: str, step: s.Step, level: int) -> tuple[Item, ...]:
        match step:
            case s.Sequence():
                return (_block(path, step, "", self.sequence(step, level + 1)),)
            case s.ComputeSet():
                return (Item(1, path, step, step.touches, step.reads, step.writes),)
            case s.Exchange():
                return (_exchange(path, step),)
            case s.StreamIn():
                return (_leaf(path, step, NO_IDS, frozenset((step.variable,))),)
            case s.StreamOut():
                return (_leaf(path, step, frozenset((step.variable,)), NO_IDS),)
            case Collective():
                reads = frozenset(moved.variable for moved in step.inputs)
                writes = frozenset(moved.variable for moved in step.outputs)
                return (_leaf(path, step, reads, writes),)
            case RemoteCopy():
                source, destination = frozenset((step.source,)), frozenset((step.destination,))
                return (_leaf(path, step, source, destination),)
            case s.Sync():
                return ()
            case s.Call():
                return (
                    _block(path, step, f"/{step.function}", self.function(step.function, level)),
                )
            case s.Repeat():
                body = self.sequence(step.body, level + 1)
                return (_loop(path, step, "/repeat", body, surely=step.count > 0),)
            case s.Pipeline():
                return (self.pipeline(path, step, level),)
            case s.RepeatWhile():
                return (self.repeat_while(path, step, level),)
            case s.If():
                return self.branches(path, step, step.predicate, level)
            case s.Switch():
                return self.branches(path, step, step.index, level)
            case s.Parallel():
                return (self.parallel(path, step, level),)

    def function(self, name: str, level: int) -> Region:
        region = self.functions.get(name)
        if region is None:
            body = self.program.functions.get(name, s.Sequence())
            region = self.functions[name] = self.sequence(body, level + 1)
        return region

    def pipeline(self, path: str, step: s.Pipeline, level: int) -> Item:
        """Return the slots of a turn in a loop, in each its positions, later ones first.

        So every IPU does them, one after the other, while the pipeline is full; before and after,
        some positions are left out. Channels are copied at the end of a slot. What waits in several
        places lives throughout, as places take turns. From before, the pipeline reads what one
        micro-batch does, position after position; after it, only what is carried has a value.
        """
        stages = [self.stage(step, n, level + 2) for n in range(len(step.stages))]
        turn: list[Item] = []
        alone: list[Item] = []
        for positions in _slots(step):
            turn += [stages[n] for n in positions]
            turn += _handed_on(self.program, step, positions) if step.group == 1 else []
        for number, stage in enumerate(stages):
            alone += [stage, *_handed_on(self.program, step, (number,))]
        loop = _loop(path, step, "/repeat", _joined(turn), surely=step.count > 0)
        handed = frozenset(v for c in step.channels for v in (c.source, c.destination, *c.places))
        waiting = frozenset(
            v for c in step.channels if len(c.places) > 1 or step.group > 1 for v in c.places
        )
        carried = frozenset(item.variable for item in step.carried)
        return loop._replace(
            touched=loop.touched | handed,
            exposed=_joined(alone).exposed | carried,
            forced=loop.forced | waiting,
        )

    def stage(self, step: s.Pipeline, number: int, level: int) -> Item:
        """Return what a position does with a micro-batch, or with each of a group.

        It takes from its channels what it does not read in place, large values right before their
        first use. Of groups, every micro-batch is handed on by itself.
        """
        stage = step.stages[number]
        items = [_block("", step, "", self.body(step, number, level + 1))]
        fetched = [
            c for c in step.channels if c.consumer == number and is_offloaded(self.program, c)
        ]
        if fetched:
            items.insert(0, _channel_copies(step, fetched))
        if step.group > 1:
            items += _handed_on(self.program, step, (number,))
        turn = _joined(items)
        if stage.first.steps or stage.paged:
            pages = frozenset(page.here for page in stage.paged)
            items = [
                _block("/first", step, "", self.sequence(stage.first, level + 1)),
                Item(
                    turn.length, "", step, turn.touched, turn.exposed, turn.killed,
                    children=(("", turn),), repeats=True,
                ),
            ]  # fmt: skip
            if pages:
                items.insert(1, _leaf("/brought", step, NO_IDS, pages))
                items.append(_leaf("/returned", step, pages, NO_IDS))
            turn = _joined(items)
        return _block(f"/{number}", step, "", turn)

    def body(self, step: s.Pipeline, number: int, level: int) -> Region:
        _check_levels(level)
        channels_by_step = taken_before(self.program, step, number)
        items: list[Item] = []
        for place, inner in enumerate(step.stages[number].body.steps):
            if place in channels_by_step:
                items.append(_channel_copies(step, channels_by_step[place]))
            items += self.items(f"/{place}", inner, level)
        return _joined(items)

    def repeat_while(self, path: str, step: s.RepeatWhile, level: int) -> Item:
        """Return condition, the look at the predicate, and a body that may be left out."""
        condition = self.sequence(step.condition, level + 1)
        body = self.sequence(step.body, level + 1)
        items = [
            _block("/condition", step, "", condition),
            _leaf("", step, frozenset((step.predicate,)), NO_IDS),
            _block("/while", step, "", body)._replace(killed=NO_IDS),
        ]
        return _loop(path, step, "", _joined(items), surely=True)

    def branches(
        self, path: str, step: s.If | s.Switch, predicate: s.VariableId, level: int
    ) -> tuple[Item, ...]:
        regions = [self.sequence(branch, level + 1) for branch in step.branches]
        either = Item(
            sum(region.length for region in regions),
            path,
            step,
            NO_IDS.union(*(region.touched for region in regions)),
            NO_IDS.union(*(region.exposed for region in regions)),
            frozenset.intersection(*(region.killed for region in regions)) if regions else NO_IDS,
            children=tuple((f"?{number}", region) for number, region in enumerate(regions)),
        )
        return (_leaf(path, step, frozenset((predicate,)), NO_IDS), either)

    def parallel(self, path: str, step: s.Parallel, level: int) -> Item:
        """Return branches one after the other; on IPUs that they share, all is live throughout."""
        regions = [self.sequence(branch, level + 1) for branch in step.branches]
        variables = self.program.variables
        ipus = [{variables[v].ipu for v in region.touched} for region in regions]
        shared = {
            ipu
            for ipus_of_branch in ipus
            for ipu in ipus_of_branch
            if sum(ipu in branch_ipus for branch_ipus in ipus) > 1
        }
        items = [_block(f"|{n}", step, "", region) for n, region in enumerate(regions)]
        region_of_all = _joined(items)
        forced = frozenset(v for v in region_of_all.touched if variables[v].ipu in shared)
        return _block(path, step, "", region_of_all)._replace(forced=forced)


def _joined(items: Iterable[Item]) -> Region:
    """Return the region of items one after the other; those without points are left out."""
    placed: list[Item] = []
    touched: set[s.VariableId] = set()
    exposed: set[s.VariableId] = set()
    killed: set[s.VariableId] = set()
    point = accesses = levels = 0
    for item in items:
        if not item.length:
            continue
        placed.append(item._replace(offset=point))
        point += item.length
        accesses += sum(child.accesses for _, child in item.children) or len(item.touched)
        levels = max(levels, *(child.levels for _, child in item.children), 0)
        touched |= item.touched
        exposed |= item.exposed - killed
        killed |= item.killed
    _check_levels(levels + 1)
    if accesses > MOST_ACCESSES:
        raise LimitError(
            "E5022",
            f"{accesses} reads and writes, where functions are put in at every call",
            limit="step_accesses",
            allowed=MOST_ACCESSES,
            found=accesses,
            hint="call the function in a loop instead of many times",
        )
    return Region(
        tuple(placed),
        point,
        accesses,
        levels + 1,
        frozenset(touched),
        frozenset(exposed),
        frozenset(killed),
    )


def _check_levels(levels: int) -> None:
    if levels > MOST_LEVELS:
        raise LimitError(
            "E5021",
            f"steps nested more than {MOST_LEVELS} deep",
            limit="step_levels",
            allowed=MOST_LEVELS,
            found=levels,
            hint="functions that call each other in a circle never end",
        )


def _slots(step: s.Pipeline) -> Iterator[tuple[int, ...]]:
    """Yield the positions that work in each slot from one micro-batch to the next, later first.

    A single micro-batch has no next one: one position works in each slot until it is through.
    """
    count = len(step.stages)
    interval = min(step.interval, count) if step.count > 1 else count
    for slot in range(interval):
        yield tuple(reversed(range(slot, count, interval)))


def _handed_on(program: Program, step: s.Pipeline, positions: Collection[int]) -> list[Item]:
    """Return the copies at the end of a slot, as one point; nothing where there are none."""
    channels = [c for c in step.channels if c.producer in positions]
    if not channels:
        return []
    filled = {v for c in channels for v in c.places}
    by_way = (c for c in channels if is_offloaded(program, c) and crosses(program, c))
    filled.update(c.destination for c in by_way)
    return [_leaf("/handed-on", step, frozenset(c.source for c in channels), frozenset(filled))]


def _channel_copies(step: s.Pipeline, channels: Collection[s.Channel]) -> Item:
    """Return the copies from the places of channels to where a position reads, as one point."""
    places = frozenset(v for c in channels for v in c.places)
    return _leaf("/taken", step, places, frozenset(c.destination for c in channels))


def _leaf(path: str, step: s.Step, reads: Ids, writes: Ids) -> Item:
    return Item(1, path, step, reads | writes, reads, writes)


def _exchange(path: str, step: s.Exchange) -> Item:
    overwritten = frozenset([d.variable for d in step.definitions if d.base is None])
    # What is written in part keeps the rest, which is as if it were read.
    return Item(1, path, step, step.touches, step.reads | (step.writes - overwritten), step.writes)


def _block(path: str, step: s.Step, suffix: str, region: Region) -> Item:
    return Item(
        region.length,
        path,
        step,
        region.touched,
        region.exposed,
        region.killed,
        children=((suffix, region),),
    )


def _loop(
    path: str, step: s.Repeat | s.Pipeline | s.RepeatWhile, suffix: str, body: Region, surely: bool
) -> Item:
    carried = frozenset(item.variable for item in step.carried)
    return Item(
        body.length,
        path,
        step,
        body.touched | carried,
        body.exposed | carried,
        body.killed if surely else NO_IDS,
        forced=carried,
        children=((suffix, body),),
        repeats=True,
    )
