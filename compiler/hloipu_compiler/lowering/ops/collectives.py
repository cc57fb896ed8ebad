"""Lowering of collectives: one step in which all members of a group meet."""

from collections.abc import Sequence

from hloipu_compiler.analysis.participant_groups import groups_of, pairs_of
from hloipu_compiler.errors import CodegenError
from hloipu_compiler.interpret.planning.regions import monoid_of
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import TileTensor, Value
from hloipu_compiler.lowering.core.views import seen_as
from hloipu_compiler.plan.own_numbers import OwnNumbers, own_numbers
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.program import collective as c
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import Collective, CollectiveForm, Moved
from hloipu_runtime.program.descriptors import is_complete
from hloipu_runtime.program.mapping import Sizes


def met(
    builder: Builder,
    form: CollectiveForm,
    operands: Sequence[TileTensor],
    results: Sequence[tuple[str, Sizes]],
    last_uses: Sequence[bool] = (),
) -> list[TileTensor]:
    """Write a collective; return its results, those of operands at their last use where these lay.

    Each result lies on its operand's IPU, those of other forms on the IPU at hand.
    """
    outputs, here = [], builder.ipu
    for number, kind in enumerate(results):
        value = builder.value(*kind)
        before = operands[number] if len(operands) == len(results) else None
        if before is not None:
            builder.ipu = builder.variables[before.variable].ipu
        dies = number < len(last_uses) and last_uses[number]
        if before is not None and dies and _may_end_in(builder, before, kind, operands):
            variable = before.variable
        else:
            variable = builder.variable(*kind, builder.default_mapping(*kind))
        outputs.append(TileTensor(value, variable, *kind))
    builder.ipu = here
    builder.emit(s.Sync(builder.scope.ipus or builder.ipus))
    builder.emit(
        Collective(
            form,
            tuple(Moved(tensor.variable, tensor.value) for tensor in operands),
            tuple(Moved(tensor.variable, tensor.value) for tensor in outputs),
            builder.origin,
        )
    )
    return outputs


def _may_end_in(
    builder: Builder, before: TileTensor, kind: tuple[str, Sizes], operands: Sequence[TileTensor]
) -> bool:
    """Whether a result may take the memory of an operand at its last use."""
    return (
        (before.element_type, before.shape) == kind
        and before.variable in builder.scope.owned
        and is_complete(builder.variables[before.variable].mapping, before.shape)
        and [tensor.variable for tensor in operands].count(before.variable) == 1
    )


@lowers("own-part")
def _own_part(context: LoweringContext) -> Sequence[Value]:
    """Write that each participant takes its part of a tensor, from a place that it knows."""
    own, position = own_numbers_of(context)
    form = CollectiveForm(c.OWN_PART, starts=own.parts[position])
    return met(context.builder, form, [context.tile_tensor(0)], context.results)


@lowers("own-number")
def _own_number(context: LoweringContext) -> Sequence[Value]:
    own, position = own_numbers_of(context)
    ((kind, shape),) = context.results
    numbers = own.numbers[position].astype(storage_dtype(kind))
    table = context.builder.constant(numbers, kind)
    form = CollectiveForm(c.OWN_PART, starts=tuple((n,) for n in range(len(numbers))))
    taken = met(context.builder, form, [table], [(kind, (1,))])
    return taken if shape == (1,) else seen_as(context.builder, taken, shape)


def own_numbers_of(context: LoweringContext) -> tuple[OwnNumbers, int]:
    """Return what participants know, and the position of the instruction at hand."""
    plan, computation = context.plan, context.computation
    own = own_numbers(computation, plan.replicas, plan.partitions)
    return own, computation.position[context.instruction.name]


@lowers("replica-id", "partition-id")
def _identity(context: LoweringContext) -> Sequence[Value]:
    return met(context.builder, CollectiveForm(context.instruction.opcode), (), context.results)


@lowers("all-reduce", "reduce-scatter")
def _reducing(context: LoweringContext) -> Sequence[Value]:
    name = context.attributes.text("to_apply")
    monoid = monoid_of(context.module, name) or ""
    body = None if monoid else context.expression(name)
    scattered = context.instruction.opcode == c.REDUCE_SCATTER
    dimension = context.attributes.integers("dimensions")[0] if scattered else 0
    return _met(context, dimension=dimension, monoid=monoid, body=body)


@lowers("all-gather")
def _all_gather(context: LoweringContext) -> Sequence[Value]:
    return _met(context, dimension=context.attributes.integers("dimensions")[0])


@lowers("all-to-all")
def _all_to_all(context: LoweringContext) -> Sequence[Value]:
    dimensions = context.attributes.integers("dimensions")
    if isinstance(context.instruction.shape, TupleShape) and not dimensions:
        return _met(context, dimension=c.TUPLE_FORM)
    return _met(context, dimension=dimensions[0] if dimensions else 0)


@lowers("ragged-all-to-all", "collective-broadcast")
def _plain(context: LoweringContext) -> Sequence[Value]:
    _refuse(context, "has_dynamic_root", present=context.attributes.flag("has_dynamic_root"))
    return _met(context)


@lowers("collective-permute")
def _permute(context: LoweringContext) -> Sequence[Value]:
    _refuse(context, "slice_sizes", present="slice_sizes" in context.attributes)
    plan = context.plan
    return _met(context, pairs=pairs_of(context.instruction, plan.replicas, plan.partitions))


def _met(context: LoweringContext, **of_form: object) -> list[TileTensor]:
    plan, instruction = context.plan, context.instruction
    groups = groups_of(instruction, plan.replicas, plan.partitions)
    form = CollectiveForm(instruction.opcode, groups, **of_form)  # type: ignore[arg-type]
    operands = [context.tile_tensor(number) for number in range(len(instruction.operands))]
    kinds = [(operand.element_type, operand.shape) for operand in operands]
    participants = plan.replicas * plan.partitions
    left_out = _left_out(form, participants)
    for message in (*left_out, *c.form_faults(form, kinds, context.results, participants)):
        raise CodegenError(
            "E0512",
            f"{instruction.opcode} {instruction.name!r} over {plan.replicas} replicas of "
            f"{plan.partitions} partitions: "
            f"{message}",
            hint="write groups of one size that name every participant once, "
            "or give --replicas as many as they name",
        )
    return met(context.builder, form, operands, context.results, context.last_uses)


def _left_out(form: CollectiveForm, participants: int) -> list[str]:
    """Return what is wrong with the groups of a reduction that leave somebody out.

    Source: openxla/xla docs/operation_semantics.md, AllReduce (`replica_groups`).
    """
    missing = set(range(participants)).difference(*form.groups)
    if form.kind != c.ALL_REDUCE or not form.groups or not missing:
        return []
    return [f"participant {min(missing)} is in no group"]


def _refuse(context: LoweringContext, attribute: str, *, present: bool) -> None:
    """Refuse the forms whose meaning only a device's own runtime defines."""
    if present:
        raise CodegenError(
            "E0463",
            f"{context.instruction.opcode} {context.instruction.name!r} with {attribute} "
            "has no rule",
            hint=f"write it without {attribute}",
        )
