"""The program of one device: every op on blocks, with collectives where blocks do not suffice.

For each op the axes along its factors are chosen as in propagation, the dearest to move first
(`cuts`). Operands come as the axes say (`blocks`, `resharding`), the op works on blocks
(`local_ops`; with rows of neighbours `windows`, at indices `indexing`), partial results are
combined (`partials`), and the result goes to the sharding that propagation gave it (`writing`).
An op that cannot work on blocks works on whole operands, on every device alike: always right, if
slow. Dimensions that axes do not divide have padding in their last blocks.
"""

from dataclasses import replace
from functools import partial
from itertools import count

from hloipu_compiler.analysis.feed_config import queue_name
from hloipu_compiler.ir.annotations import PARTITIONED_TARGET, is_border, is_identity
from hloipu_compiler.ir.attributes import Attributes, Value
from hloipu_compiler.ir.graph import Computation, Instruction, Module, combiner
from hloipu_compiler.ir.ops import COLLECTIVES, OPS, Trait
from hloipu_compiler.ir.shapes import leaves_of
from hloipu_compiler.partition.spmd.axes import MOST_LISTED
from hloipu_compiler.partition.spmd.cuts import Cuts, fitting
from hloipu_compiler.partition.spmd.links import StatePairs
from hloipu_compiler.partition.spmd.manual import PER_DEVICE, manual_parts, regions_of
from hloipu_compiler.partition.spmd.merging import with_merged_collectives
from hloipu_compiler.partition.spmd.propagating import Propagated
from hloipu_compiler.partition.spmd.reshard_steps import Paths
from hloipu_compiler.partition.spmd.resharding import Splits
from hloipu_compiler.partition.spmd.writing import written
from hloipu_compiler.passes.algebra.expand_bitcasts import plain
from hloipu_compiler.passes.eliminate_dead_code import dead_code_eliminated
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import Draft, rewritten
from hloipu_compiler.passes.loops.gathers_before_loops import gathers_before_loops, turns_of
from hloipu_compiler.passes.loops.sum_after_loops import sums_after_loops
from hloipu_runtime.element_types import ElementType
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.watching import telling

_ALIKE = COLLECTIVES | frozenset("custom-call infeed outfeed rng rng-get-and-update-state".split())
"""Opcodes with effects that every device may have: those of custom calls are flags of their own.

Queues hand each device its blocks; random numbers without a state are drawn whole, from the state
of the program, which is the same on all devices.
"""


Queue = tuple[str, str]
"""The opcode and the name of a queue that ops of the text move arrays through."""
Sizes = tuple[tuple[int, ...], ...]


def entry_splits(
    module: Module, known: Propagated, state: StatePairs = ()
) -> tuple[Splits, Splits]:
    """Return how the program of one device divides the entry's parameters and results.

    `state`: parameters, and the results that are their next values and are divided as they are.
    """
    localizing, name = Localizing(module, known), module.entry.name
    given, results = localizing.parameter_splits(name), list(localizing.root_splits(name))
    for parameter, result in state:
        results[result] = given[parameter]
    return given, tuple(results)


def for_one_device(
    module: Module,
    known: Propagated,
    results: Splits | None = None,
    paths: Paths | None = None,
    cuts: Cuts | None = None,
) -> Module:
    """Return the program of one device of a verified module, whose parameters are blocks.

    `results`: how the entry's results are to be divided; None: as propagation says. `paths` and
    `cuts`: of a mesh of the same parts, what was searched for before; they grow.

    Raises UnsupportedError E0479 for what has to be done once for all devices, or is written for
    each device outside of a manual region.
    """
    local = Localizing(module, known, paths, cuts).module_made(results)
    return with_merged_collectives(moved_out_of_loops(local))


def moved_out_of_loops(local: Module, *, gathers_early: bool = True) -> Module:
    """Return a program of one device that sums after its loops, and gathers before them."""
    if not any(x.opcode == "while" for c in local.computations for x in c.instructions):
        return local
    early = gathers_before_loops(local) if gathers_early else local
    return sums_after_loops(dead_code_eliminated(early))


class Localizing:
    """The module in the making."""

    def __init__(
        self,
        module: Module,
        known: Propagated,
        paths: Paths | None = None,
        cuts: Cuts | None = None,
        *,
        gathers_early: bool = True,
    ) -> None:
        self.module, self.known = module, known
        self.turns = turns_of(module) if gathers_early else {}
        """Of loops' bodies what they do not change, and how often they run."""
        self.paths = paths or Paths(known.axes)
        self.made: dict[tuple[str, Splits, Splits], Computation] = {}
        """By the old name and the splits of parameters and results, callees before callers."""
        self.written: set[str] = set()
        """Old names that a new computation has."""
        self.combiners: dict[tuple[str, str], Computation] = {}
        self.names = Names(module.computation)
        self.queues: dict[Queue, tuple[Sizes, Splits]] = {}
        """Sizes and splits of the arrays that queues carry, as their first op has them."""
        self.channels = count(1)
        self.cuts = cuts or Cuts()
        self.regions = regions_of(module, known)
        self.manual = manual_parts(module, self.regions)
        """Of ops in manual regions the manual parts, as bits."""

    def module_made(self, results: Splits | None = None) -> Module:
        """Return the program of one device."""
        if self.known.axes.device_count > MOST_LISTED:
            what = f"a program for {self.known.axes.device_count:,} devices"
            hint = f"take a mesh of {MOST_LISTED:,} devices at most"
            raise self.refusal(None, what, hint)
        for computation in self.module.computations:
            for position, x in enumerate(computation.instructions):
                self._check(computation.name, position, x)
        entry = self.module.entry
        results = self.root_splits(entry.name) if results is None else results
        self.computation(entry.name, self.parameter_splits(entry.name), results)
        computations = (*self._kept(), *self.combiners.values(), *self.made.values())
        header: dict[str, Value] = {"num_partitions": self.known.axes.device_count}
        if "replica_count" in self.module.attributes:
            header["replica_count"] = self.module.attributes.integer("replica_count")
        return replace(
            self.module,
            computations=computations,
            entry_position=len(computations) - 1,
            attributes=Attributes(header),
        )

    def _kept(self) -> list[Computation]:
        """Return the old computations that are still called: those of elements, and whole ones."""
        new = {c.name for each in (self.combiners, self.made) for c in each.values()}
        todo = list(self.made.values())
        called: dict[str, Computation] = {}
        for computation in todo:
            for x in computation.instructions:
                for name in x.attributes.called:
                    if name not in new and name not in called:
                        called[name] = self._unannotated(self.module.computation[name])
                        todo.append(called[name])
        return list(called.values())

    def _unannotated(self, computation: Computation) -> Computation:
        """Return a computation of elements without what JAX says of their shardings."""

        def operand(draft: Draft, x: Instruction) -> int | None:
            return x.operands[0] if is_identity(x) and len(x.operands) == 1 else None

        return rewritten(self.module, computation, {"custom-call": operand})

    def computation(self, name: str, given: Splits, results: Splits) -> Computation:
        """Return a computation on blocks; a second one of a name has a name of its own."""
        key = (name, given, results)
        if key not in self.made:
            telling("computations on blocks")
            on_blocks = written(self, self.module.computation[name], given, results)
            is_first = name not in self.written
            self.written.add(name)
            self.made[key] = (
                on_blocks if is_first else replace(on_blocks, name=self.names.fresh(name))
            )
        return self.made[key]

    def splits(self, name: str, position: int, *, even: bool = False) -> Splits:
        """Return the sharding of each leaf of a result.

        What no user stated does not make more blocks than there are elements; `even`: nor does it
        divide sizes that are no multiples.
        """
        arrays = leaves_of(self.module.computation[name].instructions[position].shape)
        numbers = self.known.links.results.get((name, position), ())
        splits = []
        for number, shape in zip(numbers, arrays, strict=True):
            parts = self.known.shardings[number].dimensions
            if number not in self.known.stated:
                pairs = zip(parts, shape.dimensions, strict=True)
                axes = self.known.axes
                useful = axes.even if even else partial(fitting, axes)
                parts = tuple(useful(own, n) for own, n in pairs)
            splits.append(parts)
        return tuple(splits)

    def parameter_splits(self, name: str) -> Splits:
        """Return the shardings of all parameters of a computation, leaf by leaf."""
        positions = self.module.computation[name].parameters
        return tuple(split for i in positions for split in self.splits(name, i))

    def root_splits(self, name: str) -> Splits:
        """Return the shardings of a computation's results, leaf by leaf."""
        even = name == self.module.entry.name
        return self.splits(name, self.module.computation[name].root, even=even)

    def queue_splits(self, x: Instruction, sizes: Sizes, splits: Splits) -> Splits:
        """Return how an infeed's or an outfeed's arrays are divided: as others' of its queue.

        Raises UnsupportedError E0479 where ops of one queue move arrays of other sizes.
        """
        queue = (x.opcode, queue_name(x))
        known, splits = self.queues.setdefault(queue, (sizes, splits))
        if known != sizes:
            what = f"{x.opcode} {x.name}, whose arrays have other sizes than others of its queue,"
            raise self.refusal(x, what, "give each queue its own name in the configuration")
        return splits

    def combiner(self, opcode: str, kind: ElementType) -> str:
        """Return the name of a computation that applies an op to two scalars."""
        key = (opcode, kind.name)
        if key not in self.combiners:
            name = self.names.fresh(f"{opcode}.{kind.name}")
            self.combiners[key] = combiner(name, opcode, plain(kind, ()))
        return self.combiners[key].name

    def _check(self, name: str, position: int, x: Instruction) -> None:
        acts = Trait.SIDE_EFFECT in OPS[x.opcode].traits and x.opcode not in _ALIKE
        acts = acts or x.attributes.flag("custom_call_has_side_effect")
        acts = acts and not is_border(x)
        is_python = x.attributes.text("custom_call_target") == PARTITIONED_TARGET
        if is_python and not x.attributes.called:
            hint = "lower the function without custom_partitioning, or give that a body in HLO"
            raise self.refusal(x, f"{x.name}, which a Python function is to partition,", hint)
        outside = x.opcode in PER_DEVICE and not self.manual.get((name, position))
        if outside:
            hint = "move it into a manual region (shard_map), or leave the annotations out"
            raise self.refusal(x, f"{x.opcode} {x.name}, outside of a manual region,", hint)
        if acts and not is_identity(x):
            what = x.attributes.text("custom_call_target") or x.opcode
            hint = f"take {what} out of the module: what it does would be done on each device"
            raise self.refusal(x, f"{x.opcode} {x.name}, which acts once for all devices,", hint)

    def refusal(self, x: Instruction | None, what: str, hint: str) -> UnsupportedError:
        """Return an error about what cannot be written for each device."""
        error = UnsupportedError("E0479", f"{what} cannot be written for each device", hint=hint)
        error.span = self.module.span(x) if x else None
        return error
