"""Printer of program text.

    f32[4,8]            a tensor
    @16[2 x 4,3 x 1]    from tile 16: 2 steps of 4 tiles, by 3 steps of 1
    (a0*8:8, *, a1*4-1:6, 0:2)
                        of each dimension: 8 elements from 8 times coordinate 0; all; 6 from one
                        before 4 times coordinate 1; on every tile the first 2
    (0..4, 2..5)        a box
    dot(lhs_batch=[0], rhs_batch=[0], lhs_contracting=[2], …)
    elementwise(expression={(f32, f32); 2 = f32 add(0, 1); return (2)}, labels=[[0],[0]], rank=1)
    collective "all-reduce" groups [[0,1],[2,3]] by "add" "grads" (v4 = %7) <- (v3 = %6)

Parameters stand in their order, as JSON data; an expression numbers its operands, then its nodes.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, assert_never, get_type_hints

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.constants import text_of
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import Collective, Moved, RemoteCopy
from hloipu_runtime.program.mapping import Box, Mapping, Sizes, Span, Spans, Tiles, whole, whole_box
from hloipu_runtime.program.program import Array, Port, Program, Queue, Role, StatePort, Variable
from hloipu_runtime.program.stacks import Partitioning, Stack
from hloipu_runtime.program_io.records.coders import Writing, all_codelets, coder_of

MOST_SHOWN = 16
"""Elements of a constant that is shown by value."""


def constant_text(array: Array, element_type: str, *, full: bool) -> str:
    """Return a constant's values, its bytes, or its digest."""
    if array.size <= MOST_SHOWN:
        values = " ".join(text_of(element, element_type) for element in array.ravel())
        return f'values "{values}"'
    raw = np.ascontiguousarray(array).tobytes()
    if full:
        return f'bytes "{raw.hex()}"'
    return f'elided "{hashlib.sha256(raw).hexdigest()}" // {len(raw)} bytes'


def sizes_text(sizes: Sizes) -> str:
    """Return sizes in brackets."""
    return f"[{','.join(map(str, sizes))}]"


def tiles_text(tiles: Tiles) -> str:
    """Return a grid of tiles."""
    axes = ",".join(f"{n} x {s}" for n, s in zip(tiles.extents, tiles.strides, strict=True))
    return f"@{tiles.first}[{axes}]" if axes else f"@{tiles.first}"


def spans_text(spans: Spans, shape: Sizes) -> str:
    """Return the parts of all dimensions."""
    shown = [
        "*" if len(shape) == len(spans) and span == whole(shape[n]) else _span_text(span)
        for n, span in enumerate(spans)
    ]
    return f"({', '.join(shown)})"


def _span_text(span: Span) -> str:
    if span.axis == -1 and span.step == 0:
        return f"{span.offset}:{span.size}"
    offset = f"{span.offset:+}" if span.offset else ""
    return f"a{span.axis}*{span.step}{offset}:{span.size}".replace("a-", "a -")


def box_text(box: Box) -> str:
    """Return a box."""
    return f"({', '.join(f'{low}..{high}' for low, high in box)})"


def numbers_text(numbers: Sizes) -> str:
    """Return numbers in parentheses."""
    return f"({', '.join(map(str, numbers))})"


@lru_cache(maxsize=512)
def _parameters(name: str) -> dict[str, Any]:
    kind = all_codelets()[name]
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def codelet_text(codelet: Codelet) -> str:
    """Return a codelet with its parameters."""
    shown = [
        f"{name}={_parameter_text(getattr(codelet, name), annotation)}"
        for name, annotation in _parameters(codelet.name).items()
    ]
    return f"{codelet.name}({', '.join(shown)})"


def _parameter_text(value: Any, annotation: Any) -> str:
    if isinstance(value, Expression):
        return expression_text(value)
    if annotation == tuple[Expression, ...]:
        return f"[{', '.join(map(expression_text, value))}]"
    return json.dumps(coder_of(annotation).write(value, Writing()), separators=(",", ":"))


def expression_text(expression: Expression) -> str:
    """Return an expression in braces."""
    parts = [f"({', '.join(expression.operand_types)})"]
    for number, node in enumerate(expression.nodes, len(expression.operand_types)):
        parameters = [f"{key}={json.dumps(value)}" for key, value in node.parameters]
        inner = ", ".join([*map(str, node.arguments), *parameters])
        parts.append(f"{number} = {node.element_type} {node.op}({inner})")
    return f"{{{'; '.join(parts)}; return {numbers_text(expression.results)}}}"


def collective_text(step: Collective) -> str:
    """Return a collective in one line."""
    form = step.form
    words = ["collective", json.dumps(form.kind)]
    if form.groups:
        words += ["groups", json.dumps(form.groups, separators=(",", ":"))]
    if form.pairs:
        words += ["pairs", json.dumps(form.pairs, separators=(",", ":"))]
    if form.dimension:
        words += ["dimension", str(form.dimension)]
    if form.monoid:
        words += ["by", json.dumps(form.monoid)]
    if form.body is not None:
        words += ["with", expression_text(form.body)]
    if form.starts:
        words += ["starts", json.dumps(form.starts, separators=(",", ":"))]
    if step.name:
        words.append(json.dumps(step.name))
    return " ".join([*words, _moved_text(step.outputs), "<-", _moved_text(step.inputs)])


def _moved_text(moved: tuple[Moved, ...]) -> str:
    return f"({', '.join(f'v{operand.variable} = %{operand.value}' for operand in moved)})"


_INDENT = "  "


def print_program(program: Program, *, constants: bool = False) -> str:
    """Return a program's text; equal programs give equal texts.

    Large constants are left out, and named by their digest, unless `constants` asks for them.
    """
    return "".join(f"{line}\n" for line in _Printer(program).lines(constants=constants))


def _quoted(text: str) -> str:
    return json.dumps(text)


def _name(text: str) -> str:
    return f" {_quoted(text)}" if text else ""


def tensor_text(element_type: str, shape: Sizes) -> str:
    """Return a type as HLO writes it, without a layout."""
    return f"{element_type}{sizes_text(shape)}"


class _Printer:
    """Prints one program; lines come without their indentation's outermost level."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def lines(self, *, constants: bool) -> Iterator[str]:
        program = self.program
        machine = _quoted(program.machine)
        copies = "" if program.replicas == 1 else f" replicas {program.replicas}"
        copies += "" if program.partitions == 1 else f" partitions {program.partitions}"
        if program.places:
            copies += f" places ({', '.join(map(str, program.places))}) of {program.system_ipus}"
        copies += f" hosts {program.hosts}" if program.hosts else ""
        copies += f" keys ({', '.join(map(str, program.keys))})" if program.keys else ""
        turns = "" if program.steps_per_run == 1 else f" steps {program.steps_per_run}"
        yield f"program {_quoted(program.name)} for {machine} ipus {program.ipus}{copies}{turns}"
        yield from self._table("parameters", map(_port_text, program.parameters))
        yield from self._table("results", map(_port_text, program.results))
        yield from self._table("variables", map(_variable_text, *_numbered(program.variables)))
        yield from self._table(
            "values",
            (
                f"%{number}: {tensor_text(record.element_type, record.shape)}{_name(record.origin)}"
                for number, record in enumerate(program.values)
            ),
        )
        yield from self._table(
            "constants",
            (
                f"v{number} = %{value} " + self._constant(number, value, array, full=constants)
                for number, (value, array) in sorted(program.constants.items())
            ),
        )
        if program.loaded:
            yield from self._table("loaded", (f"%{value}" for value in program.loaded))
        if program.state:
            yield from self._table("state", map(_state_text, program.state))
        if program.queues:
            yield from self._table("queues", map(_queue_text, program.queues))
        if program.stacks:
            yield from self._table("stacks", map(_stack_text, program.stacks))
        if program.partitioning is not None:
            yield from self._table("blocks", _blocks_text(program.partitioning))
        if program.elided:
            yield from self._table("elided", map(_quoted, program.elided))
        for name, body in sorted(program.functions.items()):
            yield from self._block(f"function {_quoted(name)}", body)
        yield from self._block("body", program.body)

    def _constant(self, number: int, value: int, array: Array, *, full: bool) -> str:
        if value in self.program.loaded:
            return "given"
        return constant_text(array, self.program.variables[number].element_type, full=full)

    def _table(self, title: str, rows: Iterator[str]) -> Iterator[str]:
        yield f"{title} {{"
        yield from (f"{_INDENT}{row}" for row in rows)
        yield "}"

    def _block(self, head: str, body: s.Sequence) -> Iterator[str]:
        yield f"{head} {{"
        for step in body.steps:
            yield from (f"{_INDENT}{line}" for line in self._step(step))
        yield "}"

    def _step(self, step: s.Step) -> Iterator[str]:
        match step:
            case s.ComputeSet():
                yield "compute {"
                yield from (f"{_INDENT}{self._group(group)}" for group in step.groups)
                yield "}"
            case s.Exchange():
                yield f"exchange{_name(step.name)} {{"
                yield from (f"{_INDENT}{self._transfer(inner)}" for inner in step.transfers)
                yield from (f"{_INDENT}{self._definition(inner)}" for inner in step.definitions)
                yield "}"
            case s.Sync():
                yield f"sync {step.ipus}"
            case s.StreamIn():
                yield f"in {_quoted(step.stream)} -> {_holding(step.variable, step.value)}"
            case s.StreamOut():
                yield f"out {_quoted(step.stream)} <- {_holding(step.variable, step.value)}"
            case Collective():
                yield collective_text(step)
            case RemoteCopy():
                yield f"remote {_holding(step.source, step.value)} -> v{step.destination}"
            case s.Sequence():
                yield from self._block("sequence", step)
            case s.Parallel():
                yield from self._branches("parallel", step.branches)
            case s.Repeat():
                head = f"repeat {step.count}{_name(step.name)} {_carried_text(step.carried)}"
                yield from self._block(head, step.body)
            case s.Pipeline():
                yield from self._pipeline(step)
            case s.RepeatWhile():
                yield from self._while(step)
            case s.If():
                chooser = _holding(step.predicate, step.predicate_value)
                head = f"if {chooser}{_name(step.name)} {_merged_text(step.merged)}"
                yield from self._branches(head, step.branches)
            case s.Switch():
                chooser = _holding(step.index, step.index_value)
                head = f"switch {chooser}{_name(step.name)} {_merged_text(step.merged)}"
                yield from self._branches(head, step.branches)
            case s.Call():
                yield f"call {_quoted(step.function)}{_passed_text(step)}"
            case _:
                assert_never(step)

    def _branches(self, head: str, blocks: Sequence[s.Sequence]) -> Iterator[str]:
        yield f"{head} {{"
        for block in blocks:
            yield from (f"{_INDENT}{line}" for line in self._block("branch", block))
        yield "}"

    def _pipeline(self, step: s.Pipeline) -> Iterator[str]:
        groups = f" in groups of {step.group}" if step.group > 1 else ""
        head = f"pipeline {step.count} every {step.interval}{groups}{_name(step.name)}"
        yield f"{head} {_carried_text(step.carried)} {{"
        for stage in step.stages:
            title = f"stage {_quoted(stage.name)} {_stage_ipus(stage.ipus)}"
            yield from (f"{_INDENT}{line}" for line in self._block(title, stage.body))
            if stage.first.steps:
                yield from (f"{_INDENT}{line}" for line in self._block("first", stage.first))
            for page in stage.paged:
                yield f"{_INDENT}paged v{page.there} at v{page.here}"
        for channel in step.channels:
            places = ", ".join(f"v{place}" for place in channel.places)
            yield (
                f"{_INDENT}channel {channel.producer} to {channel.consumer} "
                f"{_holding(channel.source, channel.value)} by ({places}) -> v{channel.destination}"
            )
        yield "}"

    def _while(self, step: s.RepeatWhile) -> Iterator[str]:
        chooser = _holding(step.predicate, step.predicate_value)
        yield f"while {chooser}{_name(step.name)} {_carried_text(step.carried)} {{"
        for title, block in (("condition", step.condition), ("turn", step.body)):
            yield from (f"{_INDENT}{line}" for line in self._block(title, block))
        yield "}"

    def _group(self, group: s.VertexGroup) -> str:
        inputs = self._operands(group.inputs, group.reads)
        outputs = self._operands(group.outputs, group.writes)
        return (
            f"{outputs} <- {codelet_text(group.codelet)}{_name(group.name)} "
            f"{tiles_text(group.tiles)} <- {inputs}"
        )

    def _operands(self, operands: Sequence[s.Operand], values: Sequence[s.ValueId]) -> str:
        shown = [
            f"{_holding(operand.variable, value)} "
            f"{spans_text(operand.spans, self._shape(operand.variable))}"
            for operand, value in zip(operands, values, strict=True)
        ]
        return f"({', '.join(shown)})"

    def _shape(self, variable: s.VariableId) -> Sizes:
        return self.program.variables[variable].shape

    def _transfer(self, transfer: s.Transfer) -> str:
        """Return what differs from bringing all of the source to all of the destination."""
        variable = self.program.variables[transfer.destination]
        mapping = variable.mapping
        text = f"copy {_holding(transfer.source, transfer.value)} -> v{transfer.destination}"
        if transfer.tiles != mapping.tiles:
            text += f" tiles {tiles_text(transfer.tiles)}"
        if transfer.receivers != whole_box(transfer.tiles.extents):
            text += f" receivers {box_text(transfer.receivers)}"
        if transfer.spans != mapping.spans:
            text += f" parts {spans_text(transfer.spans, variable.shape)}"
        return text + _place_text(transfer, variable.shape)

    def _definition(self, definition: s.Definition) -> str:
        shape = self._shape(definition.variable)
        pieces = [f"%{piece.value}{_place_text(piece, shape)}" for piece in definition.pieces]
        base = "" if definition.base is None else f" over %{definition.base}"
        target = _holding(definition.variable, definition.value)
        return f"define {target}{base} of ({', '.join(pieces)})"


def _numbered(variables: Sequence[Variable]) -> tuple[range, Sequence[Variable]]:
    return range(len(variables)), variables


def _holding(variable: s.VariableId, value: s.ValueId) -> str:
    return f"v{variable} = %{value}"


def _place_text(place: s.Transfer | s.Piece, shape: Sizes) -> str:
    """Return source and destination of data, unless it is whole and unmoved."""
    text = ""
    if place.view != shape:
        text += f" view {sizes_text(place.view)}"
    if place.box != whole_box(shape):
        text += f" box {box_text(place.box)}"
    if place.shift != (0,) * len(shape):
        text += f" shift {numbers_text(place.shift)}"
    return text


def _port_text(port: Port) -> str:
    alias = f" alias {port.alias}" if port.alias != -1 else ""
    return f"{_quoted(port.stream)}: {tensor_text(port.element_type, port.shape)}{alias}"


def _state_text(port: StatePort) -> str:
    values = f"v{port.variable}: %{port.initial} %{port.final}"
    shape = f" of {sizes_text(port.whole)}" if port.whole else ""
    return f"{_quoted(port.name)} {values} parameter {port.parameter} result {port.result}{shape}"


def _queue_text(queue: Queue) -> str:
    direction = "in" if queue.to_device else "out"
    places = f" for {' '.join(map(str, queue.places))}" if queue.places else ""
    reduced = f" {queue.reduction}" if queue.reduction else ""
    streams = ", ".join(map(_port_text, queue.streams))
    mode = f" keep {_quoted(queue.mode)}" if queue.mode else ""
    named = f" named ({', '.join(map(_quoted, queue.names))})" if queue.names else ""
    return f"{direction} {_quoted(queue.name)} ({streams}){places}{reduced}{mode}{named}"


def _blocks_text(partitioning: Partitioning) -> Iterator[str]:
    order = f" order {sizes_text(partitioning.order)}" if partitioning.order else ""
    yield f"mesh {sizes_text(partitioning.mesh)}{order}"
    for array in partitioning.arrays:
        axes = "".join(f" {sizes_text(axis_numbers)}" for axis_numbers in array.axes)
        yield f"{array.kind} {array.number} of {sizes_text(array.shape)} by{axes}"


def _stack_text(stack: Stack) -> str:
    pieces = f"{stack.kind} {stack.first} axis {stack.axis} by {sizes_text(stack.sizes)}"
    return f"{_quoted(stack.name)} {pieces} of {sizes_text(stack.shape)}"


def _variable_text(number: int, variable: Variable) -> str:
    role = "" if variable.role is Role.TEMPORARY else f" {variable.role.value}"
    ipu = f" ipu {variable.ipu}" if variable.ipu else ""
    origin = f" from {_quoted(variable.origin)}" if variable.origin else ""
    return (
        f"v{number} {_quoted(variable.name)}: {tensor_text(variable.element_type, variable.shape)}"
        f"{role}{ipu} {_mapping_text(variable.mapping, variable.shape)}{origin}"
    )


def _mapping_text(mapping: Mapping, shape: Sizes) -> str:
    return f"{tiles_text(mapping.tiles)} {spans_text(mapping.spans, shape)}"


def _stage_ipus(ipus: Sequence[int]) -> str:
    return f"ipu {ipus[0]}" if len(ipus) == 1 else f"ipus ({', '.join(map(str, ipus))})"


def _carried_text(carried: Sequence[s.Carried]) -> str:
    shown = [f"v{item.variable}: %{item[1]} %{item[2]} %{item[3]} %{item[4]}" for item in carried]
    return f"({', '.join(shown)})"


def _passed_text(call: s.Call) -> str:
    """Return what is handed over, and what comes back after an arrow; nothing where neither is."""
    if not call.arguments and not call.results:
        return ""
    arguments = ", ".join(
        f"v{passed.variable}: %{passed.outer} %{passed.inner}" for passed in call.arguments
    )
    results = ", ".join(
        f"v{passed.variable}: %{passed.inner} %{passed.outer}" for passed in call.results
    )
    return f" ({arguments}) -> ({results})"


def _merged_text(merged: Sequence[s.Merged]) -> str:
    shown = [
        f"v{item.variable} = %{item.value}: {' '.join(f'%{value}' for value in item.branch_values)}"
        for item in merged
    ]
    return f"({', '.join(shown)})"
