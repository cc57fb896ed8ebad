"""Translate Graphcore's IPUConfig to options.

Some keys mean an option of ours, the others are accepted and have no effect, so that a
configuration written for IPUConfig can be used as it is; a warning says so, and what serves.
"""

from collections.abc import Iterator

from hloipu.options.faults import fault, wrong_value
from hloipu.options.ipu_keys import KEYS, Key
from hloipu.options.origin import Assignment, Origin, assign
from hloipu.options.poplar_keys import DICTIONARIES, ENGINE, POPLAR_FLAGS, key_of
from hloipu.options.table import OPTIONS
from hloipu_runtime.arguments import shown
from hloipu_runtime.nearest import did_you_mean


def known(name: str) -> bool:
    """Whether IPUConfig has this key."""
    return name in DICTIONARIES or key_of(name) is not None


def translate(
    name: str, value: object, origin: Origin, *, text: bool = False
) -> Iterator[Assignment | str]:
    """Yield what a key of IPUConfig means here: assignments, or a warning that it means nothing.

    `text` says that the value is the text of one. Raises UsageError E3010 for a name that
    IPUConfig does not have, E3011 for a value of the wrong type, and
    E3014 for a value that cannot be had here.
    """
    if name in DICTIONARIES:
        if value != {} and value != "{}":
            raise fault(
                "E3011",
                f"{name} holds options by name, such as {name}.{next(iter(DICTIONARIES[name]))}",
                place=origin.place,
            )
        return
    key = key_of(name)
    if key is None:
        raise fault(
            "E3010",
            f"IPUConfig has no key {shown(name)}",
            place=origin.place,
            hint=did_you_mean(
                name, [*KEYS, *DICTIONARIES], "docs/poplar-names.md lists the keys", most=3
            ),
        )
    yield from meaning(name, key, value, origin, text=text)


def translate_word(name: str, text: str, origin: Origin) -> Iterator[Assignment | str] | None:
    """Return what a word of HLOIPU_FLAGS means that is Graphcore's; None for another word.

    It may be one of TF_POPLAR_FLAGS, an option of an engine, or a key of IPUConfig; raises as
    `translate` does.
    """
    for table in (POPLAR_FLAGS, ENGINE):
        for written in (name, name.replace("-", "_")):
            if written in table:
                return meaning(written, table[written], text, origin, text=True)
    written = name.replace("-", "_")
    return translate(written, text, origin, text=True) if known(written) else None


def meaning(
    name: str, key: Key, value: object, origin: Origin, *, text: bool
) -> Iterator[Assignment | str]:
    """Yield what a name of Graphcore's with a value means here; raises as `translate` does."""
    checked = key.kind.read(str(value)) if text else key.kind.check(value)
    if checked is None:
        raise wrong_value(name, key.kind.expected, value, place=origin.place)
    if not key.option:
        if checked != key.default:
            serves = f": {key.instead}" if key.instead else ""
            yield f"{origin.place}: {shown(name)} is accepted and has no effect here{serves}"
        return
    meant = key.value(checked)
    if meant is not None:
        yield assign(OPTIONS[key.option], meant, origin)
    elif checked != key.default:
        raise fault(
            "E3014",
            f"{name} = {key.kind.write(checked)} cannot be had here",
            place=origin.place,
            hint=_INSTEAD if name.endswith("version") else "",
        )
    if name in _LISTS and isinstance(checked, tuple) and len(checked) > 1:
        yield (
            f"{origin.place}: {shown(name)} lists {len(checked)} devices: the program is for the "
            "first, /device:IPU:0; --ipu-ids takes another"
        )


_LISTS = ("auto_select_ipus", "select_ipus")
_INSTEAD = "ipu1 is gc2, ipu2 is gc200; target takes other machines"
