"""A program as JSON data and arrays, and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hloipu_runtime.errors import ArtefactError
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Array, Port, Program, Value, Variable
from hloipu_runtime.program.steps import Sequence
from hloipu_runtime.program_file.checks import check_program
from hloipu_runtime.records.coders import POOLS, coder_of, own_coder
from hloipu_runtime.records.pools import Json, Reading, Writing

_KEYS = {
    "name", "machine", "ipus", "pools", "variables", "values", "constants", "body", "functions",
    "parameters", "results",
}  # fmt: skip
_TABLES = {"variables": Variable, "values": Value, "parameters": Port, "results": Port}


@dataclass(frozen=True, slots=True)
class ProgramData:
    """A program as what a frame holds: JSON data, and the constants in storage form."""

    meta: dict[str, Json]
    arrays: Mapping[str, Array]


def encode_program(program: Program) -> ProgramData:
    """Return a program as JSON data and arrays; equal programs give equal data.

    Raises LimitError E5025 for steps nested too deep for a file, ArtefactError E4005 for a field
    that holds no plain data.
    """
    writing = Writing()
    try:
        tables = {
            key: [coder_of(kind).write(x, writing) for x in getattr(program, key)]
            for key, kind in _TABLES.items()
        }
        block = coder_of(Sequence)
        functions = sorted(program.functions.items())
        meta = {
            "name": program.name,
            "machine": program.machine,
            "ipus": program.ipus,
            "constants": [[n, value] for n, (value, _) in sorted(program.constants.items())],
            "body": block.write(program.body, writing),
            "functions": [[name, block.write(body, writing)] for name, body in functions],
            **tables,
        }
    except TypeError as error:  # what json says of numpy's numbers, say
        raise ArtefactError("E4005", f"the program is not plain data: {error}") from error
    meta["pools"] = {pool: writing.rows.get(pool, []) for pool in POOLS}
    return ProgramData(
        meta, {_array_name(n): array for n, (_, array) in sorted(program.constants.items())}
    )


def decode_program(
    meta: Json, arrays: Mapping[str, Array], machine: Machine | None = None, *, name: str = ""
) -> Program:
    """Return the program that JSON data and arrays hold; its constants are the arrays themselves.

    Every number is checked, so that the program can be proved (`program.verify`); it is not proved
    here. With a `machine`, costs are tried as well. Raises ArtefactError: E4010 no such data, E4011
    data that makes no program.
    """
    reading = Reading(name)
    try:
        program = _decode(meta, arrays, reading)
        check_program(program, machine, name=name)
    except RecursionError as error:  # the caller's own stack was deep already
        raise reading.refused("steps less deep within each other", None) from error
    return program


def _decode(meta: Json, arrays: Mapping[str, Array], reading: Reading) -> Program:
    if not isinstance(meta, dict) or meta.keys() != _KEYS:
        raise reading.refused(f"an object of {', '.join(sorted(_KEYS))}", meta)
    _read_pools(meta["pools"], reading)
    tables = {key: _read_table(meta[key], key, kind, reading) for key, kind in _TABLES.items()}
    reading.place = "the program"
    text, number = coder_of(str), coder_of(int)
    constants = _read_constants(meta["constants"], arrays, reading)
    reading.place = "the steps"
    return Program(
        name=text.read(meta["name"], reading),
        machine=text.read(meta["machine"], reading),
        ipus=number.read(meta["ipus"], reading),
        constants=constants,
        body=coder_of(Sequence).read(meta["body"], reading),
        functions=_read_functions(meta["functions"], reading),
        **tables,
    )


def _read_pools(data: Json, reading: Reading) -> None:
    if not isinstance(data, dict) or data.keys() != POOLS.keys():
        raise reading.refused(f"pools of {', '.join(POOLS)}", data)
    for pool, annotation in POOLS.items():
        reading.pools[pool] = list(_read_table(data[pool], pool, annotation, reading))


def _read_table(data: Json, key: str, annotation: Any, reading: Reading) -> tuple[Any, ...]:
    reading.place = key
    if type(data) is not list:
        raise reading.refused("a list", data)
    read = own_coder(annotation).read
    found = []
    for number, row in enumerate(data):
        reading.place = f"{key}[{number}]"
        found.append(read(row, reading))
    return tuple(found)


def _read_constants(
    data: Json, arrays: Mapping[str, Array], reading: Reading
) -> dict[int, tuple[int, Array]]:
    reading.place = "constants"
    found: dict[int, tuple[int, Array]] = {}
    for variable, value in coder_of(tuple[tuple[int, int], ...]).read(data, reading):
        array = arrays.get(_array_name(variable))
        if array is None or variable in found:
            raise reading.refused("one array for each constant", variable)
        found[variable] = (value, array)
    return found


def _read_functions(data: Json, reading: Reading) -> dict[str, Sequence]:
    reading.place = "functions"
    rows = coder_of(tuple[tuple[str, Sequence], ...]).read(data, reading)
    found = dict(rows)
    if len(found) != len(rows):
        raise reading.refused("functions of different names", len(rows))
    return found


def _array_name(variable: int) -> str:
    return f"constant.{variable}"
