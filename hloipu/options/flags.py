"""Options in environment variables: HLOIPU_FLAGS, and those of Graphcore's stack.

HLOIPU_FLAGS="--target=bow --set=tiles_per_ipu=64 --no-cache --ipu_model.compile_ipu_code=false"
TF_POPLAR_FLAGS="--use_ipu_model --executable_cache_path=/tmp/cache"
POPLAR_ENGINE_OPTIONS='{"debug.allowOutOfMemory": "true"}'
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from hloipu.options.faults import fault, unknown
from hloipu.options.kinds import MOST_CHARACTERS, Flag
from hloipu.options.origin import Assignment, Level, Origin, assign_text
from hloipu.options.table import OPTIONS, Option
from hloipu_runtime.arguments import shown
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
