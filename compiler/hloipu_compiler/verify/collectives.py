"""Collectives: who takes part. Groups, source-target pairs, channel ids, sends and receives.

Sizes against group sizes are shape rules (`inference`); here is what the ids must obey. Source:
openxla/xla `xla/service/hlo_verifier.cc` (CheckReplicaGroups, CheckDuplicatedSourceOrTarget,
VerifyLayoutConstrainedAllReduce, VerifyChannels), `collective_ops_utils.cc`.
"""

from enum import Enum

from hloipu_compiler.errors import Note
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import Shape, TupleShape
from hloipu_compiler.verify.asynchronous import async_computations
from hloipu_compiler.verify.places import attribute_span, opcode_span
from hloipu_compiler.verify.survey import Place, Report, Survey


class Mode(Enum):
    """What the ids in a collective's groups number."""

    REPLICAS = "replicas"
    PARTITIONS = "partitions"
    REPLICAS_ACROSS_PARTITIONS = "replicas, each with all its partitions"
    DEVICES = "replicas x partitions"


_UNEVEN = frozenset({"all-reduce", "all-reduce-start"})
_PARTITIONED = frozenset({"all-to-all", "ragged-all-to-all"})
GROUPED = _UNEVEN | _PARTITIONED | {"all-gather", "all-gather-start", "reduce-scatter"}
"""Opcodes whose groups XLA checks; collective-broadcast is not among them."""
PAIRED = frozenset({"collective-permute", "collective-permute-start"})


def check_collective(module: Module, place: Place, report: Report) -> None:
    """Report wrong groups, pairs or channel ids of one collective."""
    instruction = place.instruction
    if instruction.opcode in PAIRED:
        _check_pairs(module, place, report)
        return
    mode = _check_mode(module, place, report)
    if mode is not None:
        _check_groups(module, place, mode, report)
    if instruction.opcode == "all-reduce":
        channel = instruction.attributes.get("channel_id")
        if isinstance(channel, int) and channel <= 0:
            report.add(
                "E0319",
                f"the channel id of {instruction.name} is {channel}",
                attribute_span(module, instruction, "channel_id"),
                expected="a channel id above 0",
            )


def _check_mode(module: Module, place: Place, report: Report) -> Mode | None:
    instruction = place.instruction
    attributes = instruction.attributes
    has_channel = "channel_id" in attributes
    if instruction.opcode in _PARTITIONED:
        return Mode.PARTITIONS if has_channel else Mode.REPLICAS
    if attributes.flag("use_global_device_ids"):
        if not has_channel:
            report.add(
                "E0316",
                f"{instruction.name} uses global device ids without a channel",
                attribute_span(module, instruction, "use_global_device_ids"),
                expected="a channel_id as well",
            )
            return None
        if not attributes.replica_groups().participant_count:
            report.add(
                "E0316",
                f"{instruction.name} uses global device ids without groups",
                attribute_span(module, instruction, "use_global_device_ids"),
                expected="replica_groups that list the devices",
            )
            return None
        return Mode.DEVICES
    return Mode.REPLICAS_ACROSS_PARTITIONS if has_channel else Mode.REPLICAS


def _check_groups(module: Module, place: Place, mode: Mode, report: Report) -> None:
    instruction = place.instruction
    groups = instruction.attributes.replica_groups()
    participants = groups.participant_count
    problem = "" if groups.text else _group_problem(groups.groups)
    if problem:
        report.add(
            "E0313",
            f"{problem} in the groups of {instruction.name}",
            attribute_span(module, instruction, "replica_groups"),
            expected="ids from 0 on without gaps, each in one group",
        )
        return
    if not participants:
        return
    wanted = participant_count(module, mode)
    if wanted not in (1, participants):
        report.add(
            "E0314",
            f"the groups of {instruction.name} name {participants} ids",
            attribute_span(module, instruction, "replica_groups"),
            expected=f"{wanted} ids, the number of {mode.value} in the header",
        )
    if groups.text or instruction.opcode in _UNEVEN:
        return  # the iota and mesh forms spell equal groups of every id
    sizes = [len(group) for group in groups.groups]
    if min(sizes) != max(sizes):
        report.add(
            "E0315",
            f"the groups of {instruction.name} have {min(sizes)} to {max(sizes)} members",
            attribute_span(module, instruction, "replica_groups"),
            expected="groups of one size",
        )


def _group_problem(groups: tuple[tuple[int, ...], ...]) -> str:
    total = sum(map(len, groups))
    is_member = bytearray(total)
    for group in groups:
        if not group:
            return "an empty group"
        for member in group:
            if not 0 <= member < total:
                return f"{member} is out of range"
            if is_member[member]:
                return f"{member} comes twice"
            is_member[member] = 1
    return ""


def participant_count(module: Module, mode: Mode) -> int:
    """Return how many participants the header announces; 1 where it says nothing."""
    replicas = module.attributes.integer("replica_count", 1)
    partitions = module.attributes.integer("num_partitions", 1)
    if mode is Mode.PARTITIONS:
        return partitions
    return replicas * partitions if mode is Mode.DEVICES else replicas


def _check_pairs(module: Module, place: Place, report: Report) -> None:
    instruction = place.instruction
    pairs = instruction.attributes.get("source_target_pairs", ())
    mode = Mode.PARTITIONS if "channel_id" in instruction.attributes else Mode.REPLICAS
    limit = participant_count(module, mode)
    times = _uses_allowed(place)
    counts: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for pair in pairs if isinstance(pairs, tuple) else ():
        problem = _pair_problem(pair, limit, times, counts, mode)
        if problem:
            report.add(
                "E0318",
                f"{problem} in the pairs of {instruction.name}",
                attribute_span(module, instruction, "source_target_pairs"),
                expected="each id at most once as source and once as target",
            )
            return


def _pair_problem(
    pair: object, limit: int, times: int, counts: tuple[dict[int, int], dict[int, int]], mode: Mode
) -> str:
    if not isinstance(pair, tuple) or len(pair) != 2:
        return "an entry is not a pair"
    for role, member, count in zip(("source", "target"), pair, counts, strict=True):
        if member < 0:
            return f"the {role} {member} is negative"
        if limit != 1 and member >= limit:
            return f"the {role} {member} is not below {limit}, the number of {mode.value},"
        count[member] = count.get(member, 0) + 1
        if count[member] > times:
            again = "twice" if times == 1 else f"more than {times} times"
            return f"the {role} {member} comes {again}"
    return ""


def _uses_allowed(place: Place) -> int:
    """Return how often an id may come: the in-place form permutes several slices at once."""
    shapes: tuple[Shape, ...] = place.operand_shapes
    if "slice_sizes" not in place.instruction.attributes or len(shapes) != 4:
        return 1
    offsets = shapes[2]
    if isinstance(shapes[0], TupleShape) and isinstance(offsets, TupleShape) and offsets.elements:
        offsets = offsets.elements[0]
    return len(offsets.elements) if isinstance(offsets, TupleShape) else 1


def check_constrained_layouts(survey: Survey, report: Report) -> None:
    """Report all-reduces that differ from the first one in `constrain_layout`."""
    places = survey.places("all-reduce", "all-reduce-start")
    if not places:
        return
    module, first = survey.module, places[0].instruction
    wanted = first.attributes.flag("constrain_layout")
    for place in places[1:]:
        instruction = place.instruction
        if instruction.attributes.flag("constrain_layout") != wanted:
            before = opcode_span(module, first)
            report.add(
                "E0332",
                f"{first.name} has constrain_layout={str(wanted).lower()} and {instruction.name} "
                f"has not",
                attribute_span(module, instruction, "constrain_layout"),
                expected="the same constrain_layout on every all-reduce",
                notes=[Note(before, "the other all-reduce")] if before else (),
            )


_DONE = {"send": "send-done", "recv": "recv-done"}


def check_channels(survey: Survey, report: Report) -> None:
    """Report dones whose channel differs from their start's, and unlike host transfers."""
    wrapped = async_computations(survey)
    reference: dict[int, Place] = {}
    for place in survey.places("send", "recv"):
        channel = place.instruction.attributes.get("channel_id")
        if not isinstance(channel, int):
            continue
        if place.instruction.attributes.flag("is_host_transfer"):
            first = reference.setdefault(channel, place)
            if first is not place and not _same_transfer(first, place):
                _report_unlike(survey.module, first, place, channel, report)
        if place.position != place.computation.root or place.computation.name not in wrapped:
            _check_done(survey.module, place, report)


def _check_done(module: Module, place: Place, report: Report) -> None:
    computation, start = place.computation, place.instruction
    users = computation.users[place.position]
    if len(users) != 1:
        return  # `verify.asynchronous` reports it
    done = computation.instructions[users[0]]
    if done.opcode != _DONE[start.opcode]:
        return
    for key in ("channel_id", "is_host_transfer"):
        if _value(start, key) != _value(done, key):
            at = attribute_span(module, start, key)
            report.add(
                "E0321",
                f"{done.name} has {_stated(done, key)}, {start.name} has {_stated(start, key)}",
                attribute_span(module, done, key),
                expected=f"the same {key} on both",
                notes=[Note(at, "the start")] if at else (),
            )


def _value(instruction: Instruction, key: str) -> object:
    return instruction.attributes.get(key, False if key == "is_host_transfer" else None)


def _stated(instruction: Instruction, key: str) -> str:
    value = _value(instruction, key)
    return f"no {key}" if value is None else f"{key}={str(value).lower()}"


def _same_transfer(a: Place, b: Place) -> bool:
    return (
        a.instruction.opcode == b.instruction.opcode
        and a.instruction.shape == b.instruction.shape
        and a.operand_shapes == b.operand_shapes
    )


def _report_unlike(
    module: Module, first: Place, place: Place, channel: int, report: Report
) -> None:
    at = opcode_span(module, first.instruction)
    report.add(
        "E0322",
        f"{place.instruction.name} is another host transfer on channel {channel} than "
        f"{first.instruction.name}",
        attribute_span(module, place.instruction, "channel_id"),
        expected="host transfers of one channel with the same opcode and shapes",
        notes=[Note(at, "the other one")] if at else (),
    )
