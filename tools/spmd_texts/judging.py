"""Judges one text: values on all devices, and shardings that a test expects."""

import time
import traceback
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hloipu_compiler.hlo.attributes.sharding import read_sharding
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.interpret.participants import evaluate_participants
from hloipu_compiler.ir.annotations import is_border
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape, leaves_of
from hloipu_compiler.partition.spmd.axes import to_tiles
from hloipu_compiler.partition.spmd.deciding import shardings_of
from hloipu_compiler.partition.spmd.partitioning import is_divided, ready_to_divide
from hloipu_compiler.partition.spmd.propagating import Propagated
from hloipu_compiler.partition.spmd.reading import partitioned_already
from hloipu_compiler.verify.sharding_forms import leaf_shardings, normal_form
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.kernels.core.storage import user_dtype
from tests.support.arrays import Array
from tests.support.blocks import check_on_devices
from tools.spmd_conformance.judging import MESSAGE
from tools.spmd_conformance.traffic import Traffic, traffic_of
from tools.spmd_texts.texts import ROOT, Text, read, small
from tools.spmd_texts.theirs import traffic_in_xla

TOLERANCE = 2e-3
"""Sums of blocks are rounded in another order."""
_MEETING = ("infeed", "outfeed", "send", "recv")
RIGHT, WRONG, FAILED, REFUSED = "right", "WRONG", "FAILED", "refused"


class Claim(NamedTuple):
    """A sharding that a test expects, and ours."""

    op: str
    opcode: str
    kind: str
    """same; order: but for the order of devices; other; gone: the op is."""
    ours: str = ""
    theirs: str = ""


class Outcome(NamedTuple):
    """What became of a text."""

    name: str
    kind: str
    told: str = ""
    claims: tuple[Claim, ...] = ()
    ours: Traffic | None = None
    theirs: Traffic | None = None
    """Of XLA's own program of one device."""
    seconds: float = 0.0

    @property
    def ratio(self) -> float:
        """Bytes that we send for each byte that XLA sends; 1 where that is not known."""
        if self.ours is None or self.theirs is None:
            return 1.0
        return (self.ours.byte_count + MESSAGE) / (self.theirs.byte_count + MESSAGE)


def judged(text: Text, in_xla: bool = False) -> Outcome:
    """Judge a text; `in_xla`: count what XLA's own program sends as well."""
    began = time.perf_counter()
    claims: tuple[Claim, ...] = ()
    kind, told, ours, theirs = FAILED, "", None, None
    try:
        claims = claims_of(text)
        kind, ours, theirs = _values(text, in_xla)
    except HloipuError as error:
        kind, told = REFUSED, " ".join(str(error).split())[:240]
    except AssertionError as error:
        kind, told = WRONG, " ".join(str(error).split())[:240]
    except Exception:  # a defect, whatever it is
        told = traceback.format_exc(limit=-3)
    seconds = time.perf_counter() - began
    return Outcome(text.name, kind, told, claims, ours, theirs, seconds)


def _values(text: Text, in_xla: bool) -> tuple[str, Traffic | None, Traffic | None]:
    module = small(text.text)
    if module is None:
        return "too large", None, None
    if partitioned_already(module):
        return "written for each device", None, None
    if not is_divided(module):
        return "nothing divided", None, None
    ops = [x for c in module.computations for x in c.instructions]
    if any(x.opcode in _MEETING for x in ops):
        return "has queues", None, None
    parameters = [module.entry.instructions[i].shape for i in module.entry.parameters]
    if not all(isinstance(shape, ArrayShape) for shape in parameters):
        return "takes tuples", None, None
    draws = np.random.default_rng(0)
    arguments = [_drawn(leaf, draws) for shape in parameters for leaf in leaves_of(shape)]
    ready = ready_to_divide(module)
    devices = shardings_of(ready).axes.device_count
    partitions = devices if any(map(is_border, ops)) else 1
    whole = evaluate_participants(module, [arguments], partitions=partitions)[0]
    local = check_on_devices(ready, arguments, whole, TOLERANCE)
    theirs = traffic_in_xla(print_module(module), devices) if in_xla else None
    return RIGHT, traffic_of(local, devices), theirs


def _drawn(shape: ArrayShape, draws: np.random.Generator) -> Array:
    kind = user_dtype(shape.element_type.name)
    if kind.kind in "iub":
        return np.asarray(draws.integers(0, 2 if kind.kind == "b" else 4, shape.dimensions), kind)
    return np.asarray(draws.standard_normal(shape.dimensions)).astype(kind)


def claims_of(text: Text) -> tuple[Claim, ...]:
    """Return what a test expects of ops, and what they have."""
    if not text.expected:
        return ()
    module = ready_to_divide(read(text.text))
    known = shardings_of(module)
    return tuple(_claim(module, known, *each) for each in text.expected)


def _claim(module: Module, known: Propagated, name: str, said: str) -> Claim:
    for computation in module.computations:
        for position, x in enumerate(computation.instructions):
            at_root = computation is module.entry and position == computation.root
            key = (computation.name, position)
            if (x.name == name or (name == ROOT and at_root)) and key in known.links.results:
                ours = [str(to_tiles(own, known.axes)) for own in known.result(key)]
                theirs = [str(s) for s in leaf_shardings(read_sharding(said), x.shape)]
                kind = _alike(ours, theirs)
                return Claim(name, x.opcode, kind, " ".join(ours), " ".join(theirs))
    return Claim(name, "", "gone")


def _alike(ours: list[str], theirs: list[str]) -> str:
    pairs = list(zip(ours, theirs, strict=True))
    if all(a == b or _normal(a) == _normal(b) for a, b in pairs):
        return "same"
    tiles = [(read_sharding(a).data_tiles, read_sharding(b).data_tiles) for a, b in pairs]
    return "order" if all(a == b for a, b in tiles) else "other"


@lru_cache
def _normal(text: str) -> str:
    return str(normal_form(read_sharding(text)))
