"""Attribute lists made from others: some keys left out, called computations renamed."""

from collections.abc import Collection, Mapping

from hloipu_compiler.ir.attribute_kinds import INSTRUCTION_KINDS, AttributeKind
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes, Value

CONTROL = "control-predecessors"
CARRIED = frozenset({"sharding", "frontend_attributes"})
"""Keys that say something about a value and stay with it when its op becomes another one."""
DESCRIBES_LEAVES = frozenset(
    "sharding parameter_replication origin original_value statistics".split()
)
"""Keys whose values have one part for each leaf of the shape."""


def without(attributes: Attributes, keys: Collection[str]) -> Attributes:
    """Return attributes without some keys, none of which names computations."""
    if not any(key in attributes for key in keys):
        return attributes
    kept = {key: value for key, value in attributes.items() if key not in keys}
    return Attributes(kept, attributes.called)


def renamed(attributes: Attributes, names: Mapping[str, str]) -> Attributes:
    """Return attributes that call other computations, given as old name -> new name."""
    if not any(name in names for name in attributes.called):
        return attributes
    values: dict[str, Value] = {}
    for key, value in attributes.items():
        kind = INSTRUCTION_KINDS.get(key)
        if kind is AttributeKind.COMPUTATION and isinstance(value, str):
            values[key] = names.get(value, value)
        elif kind is AttributeKind.COMPUTATIONS and isinstance(value, tuple):
            values[key] = tuple(names.get(name, name) for name in value if isinstance(name, str))
        else:
            values[key] = value
    return Attributes(values, tuple(names.get(name, name) for name in attributes.called))


def carried(attributes: Attributes, own: Mapping[str, Value]) -> Attributes:
    """Return a new op's own attributes with what stays of those of the op that it replaces."""
    kept = {key: value for key, value in attributes.items() if key in CARRIED}
    return Attributes({**own, **kept}) if own or kept else NO_ATTRIBUTES
