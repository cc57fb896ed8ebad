"""`hloipu compare A B`: two programs side by side, and what makes the difference."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from hloipu.cli.inputs import HLO_FILE, OUTPUT_FILE, limit_option
from hloipu.cli.options import Asked, GroupedCommand, option_group
from hloipu.cli.saying import say
from hloipu.cli.table import shortened, table
from hloipu.text import read_file
from hloipu_compiler.hlo.syntax.limits import DEFAULT_LIMITS, Limits
from hloipu_runtime.errors import LimitError, MismatchError, UsageError
from hloipu_runtime.report.profile import SCHEMA

Record = Mapping[str, Any]
MOST_ROWS = 10
MOST_BYTES = 1 << 26
"""Of a profile; assumed: those of real modules of a hundred thousand instructions have a tenth."""
_WIDTH = 40


_CONDITION = re.compile(
    r"\s*([^<>]+?)\s*([<>])\s*([+-]?)\s*([0-9][0-9_.]*(?:[eE][+-]?\d+)?)\s*(%?)\s*"
)


class Condition(NamedTuple):
    """What a comparison is not to find: `cycles>+2%`, `bytes on the fullest tile > 600000`."""

    text: str
    figure: str
    is_above: bool
    sign: int
    """Of a change from the first to the second; 0: the figure of the second itself."""
    amount: float
    is_percent: bool

    def holds(self, first: float, second: float) -> bool:
        """Whether the figures are what the condition says."""
        value, limit = (
            (second - first, self.sign * self.amount) if self.sign else (second, self.amount)
        )
        if self.is_percent:
            if not first:
                return value > 0 if self.is_above else value < 0
            value = 100 * value / first
        return value > limit if self.is_above else value < limit


def condition_of(text: str) -> Condition:
    """Return a condition that is written as text; UsageError E2073 where it is none."""
    parts = _CONDITION.fullmatch(text)
    if parts is None or (parts[5] and not parts[3]):
        raise UsageError(
            "E2073",
            f"--fail-if {text!r} is not a condition",
            hint="write a figure of the table, > or <, and a change or a limit: "
            "'cycles>+2%', 'device cycles > +1000', 'bytes on the fullest tile > 600000'",
        )
    sign = {"+": 1, "-": -1, "": 0}[parts[3]]
    return Condition(text, parts[1], parts[2] == ">", sign, float(parts[4]), bool(parts[5]))


@click.command("compare", cls=GroupedCommand)
@click.argument("first", type=HLO_FILE, required=False)
@click.argument("second", type=HLO_FILE, required=False)
@click.option("--most-rows", type=click.IntRange(0), default=MOST_ROWS, show_default=True,
              metavar="N", help="Show the N instructions that differ most.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("-o", "--output", type=OUTPUT_FILE, metavar="PAGE.html",
              help="Write a page that shows both, and all of the second.")  # fmt: skip
@click.option("--fail-if", "conditions", multiple=True, metavar="CONDITION",
              help="End with exit code 6 where it holds: 'cycles>+2%'; repeatable.")  # fmt: skip
@limit_option
@option_group("estimate")
def command(
    first: str | None,
    second: str | None,
    most_rows: int,
    as_json: bool,
    output: str | None,
    conditions: tuple[str, ...],
    limits: Limits,
    asked: Asked,
) -> None:
    """Compare two programs: profiles (as --profile FILE writes them), executables or HLO text.

    HLO text and executables are estimated; options say how both are compiled. A condition of
    --fail-if names a figure of the table, then > or <, and a change (+2%, -100) or a limit.

    \b
      hloipu compare before.json after.json --fail-if 'device cycles>+2%'
      hloipu compare old.hlo new.hlo --target bow
    """
    if first is None or second is None:
        raise click.UsageError("Missing argument 'FIRST' or 'SECOND'.")
    asking = [condition_of(text) for text in conditions]
    records = [record_of(path, limits, asked) for path in (first, second)]
    compared = figures(*records)
    names = [Path(path).stem for path in (first, second)]
    names = names if names[0] != names[1] else [first, second]
    if output is not None:
        _write_page(output, records, names, compared)
    failing = [text for condition in asking if (text := failed(condition, compared["figures"]))]
    if as_json:
        say(json.dumps(compared | ({"failed": failing} if asking else {})))
    else:
        say(comparison(*records, names=names, most_rows=most_rows))
    for text in failing:
        say(text, err=True)
    if failing:
        raise click.exceptions.Exit(MismatchError.exit_code)


def _write_page(
    output: str, records: Sequence[Record], names: Sequence[str], figures: Mapping[str, Any]
) -> None:
    from hloipu.report.page import write_page
    from hloipu.report.record import of_profile

    first, second = (of_profile(record, "", "") for record in records)
    compared = {"names": names, "profile": first["profile"], "figures": figures["figures"]}
    write_page({**second, "compared": compared}, Path(output))


def failed(condition: Condition, known: Mapping[str, Sequence[Any]]) -> str:
    """Say that a condition holds, or nothing; UsageError E2073 for a figure that is not there."""
    numbers = {
        name.strip().removeprefix("of these ").removeprefix("and "): values
        for name, values in known.items()
        if all(isinstance(value, int | float) for value in values)
    }
    values = numbers.get(condition.figure)
    if values is None:
        raise UsageError(
            "E2073",
            f"--fail-if {condition.text!r}: no figure {condition.figure!r} in both",
            hint=f"there are {', '.join(numbers)}",
        )
    first, second = values
    if not condition.holds(first, second):
        return ""
    return f"{condition.text}: {condition.figure} {_number(first)} -> {_number(second)}"


def record_of(path: str, limits: Limits, asked: Asked) -> Record:
    """Return the profile of a file: as it is there, or of an estimate of its program."""
    if path.endswith(".json"):
        return read_profile(path)
    from hloipu.cli.compiling import program_of
    from hloipu.showing import Phases

    return program_of(path, limits, asked, Phases()).profile().record()


def read_profile(path: str) -> Record:
    """Return the record of a file; UsageError E3001 for no file, E2040 for no profile."""
    record: Any = None
    try:
        record = json.loads(
            read_file(Path(path), replace(DEFAULT_LIMITS, input_bytes=MOST_BYTES)).text
        )
    except UsageError as error:
        if error.code == "E3001":
            raise UsageError(error.code, error.message) from error
    except (LimitError, ValueError, RecursionError):
        pass
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise _no_profile(path, f"a file of schema {SCHEMA!r}")
    try:
        figures(record, record)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _no_profile(path, f"all keys of a profile ({error})") from error
    return record


def _no_profile(path: str, expected: str) -> UsageError:
    return UsageError(
        "E2040",
        f"{path!r} holds no profile; expected is {expected}",
        hint="write one: hloipu run FILE --profile FILE, or estimate, or result.profile.record()",
    )


def figures(first: Record, second: Record) -> dict[str, Any]:
    """Return the figures of both as JSON data: name -> [first, second], and by instruction."""
    both = (_totals(first), _totals(second))
    names = [*both[0], *(name for name in both[1] if name not in both[0])]
    origins = (_origins(first), _origins(second))
    instructions = dict.fromkeys([*origins[0], *origins[1]])
    rows = {name: [part.get(name, 0) for part in origins] for name in instructions}
    ordered = sorted(rows.items(), key=lambda row: (-abs(row[1][1] - row[1][0]), row[0]))
    return {
        "schema": "hloipu.comparison/1",
        "figures": {name: [part.get(name) for part in both] for name in names},
        "origins": dict(ordered),
    }


def comparison(
    first: Record,
    second: Record,
    *,
    names: tuple[str, str] | list[str] = ("first", "second"),
    most_rows: int = MOST_ROWS,
) -> str:
    """Return two profiles side by side as text, and the instructions that differ most."""
    compared = figures(first, second)
    head = ("", *(shortened(name, _WIDTH) for name in names), "difference", "ratio")
    rows = [_row(name, *pair) for name, pair in compared["figures"].items()]
    parts = [table(head, rows)]
    origins = [(name, pair) for name, pair in compared["origins"].items() if pair[0] != pair[1]]
    if origins and most_rows:
        shown = [_row(shortened(name, _WIDTH), *pair) for name, pair in origins[:most_rows]]
        parts.append(table(("cycles by instruction", *head[1:]), shown))
        if len(origins) > most_rows:
            parts.append(f"and {len(origins) - most_rows} more instructions that differ")
    return "\n\n".join(parts)


def _totals(record: Record) -> dict[str, Any]:
    calls = record.get("calls") or {}
    memory = record.get("memory") or {}
    totals = {
        "program": str(record["program"]),
        "machine": str(record["machine"]["name"]),
        "mode": str(record["mode"]),
        "calls by the host": int(record["runs"]),
        "steps": calls.get("steps"),
        **_device_and_host(record),
        "cycles": int(record["lower_bound_cycles"]),
        **{f"  {name}": int(cycles) for name, cycles in record["by_bucket"].items()},
        "cycles per call": calls.get("cycles_per_call"),
        "  of these round trip": calls.get("round_trip_cycles"),
        "cycles per step": calls.get("cycles_per_step"),
        "seconds": record["lower_bound_cycles"] / record["machine"]["clock_hz"],
        "bytes on the fullest tile": memory["peak"]["total_bytes"] if memory else None,
    }
    steps = calls.get("steps") or 0
    if steps:
        totals["cycles over steps"] = record["lower_bound_cycles"] / steps
    return {name: value for name, value in totals.items() if value is not None}


def _device_and_host(record: Record) -> dict[str, float | None]:
    """Return what the device takes on its own, and what the host adds; first versions lack both."""
    host, cycles = record.get("host") or {}, record.get("device_cycles")
    return {
        "device seconds": None if cycles is None else cycles / record["machine"]["clock_hz"],
        "device cycles": cycles,
        "  of these assumed": record.get("device_assumed_cycles"),
        "host stops the device": host.get("each_run_cycles"),
        "  and once": host.get("once_cycles") or None,
        "beside computing": host.get("beside_cycles") or None,
    }


def _origins(record: Record) -> dict[str, int]:
    return {str(row["name"]): int(row["cycles"]) for row in record["origins"]}


def _row(name: str, first: Any, second: Any) -> tuple[str, ...]:
    if isinstance(first, str) or isinstance(second, str):
        return (name, str(first or ""), str(second or ""), "" if first == second else "differs", "")
    difference = "" if first is None or second is None else _number(second - first, "+")
    ratio = f"{second / first:.3f}" if first and second is not None else ""
    return (name, _number(first), _number(second), difference, ratio)


def _number(value: float | None, sign: str = "") -> str:
    if value is None:
        return ""
    return f"{value:{sign},}" if isinstance(value, int) else f"{value:{sign},.6g}"
