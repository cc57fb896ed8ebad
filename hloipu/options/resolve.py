"""Resolve option values by the priority of their sources.

Command line or keyword, then HLOIPU_FLAGS, then the variables of Graphcore's stack, then
`hloipu.toml`, then the module's own attributes, then the default: the first that says something
wins, as with XLA's flags.

HLOIPU_FLAGS="--target=bow --set=tiles_per_ipu=64 --no-cache --ipu_model.compile_ipu_code=false"
TF_POPLAR_FLAGS="--use_ipu_model --executable_cache_path=/tmp/cache"
POPLAR_ENGINE_OPTIONS='{"debug.allowOutOfMemory": "true"}'
"""

import json
import os
import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hloipu.options.composite_kinds import Pairs
from hloipu.options.config_file import nearest_file, read_file
from hloipu.options.faults import fault, unknown
from hloipu.options.kinds import MOST_CHARACTERS, Flag
from hloipu.options.origin import DEFAULT, Assignment, Level, Origin, assign, assign_text
from hloipu.options.table import COMMANDS, OPTIONS, Option, Options
from hloipu_runtime.arguments import shown
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.nearest import did_you_mean

if TYPE_CHECKING:
    from hloipu.options.ipu_keys import Key


VARIABLE = "HLOIPU_FLAGS"
_POPLAR_FLAGS = "TF_POPLAR_FLAGS"
_ENGINE_OPTIONS = "POPLAR_ENGINE_OPTIONS"
_TIMING = "--timing tells where time goes"
UNREAD = {
    "POPLAR_TARGET_OPTIONS": "--target and --set say what is modelled",
    "POPLAR_RUNTIME_OPTIONS": "no device is attached, the machine is a model",
    "POPLAR_SIMULATOR_OPTIONS": "--target and --set say what is modelled",
    "POPLAR_LOG_LEVEL": _TIMING,
    "POPLIBS_LOG_LEVEL": "`hloipu explain plan OP FILE` tells what was planned, and why",
    "POPLAR_GRAPH_REPORT_DEST": "--profile FILE writes a profile",
    "PVTI_OPTIONS": "--profile FILE writes a profile",
}
"""Variables of Graphcore's stack that are not read -> what to do in their place."""


def read_flags(text: str) -> Iterator[Assignment | str]:
    """Yield the assignments that the variable's text makes, and warnings.

    Words are split as a shell splits them; underscores and dashes in names are the same. Raises
    UsageError: E3017 for a word that is not of the form `--name=value`, and what `assign` raises.
    """
    for word in _words(text, VARIABLE):
        yield from _read_word(word)


def read_poplar_variables(environment: Mapping[str, str]) -> Iterator[Assignment | str]:
    """Yield what variables of Graphcore's stack mean here, and a warning for what means nothing.

    Raises UsageError: E3017 for text that cannot be taken apart, E3011 and E3014 for values.
    """
    for word in _words(environment.get(_POPLAR_FLAGS, ""), _POPLAR_FLAGS):
        name, mark, value_text = _parted(word, _POPLAR_FLAGS)
        from hloipu.options.poplar_keys import POPLAR_FLAGS

        yield from _meaning(name, value_text if mark else "true", POPLAR_FLAGS, _POPLAR_FLAGS)
    if text := environment.get(_ENGINE_OPTIONS, "").strip():
        from hloipu.options.poplar_keys import ENGINE

        for name, value in _engine_options(text).items():
            yield from _meaning(name, value, ENGINE, _ENGINE_OPTIONS)
    for name, instead in UNREAD.items():
        if environment.get(name):
            yield f"{name} is set and is not read: {instead}"


def _meaning(
    name: str, value: object, table: Mapping[str, "Key"], variable: str
) -> Iterator[Assignment | str]:
    """Yield what a name of a variable means; one that no table has is another program's."""
    if name not in table:
        near = did_you_mean(name, table, "no such name is known here")
        yield f"{variable}: {shown(name)} has no effect: {near}"
        return
    from hloipu.options.ipu_config import meaning

    origin = Origin(Level.FLAGS, variable, name)
    yield from meaning(name, table[name], value, origin, text=isinstance(value, str))


def _engine_options(text: str) -> dict[str, object]:
    _require_short(text, _ENGINE_OPTIONS)
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        fault_text = str(error) if isinstance(error, ValueError) else "nested too deep"
        raise fault("E3017", f"no JSON: {fault_text}", place=_ENGINE_OPTIONS) from error
    if not isinstance(options, dict):
        raise fault("E3017", 'no object like {"option": "value"}', place=_ENGINE_OPTIONS)
    return options


def _words(text: str, variable: str) -> list[str]:
    _require_short(text, variable)
    try:
        return shlex.split(text)
    except ValueError as error:
        raise fault("E3017", f"{error}", place=variable, hint="close the quote") from error


def _require_short(text: str, variable: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise fault("E3017", f"more than {MOST_CHARACTERS} characters", place=variable)


def _parted(word: str, variable: str) -> tuple[str, str, str]:
    name, mark, value = word.removeprefix("--").partition("=")
    if not word.startswith("--") or not name:
        raise fault("E3017", f"{shown(word)} is not of the form --name=value", place=variable)
    return name, mark, value


def _read_word(word: str) -> Iterator[Assignment | str]:
    name, mark, value_text = _parted(word, VARIABLE)
    option, value = _option_and_text(name.replace("-", "_"), value_text if mark else None)
    if option is not None and value is not None:
        yield assign_text(option, value, Origin(Level.FLAGS, VARIABLE))
        return
    if option is not None:
        usage = f"--{name}={option.kind.metavar}"
        raise fault("E3017", f"--{name} needs a value: {usage}", place=VARIABLE)
    from hloipu.options.ipu_config import translate_word

    origin = Origin(Level.FLAGS, VARIABLE, name)
    meant = translate_word(name, value_text if mark else "true", origin)
    if meant is None:
        raise unknown(name, OPTIONS, place=VARIABLE)
    yield from meant


def _option_and_text(name: str, value: str | None) -> tuple[Option | None, str | None]:
    """Return the option of a name and the text of its value; a bare flag says true or false."""
    option = OPTIONS.get(name)
    negated = OPTIONS.get(name.removeprefix("no_"))
    if value is None and option is None and negated is not None and isinstance(negated.kind, Flag):
        return negated, "false"
    if value is None and option is not None and isinstance(option.kind, Flag):
        return option, "true"
    return option, value


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
