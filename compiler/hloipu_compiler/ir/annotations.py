"""Custom calls that only annotate: shardings, barriers, placements.

Whoever follows values asks this table, so that no analysis stops at an annotation that another one
sees through.
"""

from hloipu_compiler.ir.attributes import Raw
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.ops import COLLECTIVES

PER_MICRO_BATCH = "hloipu.per_micro_batch"
"""Marks a value that each micro-batch makes anew, even where it is the same for all of them."""

FED = "hloipu.fed"
"""Frontend attribute of a parameter that was an infeed, and of what an outfeed takes: `sharding=`
counts there in texts of Shardy, too."""
OF_A_QUEUE = Raw(f'{{{FED}="true"}}')
"""The frontend attributes that say so."""

# Sources: openxla/xla: xla/service/sharding_propagation.cc, xla/service/spmd/spmd_partitioner.cc
# (Sharding, InspectSharding, shard barriers), xla/service/spmd/shardy/constants.h (xla.sdy.*),
# xla/hlo/transforms/host_offloader.h and xla/service/host_memory_offload_annotations.h
# (MoveToHost, MoveToDevice, annotate_device_placement), xla/service/custom_call_target_registry.h;
# tensorflow/tensorflow: tensorflow/compiler/tf2xla/kernels/gather_op.cc
# (AssumeGatherIndicesInBound); AWS Neuron's PyTorch/XLA prints the last one.
IDENTITY_TARGETS = frozenset(
    {
        PER_MICRO_BATCH,
        "Sharding", "InspectSharding", "ShardBarrierFrom", "ShardBarrierTo",
        "xla.sdy.FuncResultSharding", "xla.sdy.PropagationBarrier", "xla.sdy.ShardingGroup",
        "annotate_device_placement", "MoveToHost", "MoveToDevice", "PinToDevice", "PinToDeviceSram",
        "LayoutConstraint", "AssumeGatherIndicesInBound",
        "AwsNeuronTransferWithStaticRing",
    }
)  # fmt: skip
"""Targets whose value is the operand's, or that have no value."""
PARTITIONED_TARGET = "CustomSPMDPartitioning"
"""Target of JAX's `custom_partitioning`: what it computes is the computation that it calls
(jax-ml/jax: jax/_src/custom_partitioning.py)."""

SHARDY_IN, SHARDY_OUT = "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"
GSPMD_IN, GSPMD_OUT = "SPMDFullToShardShape", "SPMDShardToFullShape"
BORDERS = frozenset({SHARDY_IN, SHARDY_OUT, GSPMD_IN, GSPMD_OUT})
"""Targets of the calls at the border of a manually sharded region."""


def is_border(op: Instruction) -> bool:
    """Whether an instruction stands at the border of a manually sharded region."""
    return op.opcode == "custom-call" and op.attributes.text("custom_call_target") in BORDERS


def needs_others(op: Instruction) -> bool:
    """Whether an instruction takes part in a meeting of participants."""
    return op.opcode in COLLECTIVES or is_border(op)


def is_identity(op: Instruction) -> bool:
    """Whether an instruction is a custom call that only annotates."""
    return (
        op.opcode == "custom-call" and op.attributes.text("custom_call_target") in IDENTITY_TARGETS
    )
