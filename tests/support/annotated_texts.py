"""Texts whose ops are annotated with IPUs drawn at random, in every computation that runs."""

import re
from random import Random

_OP = re.compile(r"^(  (?:ROOT )?%?[\w.-]+ = .*? )([a-z-]+)(\(.*)$")
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.-]+)[^=]*\{$")
_APPLIED = re.compile(r"to_apply=%?([\w.-]+)")
_SILENT = ("parameter", "constant", "tuple", "get-tuple-element")


def annotated(text: str, draw: Random, ipus: int, share: float) -> str:
    """Return HLO text in which about a share of the ops states one of some IPUs."""
    calls = [line for line in text.splitlines() if " call(" not in line]
    applied = {name for line in calls for name in _APPLIED.findall(line)}
    found, inside = [], ""
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            inside = head[1]
        op = _OP.match(line)
        if op and inside not in applied and op[2] not in _SILENT and draw.random() < share:
            ipu = draw.randrange(ipus)
            form = draw.choice(
                (f"sharding={{maximal device={ipu}}}", f'frontend_attributes={{ipu_shard="{ipu}"}}')
            )
            if op[2] not in ("while", "conditional", "call", "fusion") or "=(" not in line:
                line = f"{line}, {form}"
        found.append(line)
    return "\n".join(found)
