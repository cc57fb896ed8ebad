"""Evaluate one program as several replicas and partitions, each in a thread of its own."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from hloipu_compiler.evaluate.evaluator import EvaluationLimits, Evaluator
from hloipu_compiler.evaluate.meeting import Meeting, MeetingError
from hloipu_compiler.evaluate.plan import Array
from hloipu_compiler.evaluate.site import Effects
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.ops import COLLECTIVES
from hloipu_runtime.errors import LimitError, UsageError

MOST_PARTICIPANTS = 512
"""Each takes a thread and its own values."""


def participants_of(module: Module) -> tuple[int, int]:
    """Return how many replicas and partitions a module's collectives are written for.

    From its header; where that says nothing, from the highest id that a group names. A module
    without collectives computes the same everywhere and needs one participant.
    """
    found = [x for c in module.computations for x in c.instructions if x.opcode in COLLECTIVES]
    if not found:
        return 1, 1
    replicas = module.attributes.integer("replica_count", 1)
    partitions = module.attributes.integer("num_partitions", 1)
    if replicas * partitions > 1:
        return replicas, partitions
    ids = [i for x in found for group in x.attributes.replica_groups().groups for i in group]
    ids += [i for x in found for pair in x.attributes.pairs("source_target_pairs") for i in pair]
    wanted = max(ids, default=0) + 1
    if any(x.attributes.integer("channel_id") for x in found):
        return 1, wanted
    return wanted, 1


def evaluate_participants(
    module: Module,
    arguments: Sequence[Sequence[object]],
    *,
    replicas: int = 1,
    partitions: int = 1,
    effects: Effects | None = None,
    limits: EvaluationLimits | None = None,
) -> list[list[Array]]:
    """Evaluate every participant on its own arguments; return each one's result leaves.

    `arguments` has one sequence for each participant, numbered replica * partitions + partition,
    or a single one for all. Raises what the first participant that failed raised.
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
        return [Evaluator(module, base, limits)(*arguments[0])]
    meeting = Meeting()

    def run(number: int) -> list[Array]:
        replica, partition = divmod(number, partitions)
        mine = replace(base, replica=replica, partition=partition, meeting=meeting, state={})
        try:
            given = arguments[number if len(arguments) > 1 else 0]
            return Evaluator(module, mine, limits)(*given)
        except BaseException as error:
            meeting.fail(error)
            raise

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(run, number) for number in range(count)]
    errors = [e for f in futures if (e := f.exception()) is not None]
    if errors:
        raise next((e for e in errors if not isinstance(e, MeetingError)), errors[0])
    return [f.result() for f in futures]
