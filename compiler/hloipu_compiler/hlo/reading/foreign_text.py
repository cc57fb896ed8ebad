"""Recognises texts that are not HLO, and reads a plugin's spelling of custom calls."""

import re

from hloipu_compiler.ir.attribute_kinds import INSTRUCTION_KINDS
from hloipu_compiler.ir.ops import OPS

_LOOKED_AT = 4096
_FOREIGN = (
    (
        re.compile(r"\s*(?:#\w+ = |#loc|module\b[^\n]*\{|func\.func\b)"),
        "this looks like StableHLO or another MLIR text; print HLO instead, in JAX by "
        'lowered.compiler_ir("hlo").as_hlo_text()',
    ),
    (
        re.compile(r"\s*\{ lambda\b"),
        "this looks like a jaxpr; print HLO instead: "
        'jax.jit(f).lower(*args).compiler_ir("hlo").as_hlo_text()',
    ),
    (
        re.compile(r"\s*(?:hlo_module|computations|name:|entry_computation_name:)[^\n]*[{:]"),
        "this looks like a protobuf as text; dump with --xla_dump_hlo_as_text instead",
    ),
    (re.compile(r"\s*<(?:!DOCTYPE|html)", re.IGNORECASE), "this looks like a web page"),
)


def foreign_hint(text: str) -> str:
    """Return what a refused text seems to be and what to do, or nothing."""
    beginning = text[:_LOOKED_AT]
    if "HloModule" in beginning:
        return ""
    return next((hint for pattern, hint in _FOREIGN if pattern.match(beginning)), "")


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
    """Return a text with attributes of Graphcore's plugin spelled in a way that is read.

    Custom calls that are ops of its own it prints with their attributes in the line, some in ways
    that no other HLO has: lists without brackets, groups of replicas with a size in brackets, keys
    of other ops (graphcore/tensorflow: tensorflow/compiler/plugin/poplar/driver/tools/custom_ops/,
    ExtraPoplarAttributesToStringImpl). Each is spelled anew in as many characters, so that places
    in the text stay where they are. The same text, where it has none.

    Keys get a capital or a hyphen, lists an `x` between their numbers.
    """
    return _CALL.sub(lambda call: call.group()[: -len(call["said"])] + _line(call["said"]), text)


def _line(line: str) -> str:
    line = _GROUPS.sub(lambda match: f"replica-groups={{{match[1]} group_size{match[2]}}}", line)
    line = _KEY.sub(
        lambda match: match[0].capitalize() if match[0] in _OF_OTHERS else match[0], line
    )
    return _LIST.sub(lambda match: match[0].replace(", ", "x0").replace(",", "x"), line)
