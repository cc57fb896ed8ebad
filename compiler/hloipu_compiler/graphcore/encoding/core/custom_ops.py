"""Structural custom calls of Graphcore's plugin, and their attributes.

Names: graphcore/tensorflow: tensorflow/compiler/plugin/poplar/kernels/ops.proto. Attributes stand
in `backend_config`, as JSON.
"""

import json
from collections.abc import Mapping
from functools import lru_cache

from hloipu_compiler.hlo.attributes.frontend_attributes import read_backend_config
from hloipu_compiler.ir.graph import Instruction

CREATE = "GradientAccumulatorCreate"
ADD = "GradientAccumulatorAddWithScale"
SINK = "GradientAccumulatorSink"
COUNT = "GradientAccumulationCount"
COUNTER = "ExecutionCounter"
NOTHING = "StatefulNoop"

ACCUMULATE = "StatefulGradientAccumulate"
ACCUMULATE_REDUCE = "StatefulGradientAccumulateAndAllReduce"
MOMENTUM = "StatefulGradientAccumulateWithMomentum"
MOMENTUM_REDUCE = "StatefulGradientAccumulateWithMomentumAndAllReduceWithNorm"
WINDOWED = frozenset({ACCUMULATE, ACCUMULATE_REDUCE, MOMENTUM, MOMENTUM_REDUCE})
"""What gives a sum out every so many calls, and zeros between."""

MOVES = frozenset(
    {
        "Fifo", "InterIpuCopy", "IpuInterCopy", "InterTilesetCopy", "Remap", "RemapDeduce",
        "RecomputationCheckpoint", "SuggestRecompute", "BlockRecompute", "Barrier",
    }
)  # fmt: skip
"""What hands its operands on, sooner or later, here or there: schedules say when and where."""
TELLING = frozenset({"PrintTensor", "Assert", "HostEmbeddingNotify"})
"""What only tells somebody something: its operand, where it gives anything."""
CHECKED_INPUT = "RecomputationInput"
"""Takes what is recomputed, then what it is made of; it is the latter."""
SHARE = "ReplicationNormalise"
"""Divides by the number of replicas: by itself, or in what an all-reduce adds up with."""
REPLICAS, REPLICA = "ReplicationFactor", "ReplicationIndex"
REPLICATION = frozenset({SHARE, REPLICAS, REPLICA})
STRUCTURE = (
    REPLICATION
    | {CREATE, ADD, SINK, COUNT, COUNTER, NOTHING, CHECKED_INPUT}
    | WINDOWED
    | MOVES
    | TELLING
)
"""All targets of which nothing is left in a plain step."""

_OPCODES = {"fifo": "Fifo", "inter-ipu-copy": "InterIpuCopy"}
"""As printed where an instruction's kind stands for its opcode."""


def target_of(instruction: Instruction) -> str:
    """Return which op of Graphcore's an instruction is; empty where it is none of a structure."""
    if instruction.opcode == "custom-call":
        target = instruction.attributes.text("custom_call_target")
    else:
        target = _OPCODES.get(instruction.opcode, "")
    return target if target in STRUCTURE else ""


def attributes_of(instruction: Instruction) -> Mapping[str, object]:
    """Return the attributes of a custom call; none where its configuration is no JSON object."""
    return _parsed_config(instruction.backend_config)


def integer_of(instruction: Instruction, *keys: str) -> int | None:
    """Return the first of some attributes that is a number."""
    attributes = attributes_of(instruction)
    for key in keys:
        value = str(attributes.get(key, ""))
        if value.isascii() and value.lstrip("-").isdecimal() and len(value) < 20:
            return int(value)
    return None


@lru_cache(maxsize=1024)
def _parsed_config(config: str) -> Mapping[str, object]:
    if not config:
        return {}
    try:
        parsed = json.loads(read_backend_config(config))
    except (json.JSONDecodeError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
