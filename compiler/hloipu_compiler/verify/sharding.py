"""Shardings: valid for the shape and the number of partitions, consistent around loops.

Source: openxla/xla `xla/hlo/ir/hlo_sharding.cc` (Validate), `xla/service/hlo_verifier.cc`
(VerifyConsistentSharding).

Of `origin=` only the nesting is read here: one original array for each leaf, nested alike. Source:
openxla/xla `xla/service/hlo_verifier.cc` (VerifyOriginalValue) and
`xla/hlo/ir/hlo_original_value.cc`.
"""

import re
from functools import lru_cache

from hloipu_compiler.errors import Note
from hloipu_compiler.hlo.attributes.sharding import Sharding, ShardingKind, read_sharding
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, BufferShape, Shape, TupleShape, leaves
from hloipu_compiler.verify.places import attribute_span
from hloipu_compiler.verify.sharding_forms import (
    WHOLE,
    effective_kind,
    leaf_shardings,
    listed_devices,
    mean_the_same,
)
from hloipu_compiler.verify.survey import Place, Report, Survey
from hloipu_runtime.element_types import TOKEN

_KEY = "sharding"


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Sharding | None:
    try:
        return read_sharding(text)
    except TextFault:
        return None  # the parser reports it


def check_sharding(module: Module, place: Place, report: Report) -> None:
    """Report a sharding that does not fit its instruction's shape or the header's partitions."""
    instruction = place.instruction
    sharding = _parsed(_without_every_ipu(instruction))
    if sharding is None:
        return
    partitions = module.attributes.integer("num_partitions", 1)
    problem = sharding_problem(sharding, instruction.shape, partitions)
    if problem:
        report.add(
            "E0325",
            f"the sharding of {instruction.name}, {instruction.shape}, {problem[0]}",
            attribute_span(module, instruction, _KEY),
            expected=problem[1],
        )


def _without_every_ipu(instruction: Instruction) -> str:
    """Return a sharding's text, with device 0 for -1 on pipeline stages.

    Graphcore's plugin has device -1 for all IPUs: on stages of several that run at once, and what
    is taken out of their results (graphcore/tensorflow:
    tensorflow/python/ipu/ops/pipelining_ops.py).
    """
    text = instruction.attributes.text(_KEY)
    if "device=-1" not in text:
        return text
    markings = instruction.attributes.text("frontend_attributes") + instruction.backend_config
    if instruction.opcode == "get-tuple-element" or (
        instruction.opcode == "call" and "PipelineStage" in markings
    ):
        return text.replace("device=-1", "device=0")
    return text


def sharding_problem(sharding: Sharding, shape: Shape, partitions: int) -> tuple[str, str] | None:
    """Return what is wrong with a sharding of a shape and what was expected; None if nothing is.

    One partition (the default) says nothing about the number of devices.
    """
    if isinstance(shape, ArrayShape) and shape.element_type is TOKEN:
        return None
    if sharding.kind is not ShardingKind.TUPLE:
        if not isinstance(shape, TupleShape):
            return _leaf_problem(sharding, shape, partitions)
    elif not isinstance(shape, TupleShape):
        return "is a tuple's", "one sharding for one array"
    elif len(sharding.elements) != shape.leaf_count and (
        shape.leaf_count or len(sharding.elements) > 1
    ):
        return f"has {len(sharding.elements)} elements", f"{shape.leaf_count}, one for each leaf"
    parts = leaf_shardings(sharding, shape)
    for part, (path, leaf) in zip(parts, leaves(shape), strict=False):
        problem = _leaf_problem(part, leaf, partitions)
        if problem:
            where = ",".join(map(str, path))
            return f"at {{{where}}} {problem[0]}", problem[1]
    return None


def _leaf_problem(sharding: Sharding, shape: Shape, partitions: int) -> tuple[str, str] | None:
    kind = effective_kind(sharding)
    if kind in WHOLE:
        return None
    array = shape.contents if isinstance(shape, BufferShape) else shape
    if not isinstance(array, ArrayShape):
        return "is not of one array", "one sharding for each leaf"
    if kind is ShardingKind.MAXIMAL:
        listed = sharding.named.mesh.devices.listed if sharding.named else sharding.devices.listed
        return _range_problem(listed, partitions)
    if not array.element_type.is_array:
        return "tiles what has no elements", "replicated, manual or maximal"
    count = sharding.device_count or 0
    if count == 1:
        return "is tiled over one device", "replicated, or maximal device=n"
    if len(sharding.data_tiles) != array.rank:
        tiles = ",".join(map(str, sharding.data_tiles))
        return f"has the tiles [{tiles}]", f"{array.rank} tile counts, one for each dimension"
    if partitions > 1 and count != partitions and not sharding.devices.listed:
        return f"is for {count} devices", f"{partitions}, the num_partitions of the header"
    if sharding.named is None and sharding.devices.listed:
        return _list_problem(sharding, partitions)
    return None


def _list_problem(sharding: Sharding, partitions: int) -> tuple[str, str] | None:
    devices = listed_devices(sharding)
    problem = _range_problem(devices, partitions)
    if problem:
        return problem
    if len(set(devices)) != len(devices):
        return "lists a device twice or leaves one out", "each device once"
    count = sharding.device_count or 0
    if partitions > 1 and count != partitions:
        return f"is for {count} devices", f"{partitions}, the num_partitions of the header"
    return None


def _range_problem(devices: tuple[int, ...], partitions: int) -> tuple[str, str] | None:
    for device in devices:
        if device < 0:
            return f"names device {device}", "devices from 0"
        if partitions > 1 and device >= partitions:
            return f"names device {device}", f"devices below {partitions}, the num_partitions"
    return None


def check_consistent_sharding(survey: Survey, report: Report) -> None:
    """Report whiles and conditionals whose parts have different shardings."""
    module = survey.module
    for place in survey.places("while"):
        body = module.computation.get(place.instruction.attributes.text("body"))
        condition = module.computation.get(place.instruction.attributes.text("condition"))
        related = [place.instruction]
        if body is not None:
            related += [body.instructions[i] for i in (body.root, *body.parameters[:1])]
        if condition is not None:
            related += [condition.instructions[i] for i in condition.parameters[:1]]
        _check_same(module, related, report)
    for place in survey.places("conditional"):
        branches = [module.computation.get(name) for name in place.instruction.attributes.called]
        roots = [c.instructions[c.root] for c in branches if c is not None]
        _check_same(module, [place.instruction, *roots], report)


def _check_same(module: Module, related: list[Instruction], report: Report) -> None:
    first: Instruction | None = None
    for instruction in related:
        text = instruction.attributes.text(_KEY)
        if not text:
            continue
        if first is None:
            first = instruction
            continue
        known = first.attributes.text(_KEY)
        if text == known:
            continue
        known_sharding, sharding = _parsed(known), _parsed(text)
        if (
            known_sharding is None
            or sharding is None
            or mean_the_same(known_sharding, sharding, instruction.shape)
        ):
            continue
        before = attribute_span(module, first, _KEY)
        report.add(
            "E0326",
            f"{first.name} and {instruction.name} ({related[0].opcode}) have different shardings",
            attribute_span(module, instruction, _KEY),
            expected=known[:200],
            notes=[Note(before, "the other sharding")] if before else (),
        )
        return


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[(){},]|\[[^\]]*\]', re.S)
KEYS = ("origin", "original_value")


def check_origin(module: Module, place: Place, report: Report) -> None:
    """Report an origin whose leaves are not those of the shape."""
    instruction = place.instruction
    for key in KEYS:
        raw = instruction.attributes.get(key)
        if not isinstance(raw, str) or "synthetic_call" in raw:
            continue
        paths = origin_indices(raw)
        wanted = {path for path, _ in leaves(instruction.shape)}
        if paths is not None and paths != wanted:
            report.add(
                "E0334",
                f"the {key} of {instruction.name} has {len(paths)} leaves",
                attribute_span(module, instruction, key),
                expected=f"the {len(wanted)} leaves of {instruction.shape}",
            )


def origin_indices(raw: str) -> set[tuple[int, ...]] | None:
    """Return the index paths of the leaves in an origin's text; None where it is not one."""
    text = raw.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    paths: set[tuple[int, ...]] = set()
    path: list[int] = []
    braces = 0
    for match in _TOKEN.finditer(text, 1, len(text) - 1):
        token = match.group()
        if token == "{":
            if braces == 0:
                paths.add(tuple(path))
            braces += 1
        elif token == "}":
            braces -= 1
        elif braces:
            continue
        elif token == "(":
            path.append(0)
        elif token == "," and path:
            path[-1] += 1
        elif token == ")":
            if not path:
                return None
            path.pop()
    return paths
