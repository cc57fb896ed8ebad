"""Judges one program: hloipu's program of one device, its values and its traffic."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

import hloipu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import evaluate_participants
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape, leaves_of
from hloipu_compiler.partition.spmd.deciding import shardings_of
from hloipu_compiler.partition.spmd.localizing import entry_splits, for_one_device
from hloipu_compiler.partition.spmd.propagating import Propagated
from hloipu_compiler.passes.inline_calls import inlined
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.kernels.core.storage import user_dtype
from tests.support.blocks import block_of, padded_block
from tools.spmd_conformance.traffic import Traffic, traffic_of

_TOLERANCE = {"bf16": 3e-2, "f16": 3e-3, "f32": 1e-4, "c64": 1e-4}
"""Of the largest value, by the coarsest type of a program: sums in another order, and products of a
few hundred terms."""
MESSAGE = 64.0
"""Bytes added on both sides of a ratio, so that none against a few is no infinity (assumed)."""


@dataclass(frozen=True)
class Judged:
    """One program in one dialect."""

    name: str
    part: str
    """Of the table."""
    dialect: str
    fault: str = ""
    """Empty: every device has its blocks of what JAX computes."""
    ours: Traffic | None = None
    theirs: Traffic | None = None

    @property
    def ratio(self) -> float | None:
        """Bytes that we send for each byte that XLA sends."""
        if self.ours is None or self.theirs is None:
            return None
        return (self.ours.byte_count + MESSAGE) / (self.theirs.byte_count + MESSAGE)


def judged(record: Mapping[str, Any], dialect: str) -> Judged:
    """Judge a program as the child process of JAX printed it, on tiles too where that is asked."""
    name, part = record["name"], record["part"]
    if "fault" in record:
        return Judged(name, part, dialect, f"JAX: {record['fault']}")
    ours = theirs = None
    try:
        module = parse(record["text"])
        verify(module)
        module = inlined(module)
        known = shardings_of(module)
        devices = known.axes.device_count
        local = for_one_device(module, known)
        verify(local)
        ours = traffic_of(local, devices)
        theirs = traffic_of(parse(record["theirs"]), devices)
        fault = ""
        if record["arrays"]:
            with np.load(BytesIO(record["arrays"])) as arrays:
                fault = differing(module, known, local, dict(arrays))
                if record.get("on_tiles") and not fault:
                    fault = differing_on_tiles(record["text"], dict(arrays))
    except HloipuError as error:
        fault = f"refused: {error}"
    except (TypeError, ValueError, LookupError, ArithmeticError, AssertionError):  # a defect
        fault = f"failed: {traceback.format_exc(limit=-2)}"
    return Judged(name, part, dialect, fault, ours, theirs)


def differing(
    module: Module, known: Propagated, local: Module, arrays: Mapping[str, np.ndarray]
) -> str:
    """Return where a device's results are not its blocks of JAX's; empty where all are."""
    entry, devices = module.entry, range(known.axes.device_count)
    blocks: list[list[Any]] = [[] for _ in devices]
    given, results = entry_splits(module, known)
    for number, (position, split) in enumerate(zip(entry.parameters, given, strict=True)):
        shape = entry.instructions[position].shape
        assert isinstance(shape, ArrayShape)
        values = arrays[f"argument{number}"].astype(user_dtype(shape.element_type.name))
        for device in devices:
            blocks[device].append(padded_block(known.axes, device, split, values))
    found = evaluate_participants(local, blocks, partitions=len(devices))
    shapes = leaves_of(entry.instructions[entry.root].shape)
    arrays_shapes = (x.shape for x in entry.instructions)
    kinds = {s.element_type.name for s in arrays_shapes if isinstance(s, ArrayShape)}
    coarsest = max(t for kind, t in _TOLERANCE.items() if kind in kinds or kind == "f32")
    for number, (shape, split) in enumerate(zip(shapes, results, strict=True)):
        whole = arrays[f"result{number}"]
        tolerance = coarsest if shape.element_type.name in _TOLERANCE else 0.0
        bound = tolerance * max(1.0, float(np.abs(whole).max(initial=0.0))) if tolerance else 0.0
        first: dict[tuple[int, ...], bytes] = {}
        for device in devices:
            theirs = block_of(known.axes, device, split, whole)
            ours = found[device][number][tuple(map(slice, theirs.shape))]
            if ours.shape != theirs.shape:
                return f"result {number} of device {device} has sizes {ours.shape}"
            wide = np.complex128 if whole.dtype.kind == "c" else np.float64
            apart = np.abs(ours.astype(wide) - theirs.astype(wide))
            if not np.all((apart <= bound) | (np.isnan(ours) & np.isnan(theirs))):
                return f"result {number} of device {device} is {np.max(apart):.3g} off"
            own = np.ascontiguousarray(ours).tobytes()
            if first.setdefault(_block(known, device, split), own) != own:
                return f"result {number} of device {device} is not what its replicas have"
    return ""


def differing_on_tiles(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Return where values of a compiled program, in either mode, are not JAX's; empty: nowhere.

    On a small machine, if the program fits that; memory is poisoned in the exact mode. Whole
    numbers have no other bits; floats that are summed tile by tile are within a tolerance.
    """
    given = [value for name, value in arrays.items() if name.startswith("argument")]
    program = hloipu.compile(text, target="tiny")
    if not program.fits:
        program = hloipu.compile(text)
    kinds = [port.dtype for port in program.inputs]
    given = [value.astype(kind) for value, kind in zip(given, kinds, strict=True)]
    results = [value for name, value in arrays.items() if name.startswith("result")]
    for mode in ("functional", "exact"):
        outputs = program.run(*given, mode=mode, poison=mode == "exact").outputs
        for number, (ours, whole) in enumerate(zip(outputs, results, strict=True)):
            coarsest = max(t for kind, t in _TOLERANCE.items() if kind in text or kind == "f32")
            bound = coarsest * max(1.0, float(np.abs(whole).max(initial=0.0)))
            bound = bound if whole.dtype.kind in "fc" else 0.0
            if not np.allclose(np.asarray(ours, whole.dtype), whole, 0.0, bound, equal_nan=True):
                return f"result {number} in the {mode} mode on tiles is not JAX's"
    return ""


def _block(known: Propagated, device: int, split: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Return which block of an array a device has."""
    place = known.axes.devices.index(device) if known.axes.devices else device
    digits = np.unravel_index(place, known.axes.sizes) if known.axes.sizes else ()
    return tuple(int(digits[part]) for parts in split for part in parts)
