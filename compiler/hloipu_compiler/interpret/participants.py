"""Evaluates one program as several replicas and partitions, a thread each."""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.interpret.evaluator import EvaluationLimits, Evaluator
from hloipu_compiler.interpret.ops.manual_sharding import border_device_count
from hloipu_compiler.interpret.planning.meeting import Meeting
from hloipu_compiler.interpret.planning.plan import Array, Watcher
from hloipu_compiler.interpret.planning.site import Effects, array_leaves
from hloipu_compiler.ir.annotations import is_border, needs_others
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_runtime.errors import LimitError, UsageError

MOST_PARTICIPANTS = 512
"""Each takes a thread and its own values."""

_BY_PARTITION = ("all-to-all", "ragged-all-to-all", "collective-")
"""Opcodes whose ids are partitions where they have a channel."""


def meeting_computations(module: Module) -> frozenset[str]:
    """Return the names of the computations in which participants meet, callees included."""
    meeting: set[str] = set()
    for computation in callees_first(module):
        if any(
            needs_others(op) or meeting & {*op.attributes.called} for op in computation.instructions
        ):
            meeting.add(computation.name)
    return frozenset(meeting)


def participants_of(module: Module) -> tuple[int, int]:
    """Return how many replicas and partitions a module is written for.

    From its header; where that says nothing, from the ids that groups, pairs and manual shardings
    name. A module in which nobody meets computes the same everywhere and needs one participant.
    """
    exchanging = [(c, op) for c in module.computations for op in c.instructions if needs_others(op)]
    if not exchanging:
        return 1, 1
    replicas = partitions = devices = 1
    for computation, instruction in exchanging:
        kind, count = _ids(module, computation, instruction)
        if kind == "replicas":
            replicas = max(replicas, count)
        elif kind == "partitions":
            partitions = max(partitions, count)
        else:
            devices = max(devices, count)
    stated_replicas = module.attributes.integer("replica_count", 1)
    stated_partitions = module.attributes.integer("num_partitions", 1)
    if stated_replicas > 1:
        replicas = stated_replicas
    if stated_partitions > 1:
        partitions = stated_partitions
    if devices > replicas * partitions and stated_partitions <= 1:
        partitions = -(-devices // replicas)
    elif devices > replicas * partitions and stated_replicas <= 1:
        replicas = -(-devices // partitions)
    return replicas, partitions


def _ids(module: Module, computation: Computation, instruction: Instruction) -> tuple[str, int]:
    """Return what the ids of an instruction count, and a number above them all."""
    if is_border(instruction):
        return "partitions", border_device_count(module, computation, instruction)
    attributes = instruction.attributes
    ids = [i for group in attributes.replica_groups().groups for i in group]
    ids += [i for pair in attributes.pairs("source_target_pairs") for i in pair]
    count = max(ids) + 1 if ids else _everybody(computation, instruction)
    if attributes.integer("channel_id") <= 0:
        return "replicas", count
    if instruction.opcode.startswith(_BY_PARTITION):
        return "partitions", count
    everybody = not ids  # one group of all replicas with all their partitions
    is_flat = everybody or attributes.flag("use_global_device_ids")
    return "devices" if is_flat else "replicas", count


def _everybody(computation: Computation, instruction: Instruction) -> int:
    """Return how many take part where no group is written, as far as the shapes tell; else 1."""
    dimensions = instruction.attributes.integers("dimensions")
    before = array_leaves(computation.instructions[instruction.operands[0]].shape)[0].dimensions
    after = array_leaves(instruction.shape)[-1].dimensions
    if instruction.opcode == "all-to-all" and not dimensions:
        return len(instruction.operands)
    if not dimensions or max(dimensions) >= min(len(before), len(after)):
        return 1
    small, large = sorted((before[dimensions[0]], after[dimensions[0]]))
    return large // small if small > 0 and large % small == 0 else 1


def evaluate_participants(
    module: Module,
    arguments: Sequence[Sequence[object]],
    *,
    replicas: int = 1,
    partitions: int = 1,
    effects: Effects | None = None,
    limits: EvaluationLimits | None = None,
    watch: Watcher | None = None,
) -> list[list[Array]]:
    """Evaluate every participant on its own arguments; return each one's result leaves.

    `arguments` has one sequence for each participant, numbered replica * partitions + partition,
    or a single one for all. `watch` sees the first participant's values; `limits` hold for all
    together. Raises what the first participant that failed raised.
    """
    count = replicas * partitions
    if not 1 <= count <= MOST_PARTICIPANTS:
        raise LimitError(
            "E5012",
            f"{count} participants were asked for, 1 to {MOST_PARTICIPANTS} can be evaluated",
            limit="participants",
            allowed=MOST_PARTICIPANTS,
            found=count,
        )
    if len(arguments) not in (1, count):
        raise UsageError(
            "E3105",
            f"{count} participants take {count} lists of arguments, or one for all; "
            f"{len(arguments)} were given",
        )
    base = replace(effects or Effects(), replicas=replicas, partitions=partitions)
    if count == 1:
        alone = replace(base, watch=watch)
        return [Evaluator(module, alone, limits)(*arguments[0], watch=watch)]
    total_limits = limits or EvaluationLimits()
    share = replace(total_limits, live_bytes=total_limits.live_bytes // count)
    meeting = Meeting(count)

    def run(number: int) -> list[Array]:
        replica, partition = divmod(number, partitions)
        own_watch = watch if number == 0 else None
        mine = replace(
            base, replica=replica, partition=partition, meeting=meeting, watch=own_watch, state={}
        )
        own_arguments = arguments[number if len(arguments) > 1 else 0]
        return Evaluator(module, mine, share)(*own_arguments, watch=own_watch)

    return meeting.hold(run, count)


def evaluate_everywhere(
    module: Module,
    *arguments: object,
    effects: Effects | None = None,
    limits: EvaluationLimits | None = None,
    watch: Watcher | None = None,
) -> list[Array]:
    """Evaluate as many participants as a module is written for, all on the same arguments.

    Returns the first one's result leaves: of a manually sharded module these are the whole values.
    """
    replicas, partitions = participants_of(module)
    return evaluate_participants(
        module,
        [arguments],
        replicas=replicas,
        partitions=partitions,
        effects=effects,
        limits=limits,
        watch=watch,
    )[0]
