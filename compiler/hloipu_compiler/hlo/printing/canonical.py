"""The canonical form: names by position, attributes by name, defaults left out.

Two modules with one canonical text are the same program. Metadata, backend configurations, names
and stack tables do not count; layouts, shardings and frontend attributes do.
"""

from hloipu_compiler.ir.attribute_kinds import INSTRUCTION_KINDS, MODULE_KINDS
from hloipu_compiler.ir.attribute_kinds import AttributeKind as K
from hloipu_compiler.ir.attributes import Attributes, Value
from hloipu_compiler.ir.graph import Computation, Instruction, Module

_DEFAULTS: dict[str, frozenset[Value]] = {
    "feature_group_count": frozenset({1}), "batch_group_count": frozenset({1}),
    "is_stable": frozenset({False}), "indices_are_sorted": frozenset({False}),
    "unique_indices": frozenset({False}), "use_global_device_ids": frozenset({False}),
    "constrain_layout": frozenset({False}), "custom_call_has_side_effect": frozenset({False}),
    "is_host_transfer": frozenset({False}), "is_composite": frozenset({False}),
    "is_reverse": frozenset({False}), "lhs_batch_dims": frozenset({()}),
    "rhs_batch_dims": frozenset({()}), "lhs_contracting_dims": frozenset({()}),
    "rhs_contracting_dims": frozenset({()}), "operand_batching_dims": frozenset({()}),
    "start_indices_batching_dims": frozenset({()}), "input_batching_dims": frozenset({()}),
    "scatter_indices_batching_dims": frozenset({()}),
    "operand_precision": frozenset({("default",), ("default", "default")}),
    "api_version": frozenset({"API_VERSION_ORIGINAL", "API_VERSION_UNSPECIFIED"}),
    "schedule": frozenset({"SCHEDULE_NONE"}),
    "is_scheduled": frozenset({False}), "replica_count": frozenset({1}),
    "num_partitions": frozenset({1}), "alias_passthrough_params": frozenset({False}),
    "allow_spmd_sharding_propagation_to_parameters": frozenset({(False,)}),
    "allow_spmd_sharding_propagation_to_output": frozenset({(False,)}),
}  # fmt: skip
"""Values that mean what leaving the attribute out means."""


def canonical_attributes(attributes: Attributes) -> Attributes:
    """Return the attributes sorted by name, without those that say their default."""
    stated = {
        key: value
        for key, value in sorted(attributes.items())
        if value not in _DEFAULTS.get(key, ())
    }
    return Attributes(stated, attributes.called)


def canonical_module(module: Module) -> Module:
    """Return the module with names by position: `v7`, `p7` (parameters), `c2` (computations)."""
    names = {c.name: f"c{i}" for i, c in enumerate(module.computations)}
    first = 0
    computations = []
    for computation in module.computations:
        computations.append(_renamed(computation, names, first))
        first += len(computation.instructions)
    attributes = canonical_attributes(_with_names(module.attributes, MODULE_KINDS, names, {}))
    return Module("m", tuple(computations), module.entry_position, attributes)


def _renamed(computation: Computation, names: dict[str, str], first: int) -> Computation:
    instruction_names = {
        op.name: f"{'p' if op.parameter_number >= 0 else 'v'}{first + i}"
        for i, op in enumerate(computation.instructions)
    }
    memo: dict[Attributes, Attributes] = {}
    instructions = tuple(
        op._replace(
            name=instruction_names[op.name],
            attributes=_remembered(op, names, instruction_names, memo),
        )
        for op in computation.instructions
    )
    return Computation(
        names[computation.name], instructions, computation.root, computation.execution_thread
    )


def _remembered(
    instruction: Instruction,
    names: dict[str, str],
    instruction_names: dict[str, str],
    memo: dict[Attributes, Attributes],
) -> Attributes:
    attributes = instruction.attributes
    if not attributes.called and "control-predecessors" not in attributes:
        return attributes
    known = memo.get(attributes)
    if known is None:
        known = memo[attributes] = _with_names(
            attributes, INSTRUCTION_KINDS, names, instruction_names
        )
    return known


def _with_names(
    attributes: Attributes,
    kinds: dict[str, K],
    names: dict[str, str],
    instruction_names: dict[str, str],
) -> Attributes:
    values: dict[str, Value] = {}
    for key, value in attributes.items():
        kind = kinds.get(key)
        if kind is K.COMPUTATION and isinstance(value, str):
            values[key] = names.get(value, value)
        elif kind is K.COMPUTATIONS and isinstance(value, tuple):
            values[key] = tuple(names.get(str(v), str(v)) for v in value)
        elif kind is K.INSTRUCTIONS and isinstance(value, tuple):
            values[key] = tuple(instruction_names.get(str(v), str(v)) for v in value)
        else:
            values[key] = value
    return Attributes(values, tuple(names.get(c, c) for c in attributes.called))
