"""A program as JSON data and arrays, and back."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_type_hints

from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.loading import not_given
from hloipu_runtime.program.program import Array, Program, Value
from hloipu_runtime.program.steps import Sequence
from hloipu_runtime.program_io.file.checks import check_program, refusing
from hloipu_runtime.program_io.file.span_checks import check_tensor
from hloipu_runtime.program_io.records.coders import (
    POOLS,
    Coder,
    Json,
    Reading,
    Writing,
    coder_of,
    own_coder,
)

_SPECIAL = ("constants", "functions")
"""Fields of a program that are written in a way of their own."""


@cache
def _plain_fields() -> dict[str, Coder]:
    """Return the coders of all other fields of a program."""
    hints = get_type_hints(Program)
    return {
        field.name: coder_of(hints[field.name])
        for field in fields(Program)
        if field.name not in _SPECIAL
    }


@dataclass(frozen=True, slots=True)
class ProgramData:
    """A program as what a frame holds: JSON data, and the constants in storage form."""

    meta: dict[str, Json]
    arrays: Mapping[str, Array]


def encode_program(program: Program) -> ProgramData:
    """Return a program as JSON data and arrays; equal programs give equal data.

    Raises LimitError E5025 for steps nested too deep for a file.
    """
    writing = Writing()
    write_block = coder_of(Sequence).write
    meta = {name: c.write(getattr(program, name), writing) for name, c in _plain_fields().items()}
    meta["constants"] = [[n, value] for n, (value, _) in sorted(program.constants.items())]
    meta["functions"] = [
        [name, write_block(body, writing)] for name, body in sorted(program.functions.items())
    ]
    meta["pools"] = {pool: writing.rows.get(pool, []) for pool in POOLS}
    return ProgramData(meta, constant_arrays(program))


def constant_arrays(program: Program) -> dict[str, Array]:
    """Return one array for each constant value, but for those that are given only in use."""
    written = set(program.loaded)
    array_by_name: dict[str, Array] = {}
    for number, (value, array) in sorted(program.constants.items()):
        if value not in written:
            written.add(value)
            array_by_name[_array_name(number)] = array
    return array_by_name


def decode_program(
    meta: Json, arrays: Mapping[str, Array], machine: Machine | None = None, *, name: str = ""
) -> Program:
    """Return the program that JSON data and arrays hold; its constants are the arrays themselves.

    Every number is checked, so that the program can be proved (`program.verify`); it is not proved
    here. With a `machine`, vertices are tried as well. Raises ArtefactError: E4010 no such data,
    E4011 data that makes no program.
    """
    reading = Reading(name)
    try:
        program = _decode(meta, arrays, reading)
        check_program(program, machine, name=name)
    except RecursionError as error:  # the caller's own stack was deep already
        raise reading.refused("steps less deep within each other", None) from error
    return program


def _decode(meta: Json, arrays: Mapping[str, Array], reading: Reading) -> Program:
    keys = {*_plain_fields(), *_SPECIAL, "pools"}
    if not isinstance(meta, dict) or meta.keys() != keys:
        raise reading.refused(f"an object of {', '.join(sorted(keys))}", meta)
    _read_pools(meta["pools"], reading)
    decoded: dict[str, Any] = {}
    for name, coder in _plain_fields().items():
        reading.place = name
        decoded[name] = coder.read(meta[name], reading)
    known: dict[int, Array] = {}
    for number, value in _loaded_values(decoded).items():
        check_tensor(value.element_type, value.shape, f"value %{number}", refusing(reading.name))
        known[number] = not_given(value.element_type, value.shape)
    decoded["constants"] = _read_constants(meta["constants"], arrays, reading, known)
    decoded["functions"] = _read_functions(meta["functions"], reading)
    return Program(**decoded)


def _read_pools(data: Json, reading: Reading) -> None:
    if not isinstance(data, dict) or data.keys() != POOLS.keys():
        raise reading.refused(f"pools of {', '.join(POOLS)}", data)
    for pool, annotation in POOLS.items():
        read_record = own_coder(annotation).read
        rows = data[pool]
        reading.place = pool
        if type(rows) is not list:
            raise reading.refused("a list", rows)
        records = reading.pools[pool] = []
        for number, row in enumerate(rows):
            reading.place = f"{pool}[{number}]"
            records.append(read_record(row, reading))


def _loaded_values(decoded: Mapping[str, Any]) -> dict[int, Value]:
    """Return the values of the parameters that are loaded, by number."""
    values = decoded["values"]
    return {n: values[n] for n in decoded["loaded"] if 0 <= n < len(values)}


def _read_constants(
    data: Json, arrays: Mapping[str, Array], reading: Reading, known: dict[int, Array]
) -> dict[int, tuple[int, Array]]:
    """Return the constants; `known`: arrays of values that the file holds none for."""
    reading.place = "constants"
    constants: dict[int, tuple[int, Array]] = {}
    for variable, value in coder_of(tuple[tuple[int, int], ...]).read(data, reading):
        array = known.get(value)
        if array is None:
            array = arrays.get(_array_name(variable))
        if array is None or variable in constants:
            raise reading.refused("one array for each constant", variable)
        constants[variable] = (value, known.setdefault(value, array))
    return constants


def _read_functions(data: Json, reading: Reading) -> dict[str, Sequence]:
    reading.place = "functions"
    rows = coder_of(tuple[tuple[str, Sequence], ...]).read(data, reading)
    functions = dict(rows)
    if len(functions) != len(rows):
        raise reading.refused("functions of different names", len(rows))
    return functions


def _array_name(variable: int) -> str:
    return f"constant.{variable}"
