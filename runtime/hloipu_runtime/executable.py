"""The executable: program, machine and metadata, and its file format."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.errors import ArtefactError, HloipuError, MachineError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.build import Places, build
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.faults import ProgramError
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.proof.verify import faults_of

if TYPE_CHECKING:
    from hloipu_runtime.program_io.frame.frame import Frame

KIND = "executable"
SCHEMA = "hloipu.executable/1"

OverMemory = Literal["refuse", "allow"]
_KEYS = {
    "schema", "program", "machine", "code_memory", "over_memory", "options", "sources",
    "fingerprint", "memory", "parameter_names",
}  # fmt: skip
_ADDRESSES = "addresses"
_MOST_ADDRESS = 2**40
_LONGEST_NAME = 255


@dataclass(frozen=True, eq=False)
class Executable:
    """A compiled program and its machine, with all of its numbers; the rest serves reports."""

    program: Program = field(repr=False)
    machine: Machine = field(repr=False)
    code_memory: bool = True
    """Whether code counts as memory."""
    over_memory: OverMemory = "refuse"
    """Whether it runs without the memory that it needs."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options that it was compiled with, as JSON data."""
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Instruction -> `file:line` of the model's source."""
    fingerprint: str = ""
    """The key of what it was compiled from: module, options, machine, compiler."""
    memory: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The memory report, as JSON data."""
    parameter_names: tuple[str, ...] = ()
    """Of the entry's arrays by number, as the module has them."""
    addresses: NDArray[np.int64] | None = field(default=None, repr=False)
    """Of each variable on the tiles that hold it; -1: none."""

    def save(self, path: str | Path) -> None:
        """Write it to a file; equal executables give equal bytes.

        Raises UsageError E3004 where it cannot be written, LimitError E5025 for steps nested deeper
        than files hold, ArtefactError E4005 where something in it is no plain data.
        """
        from hloipu_runtime.program_io.frame.frame import write_frame

        write_frame(path, to_frame(self))


def load(path: str | Path, *, is_own: bool = False) -> Executable:
    """Return the executable of a file, its program proved again.

    `is_own`: nobody but this user's hloipu can have written the file, so its vertices need not be
    tried.
    Raises UsageError E3001 where the file cannot be read, ArtefactError (E4001 to E4012) where it
    is not what was written, ProgramError E4050 where its program is not proved.
    """
    from hloipu_runtime.program_io.frame.frame import read_frame

    return from_frame(read_frame(path, kind=KIND), name=str(path), is_own=is_own)


def to_frame(executable: Executable) -> "Frame":
    """Return what an executable's file holds."""
    from hloipu_runtime.program_io.file.program_codec import encode_program
    from hloipu_runtime.program_io.frame.frame import Frame

    data = encode_program(executable.program)
    meta = {
        "schema": SCHEMA,
        "program": data.meta,
        "machine": _machine_data(executable.machine),
        "code_memory": executable.code_memory,
        "over_memory": executable.over_memory,
        "options": dict(executable.options),
        "sources": dict(executable.sources),
        "fingerprint": executable.fingerprint,
        "memory": dict(executable.memory),
        "parameter_names": list(executable.parameter_names),
    }
    arrays = dict(data.arrays)
    if executable.addresses is not None:
        arrays[_ADDRESSES] = np.asarray(executable.addresses, np.int64)
    return Frame(KIND, meta, arrays)


def from_frame(frame: "Frame", *, name: str = "", is_own: bool = False) -> Executable:
    """Return the executable that a frame holds, its program proved; raises as `load` does."""
    from hloipu_runtime.program_io.file.program_codec import constant_arrays, decode_program

    meta = frame.meta
    _check_meta(meta, name)
    arrays = dict(frame.arrays)
    addresses = arrays.pop(_ADDRESSES, None)
    machine = _machine(meta["machine"], name)
    program = decode_program(meta["program"], arrays, None if is_own else machine, name=name)
    if len(constant_arrays(program)) != len(arrays):
        raise _refused(name, "it holds an array that nothing uses")
    _check_addresses(addresses, program, name)
    if machine.name != program.machine:
        raise _refused(name, "its program is for another machine than it brings")
    if max(program.ipus, program.system_ipus) > machine.links.max_ipus:
        most = max(program.ipus, program.system_ipus)
        raise _refused(name, f"its machine has no system of {most} IPUs")
    _prove(program, machine, name)
    return Executable(
        program,
        machine,
        code_memory=meta["code_memory"],
        over_memory=meta["over_memory"],
        options=meta["options"],
        sources=meta["sources"],
        fingerprint=meta["fingerprint"],
        memory=meta["memory"],
        parameter_names=tuple(meta["parameter_names"]),
        addresses=addresses,
    )


def _refused(name: str, what: str) -> ArtefactError:
    return ArtefactError(
        "E4012", f"no executable: {what}", name=name, hint="compile the module again"
    )


def _check_meta(meta: Mapping[str, Any], name: str) -> None:
    if meta.keys() != _KEYS or meta["schema"] != SCHEMA:
        raise _refused(name, f"it is not of the schema {SCHEMA}")
    for key in ("options", "sources", "memory", "machine"):
        if not isinstance(meta[key], dict):
            raise _refused(name, f"its {key} are not an object")
    for place in (*meta["sources"], *meta["sources"].values()):
        if not isinstance(place, str) or not place.isprintable():
            raise _refused(name, "a source is not text")
    for text in _texts_of(meta["memory"]):
        if not text.isprintable():
            raise _refused(name, "its memory report holds control characters")
    names = meta["parameter_names"]
    if not isinstance(names, list) or not all(
        isinstance(each, str) and each.isprintable() for each in names
    ):
        raise _refused(name, "the name of a parameter is not text")
    if not isinstance(meta["fingerprint"], str) or not meta["fingerprint"].isprintable():
        raise _refused(name, "its fingerprint is not text")
    if type(meta["code_memory"]) is not bool or meta["over_memory"] not in ("refuse", "allow"):
        raise _refused(name, "it does not say what counts as memory")


def _texts_of(data: Any) -> Iterator[str]:
    waiting = [data]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += item


def _check_addresses(addresses: Array | None, program: Program, name: str) -> None:
    if addresses is None:
        return
    if addresses.dtype != np.int64 or addresses.shape != (len(program.variables),):
        raise _refused(name, "there is not one address for each variable")
    if addresses.size and not (addresses.min() >= -1 and addresses.max() < _MOST_ADDRESS):
        raise _refused(name, "an address that no tile has")


def _machine_data(machine: Machine) -> dict[str, Any]:
    """Return the tables of the file that describes a machine."""
    tables: dict[str, Any] = {"name": machine.name, "description": machine.description}
    for number in machine.numbers():
        section, key = number.key.split(".")
        entry = {"value": number.value, "source": number.source}
        tables.setdefault(section, {})[key] = entry
    return tables


def _machine(data: Mapping[str, Any], name: str) -> Machine:
    """Return the machine that tables describe, every number checked as a machine file's is."""
    machine_name = data.get("name")
    if not isinstance(machine_name, str) or not machine_name.isprintable():
        raise _refused(name, "its machine has no name")
    if len(machine_name) > _LONGEST_NAME:
        raise _refused(name, "its machine has a long name")
    tables = {key: table for key, table in data.items() if key != "name"}
    try:
        return build(machine_name, tables, Places("machine", ""), {})
    except MachineError as error:
        raise _refused(name, f"its machine cannot be: {error.message}") from error


def _prove(program: Program, machine: Machine, name: str) -> None:
    from hloipu_runtime.program_io.file.span_checks import NONSENSE

    try:
        faults = faults_of(program, machine.chip.tiles_per_ipu)
    except (*NONSENSE, HloipuError) as error:
        raise _refused(name, f"its program cannot be proved: {str(error)[:200]}") from error
    if faults:
        raise ProgramError(faults, name=name)
