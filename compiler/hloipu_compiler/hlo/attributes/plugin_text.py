"""Custom calls as Graphcore's plugin prints them once they are ops of its own.

Their attributes stand in the line, some in ways that no other HLO has: lists without brackets,
groups of replicas with a size in brackets, keys of other ops (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/tools/custom_ops/, ExtraPoplarAttributesToStringImpl). Each
is spelled anew in as many characters, so that places in the text stay where they are.
"""

import re

from hloipu_compiler.ir.attribute_kinds import INSTRUCTION_KINDS
from hloipu_compiler.ir.ops import OPS

_CALL = re.compile(
    r'custom_call_target="[A-Za-z0-9]+"(?P<said>(?:, (?!sharding=|frontend_attributes=|metadata='
    r"|backend_config=|control-predecessors=)[^\n]*?)"
    r"(?=, (?:sharding|frontend_attributes|metadata|backend_config|control-predecessors)=|\n|$))"
)
_GROUPS = re.compile(r"replica_groups=(\w+)\(group_size=(\w+)\)")
_OF_OTHERS = INSTRUCTION_KINDS.keys() - OPS["custom-call"].attributes
_KEY = re.compile(r"(?<=, )[a-z_]+(?==)")
_LIST = re.compile(r"=(\d+(?:, ?\d+)+)(?=,|$)")


def respelled(text: str) -> str:
    """Return a text with such attributes spelled in a way that is read; the same without any.

    Keys get a capital or a hyphen, lists an `x` between their numbers.
    """
    return _CALL.sub(
        lambda found: found.group()[: -len(found["said"])] + _line(found["said"]), text
    )


def _line(said: str) -> str:
    said = _GROUPS.sub(lambda x: f"replica-groups={{{x[1]} group_size{x[2]}}}", said)
    said = _KEY.sub(lambda x: x[0].capitalize() if x[0] in _OF_OTHERS else x[0], said)
    return _LIST.sub(lambda x: x[0].replace(", ", "x0").replace(",", "x"), said)
