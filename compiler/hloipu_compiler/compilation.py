"""Compile requests, and the result of each phase of compilation."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, replace
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.placement.request import ShardRequest
from hloipu_compiler.passes.pipeline import Pipeline
from hloipu_compiler.plan.pipelining import PipelineRequest, Pipelining
from hloipu_compiler.plan.plan import Chosen, Plan
from hloipu_compiler.plan.replica_keys import NO_KEYS, ReplicaKeys
from hloipu_compiler.plan.wrapping import Wrapping, WrappingRequest
from hloipu_compiler.planners.planned import Record
from hloipu_compiler.planners.tuning import DEFAULT_TUNING, Tuning
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.plan import MemoryPlan
from hloipu_runtime.program.program import Program

if TYPE_CHECKING:
    from hloipu_compiler.lowering.hoisting.room import Draft
    from hloipu_compiler.partition.scans.staged_loops import StagedStep
    from hloipu_compiler.partition.spmd.partitioning import Partitioned

_NOT_WRAPPED = WrappingRequest()
_NOT_CUT = PipelineRequest()
_NOT_PLACED = ShardRequest()
_NOTHING_PLANNED = Plan()

Clock = Callable[[str], AbstractContextManager[None]]
"""Encloses the part of the work that it is given the name of."""


def unmeasured(_name: str) -> AbstractContextManager[None]:
    """Enclose a part of the work in nothing."""
    return nullcontext()


class Phase(IntEnum):
    """Phases of compiling in their order; each says what there is after it."""

    READ = 0
    """A checked module without Graphcore's encoding; replicas and partitions are known."""
    FLAT = 1
    """The step on arrays alone, after the passes of `front`; of modules on one IPU: the module."""
    APART = 2
    """Ops in blocks, or loops over layers and stacks of weights in parts, one for each stage."""
    CUT = 3
    """Ops that have IPUs, or calls of stages and of one update."""
    PASSES = 4
    """The module that is lowered."""
    LOWERED = 5
    """A program whose steps follow the module's ops."""
    MERGED = 6
    """A program with steps merged and IPUs side by side."""
    PROGRAM = 7
    """The whole program, with replicas, stacks and keys."""


class Distribution(Enum):
    """How a module is spread over the IPUs of one replica."""

    PLAIN = 0
    """It is on one."""
    PLACED = 1
    """Each op is on one of several, as annotated or in blocks."""
    CUT = 2
    """It is cut into micro-batches, stages and one update."""


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """What a module is compiled for: the machine, and how it is cut, wrapped and tuned."""

    machine: Machine
    pipeline: Pipeline | str = "default"
    """Passes; of a step that is cut count those before `default` or `lean`, and come first."""
    wrapping: WrappingRequest = _NOT_WRAPPED
    """Whether the entry is a step whose state stays on the device, in a loop of its own perhaps."""
    pipelining: PipelineRequest = _NOT_CUT
    """Whether it is cut into micro-batches and stages."""
    shards: ShardRequest = _NOT_PLACED
    """Whether ops are placed on several IPUs; they are as well where they are annotated."""
    partition: bool = True
    """Whether annotations that divide arrays are followed."""
    replicas: int | None = None
    """Copies that run it on data of their own; None: as many as its collectives name, or of a
    wrapped step that names none, as many as a system of `ipus` has room for."""
    ipus: int = 1
    """Of the system that replicas are to fill; 1: as many as the program takes."""
    tuning: Tuning = DEFAULT_TUNING
    outlines: bool = False
    """Whether equal blocks, such as layers, become functions; only with `default` and `lean`."""
    parts_reductions: bool = True
    """Whether one reduction may be such a function where code is weighed."""
    keeps_plans: bool = False
    """Whether what planners choose is recorded."""
    is_draft: bool = False
    """Whether no copies are chosen to be made before loops where those in loops lack memory: such a
    program is compared with others, and the best one finished."""
    product_rooms: Mapping[tuple[int, str], int] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """IPU and instruction -> bytes that a product may take on a tile, from a program of the same
    module that did not fit."""

    @property
    def computing(self) -> Machine:
        """The machine without the tiles that are set apart for queues."""
        from hloipu_compiler.lowering.core.io_tiles import computing_machine

        return computing_machine(self.machine, self.wrapping.io_tiles)


@dataclass(frozen=True)
class Compilation:
    """A module after a phase of compiling, and what has been decided so far."""

    request: CompileRequest
    """As asked, with what the module itself says where nothing is asked."""
    module: Module
    plan: Plan = _NOTHING_PLANNED
    phase: Phase = Phase.READ
    distribution: Distribution = Distribution.PLAIN
    wrapping: Wrapping | None = None
    """How the entry is wrapped, where that was asked for."""
    partitioned: "Partitioned | None" = None
    """The module written for every partition, where annotations divide it."""
    step: "StagedStep | None" = None
    """Of a step that is cut: its loops and stacks in parts."""
    pipelining: Pipelining | None = None
    """How it is cut into micro-batches and stages, where that was asked for."""
    read: Module | None = None
    """The module after `Phase.READ`, with the user's numbers; None: `module` is that."""
    keyed: Module | None = None
    """The module in which keys of random numbers are looked for; None: `module`."""
    combines: bool = False
    """Whether replicas combine anything but the gradients of a step that is cut."""
    lowered: Program | None = None
    """The program, from `Phase.LOWERED` on."""
    memory: MemoryPlan | None = None
    """The memory plan of that, where copies were weighed against the room for them."""
    hoisting: Mapping[str, int] = MappingProxyType({})
    """How much is copied before loops, where some of it is copied in them."""
    draft: "Draft | None" = None
    """Where no copies were chosen, as `CompileRequest.is_draft` says; finishing begins with it."""
    plans: tuple[Record, ...] = ()
    """What planners chose, where that was asked for."""
    keys: ReplicaKeys = NO_KEYS
    """Of random numbers, where it runs on several replicas."""

    @property
    def program(self) -> Program:
        """The program; ValueError before `Phase.LOWERED`."""
        if self.lowered is None:
            raise ValueError(f"there is no program after {self.phase.name}")
        return self.lowered

    @property
    def given(self) -> Module:
        """The module by whose numbers users go."""
        return self.module if self.read is None else self.read

    @property
    def wrapped(self) -> Wrapping:
        """How the entry of a step that is cut is wrapped."""
        if self.wrapping is None:
            raise ValueError("a step that is cut is wrapped")
        return self.wrapping

    @property
    def state(self) -> list[tuple[int, int]]:
        """Numbers of the parameters and results that are one array."""
        return [(x.parameter, x.result) for x in self.wrapping.state] if self.wrapping else []

    def for_many_programs(self) -> "Compilation":
        """Return the same with ops that take what they take in the first program made of it."""
        return replace(self, plan=replace(self.plan, chosen=Chosen()))
