"""Send modules to the child process and collect their outputs.

Modules that a backend has optimised hold what StableHLO has no word for, or what the backend takes
only as it left it: fusions with their configurations, bitcasts between layouts.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import IO, Any, Self

import numpy as np

from hloipu_compiler.hlo.printing.printer import FULL, print_module
from hloipu_compiler.interpret.participants import participants_of
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.ir.annotations import is_border, is_identity
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes, Raw, ReplicaGroups
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.passes.algebra.expand_bitcasts import memory_order
from hloipu_compiler.passes.framework.attribute_edits import without
from hloipu_compiler.plan.flat_arrays import with_flat_parameters
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.core.storage import user_dtype

Array = np.ndarray[Any, Any]

SECONDS_FOR_EACH_JOB = 600.0
"""After so long without an answer the child is taken to hang. Assumed: real modules of some
thousand instructions compile in a minute."""

CHILD = (sys.executable, "-m", "hloipu.xla_cpu.child")
"""The command of the child; its folder comes after it."""

_WORDS = 300
"""Characters of what a child said before it ended that are passed on."""


@dataclass(frozen=True, slots=True)
class Job:
    """A module and the leaves of its arguments, in user dtypes; every participant gets the same."""

    module: Module
    arguments: Sequence[Array]
    replicas: int = 1
    partitions: int = 1

    @property
    def participants(self) -> int:
        """Devices that take part."""
        return self.replicas * self.partitions


class XlaCpu:
    """XLA:CPU in a child process, started with the first job and restarted after it ended.

    Use it as a context: the child is killed at the end. Raises UnsupportedError E0460 where jaxlib
    is not installed.
    """

    def __init__(self, seconds_for_each_job: float = SECONDS_FOR_EACH_JOB) -> None:
        if find_spec("jaxlib") is None or find_spec("jax") is None:
            raise UnsupportedError(
                "E0460",
                "comparing with XLA:CPU needs jaxlib, which is not installed",
                hint="pip install 'hloipu[jax]', or compare with evaluator-f64",
            )
        self._seconds = seconds_for_each_job
        self._folder = tempfile.TemporaryDirectory(prefix="hloipu-xla-")
        self._child: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        """What the child writes to stderr."""
        self._devices = 0
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the child and remove its files."""
        self._end()
        self._folder.cleanup()

    def __call__(self, work: Sequence[tuple[Module, Sequence[Array]]]) -> list[list[Array] | str]:
        """Run modules on leaves of arguments, each with the participants that it is written for.

        Returns for each the leaves of its result, or why XLA did not compute it.
        Raises UnsupportedError E0465 where the child gives no answer.
        """
        return [self.run(Job(module, leaves, *participants_of(module))) for module, leaves in work]

    def run(self, job: Job) -> list[Array] | str:
        """Run one job; returns and raises as a call does."""
        self._count += 1
        place = Path(self._folder.name) / str(self._count)
        module = for_stablehlo(with_flat_parameters(job.module))
        module = for_partitioner(module) if job.partitions > 1 else module
        files = [
            place.with_suffix(suffix) for suffix in (".hlo", ".json", ".npz", ".out.npz", ".error")
        ]
        text, counts, arguments, results, failure = files
        try:
            text.write_text(print_module(module, FULL))
            counts.write_text(json.dumps({"replicas": job.replicas, "partitions": job.partitions}))
            raw = {f"in_{i}": _bytes(array) for i, array in enumerate(job.arguments)}
            np.savez(arguments, **raw)  # type: ignore[arg-type]
            ended = self._asked(place.name, job)
            if ended:
                return ended
            return failure.read_text() if failure.exists() else _outputs(results, job.module)
        finally:
            for file in files:
                file.unlink(missing_ok=True)

    def _asked(self, name: str, job: Job) -> str:
        """Send a job to the child; return how the child ended if it did, else nothing."""
        child = self._started(job.participants)
        if child.stdin is None or child.stdout is None:
            raise TypeError("the child has no pipes")
        try:
            child.stdin.write(f"{name}\n".encode())
            child.stdin.flush()
            end = monotonic() + self._seconds
            if not select.select([child.stdout], [], [], max(0.0, end - monotonic()))[0]:
                self._end()
                raise UnsupportedError(
                    "E0465",
                    f"XLA:CPU gave no answer on {job.module.name!r} for {self._seconds:.0f} s; its "
                    "process was ended",
                    hint="compare with --against evaluator-f64",
                )
            if child.stdout.readline().strip() == name.encode():
                return ""
        except BrokenPipeError:
            pass
        return self._how_it_ended()

    def _how_it_ended(self) -> str:
        """Return the exit code and last words of a child that ended by itself, and let go of it."""
        if self._child is None or self._said is None:
            return ""
        code = self._child.wait()
        self._said.seek(0)
        words = " ".join(self._said.read().decode(errors="replace").split())[-_WORDS:]
        self._end()
        return f"XLA's process ended with code {code} while it worked on this module: {words}"

    def _started(self, devices: int) -> subprocess.Popen[bytes]:
        """Return a child that has as many devices, at least."""
        if self._child is not None and self._child.poll() is None and devices <= self._devices:
            return self._child
        self._end()
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
        if devices > 1:
            flag = f"--xla_force_host_platform_device_count={devices}"
            environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
        self._devices = devices
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        self._child = subprocess.Popen(
            [*CHILD, self._folder.name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # an interrupt is for the parent, which ends it
        )
        return self._child

    def _end(self) -> None:
        if self._child is None:
            return
        child, self._child = self._child, None
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout, self._said):
            if stream is not None:
                with suppress(BrokenPipeError):  # a line that nobody reads any more
                    stream.close()


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _outputs(path: Path, module: Module) -> list[Array]:
    leaves = array_leaves(module.entry.program_shape.result)
    with np.load(path) as stored:
        return [
            stored[f"out_{i}"].view(user_dtype(leaf.element_type.name)).reshape(leaf.dimensions)
            for i, leaf in enumerate(leaves)
        ]


def for_stablehlo(module: Module) -> Module:
    """Return the module with fusions as calls and bitcasts as the moves that they stand for.

    Groups of participants are written as lists: of their mesh form jaxlib's conversion drops the
    order of devices (`device_ids`), so that others would meet.
    """
    return replace(module, computations=tuple(map(_spelled_out, module.computations)))


def _spelled_out(computation: Computation) -> Computation:
    instructions: list[Instruction] = []
    places: list[int] = []
    for instruction in computation.instructions:
        moved = _with_listed_groups(
            instruction._replace(operands=tuple(places[i] for i in instruction.operands))
        )
        source = (
            computation.instructions[instruction.operands[0]].shape
            if instruction.operands
            else None
        )
        if instruction.opcode == "fusion":
            instructions.append(_as_call(moved))
        elif instruction.opcode == "bitcast" and isinstance(source, ArrayShape):
            instructions += _as_moves(moved, source, len(instructions))
        else:
            instructions.append(moved)
        places.append(len(instructions) - 1)
    return replace(computation, instructions=tuple(instructions), root=places[computation.root])


def _with_listed_groups(instruction: Instruction) -> Instruction:
    if "replica_groups" not in instruction.attributes:
        return instruction
    groups = instruction.attributes.replica_groups()
    if not groups.text:
        return instruction
    listed = ReplicaGroups(groups.groups)
    return instruction._replace(attributes=instruction.attributes.replaced(replica_groups=listed))


def _as_call(instruction: Instruction) -> Instruction:
    (name,) = instruction.attributes.called
    called = Attributes({"to_apply": name}, (name,))
    return instruction._replace(opcode="call", attributes=called, backend_config="")


def _as_moves(instruction: Instruction, source: ArrayShape, position: int) -> list[Instruction]:
    """Return what reads memory in the operand's layout as the result in the result's layout."""
    target = instruction.shape
    if not isinstance(target, ArrayShape) or target.element_type != source.element_type:
        return [instruction]
    stored, wanted = memory_order(source), memory_order(target)
    back = sorted(range(target.rank), key=wanted.__getitem__)
    element = source.element_type
    first = ArrayShape(element, tuple(source.dimensions[d] for d in stored))
    second = ArrayShape(element, tuple(target.dimensions[d] for d in wanted))
    return [
        _transpose(
            instruction, f"{instruction.name}.stored", first, instruction.operands[0], stored
        ),
        Instruction(f"{instruction.name}.memory", "reshape", second, (position,)),
        _transpose(instruction, instruction.name, target, position + 1, back),
    ]


def _transpose(
    instruction: Instruction, name: str, shape: ArrayShape, operand: int, order: Sequence[int]
) -> Instruction:
    attributes = Attributes({"dimensions": tuple(order)})
    return instruction._replace(
        name=name, opcode="transpose", shape=shape, operands=(operand,), attributes=attributes
    )


def for_partitioner(module: Module) -> Module:
    """Return the module so that XLA's partitioner leaves its meaning alone.

    A module with manually sharded regions keeps its shardings, but for constraints in the middle
    and, beside regions of Shardy's, what is not written in Shardy's terms, such as the results'
    shardings of `jax.pmap`: they would make XLA turn to GSPMD, which does not know the regions.
    Any other module that meets is written per device already: all of it is marked manual.
    """
    everything = [instruction for c in module.computations for instruction in c.instructions]
    borders = [x for x in everything if is_border(x)]
    change = _plain if borders else _manual
    if any(_is_shardy(x.attributes.text("custom_call_target")) for x in borders):
        change = _of_shardy
    computations = tuple(
        replace(c, instructions=tuple(map(change, c.instructions))) for c in module.computations
    )
    return replace(module, computations=computations)


def _plain(instruction: Instruction) -> Instruction:
    if not is_identity(instruction) or not isinstance(instruction.shape, ArrayShape):
        return instruction
    if not _is_shardy(instruction.attributes.text("frontend_attributes")):
        return instruction
    return instruction._replace(opcode="reshape", attributes=NO_ATTRIBUTES)


def _of_shardy(instruction: Instruction) -> Instruction:
    attributes = instruction.attributes
    if "sharding" in attributes and not _is_shardy(attributes.text("frontend_attributes")):
        instruction = instruction._replace(attributes=without(attributes, ("sharding",)))
    return _plain(instruction)


def _is_shardy(text: str) -> bool:
    return "xla.sdy" in text


def _manual(instruction: Instruction) -> Instruction:
    count = len(array_leaves(instruction.shape))
    alone = "{manual}"
    every = (
        f"{{{', '.join([alone] * count)}}}" if isinstance(instruction.shape, TupleShape) else alone
    )
    return instruction._replace(attributes=instruction.attributes.replaced(sharding=Raw(every)))
