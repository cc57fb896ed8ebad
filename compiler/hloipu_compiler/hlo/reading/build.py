"""Builds a module from parsed records: computations, references, rules.

Faults that a text may have several of are collected and raised together, in text order.
"""

import re
from collections.abc import Iterable

from hloipu_compiler.errors import Fault, Note, ParseError
from hloipu_compiler.hlo.attributes.attribute_values import read_value
from hloipu_compiler.hlo.attributes.raw_checks import check_raw
from hloipu_compiler.hlo.reading.build_computation import ComputationBuilder
from hloipu_compiler.hlo.reading.line_lexer import PrintedComputation
from hloipu_compiler.hlo.reading.statements import StatementReader
from hloipu_compiler.hlo.syntax.lexer import Piece
from hloipu_compiler.hlo.syntax.limits import Limits, check_limit
from hloipu_compiler.hlo.syntax.records import (
    Stretch,
    SyntaxAttribute,
    SyntaxComputation,
    SyntaxStatement,
    SyntaxText,
)
from hloipu_compiler.hlo.syntax.strings import unquote
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.attribute_kinds import MODULE_KINDS
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Alias, Attributes, Raw, Value
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.shapes import Shape, compatible, subshape
from hloipu_compiler.source import Source

_LONGEST_MESSAGE = 400
_MOST_FAULTS = 1_000
"""A text with so many is given up: hostile ones would hold a fault in every few characters."""


class Unprinted(Exception):
    """The fast path met a fault; only the grammar's records can say where."""


class ModuleBuilder:
    """State shared by the computations of one text while they are built."""

    def __init__(self, source: Source, reader: StatementReader, text: SyntaxText) -> None:
        self.source = source
        self.reader = reader
        self.limits: Limits = reader.limits
        self.text = text
        self.computations: dict[str, Computation] = {}
        self.faults: list[Fault] = []
        self.instruction_count = 0
        self.started: set[str] = set()
        """Computations that an async-start calls; each can have one."""
        self._entry = ""
        self._names: set[str] | None = None
        self._numbers: dict[str, int] = {}
        """The last number given after each name."""

    # ---- faults ---------------------------------------------------------------------------------

    def report(
        self,
        where: Stretch | None,
        code: str,
        message: str,
        *,
        expected: str = "",
        hint: str = "",
        notes: tuple[Note, ...] = (),
    ) -> None:
        """Collect a fault; on the fast path, where no place is known, give up on it."""
        if where is None:
            raise Unprinted
        span = self.source.span(where.start, max(where.end, where.start + 1))
        if len(message) > _LONGEST_MESSAGE:  # names in hostile texts reach megabytes
            message = f"{message[:_LONGEST_MESSAGE]}…"
        self.faults.append(Fault(code, message, span, expected, hint, notes))
        if len(self.faults) >= _MOST_FAULTS:
            raise self.error()

    def error(self) -> ParseError:
        """Return what was found wrong so far, in text order."""
        return ParseError(sorted(self.faults, key=lambda f: f.span.start if f.span else 0))

    def report_text(self, fault: TextFault, where: Stretch | None) -> None:
        """Collect what a reader of one value found, at its place in the whole text."""
        if where is not None:
            start = min(where.start + fault.offset, max(where.start, where.end - 1))
            where = Stretch(start, where.end if fault.offset == 0 else start + 1)
        self.report(where, fault.code, fault.message, expected=fault.expected, hint=fault.hint)

    # ---- names ----------------------------------------------------------------------------------

    def unique_name(self, wanted: str) -> str:
        """Return `wanted`, or `wanted.1`, `wanted.2`… where the text has used it already."""
        if self._names is None:
            self._names = set(_all_names(self.text))
        name = wanted
        number = self._numbers.get(wanted, 0)
        while name in self._names:
            number += 1
            name = f"{wanted}.{number}"
        self._numbers[wanted] = number
        self._names.add(name)
        return name

    def add_computation(self, computation: Computation) -> None:
        """Add a finished computation that has no name in the text."""
        self.computations[computation.name] = computation

    def count(self, instructions: int, at: int) -> None:
        """Add to the number of instructions and hold it to its limit; `at` is where they stand."""
        self.instruction_count += instructions
        check_limit(self.limits, "instructions", self.instruction_count, at)

    def read_shape(self, where: Stretch) -> Shape | None:
        """Return the shape that a stretch spells; report where it spells none."""
        try:
            return self.reader.shapes.read(self.source.text[slice(*where)])
        except TextFault as fault:
            self.report_text(fault, where)
            return None

    # ---- the module -----------------------------------------------------------------------------

    def build(self) -> Module:
        """Return the module; ParseError with all faults found."""
        text = self.text
        if text.single is not None:
            self._build_single(text.single)
        for record in text.computations:
            if isinstance(record, Piece):
                self._build_printed(record.value)
            else:
                self._build_computation(record)
        if not self.faults:
            check_call_order(self)
        names = list(self.computations)
        entry = self._entry or (names[-1] if names else "")
        attributes = read_header(self, text.header, self.computations.get(entry))
        tables = self._stack_tables()
        if self.faults:
            raise self.error()
        return Module(
            text.name or entry,
            tuple(self.computations.values()),
            names.index(entry),
            attributes,
            tables,
            self.source,
        )

    def _stack_tables(self) -> str:
        piece = self.text.stack_tables
        if piece is None:
            return ""
        tables = piece.text.rstrip()
        try:
            from hloipu_compiler.hlo.attributes.stack_tables import are_printed, read_stack_tables

            if not are_printed(tables):
                read_stack_tables(tables)
        except TextFault as fault:
            self.report_text(fault, Stretch(piece.start, piece.start + len(tables)))
        return tables

    def _build_printed(self, record: PrintedComputation) -> None:
        builder = ComputationBuilder(self, record.name)
        builder.add_printed(record.statements)
        self._finish(builder, record, record.result, None)

    def _build_computation(self, record: SyntaxComputation) -> None:
        from hloipu_compiler.hlo.reading.build_grammar import GrammarComputationBuilder

        builder = GrammarComputationBuilder(self, record.name)
        for part in record.body:
            if isinstance(part, Piece):
                builder.add_printed(part.value)
            else:
                builder.add_syntax(part)
        shape: Shape | None = None
        if record.result is not None:
            shape = self.read_shape(record.result)
        self._finish(builder, record, shape, record)

    def _finish(
        self,
        builder: ComputationBuilder,
        record: PrintedComputation | SyntaxComputation,
        result: Shape | None,
        syntax: SyntaxComputation | None,
    ) -> None:
        start, end = (record.start, record.end) if syntax is None else syntax.where  # type: ignore[union-attr]
        name_at = syntax.name_at if syntax else None
        computation = builder.finish(self._thread(record.thread), start, end)
        if record.name in self.computations:
            before = self.computations[record.name]
            note = Note(self.source.span(before.start, before.start + 1), "it was defined here")
            message = f"computation {record.name} is defined twice"
            self.report(name_at, "E0161", message, notes=(note,))
        self.computations[record.name] = computation
        if record.is_entry:
            if self._entry:
                where = syntax and Stretch(syntax.where.start, syntax.where.start + 5)
                self.report(where, "E0162", "only one computation can be ENTRY")
            self._entry = record.name
        if (
            not self.text.has_header
            and len(self.computations) == 1
            and record.has_signature
            and not record.is_entry
        ):
            self.report(
                name_at, "E0163", "a module without a header begins with ENTRY or with `name {`",
                hint="add a first line `HloModule name`",
            )  # fmt: skip
        if result is not None and computation.root >= 0:
            root = computation.instructions[computation.root]
            if not compatible(result, root.shape):
                self.report(
                    syntax.result if syntax else None,
                    "E0164",
                    f"the signature of {record.name} promises {result}, "
                    f"but its root {root.name} is {root.shape}",
                )

    def _thread(self, piece: Piece | None) -> str:
        if piece is None:
            return "main"
        if piece.value.text != "execution_thread=":
            where = Stretch(piece.value.start, piece.value.end)
            message = f"a computation has no attribute {piece.value.text}"
            self.report(where, "E0126", message, expected="execution_thread=")
        return unquote(piece.text) or "main"

    def _build_single(self, statement: SyntaxStatement) -> None:
        """Wrap one instruction in a computation whose parameters are its unknown operands."""
        from hloipu_compiler.hlo.reading.build_grammar import GrammarComputationBuilder

        builder = GrammarComputationBuilder(self, "entry", invent_parameters=True)
        builder.add_syntax(statement)
        builder.name = self.unique_name("entry")
        self.computations[builder.name] = builder.finish("main", *statement.where)
        self._entry = builder.name


def _all_names(text: SyntaxText) -> Iterable[str]:
    statements: list[SyntaxStatement] = [text.single] if text.single else []
    for record in text.computations:
        if isinstance(record, Piece):
            yield record.value.name
            yield from (s.name for s in record.value.statements)
        else:
            yield record.name
            for part in record.body:
                if isinstance(part, Piece):
                    yield from (s.name for s in part.value)
                else:
                    statements.append(part)
    while statements:
        statement = statements.pop()
        yield statement.name
        for attribute in statement.attributes:
            for callee in attribute.callees or ():
                statements += callee.statements


def read_header(
    module: ModuleBuilder, header: tuple[SyntaxAttribute, ...], entry: Computation | None
) -> Attributes:
    """Read the header's attributes; unknown ones are kept as text."""
    values: dict[str, Value] = {}
    for attribute in header:
        key = attribute.key
        text = module.source.text[slice(*attribute.value)]
        if key in values:
            at = Stretch(attribute.key_at, attribute.key_at + len(key))
            module.report(at, "E0125", f"{key}= is written twice")
            continue
        kind = MODULE_KINDS.get(key)
        try:
            value = Raw(text) if kind is None else read_value(kind, text, module.reader.shapes)
            if kind is not None:
                check_raw(key, text)
        except TextFault as fault:
            module.report_text(fault, attribute.value)
            continue
        values[key] = value
        if key == "input_output_alias" and entry is not None and entry.root >= 0:
            _check_aliases(module, attribute.value, value, entry)
    return Attributes(values) if values else NO_ATTRIBUTES


def _check_aliases(
    module: ModuleBuilder, where: Stretch, aliases: Value, entry: Computation
) -> None:
    """Report an alias of an output that does not exist, as XLA's parser does."""
    root = entry.instructions[entry.root].shape
    for alias in aliases if isinstance(aliases, tuple) else ():
        if isinstance(alias, Alias) and subshape(root, alias.output_index) is None:
            index = ",".join(map(str, alias.output_index))
            module.report(where, "E0171", f"there is no output {{{index}}} in {root}")
            return


def check_call_order(module: ModuleBuilder) -> None:
    """Report references to computations that do not exist, and recursion.

    A caller may stand before its callee: XLA's printer writes some call graphs that way, although
    its parser refuses them.
    """
    computations = module.computations
    order = {name: i for i, name in enumerate(computations)}
    forward: list[str] = []
    for i, computation in enumerate(computations.values()):
        checked_ids: set[int] = set()
        for instruction in computation.instructions:
            attributes: Attributes = instruction.attributes
            if not attributes.called or id(attributes) in checked_ids:
                continue
            checked_ids.add(id(attributes))
            for name in attributes.called:
                if name not in order:
                    _report_missing(module, name, instruction.start, instruction.end)
                elif order[name] >= i:
                    forward.append(computation.name)
    if forward and not module.faults:
        _check_acyclic(module)


def _report_missing(module: ModuleBuilder, name: str, start: int, end: int) -> None:
    hint = module.reader.suggestions.hint(name, module.computations)
    mention = re.compile(rf"[={{,]\s*%?({re.escape(name)})(?![\w.\-])", re.ASCII)
    match = mention.search(module.source.text, start, end)
    where = Stretch(match.start(1), match.end(1)) if match else Stretch(start, end)
    module.report(
        where, "E0169", f"there is no computation {name}",
        expected="the name of a computation of this module", hint=hint,
    )  # fmt: skip


def _check_acyclic(module: ModuleBuilder) -> None:
    """Report one computation of a cycle of calls."""
    from hloipu_compiler.analysis.call_graph import call_cycle  # few texts call forward

    called = {
        name: list({c: None for op in computation.instructions for c in op.attributes.called})
        for name, computation in module.computations.items()
    }
    cycle = call_cycle(called)
    if cycle:
        caller, callee = cycle[-2:]
        start = module.computations[caller].start
        message = f"computation {callee} calls itself, through {caller}"
        module.report(Stretch(start, start + 1), "E0170", message)
