"""Graphcore's configuration, taken as far as it means something here.

Some keys mean an option of ours, the others are accepted and have no effect, so that a
configuration written for IPUConfig can be used as it is.
"""

from collections.abc import Iterator

from hloipu.options.faults import fault, wrong_value
from hloipu.options.ipu_keys import DICTIONARIES, KEYS, POPLAR_FLAGS, Key, library_option
from hloipu.options.origin import Assignment, Origin, assign
from hloipu.options.table import OPTIONS
from hloipu_runtime.arguments import shown
from hloipu_runtime.nearest import did_you_mean


def known(name: str) -> bool:
    """Say whether IPUConfig has this key."""
    return name in KEYS or name in DICTIONARIES or name.rpartition(".")[0] in DICTIONARIES


def translate(
    name: str, value: object, origin: Origin, *, text: bool = False
) -> Iterator[Assignment | str]:
    """Yield what a key of IPUConfig means here: assignments, or a warning that it means nothing.

    `text` says that the value is the text of one. Raises UsageError E3010 for a name that
    IPUConfig does not have, E3011 for a value of the wrong type, and
    E3014 for a value that cannot be had here.
    """
    if not known(name):
        raise fault(
            "E3010",
            f"IPUConfig has no key {shown(name)}",
            place=origin.place,
            hint=did_you_mean(
                name, [*KEYS, *DICTIONARIES], "docs/options.md lists the keys", most=3
            ),
        )
    if name in DICTIONARIES:
        if value != {} and value != "{}":
            raise fault(
                "E3011",
                f"{name} holds options by name, such as {name}.partialsType",
                place=origin.place,
            )
        return
    yield from _meaning(name, KEYS.get(name) or library_option(name), value, origin, text=text)


def translate_flag(name: str, text: str, origin: Origin) -> Iterator[Assignment | str]:
    """Yield what a word of TF_POPLAR_FLAGS means here; raises as `translate` does."""
    yield from _meaning(name, POPLAR_FLAGS[name], text, origin, text=True)


def _meaning(
    name: str, key: Key, value: object, origin: Origin, *, text: bool
) -> Iterator[Assignment | str]:
    found = key.kind.read(str(value)) if text else key.kind.check(value)
    if found is None:
        raise wrong_value(name, key.kind.expected, value, place=origin.place)
    meaning = key.meaning(found) if key.meaning else None
    if meaning is not None:
        yield assign(OPTIONS[meaning[0]], meaning[1], origin)
    elif key.meaning and found != key.default:
        raise fault(
            "E3014",
            f"{name} = {key.kind.write(found)} cannot be had here",
            place=origin.place,
            hint=_INSTEAD.get(name, ""),
        )
    elif found != key.default:
        yield f"{origin.place}: {shown(name)} is accepted and has no effect here"


_INSTEAD = {
    "auto_select_ipus": "one program has one device: give a single number",
    "ipu_model.version": "ipu1 is gc2, ipu2 is gc200; target takes other machines",
    "device_connection.version": "ipu1 is gc2, ipu2 is gc200; target takes other machines",
}
