"""Checks of a file's steps: valid numbers, complete records."""

from collections.abc import Iterable, Iterator

from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import Collective, RemoteCopy, form_faults
from hloipu_runtime.program.descriptors import is_complete
from hloipu_runtime.program.mapping import Tiles
from hloipu_runtime.program.program import Program
from hloipu_runtime.program_io.file.codelet_checks import try_expression
from hloipu_runtime.program_io.file.span_checks import (
    NONSENSE,
    Refuse,
    check_spans,
    check_tiles,
    streams,
)

MOST_ITERATIONS = 2**62
MOST_CALLED = 2**21
"""Steps beyond those written, where functions are put in at every call: all readers walk them."""
MOST_LEVELS = 160
"""Steps within each other, calls included: two for a block of a loop."""


class StepChecks:
    """A walk over all steps, functions first to be measured and then checked once each."""

    def __init__(self, program: Program, refuse: Refuse) -> None:
        self.program = program
        self.refuse = refuse
        self._sizes: dict[str, tuple[int, int]] = {}
        self._measuring: set[str] = set()
        self._called = 0
        self._proper: set[tuple[int, int]] = set()
        self._incoming = {port.stream: port for port in streams(program, to_device=True)}
        self._outgoing = {port.stream: port for port in streams(program, to_device=False)}

    def check(self) -> None:
        """Check everything."""
        for name in self.program.functions:
            self._function(name, 0)
        self._measure(self.program.body, 0)
        for name, body in self.program.functions.items():
            self._steps(body, f"function {name[:80]!r}")
        self._steps(self.program.body, "body")
        always_given = set(self._always_given(self.program.body))
        missing = {port.stream for port in self.program.results} - always_given
        if missing and not self.program.is_resident:
            self.refuse("the results", f"{min(missing)[:80]!r} is not given on every path")

    def _always_given(self, step: s.Step) -> Iterator[str]:
        """Yield the streams that a step gives something to, whatever data decides."""
        if isinstance(step, s.StreamOut):
            yield step.stream
        elif isinstance(step, s.Call):
            yield from self._always_given(self.program.functions[step.function])
        elif isinstance(step, s.Sequence | s.Parallel):
            for inner in s.inner_steps(step):
                yield from self._always_given(inner)

    # --- how much there is ------------------------------------------------------------------------

    def _measure(self, step: s.Step, level: int) -> tuple[int, int]:
        """Return how many steps there are with functions put in, and how deep they lie."""
        if level > MOST_LEVELS:
            self.refuse("the steps", f"more than {MOST_LEVELS} within each other")
        if isinstance(step, s.Call):
            steps, levels = self._function(step.function, level)
            self._called += steps
            return steps, levels
        inner = [self._measure(inner_step, level + 1) for inner_step in s.inner_steps(step)]
        steps = 1 + sum(count for count, _ in inner)
        return steps, 1 + max((levels for _, levels in inner), default=0)

    def _function(self, name: str, level: int) -> tuple[int, int]:
        if name not in self._sizes:
            body = self.program.functions.get(name)
            if body is None or name in self._measuring:
                self.refuse("the steps", f"a call of function {name[:80]!r}, which cannot be")
            self._measuring.add(name)
            self._sizes[name] = self._measure(body, level + 1)
            self._measuring.discard(name)
        steps, levels = self._sizes[name]
        if self._called + steps > MOST_CALLED:
            self.refuse("the steps", "too many, with functions put in at every call")
        if level + levels > MOST_LEVELS:
            self.refuse("the steps", f"more than {MOST_LEVELS} within each other")
        return steps, levels

    # --- what they name ---------------------------------------------------------------------------

    def _pipeline(self, step: s.Pipeline, place: str) -> None:
        iterations = step.interval * (step.count + 1) + len(step.stages)
        if step.count < 0 or step.interval < 1 or iterations > MOST_ITERATIONS:
            self.refuse(place, f"a pipeline of {step.count} iterations, one every {step.interval}")
        if step.group != 1 and not (1 < step.group <= MOST_ITERATIONS):
            self.refuse(place, f"a pipeline in groups of {step.group}")
        if step.group > 1 and step.interval != len(step.stages):
            self.refuse(
                place, f"a pipeline in groups with one iteration every {step.interval} slots"
            )
        self._carried(step.carried, place)
        for stage in step.stages:
            self._variables((v for page in stage.paged for v in page), place)
            if not stage.ipus or len(frozenset(stage.ipus)) < len(stage.ipus):
                self.refuse(place, "a stage on no IPU, or on one twice")
            for ipu in stage.ipus:
                if not 0 <= ipu < self.program.ipus:
                    self.refuse(place, f"a stage on IPU {ipu}")
        for channel in step.channels:
            self._variables((channel.source, *channel.places, channel.destination), place)
            self._values((channel.value,), place)
            if not (0 <= channel.producer < channel.consumer < len(step.stages)) or (
                not channel.places
            ):
                self.refuse(place, "a channel between positions that are not there")
        self._blocks((block for stage in step.stages for block in stage.blocks), place)

    def _variables(self, numbers: Iterable[s.VariableId], place: str) -> None:
        for number in numbers:
            if not 0 <= number < len(self.program.variables):
                self.refuse(place, f"there is no variable {number}")

    def _values(self, numbers: Iterable[s.ValueId], place: str) -> None:
        for number in numbers:
            if not 0 <= number < len(self.program.values):
                self.refuse(place, f"there is no value %{number}")

    def _rank(self, variable: s.VariableId) -> int:
        return len(self.program.variables[variable].shape)

    def _tiles(self, tiles: Tiles, place: str) -> None:
        if (id(tiles), 0) not in self._proper:
            check_tiles(tiles, place, self.refuse)
            self._proper.add((id(tiles), 0))

    def _steps(self, block: s.Sequence, place: str) -> None:
        for number, step in enumerate(block.steps):
            self._step(step, f"{place}/{number}")

    def _step(self, step: s.Step, place: str) -> None:
        match step:
            case s.ComputeSet():
                for group in step.groups:
                    self._group(group, place)
            case s.Exchange():
                for transfer in step.transfers:
                    self._transfer(transfer, place)
                for definition in step.definitions:
                    self._definition(definition, place)
            case s.Sync():
                if not 1 <= step.ipus <= self.program.ipus:
                    self.refuse(place, f"a sync of {step.ipus} IPUs")
            case s.StreamIn() | s.StreamOut():
                self._stream(step, place)
            case Collective():
                self._collective(step, place)
            case RemoteCopy():
                self._variables((step.source, step.destination), place)
                self._values((step.value,), place)
            case s.Sequence():
                self._steps(step, place)
            case s.Parallel():
                self._blocks(step.branches, place)
            case s.Repeat():
                if not 0 <= step.count <= MOST_ITERATIONS:
                    self.refuse(place, f"a loop of {step.count} iterations")
                self._carried(step.carried, place)
                self._steps(step.body, place)
            case s.Pipeline():
                self._pipeline(step, place)
            case s.RepeatWhile():
                self._selector(step.predicate, step.predicate_value, place, predicate=True)
                self._carried(step.carried, place)
                self._blocks((step.condition, step.body), place)
            case s.If():
                self._selector(step.predicate, step.predicate_value, place, predicate=True)
                self._merged(step.merged, step.branches, place)
            case s.Switch():
                self._selector(step.index, step.index_value, place, predicate=False)
                self._merged(step.merged, step.branches, place)
            case s.Call():
                passed = (*step.arguments, *step.results)
                self._variables((argument.variable for argument in passed), place)
                self._values(
                    (v for argument in passed for v in (argument.outer, argument.inner)), place
                )

    def _blocks(self, blocks: Iterable[s.Sequence], place: str) -> None:
        for number, block in enumerate(blocks):
            self._steps(block, f"{place}|{number}")

    def _stream(self, step: s.StreamIn | s.StreamOut, place: str) -> None:
        self._variables((step.variable,), place)
        self._values((step.value,), place)
        into = isinstance(step, s.StreamIn)
        variable = self.program.variables[step.variable]
        if into and not is_complete(variable.mapping, variable.shape):
            self.refuse(place, f"{variable.name[:80]} has elements on no tile")
        port = (self._incoming if into else self._outgoing).get(step.stream)
        tensor = (variable.element_type, variable.shape)
        if port is None or tensor != (port.element_type, port.shape):
            self.refuse(place, f"there is no stream {step.stream[:80]!r} of such values")

    def _collective(self, step: Collective, place: str) -> None:
        moved = (*step.inputs, *step.outputs)
        self._variables((operand.variable for operand in moved), place)
        self._values((operand.value for operand in moved), place)
        records = [self.program.variables[operand.variable] for operand in moved]
        for record in records:
            if not is_complete(record.mapping, record.shape):
                self.refuse(place, f"{record.name[:80]} has elements on no tile")
        kinds = [(record.element_type, record.shape) for record in records]
        count = len(step.inputs)
        form, participants = step.form, self.program.participants
        if form.body is not None:
            try:
                try_expression(form.body)
            except (*NONSENSE, MemoryError, HloipuError) as error:
                self.refuse(place, f"a reducer that cannot be: {error}"[:200])
        for message in form_faults(form, kinds[:count], kinds[count:], participants):
            self.refuse(place, message)

    def _group(self, group: s.VertexGroup, place: str) -> None:
        self._tiles(group.tiles, place)
        for operands, values in ((group.inputs, group.reads), (group.outputs, group.writes)):
            if len(operands) != len(values):
                self.refuse(place, "a vertex group with not one value for each operand")
            self._values(values, place)
            self._variables((operand_part.variable for operand_part in operands), place)
            for operand in operands:
                if len(operand.spans) != self._rank(operand.variable):
                    self.refuse(place, f"variable {operand.variable} in parts of another rank")
                key = (id(operand.spans), id(group.tiles))
                if key not in self._proper:
                    check_spans(operand.spans, group.tiles, place, self.refuse)
                    self._proper.add(key)
        if not group.outputs:
            self.refuse(place, "a vertex group without results")

    def _transfer(self, transfer: s.Transfer, place: str) -> None:
        self._variables((transfer.source, transfer.destination), place)
        self._values((transfer.value,), place)
        self._tiles(transfer.tiles, place)
        rank = self._rank(transfer.destination)
        lengths = {
            len(part) for part in (transfer.spans, transfer.box, transfer.shift, transfer.view)
        }
        if lengths != {rank} or len(transfer.receivers) != len(transfer.tiles.extents):
            self.refuse(place, "a transfer whose parts are of different ranks")
        check_spans(transfer.spans, transfer.tiles, place, self.refuse)

    def _definition(self, definition: s.Definition, place: str) -> None:
        self._variables((definition.variable,), place)
        base = () if definition.base is None else (definition.base,)
        self._values((definition.value, *base), place)
        rank = self._rank(definition.variable)
        for piece in definition.pieces:
            self._values((piece.value,), place)
            if {len(piece.view), len(piece.box), len(piece.shift)} != {rank}:
                self.refuse(place, "a piece whose parts are of different ranks")

    def _carried(self, carried: tuple[s.Carried, ...], place: str) -> None:
        self._variables((record.variable for record in carried), place)
        for item in carried:
            self._values(item[1:], place)

    def _merged(
        self, merged: tuple[s.Merged, ...], branches: tuple[s.Sequence, ...], place: str
    ) -> None:
        if not branches:
            self.refuse(place, "a choice among no branches")
        self._variables((record.variable for record in merged), place)
        for item in merged:
            if len(item.branch_values) != len(branches):
                self.refuse(place, "a merged variable with not one value for each branch")
            self._values((*item.branch_values, item.value), place)
        self._blocks(branches, place)

    def _selector(
        self, variable: s.VariableId, value: s.ValueId, place: str, *, predicate: bool
    ) -> None:
        self._variables((variable,), place)
        self._values((value,), place)
        record = self.program.variables[variable]
        kind = ELEMENT_TYPES[record.element_type].kind
        wanted = (Kind.PREDICATE,) if predicate else (Kind.SIGNED, Kind.UNSIGNED)
        if kind not in wanted or record.shape != ():
            self.refuse(
                place, f"variable {variable} cannot choose: it is not a scalar of that kind"
            )
