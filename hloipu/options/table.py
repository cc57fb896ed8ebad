"""The option table: every option with its type, default, help, and the commands that take it.

A field of `Options` is a row of the table: its annotation carries the rest of the row.
"""

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Annotated, get_type_hints

from hloipu.options.composite_kinds import (
    DeviceMap,
    DimensionAxes,
    Files,
    FilesByName,
    Integers,
    MeshAxes,
    Names,
    Number,
    Pairs,
    Settings,
)
from hloipu.options.faults import wrong_value
from hloipu.options.kinds import (
    Choice,
    CountOrWord,
    Flag,
    Integer,
    Kind,
    Location,
    Proportion,
    Seconds,
    Size,
    Target,
)
from hloipu_runtime.frozen import dataclass

COMMANDS = ("compile", "run", "estimate", "check", "emit", "reduce")
"""The commands that take options of this table."""

_ALL = COMMANDS
_COST = ("compile", "run", "estimate", "reduce")
_FIT = ("compile", "run", "estimate", "check", "reduce")
_VALUES = ("run", "check", "reduce")
_KEPT = ("compile", "run", "estimate", "check", "emit")
_RUN = ("run",)
_ROLES = ("weight", "opt_state", "data", "const", "rng", "hyper", "carry", "call")
_MOST_IPUS = 65_536
_MOST_COUNT = 2**62


@dataclass(frozen=True, slots=True)
class About:
    """Facts of an option besides its name, type and default."""

    kind: Kind
    commands: tuple[str, ...]
    help: str
    in_module: bool = False
    """A module may state it as its own attribute `ipu_NAME`: it tells of the program."""
    in_file: bool = True
    """It may stand in hloipu.toml, which the user need not have written."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table."""

    name: str
    default: object
    about: About

    @property
    def kind(self) -> Kind:
        """The kind of its values."""
        return self.about.kind

    @property
    def flag(self) -> str:
        """Its spelling on the command line."""
        return "--" + self.name.replace("_", "-")


def _for_all(kind: Kind, help: str) -> About:
    """Return the row of an option that all commands take and that a module may state."""
    return About(kind, _ALL, help, in_module=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The value of every option; types are checked, and lists become tuples, on construction.

    Raises UsageError E3011 for a value that is not of its option's kind.
    """

    target: Annotated[
        str, _for_all(Target(), "Machine to compile for; hloipu targets lists them.")
    ] = "gc200"
    set: Annotated[
        tuple[tuple[str, str], ...],
        About(Settings("KEY", Number()), _ALL, "Override a number of the machine; repeatable."),
    ] = ()
    ipus: Annotated[
        int,
        _for_all(
            Integer(1, _MOST_IPUS), "IPUs of the system; with 1, as many as the program needs."
        ),
    ] = 1
    ipu_ids: Annotated[
        tuple[int, ...] | None,
        About(
            Integers(0, 2 * _MOST_IPUS),
            _ALL,
            "Devices of the system whose IPUs are taken, by their ids; hloipu targets lists them.",
        ),
    ] = None
    selection_order: Annotated[
        str,
        _for_all(
            Choice(("auto", "zigzag", "snake", "hoof")),
            "Which IPUs of a device a program's are, in order; auto: snake for stages that follow "
            "each other, else zigzag.",
        ),
    ] = "auto"
    replicas: Annotated[
        int | None,
        _for_all(
            Integer(1, _MOST_IPUS),
            "Copies of the program, each on data of its own; by default IPUs over shards.",
        ),
    ] = None
    partition: Annotated[
        str,
        _for_all(
            Choice(("auto", "off")),
            "Divide arrays between IPUs where sharding annotations say so; off: compile as if "
            "there were none.",
        ),
    ] = "auto"
    hosts: Annotated[
        int | None,
        _for_all(
            Integer(1, _MOST_IPUS),
            "Hosts that feed as many replicas each; by default one, whose lines suffice.",
        ),
    ] = None
    replica_keys: Annotated[
        str,
        _for_all(
            Choice(("auto", "folded", "same")),
            "Fold each replica's number into keys of random numbers; auto: where weights stay "
            "alike all the same.",
        ),
    ] = "auto"
    shards: Annotated[
        int | str | None,
        _for_all(
            CountOrWord(Integer(1, _MOST_IPUS), "auto"),
            "IPUs to place the ops of a step without stages on; auto: as few as have room; by "
            "default those it is annotated with.",
        ),
    ] = None
    mesh: Annotated[
        tuple[tuple[str, int], ...] | str | None,
        About(
            MeshAxes(),
            _ALL,
            "Axes of the mesh of IPUs that arrays are divided over, major to minor; auto: find "
            "axes and shardings for as many IPUs as --ipus says; by default those of the module.",
        ),
    ] = None
    shard: Annotated[
        tuple[tuple[str, tuple[tuple[str, ...], ...]], ...],
        About(
            Pairs("PARAMETER", DimensionAxes()),
            _ALL,
            "Axes of the mesh that divide the dimensions of a parameter, of all in a group or that "
            "match NAM*; the first match counts; repeatable.",
        ),
    ] = ()
    stages: Annotated[
        int | None,
        _for_all(
            Integer(1, _MOST_IPUS),
            "Pipeline stages to cut the step into; by default those it is annotated with, or one.",
        ),
    ] = None
    schedule: Annotated[
        str,
        _for_all(Choice(("grouped", "interleaved", "sequential")), "Order of a pipeline's stages."),
    ] = "grouped"
    micro_batches: Annotated[
        int,
        _for_all(
            Integer(1, _MOST_COUNT),
            "Micro-batches per weight update; each is one element of the feeds.",
        ),
    ] = 1
    reduction: Annotated[
        str,
        _for_all(Choice(("sum", "mean", "running_mean")), "How micro-batches' gradients combine."),
    ] = "mean"
    accumulator_dtype: Annotated[
        str | None,
        _for_all(
            Choice(("f32", "f16", "bf16")),
            "Type of gradient accumulators; by default the gradient's own.",
        ),
    ] = None
    accumulator: Annotated[
        tuple[tuple[str, str], ...],
        _for_all(
            Pairs("PARAMETER", Choice(("f32", "f16", "bf16"))),
            "Type of the accumulator of one weight, or of a group of weights; repeatable.",
        ),
    ] = ()
    loss_output: Annotated[
        int | None,
        _for_all(
            Integer(0, _MOST_COUNT),
            "Number of the result that is the loss, where a step is cut; by default it is found.",
        ),
    ] = None
    recompute: Annotated[
        str,
        _for_all(
            Choice(("none", "cheap", "blocks", "full", "auto")),
            "Make cheap values again in place of keeping them, or all of a cut step's blocks or "
            "stages from their inputs; auto: what costs least of it where nothing else fits.",
        ),
    ] = "auto"
    gather_weights: Annotated[
        str,
        _for_all(
            Choice(("batch", "micro-batch", "auto")),
            "Gather weights that are divided, and scatter their gradients, once a batch (or before "
            "a loop that does not change them), with both whole in between, or in each micro-batch "
            "(or each time); auto: once, unless that does not fit.",
        ),
    ] = "auto"
    shard_optimizer: Annotated[
        bool,
        _for_all(
            Flag(), "Keep on each replica one part of the state that elementwise updates read."
        ),
    ] = False
    offload: Annotated[
        str,
        _for_all(
            Choice(("on", "off", "auto")),
            "Keep what only the update reads in remote buffers; auto: where micro-batches run.",
        ),
    ] = "auto"
    offload_activations: Annotated[
        bool,
        _for_all(
            Flag(), "Keep what waits for a later stage, or a backward one, in remote buffers."
        ),
    ] = False
    offload_weights: Annotated[
        bool,
        _for_all(
            Flag(), "Keep weights in remote buffers, and bring them to stages that read them."
        ),
    ] = False
    offload_accumulators: Annotated[
        bool, _for_all(Flag(), "Keep the sums of micro-batches' gradients in remote buffers.")
    ] = False
    batch_serialization: Annotated[
        int,
        _for_all(
            Integer(1, _MOST_COUNT),
            "Micro-batches that a stage does one after the other before the next stage does; on "
            "the sequential schedule.",
        ),
    ] = 1
    cut_at: Annotated[
        tuple[int, ...] | None,
        _for_all(
            Integers(1, 10**6),
            "Where stages begin but the first, by how many forward ops there are before.",
        ),
    ] = None
    device_map: Annotated[
        tuple[int | tuple[int, ...], ...] | None,
        _for_all(DeviceMap(), "The IPU of each stage, or its IPUs."),
    ] = None
    plan: Annotated[
        str | None,
        _for_all(
            Choice(("none", "auto")),
            "Let hloipu find the best way to cut the step over the IPUs of the system; by default "
            "where several IPUs are asked for and nothing says how to use them, with micro-batches "
            "as they are.",
        ),
    ] = None
    loop: Annotated[
        int | None,
        _for_all(Integer(1, _MOST_COUNT), "Wrap the program, a single step, in a loop of N steps."),
    ] = None
    role: Annotated[
        tuple[tuple[str, str], ...],
        _for_all(Pairs("PARAMETER", Choice(_ROLES)), "State a parameter's role; repeatable."),
    ] = ()
    feed: Annotated[
        tuple[tuple[str, tuple[int, ...]], ...],
        _for_all(
            Pairs("NAME", Integers(0, 10**6)), "Feed parameters from the queue NAME; repeatable."
        ),
    ] = ()
    outfeed: Annotated[
        tuple[str, ...],
        _for_all(
            Names(),
            "Send results to a queue: NAME=N,…, or NAME for the others, or NAME:MODE for NAME to "
            "keep all, last, first or every=N, or their sum or mean; N may be KEY=N, a name for "
            "it; repeatable.",
        ),
    ] = ()
    mode: Annotated[
        str,
        About(
            Choice(("functional", "exact", "estimate")),
            _VALUES,
            "Run whole tensors, tile by tile, or costs alone.",
        ),
    ] = "functional"
    over_memory: Annotated[
        str,
        About(Choice(("refuse", "allow")), _FIT, "What to do with a program that does not fit."),
    ] = "refuse"
    code_memory: Annotated[
        bool,
        About(
            Flag(),
            _ALL,
            "Count the bytes of code in the tiles' memory; without, plans take it to cost nothing.",
        ),
    ] = True
    assume_trips: Annotated[
        int | None,
        About(
            Integer(0, _MOST_COUNT),
            _COST,
            "Trips to assume of a loop that data decides.",
            in_module=True,
        ),
    ] = None
    passes: Annotated[
        str | None, About(Kind(), _ALL, "Pipeline of passes in place of the usual one.")
    ] = None
    plugin: Annotated[
        tuple[str, ...],
        About(
            Files(),
            _ALL,
            "Python file with passes of one's own; runs its code; repeatable.",
            in_file=False,
        ),
    ] = ()
    define: Annotated[
        tuple[tuple[str, str], ...],
        About(
            FilesByName("TARGET", Location()),
            _ALL,
            "HLO of what a custom call's target computes: its entry takes the call's operands and "
            "gives its results; repeatable.",
        ),
    ] = ()
    opaque: Annotated[
        tuple[tuple[str, int], ...],
        About(
            Pairs("TARGET", Integer(0, _MOST_COUNT)),
            ("estimate",),
            "Cycles of a call of an opaque custom-call target; repeatable.",
        ),
    ] = ()
    available_memory_proportion: Annotated[
        float, _for_all(Proportion(), "Share of a tile's memory that one matmul's plan may take.")
    ] = 0.6
    partials_type: Annotated[
        str, _for_all(Choice(("f32", "f16")), "Type in which matmuls of f16 add up.")
    ] = "f32"
    random_bits: Annotated[
        str,
        _for_all(
            Choice(("hardware", "philox")),
            "What rng-bit-generator draws with where it leaves the algorithm open (rng_default): "
            "the chip's own generator, at its price, or Philox in integer code; the bits are "
            "Philox's either way, as on XLA:CPU.",
        ),
    ] = "hardware"
    outline: Annotated[
        str,
        _for_all(
            Choice(("auto", "on", "off")),
            "Make equal blocks, such as layers, one function, whose code is there once; auto: "
            "where the program does not fit otherwise.",
        ),
    ] = "auto"
    hoist: Annotated[
        str,
        _for_all(
            Choice(("auto", "all", "none")),
            "Copy what loops do not change once before them, and load constants where they are "
            "read; auto: as many as there is room for.",
        ),
    ] = "auto"
    cache: Annotated[bool, About(Flag(), _KEPT, "Keep compiled programs, and use them again.")] = (
        True
    )
    cache_dir: Annotated[str | None, About(Location(), _KEPT, "Folder of the compile cache.")] = (
        None
    )
    cache_size_bytes: Annotated[
        int, About(Size(2**50), _KEPT, "Size that the compile cache may grow to.")
    ] = 2**30
    io_tiles: Annotated[
        int,
        _for_all(
            Integer(0, 192),
            "Tiles of each IPU set apart for the queues, to transfer beside computing.",
        ),
    ] = 0
    poison: Annotated[
        bool, About(Flag(), _VALUES, "Fill tile memory with poison before use, in exact mode.")
    ] = False
    max_iterations: Annotated[
        int | None,
        About(
            Integer(0, _MOST_COUNT),
            ("run", "check"),
            "Turns that a loop of the module may take each time it is entered, also with hloipu "
            "eval; by default any number; those of the loop around a step do not count.",
        ),
    ] = None
    fast: Annotated[
        bool,
        About(
            Flag(),
            ("run", "check"),
            "Compute values by kernels compiled to machine code, where hloipu[fast] is installed; "
            "they are the same, bit for bit.",
        ),
    ] = True
    time_limit: Annotated[
        float | None,
        About(
            Seconds(),
            ("compile", "run", "estimate", "emit"),
            "Look for a cut, for shardings, or for what fits, for so long at most, compiling "
            "included, by default for 16 seconds of the processor of a long module; then the "
            "best so far is taken, and compiled to its end if it was not yet.",
        ),
    ] = None
    seed: Annotated[int, About(Integer(0, 2**64 - 1), _RUN, "Seed of stateful random ops.")] = 0
    synthetic_data: Annotated[
        bool, About(Flag(), _RUN, "Feed made-up elements to queues that no --infeed names.")
    ] = False

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if value is None and option.default is None:
                continue
            checked = option.kind.check(value)
            if checked is None:
                raise wrong_value(name, option.kind.expected, value)
            object.__setattr__(self, name, checked)


def _rows() -> Mapping[str, Option]:
    hints = get_type_hints(Options, include_extras=True)
    rows = (
        Option(field.name, field.default, hints[field.name].__metadata__[0])
        for field in fields(Options)
    )
    return MappingProxyType({row.name: row for row in rows})


OPTIONS: Mapping[str, Option] = _rows()
"""Name -> row, in the order of the table."""
