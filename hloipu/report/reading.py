"""Reports from Python: the tables of a profile or of a page, as numpy arrays."""

import base64
import binascii
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hloipu.report.record import SCHEMA as REPORT
from hloipu.report.record import columns, report_record
from hloipu_runtime.arguments import checked
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import ArtefactError, UsageError
from hloipu_runtime.report.profile import SCHEMA as PROFILE
from hloipu_runtime.report.profile import VERSION

if TYPE_CHECKING:
    from hloipu.report.figures import Figures

_MOST_BYTES = 1 << 28
"""Of a file, and of what is compressed in it."""
_DATA = re.compile(rb'id="data">([^<]*)</script>')
_OLDEST = 1
"""Version of profiles that is still read."""


class Table:
    """Columns of equal length, as arrays by name: `table["cycles"]` or `table.cycles`."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns: dict[str, NDArray[Any]] = {
            name: _array(values) for name, values in columns.items()
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column; KeyError names those there are."""
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"no column {name!r}; there are {', '.join(self._columns)}") from None

    def __getattr__(self, name: str) -> NDArray[Any]:
        """Return a column."""
        try:
            return self.__dict__["_columns"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"no column {name!r}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._columns]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __repr__(self) -> str:
        return f"<Table of {len(self):,} rows: {', '.join(self._columns)}>"

    def frame(self) -> Any:
        """Return the table as a DataFrame; UsageError E3220 where pandas is not installed."""
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise UsageError(
                "E3220", "pandas is not installed", hint="pip install pandas"
            ) from error
        return pandas.DataFrame({name: list(values) for name, values in self._columns.items()})


class Report:
    """A profile, and of pages what only a compiled program tells.

    `profile`: the record, of which docs/profile.md has the keys. `steps` and `instructions`: its
    tables, cycles of all executions. `tiles`: bytes of each tile by category at its own peak,
    with `ipu`, `tile` and `needed`, or None. `tensors`: what lives on the fullest tile of each
    IPU, or None.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = record
        self.profile: Mapping[str, Any] = record["profile"]
        self.steps: Table = Table(_columnar(self.profile["steps"]))
        self.instructions: Table = Table(_columnar(self.profile["origins"]))
        tiles, live = record.get("tiles"), record.get("liveness")
        self.tiles: Table | None = Table(_tiles(tiles)) if tiles else None
        self.tensors: Table | None = Table(_tensors(live)) if live else None

    @cached_property
    def plot(self) -> "Figures":
        """Figures for papers and notebooks; UsageError E3220 where matplotlib is not installed."""
        from hloipu.report.figures import Figures

        return Figures(self.record)

    def __repr__(self) -> str:
        return (
            f"<Report of {self.profile['program']!r}: {len(self.steps):,} steps, "
            f"{len(self.instructions):,} instructions>"
        )


@checked
def report_of(program: CompiledProgram) -> Report:
    """Return the tables of a program's estimate: what `write_report` draws, without a file."""
    return Report(report_record(program))


@checked
def open_report(path: str | Path) -> Report:
    """Return the tables of a profile (JSON, as `--profile` writes it) or of a page.

        report = hloipu.open_report("step.html")
        report.steps.cycles.sum(), report.tiles.frame().groupby("ipu").needed.max()

    Raises UsageError E3001 where the file cannot be read, ArtefactError E4013 where it is neither,
    or of a version that is not read any more.
    """
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError("E3001", f"cannot read {str(path)!r}: {error.strerror}") from error
    name = str(path)
    if len(data) > _MOST_BYTES:
        raise _refused(name, f"it has more than {_MOST_BYTES:,} bytes")
    if (page := _DATA.search(data)) is not None:
        data = _unpacked(page[1], name)
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _refused(name, "it holds no JSON") from error
    if not isinstance(record, dict) or record.get("schema") not in (PROFILE, REPORT):
        raise _refused(name, f"it is not of schema {PROFILE} or {REPORT}")
    if record["schema"] == PROFILE:
        record = {"schema": REPORT, "profile": record}
    try:
        version = record["profile"]["version"]
        if not _OLDEST <= version <= VERSION:
            raise _refused(name, f"its version is {version}; read are {_OLDEST} to {VERSION}")
        return Report(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refused(name, f"not all keys of a profile are there ({error})") from error


def profile_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of profiles, as `--profile` writes them."""
    schema = files("hloipu_runtime.report").joinpath("profile.schema.json").read_text("utf-8")
    return json.loads(schema)  # type: ignore[no-any-return]


def _unpacked(text: bytes, name: str) -> bytes:
    """Return the data of a page, at most `_MOST_BYTES` of it."""
    try:
        packed = base64.b64decode(text, validate=True)
        reader = zlib.decompressobj(wbits=31)
        data = reader.decompress(packed, _MOST_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise _refused(name, "its data is damaged") from error
    if reader.unconsumed_tail or not reader.eof:
        raise _refused(name, "its data is damaged, or too large")
    return data


def _refused(name: str, fault: str) -> ArtefactError:
    return ArtefactError(
        "E4013", f"no report: {fault}", name=name, hint="write it again: hloipu report FILE"
    )


def _columnar(rows: Any) -> Mapping[str, Any]:
    return rows if isinstance(rows, dict) else columns(rows)


def _array(values: Any) -> NDArray[Any]:
    try:
        return np.array(values)
    except ValueError:  # lists of unequal lengths
        array = np.empty(len(values), object)
        array[:] = values
        return array


def _tiles(ipus: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    of_tile = [np.repeat(*np.array(ipu["classes"]).T) for ipu in ipus]
    columns = {
        "ipu": np.concatenate(
            [np.full(len(classes), ipu["ipu"]) for ipu, classes in zip(ipus, of_tile, strict=True)]
        ),
        "tile": np.concatenate([np.arange(len(classes)) for classes in of_tile]),
        "needed": np.concatenate(
            [np.array(ipu["needed_bytes"])[c] for ipu, c in zip(ipus, of_tile, strict=True)]
        ),
    }
    for category in ipus[0]["parts"]:
        columns[category.replace(" ", "_")] = np.concatenate(
            [np.array(ipu["parts"][category])[c] for ipu, c in zip(ipus, of_tile, strict=True)]
        )
    return columns


def _tensors(ipus: list[dict[str, Any]]) -> dict[str, list[Any]]:
    rows = [
        {"ipu": ipu["ipu"], "tile": ipu["tile"], **row} for ipu in ipus for row in ipu["tensors"]
    ]
    return columns(rows)
