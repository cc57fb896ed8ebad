"""Parser of steps; omitted details follow from the variables."""

from collections.abc import Callable

from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import RemoteCopy
from hloipu_runtime.program.mapping import Box, Sizes, whole_box
from tests.support.program_reader.reading import Names
from tests.support.program_reader.tokens import MOST_BLOCKS
from tests.support.program_reader.values import (
    read_box,
    read_codelet,
    read_collective,
    read_numbers,
    read_sizes,
    read_spans,
    read_tiles,
)


class StepParser:
    """Reads blocks of steps."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.cursor = names.cursor
        self._blocks = 0
        self._readers: dict[str, Callable[[], s.Step]] = {
            "compute": self._compute,
            "exchange": self._exchange,
            "sync": lambda: s.Sync(self.cursor.integer()),
            "in": self._stream_in,
            "out": self._stream_out,
            "collective": lambda: read_collective(self.cursor, self.names),
            "remote": self._remote,
            "sequence": self.block,
            "parallel": lambda: s.Parallel(self._branches("branch")),
            "repeat": self._repeat,
            "pipeline": self._pipeline,
            "while": self._while,
            "if": self._if,
            "switch": self._switch,
            "call": self._call,
        }

    def block(self) -> s.Sequence:
        """Read steps in braces."""
        self._blocks += 1
        if self._blocks > MOST_BLOCKS:
            self.cursor.fail(f"blocks within each other, more than {MOST_BLOCKS} deep")
        self.cursor.expect("{")
        steps: list[s.Step] = []
        while not self.cursor.take("}"):
            reader = self._readers.get(self.cursor.token.text)
            if reader is None or self.cursor.token.kind != "word":
                self.cursor.wrong(f"a step ({', '.join(self._readers)}) or '}}'")
            self.cursor.advance()
            steps.append(reader())
        self._blocks -= 1
        return s.Sequence(tuple(steps))

    def _branches(self, title: str) -> tuple[s.Sequence, ...]:
        self.cursor.expect("{")
        blocks = []
        while not self.cursor.take("}"):
            self.cursor.expect(title)
            blocks.append(self.block())
        return tuple(blocks)

    def _stream_in(self) -> s.StreamIn:
        stream = self.cursor.string()
        self.cursor.expect("->")
        return s.StreamIn(stream, *self.names.variable_and_value())

    def _stream_out(self) -> s.StreamOut:
        stream = self.cursor.string()
        self.cursor.expect("<-")
        return s.StreamOut(stream, *self.names.variable_and_value())

    def _remote(self) -> RemoteCopy:
        source, value = self.names.variable_and_value()
        self.cursor.expect("->")
        return RemoteCopy(source, self.names.variable(), value)

    # --- compute sets and exchanges ---------------------------------------------------------------

    def _compute(self) -> s.ComputeSet:
        self.cursor.expect("{")
        groups = []
        while not self.cursor.take("}"):
            groups.append(self._group())
        return s.ComputeSet(tuple(groups))

    def _group(self) -> s.VertexGroup:
        outputs = self.cursor.items("(", ")", self._operand)
        self.cursor.expect("<-")
        codelet = read_codelet(self.cursor)
        name = self.cursor.optional_string()
        tiles = read_tiles(self.cursor)
        self.cursor.expect("<-")
        inputs = self.cursor.items("(", ")", self._operand)
        return s.VertexGroup(
            codelet,
            tiles,
            tuple(operand for operand, _ in inputs),
            tuple(operand for operand, _ in outputs),
            tuple(value for _, value in inputs),
            tuple(value for _, value in outputs),
            name,
        )

    def _operand(self) -> tuple[s.Operand, s.ValueId]:
        variable, value = self.names.variable_and_value()
        spans = read_spans(self.cursor, self.names.variables[variable].shape)
        return s.Operand(variable, spans), value

    def _exchange(self) -> s.Exchange:
        name = self.cursor.optional_string()
        self.cursor.expect("{")
        transfers: list[s.Transfer] = []
        definitions: list[s.Definition] = []
        while not self.cursor.take("}"):
            if self.cursor.take("define"):
                definitions.append(self._definition())
            elif not definitions and self.cursor.take("copy"):
                transfers.append(self._transfer())
            else:
                self.cursor.wrong("'copy', or 'define' after all of those")
        return s.Exchange(tuple(transfers), tuple(definitions), name)

    def _transfer(self) -> s.Transfer:
        cursor = self.cursor
        source, value = self.names.variable_and_value()
        cursor.expect("->")
        destination = self.names.variable()
        variable = self.names.variables[destination]
        tiles = read_tiles(cursor) if cursor.take("tiles") else variable.mapping.tiles
        everyone = whole_box(tiles.extents)
        receivers = read_box(cursor) if cursor.take("receivers") else everyone
        spans = variable.mapping.spans
        if cursor.take("parts"):
            spans = read_spans(cursor, variable.shape)
        view, box, shift = self._place(variable.shape)
        return s.Transfer(source, destination, tiles, receivers, spans, box, shift, view, value)

    def _place(self, shape: Sizes) -> tuple[Sizes, Box, Sizes]:
        cursor = self.cursor
        view = read_sizes(cursor) if cursor.take("view") else shape
        box = read_box(cursor) if cursor.take("box") else whole_box(shape)
        shift = read_numbers(cursor) if cursor.take("shift") else (0,) * len(shape)
        return view, box, shift

    def _definition(self) -> s.Definition:
        variable, value = self.names.variable_and_value()
        base = self.names.value() if self.cursor.take("over") else None
        self.cursor.expect("of")
        shape = self.names.variables[variable].shape
        pieces = self.cursor.items("(", ")", lambda: self._piece(shape))
        return s.Definition(variable, value, base, pieces)

    def _piece(self, shape: Sizes) -> s.Piece:
        value = self.names.value()
        view, box, shift = self._place(shape)
        return s.Piece(value, view, box, shift)

    # --- control flow -----------------------------------------------------------------------------

    def _repeat(self) -> s.Repeat:
        count = self.cursor.integer()
        name = self.cursor.optional_string()
        carried = self.cursor.items("(", ")", self._carried)
        return s.Repeat(count, self.block(), carried, name)

    def _carried(self) -> s.Carried:
        variable = self.names.variable()
        self.cursor.expect(":")
        value = self.names.value
        return s.Carried(variable, value(), value(), value(), value())

    def _call(self) -> s.Call:
        function = self.cursor.string()
        if self.cursor.token.text != "(":
            return s.Call(function)
        arguments = self.cursor.items("(", ")", self._passed)
        self.cursor.expect("->")
        results = self.cursor.items("(", ")", self._passed)
        return s.Call(
            function,
            arguments,
            tuple(passed._replace(outer=passed.inner, inner=passed.outer) for passed in results),
        )

    def _passed(self) -> s.Passed:
        variable = self.names.variable()
        self.cursor.expect(":")
        return s.Passed(variable, self.names.value(), self.names.value())

    def _pipeline(self) -> s.Pipeline:
        cursor = self.cursor
        count = cursor.integer()
        cursor.expect("every")
        interval = cursor.integer()
        group = 1
        if cursor.take("in"):
            cursor.expect("groups")
            cursor.expect("of")
            group = cursor.integer()
        name = cursor.optional_string()
        carried = cursor.items("(", ")", self._carried)
        cursor.expect("{")
        stages: list[s.Stage] = []
        while cursor.take("stage"):
            title = cursor.string()
            stage = s.Stage(title, self._stage_ipus(), self.block())
            if cursor.take("first"):
                stage = stage._replace(first=self.block())
            while cursor.take("paged"):
                stage = stage._replace(paged=(*stage.paged, self._paged()))
            stages.append(stage)
        channels: list[s.Channel] = []
        while cursor.take("channel"):
            channels.append(self._channel())
        cursor.expect("}")
        return s.Pipeline(count, interval, tuple(stages), tuple(channels), carried, name, group)

    def _paged(self) -> s.Paged:
        remote = self.names.variable()
        self.cursor.expect("at")
        return s.Paged(remote, self.names.variable())

    def _stage_ipus(self) -> tuple[int, ...]:
        cursor = self.cursor
        if cursor.take("ipus"):
            return cursor.items("(", ")", cursor.integer)
        cursor.expect("ipu")
        return (cursor.integer(),)

    def _channel(self) -> s.Channel:
        cursor = self.cursor
        producer = cursor.integer()
        cursor.expect("to")
        consumer = cursor.integer()
        source, value = self.names.variable_and_value()
        cursor.expect("by")
        places = cursor.items("(", ")", self.names.variable)
        cursor.expect("->")
        return s.Channel(producer, consumer, source, places, self.names.variable(), value)

    def _while(self) -> s.RepeatWhile:
        predicate, predicate_value = self.names.variable_and_value()
        name = self.cursor.optional_string()
        carried = self.cursor.items("(", ")", self._carried)
        self.cursor.expect("{")
        self.cursor.expect("condition")
        condition = self.block()
        self.cursor.expect("turn")
        body = self.block()
        self.cursor.expect("}")
        return s.RepeatWhile(condition, predicate, predicate_value, body, carried, name)

    def _merged(self) -> s.Merged:
        variable, value = self.names.variable_and_value()
        self.cursor.expect(":")
        values = []
        while self.cursor.token.kind == "value":
            values.append(self.names.value())
        return s.Merged(variable, tuple(values), value)

    def _if(self) -> s.If:
        predicate, predicate_value = self.names.variable_and_value()
        name = self.cursor.optional_string()
        merged = self.cursor.items("(", ")", self._merged)
        start = self.cursor.token
        branches = self._branches("branch")
        if len(branches) != 2:
            self.cursor.fail(f"{len(branches)} branches; an if has two", start)
        return s.If(predicate, predicate_value, *branches, merged, name)

    def _switch(self) -> s.Switch:
        index, index_value = self.names.variable_and_value()
        name = self.cursor.optional_string()
        merged = self.cursor.items("(", ")", self._merged)
        return s.Switch(index, index_value, self._branches("branch"), merged, name)
