"""HLOIPU_FLAGS: options in an environment variable, spelled as on the command line.

HLOIPU_FLAGS="--target=bow --set=tiles_per_ipu=64 --no-cache --ipu_model.compile_ipu_code=false"
"""

import shlex
from collections.abc import Iterator, Mapping

from hloipu.options.faults import fault, unknown
from hloipu.options.kinds import MOST_CHARACTERS, Flag
from hloipu.options.origin import Assignment, Level, Origin, assign_text
from hloipu.options.table import OPTIONS, Option
from hloipu_runtime.arguments import shown

VARIABLE = "HLOIPU_FLAGS"
_OTHERS = {
    "TF_POPLAR_FLAGS": f"give its words in {VARIABLE}",
    "POPLAR_ENGINE_OPTIONS": "docs/options.md lists what there is in place of Poplar's options",
    "POPLAR_TARGET_OPTIONS": "--target and --set say what is modelled",
}
"""Variables of Graphcore's stack -> what to do in their place."""


def read_flags(text: str) -> Iterator[Assignment | str]:
    """Yield the assignments that the variable's text makes, and warnings.

    Words are split as a shell splits them; underscores and dashes in names are the same. Raises
    UsageError: E3017 for a word that is not of the form `--name=value`, and what `assign` raises.
    """
    if len(text) > MOST_CHARACTERS:
        raise fault("E3017", f"more than {MOST_CHARACTERS} characters", place=VARIABLE)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise fault("E3017", f"{error}", place=VARIABLE, hint="close the quote") from error
    for word in words:
        yield from _read_word(word)


def unread_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable of Graphcore's stack that is set: none of them is read."""
    return [
        f"{name} is set and is not read: {instead}"
        for name, instead in _OTHERS.items()
        if environment.get(name)
    ]


def _read_word(word: str) -> Iterator[Assignment | str]:
    name, mark, rest = word.removeprefix("--").partition("=")
    if not word.startswith("--") or not name:
        raise fault("E3017", f"{shown(word)} is not of the form --name=value", place=VARIABLE)
    option, value = _option_and_text(name.replace("-", "_"), rest if mark else None)
    if option is not None and value is not None:
        yield assign_text(option, value, Origin(Level.FLAGS, VARIABLE))
        return
    if option is not None:
        usage = f"--{name}={option.kind.metavar}"
        raise fault("E3017", f"--{name} needs a value: {usage}", place=VARIABLE)
    from hloipu.options import ipu_config
    from hloipu.options.ipu_keys import KEYS, POPLAR_FLAGS

    if ipu_config.known(name):
        origin = Origin(Level.FLAGS, VARIABLE, name)
        yield from ipu_config.translate(name, rest if mark else "true", origin, text=True)
    elif name in POPLAR_FLAGS:
        origin = Origin(Level.FLAGS, VARIABLE, name)
        yield from ipu_config.translate_flag(name, rest if mark else "true", origin)
    else:
        raise unknown(name, [*OPTIONS, *KEYS], place=VARIABLE)


def _option_and_text(name: str, value: str | None) -> tuple[Option | None, str | None]:
    """Return the option of a name and the text of its value; a bare flag says true or false."""
    option = OPTIONS.get(name)
    negated = OPTIONS.get(name.removeprefix("no_"))
    if value is None and option is None and negated is not None and isinstance(negated.kind, Flag):
        return negated, "false"
    if value is None and option is not None and isinstance(option.kind, Flag):
        return option, "true"
    return option, value
