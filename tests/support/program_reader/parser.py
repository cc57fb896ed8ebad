"""Parser of program text."""

from collections.abc import Callable
from collections.abc import Mapping as MappingType
from typing import TypeVar

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Mapping, Sizes
from hloipu_runtime.program.program import (
    Array,
    Port,
    Program,
    Queue,
    Role,
    StatePort,
    Value,
    Variable,
)
from hloipu_runtime.program.stacks import KINDS, STREAM, Divided, Partitioning, Stack
from tests.support.program_reader.reading import Names
from tests.support.program_reader.step_parser import StepParser
from tests.support.program_reader.tokens import Cursor
from tests.support.program_reader.values import read_constant, read_sizes, read_spans, read_tiles

T = TypeVar("T")
_ROLES = {role.value: role for role in Role if role is not Role.TEMPORARY}


def parse_program(
    text: str, *, name: str = "<text>", arrays: MappingType[s.VariableId, Array] | None = None
) -> Program:
    """Return the program that a text says; `arrays` are those of constants that were left out.

    Raises ProgramTextError E4020 at the word that cannot be, E4021 at a constant whose values are
    missing. The program is not proved; `program.verify` does that.
    """
    return _Parser(text, name).program(arrays or {})


class _Parser:
    """Reads the tables, then the steps that name what is in them."""

    def __init__(self, text: str, name: str) -> None:
        self.cursor = Cursor(text, name)
        self.names = Names(self.cursor)
        self._constants: set[s.VariableId] = set()

    def program(self, arrays: MappingType[s.VariableId, Array]) -> Program:
        cursor = self.cursor
        cursor.expect("program")
        name = cursor.string()
        cursor.expect("for")
        machine = cursor.string()
        cursor.expect("ipus")
        ipus = cursor.integer()
        replicas = cursor.integer() if cursor.take("replicas") else 1
        partitions = cursor.integer() if cursor.take("partitions") else 1
        places: tuple[int, ...] = ()
        system_ipus = 0
        if cursor.take("places"):
            places = cursor.items("(", ")", cursor.integer)
            cursor.expect("of")
            system_ipus = cursor.integer()
        hosts = cursor.integer() if cursor.take("hosts") else 0
        keys = cursor.items("(", ")", cursor.integer) if cursor.take("keys") else ()
        steps_per_run = cursor.integer() if cursor.take("steps") else 1
        parameters = self._table("parameters", self._port)
        results = self._table("results", self._port)
        self._table("variables", self._variable)
        self._table("values", self._value)
        constants = dict(self._table("constants", lambda: self._constant(arrays)))
        loaded = self._table("loaded", self.names.value) if cursor.sees("loaded") else ()
        state = self._table("state", self._state) if cursor.sees("state") else ()
        queues = self._table("queues", self._queue) if cursor.sees("queues") else ()
        stacks = self._table("stacks", self._stack) if cursor.sees("stacks") else ()
        partitioning = self._blocks() if cursor.take("blocks") else None
        elided = self._table("elided", cursor.string) if cursor.sees("elided") else ()
        steps = StepParser(self.names)
        functions: dict[str, s.Sequence] = {}
        while cursor.take("function"):
            start = cursor.token
            function = cursor.string()
            if function in functions:
                cursor.fail("a second function of this name", start)
            functions[function] = steps.block()
        cursor.expect("body")
        body = steps.block()
        if cursor.token.kind != "end":
            cursor.wrong("the end")
        return Program(
            name,
            machine,
            ipus,
            tuple(self.names.variables),
            tuple(self.names.values),
            constants,
            body,
            functions,
            parameters,
            results,
            elided=elided,
            state=state,
            queues=queues,
            steps_per_run=steps_per_run,
            loaded=loaded,
            replicas=replicas,
            partitions=partitions,
            places=places,
            system_ipus=system_ipus,
            stacks=stacks,
            partitioning=partitioning,
            hosts=hosts,
            keys=keys,
        )

    def _table(self, title: str, row: Callable[[], T]) -> tuple[T, ...]:
        self.cursor.expect(title)
        self.cursor.expect("{")
        rows = []
        while not self.cursor.take("}"):
            rows.append(row())
        return tuple(rows)

    def _tensor(self) -> tuple[str, Sizes]:
        start = self.cursor.token
        element_type = self.cursor.word("an element type")
        if element_type not in ELEMENT_TYPES or not ELEMENT_TYPES[element_type].is_array:
            self.cursor.fail(f"there is no element type {element_type[:40]!r}", start)
        return element_type, read_sizes(self.cursor)

    def _port(self) -> Port:
        stream = self.cursor.string()
        self.cursor.expect(":")
        element_type, shape = self._tensor()
        alias = self.cursor.integer() if self.cursor.take("alias") else -1
        return Port(stream, element_type, shape, alias)

    def _state(self) -> StatePort:
        cursor = self.cursor
        name, variable = cursor.string(), self.names.variable()
        cursor.expect(":")
        initial, final = self.names.value(), self.names.value()
        cursor.expect("parameter")
        parameter = cursor.integer()
        cursor.expect("result")
        result = cursor.integer()
        shape = read_sizes(cursor) if cursor.take("of") else ()
        return StatePort(name, variable, initial, final, parameter, result, shape)

    def _queue(self) -> Queue:
        cursor = self.cursor
        to_device = cursor.take("in")
        if not to_device:
            cursor.expect("out")
        name = cursor.string()
        streams = cursor.items("(", ")", self._port)
        places: list[int] = []
        if cursor.take("for"):
            while cursor.token.kind == "number":
                places.append(cursor.integer())
        reduction = next((word for word in ("sum", "mean") if cursor.take(word)), "")
        mode = cursor.string() if cursor.take("keep") else ""
        names = cursor.items("(", ")", cursor.string) if cursor.take("named") else ()
        return Queue(name, to_device, streams, tuple(places), reduction, mode, tuple(names))

    def _stack(self) -> Stack:
        cursor = self.cursor
        name = cursor.string()
        kind = self._port_kind()
        first = cursor.integer()
        cursor.expect("axis")
        axis = cursor.integer()
        cursor.expect("by")
        sizes = read_sizes(cursor)
        cursor.expect("of")
        return Stack(name, kind, first, axis, sizes, read_sizes(cursor))

    def _blocks(self) -> Partitioning:
        cursor = self.cursor
        cursor.expect("{")
        cursor.expect("mesh")
        mesh = read_sizes(cursor)
        order = read_sizes(cursor) if cursor.take("order") else ()
        arrays = []
        while not cursor.take("}"):
            kind = self._port_kind((*KINDS, STREAM))
            number = cursor.integer()
            cursor.expect("of")
            shape = read_sizes(cursor)
            cursor.expect("by")
            arrays.append(Divided(kind, number, shape, tuple(read_sizes(cursor) for _ in shape)))
        return Partitioning(mesh, order, tuple(arrays))

    def _port_kind(self, kinds: tuple[str, ...] = KINDS) -> str:
        kind = next((kind for kind in kinds if self.cursor.take(kind)), "")
        if not kind:
            self.cursor.wrong(" or ".join(kinds))
        return kind

    def _variable(self) -> None:
        cursor = self.cursor
        self.names.declare("v", len(self.names.variables))
        name = cursor.string()
        cursor.expect(":")
        element_type, shape = self._tensor()
        role = Role.TEMPORARY
        if cursor.token.text in _ROLES:
            role = _ROLES[cursor.advance().text]
        ipu = cursor.integer() if cursor.take("ipu") else 0
        start = cursor.token
        mapping = Mapping(read_tiles(cursor), read_spans(cursor, shape))
        if len(mapping.spans) != len(shape):
            cursor.fail(f"{len(mapping.spans)} parts for {len(shape)} dimensions", start)
        origin = cursor.string() if cursor.take("from") else ""
        self.names.variables.append(Variable(name, element_type, shape, mapping, role, ipu, origin))

    def _value(self) -> None:
        self.names.declare("%", len(self.names.values))
        self.cursor.expect(":")
        element_type, shape = self._tensor()
        self.names.values.append(Value(element_type, shape, self.cursor.optional_string()))

    def _constant(
        self, arrays: MappingType[s.VariableId, Array]
    ) -> tuple[s.VariableId, tuple[s.ValueId, Array]]:
        start = self.cursor.token
        variable, value = self.names.variable_and_value()
        if variable in self._constants:
            self.cursor.fail("a second constant in this variable", start)
        self._constants.add(variable)
        record = self.names.variables[variable]
        return variable, (value, read_constant(self.cursor, record, arrays.get(variable)))
