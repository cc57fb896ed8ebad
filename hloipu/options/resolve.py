"""Resolve option values by the priority of their sources.

Command line or keyword, then HLOIPU_FLAGS, then the variables of Graphcore's stack, then
`hloipu.toml`, then the module's own attributes, then the default: the first that says something
wins, as with XLA's flags.
"""

import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hloipu.options.composite_kinds import Pairs
from hloipu.options.config_file import nearest_file, read_file
from hloipu.options.faults import fault, unknown
from hloipu.options.flags import VARIABLE, read_flags, read_poplar_variables
from hloipu.options.origin import DEFAULT, Assignment, Level, Origin, assign, assign_text
from hloipu.options.table import COMMANDS, OPTIONS, Options
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.nearest import did_you_mean

ATTRIBUTE_PREFIX = "ipu_"
"""How a module's own attributes begin that state options."""

_PARTED = ";"
"""Between what a module states of an option that may be given several times."""

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Resolved:
    """The options' values, where each came from, and what has to be said about them."""

    options: Options
    origins: Mapping[str, Origin]
    """Option -> origin; of a merged option also `option.key` -> origin."""
    warnings: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, str, str]]:
        """Return (option, value, origin) of all in the order of the table."""
        rows = []
        for name, option in OPTIONS.items():
            value = getattr(self.options, name)
            if isinstance(option.kind, Pairs) and value:
                kind = option.kind.value
                rows += [
                    (f"{name}.{key}", kind.write(part), str(self.origins[f"{name}.{key}"]))
                    for key, part in value
                ]
            else:
                text = "-" if value in (None, ()) else option.kind.write(value)
                rows.append((name, text, str(self.origins[name])))
        return rows

    def record(self) -> dict[str, object]:
        """Return all values with their origins as JSON data."""
        return {
            "schema": "hloipu.config/1",
            "options": {name: self._option_record(name) for name in OPTIONS},
            "warnings": list(self.warnings),
        }

    def _option_record(self, name: str) -> dict[str, object]:
        value, origin = getattr(self.options, name), self.origins[name]
        record = {"value": value, "source": origin.level.name.lower(), "place": origin.place}
        if isinstance(OPTIONS[name].kind, Pairs):
            record["value"] = dict(value)
            record["places"] = {key: self.origins[f"{name}.{key}"].place for key, _ in value}
        return record | ({"key": origin.key} if origin.key else {})


def resolve(
    command: str,
    given: Mapping[str, object] | None = None,
    *,
    place: str = "keyword",
    attributes: Mapping[str, str] = _NOTHING,
    environment: Mapping[str, str] | None = None,
    config: str | os.PathLike[str] | None = None,
    folder: Path | None = None,
) -> Resolved:
    """Return every option's value, the first of: `given`, variables, file, attributes, default.

    `given` are the options of one call, by name; None says nothing. `place` is how messages call
    them: `keyword`, or `command line`. `attributes` are the module's frontend attributes, of which
    those that begin with `ipu_` count. `environment` is by default the process's. `config` is the
    file to read in place of the nearest `hloipu.toml` in `folder` (by default the current one) or
    above. Raises UsageError E3010 to E3017.
    """
    environment = os.environ if environment is None else environment
    layers = (
        _module(attributes),
        _file(config, folder),
        read_poplar_variables(environment),
        read_flags(environment.get(VARIABLE, "")),
        _call_assignments(command, given or {}, place),
    )
    values = _Values()
    warnings: list[str] = []
    for layer in layers:
        assignments: list[Assignment] = []
        for item in layer:
            if isinstance(item, str):
                warnings.append(item)
            else:
                assignments.append(item)
        for assignment in _without_repeats(assignments):
            values.take(assignment)
    return values.resolved(warnings)


class OptionWarning(UserWarning):
    """An option that Graphcore's stack has was set, and has no effect."""


def options_of_call(
    given: Mapping[str, object], attributes: Mapping[str, str] = _NOTHING
) -> Options:
    """Return the options of `hloipu.compile`, and warn of those that have no effect.

    Raises as `resolve` does.
    """
    resolved = resolve("compile", given, attributes=attributes)
    for warning in resolved.warnings:
        warnings.warn(warning, OptionWarning, stacklevel=5)  # the caller of `compile`
    return resolved.options


class _Values:
    """The values so far; a later source overrides, pairs key by key."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {name: option.default for name, option in OPTIONS.items()}
        self._origins: dict[str, Origin] = dict.fromkeys(OPTIONS, DEFAULT)
        self._pairs: dict[str, dict[str, tuple[str, object, Origin]]] = {}

    def take(self, new: Assignment) -> None:
        """Put an assignment in place of the older value, pairs in place of those of their key."""
        name, kind = new.option.name, new.option.kind
        self._origins[name] = new.origin
        if isinstance(kind, Pairs):
            pairs = self._pairs.setdefault(name, {})
            for key, value in _tuple(new.value):
                pairs[kind.same_key(key)] = (key, value, new.origin)
        else:
            self._values[name] = new.value

    def resolved(self, warnings: Iterable[str]) -> Resolved:
        """Return the values as a record, with their origins."""
        values, origins = dict(self._values), dict(self._origins)
        for name, pairs in self._pairs.items():
            values[name] = tuple((key, value) for key, value, _ in pairs.values())
            origins |= {f"{name}.{key}": origin for key, _, origin in pairs.values()}
        return Resolved(Options(**values), MappingProxyType(origins), tuple(warnings))


def _without_repeats(given: Iterable[Assignment]) -> list[Assignment]:
    """Return a source's assignments, one an option; raises E3012 where two contradict.

    Repeatable options have their parts put together. An option's own name and an IPUConfig key may
    say the same, two IPUConfig keys as well.
    """
    by_option: dict[str, list[Assignment]] = {}
    for new in given:
        kind, earlier = new.option.kind, by_option.setdefault(new.option.name, [])
        if not earlier or isinstance(kind, Pairs):
            earlier.append(new)
        elif kind.repeatable:
            joined = kind.check((*_tuple(earlier[0].value), *_tuple(new.value)))
            if joined is None:
                raise _twice(earlier[0], new)
            earlier[0] = Assignment(new.option, joined, earlier[0].origin)
        elif earlier[0].value != new.value or not (earlier[0].origin.key or new.origin.key):
            raise _twice(earlier[0], new)
    for assignments in by_option.values():
        _check_keys(assignments)
    return [assignment for assignments in by_option.values() for assignment in assignments]


def _check_keys(assignments: list[Assignment]) -> None:
    """Raise E3012 where assignments to an option of pairs have a key in common."""
    first: dict[str, Assignment] = {}
    for new in assignments:
        kind = new.option.kind
        if isinstance(kind, Pairs):
            for key, _ in _tuple(new.value):
                if first.setdefault(kind.same_key(key), new) is not new:
                    raise _twice(first[kind.same_key(key)], new)


def _tuple(value: object) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else ()


def _twice(old: Assignment, new: Assignment) -> Exception:
    return fault(
        "E3012",
        f"{new.option.name} is set twice, first at {old.origin}",
        place=str(new.origin),
        hint="leave one of them out",
    )


def _module(attributes: Mapping[str, str]) -> Iterable[Assignment]:
    allowed = {ATTRIBUTE_PREFIX + name for name, known in OPTIONS.items() if known.about.in_module}
    for key, text in attributes.items():
        if not key.startswith(ATTRIBUTE_PREFIX):
            continue
        place = f"module attribute {key}"
        option = OPTIONS.get(key.removeprefix(ATTRIBUTE_PREFIX))
        if option is None:
            raise unknown(key, sorted(allowed), place="module attributes")
        if key not in allowed:
            raise fault(
                "E3014",
                f"a module may not state {option.name}",
                place=place,
                hint=f"give it as {option.flag}, or in hloipu.toml",
            )
        parts = text.split(_PARTED) if option.kind.repeatable else [text]
        for part in parts:
            yield assign_text(option, part, Origin(Level.MODULE, place))


def _file(config: str | os.PathLike[str] | None, folder: Path | None) -> Iterable[Assignment | str]:
    if config is not None:
        return read_file(Path(config), os.fspath(config))
    try:
        path = nearest_file((folder or Path.cwd()).absolute())
    except FileNotFoundError:  # the working directory is gone, and there is no file near it
        return ()
    return () if path is None else read_file(path, path.name)


def _call_assignments(
    command: str, stated_options: Mapping[str, object], place: str
) -> Iterable[Assignment]:
    """Yield what a call or a command line gives."""
    allowed = [name for name, option in OPTIONS.items() if command in option.about.commands]
    for name, value in stated_options.items():
        if value is None:
            continue
        option = OPTIONS.get(name)
        if option is None:
            raise unknown(name, allowed)
        if name not in allowed:
            takers = [taker for taker in COMMANDS if taker in option.about.commands]
            verb = "does" if len(takers) == 1 else "do"
            listed = " and ".join(filter(None, (", ".join(takers[:-1]), takers[-1])))
            raise fault(
                "E3014",
                f"{command} takes no option {name}, {listed} {verb}",
                hint=did_you_mean(name, allowed, most=3),
            )
        yield assign(option, value, Origin(Level.GIVEN, place))
