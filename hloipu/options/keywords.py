"""Options as typed keywords; `python -m tools.make_options` writes this file."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict


class PlainOptions(TypedDict, total=False):
    """Options of `hloipu.compile` but for those of loops on the device."""

    target: str | PathLike[str]
    """Machine to compile for; hloipu targets lists them."""
    set: Mapping[str, int | str] | Sequence[str | tuple[str, int | str]]
    """Override a number of the machine; repeatable."""
    ipus: int
    """IPUs of the system; with 1, as many as the program needs."""
    ipu_ids: int | Sequence[int] | None
    """Devices of the system whose IPUs are taken, by their ids; hloipu targets lists them."""
    selection_order: Literal["auto", "zigzag", "snake", "hoof"]
    """Which IPUs of a device a program's are, in order; auto: snake for stages that follow each
    other, else zigzag."""
    replicas: int | None
    """Copies of the program, each on data of its own; by default IPUs over shards."""
    partition: Literal["auto", "off"]
    """Divide arrays between IPUs where sharding annotations say so; off: compile as if there were
    none."""
    hosts: int | None
    """Hosts that feed as many replicas each; by default one, whose lines suffice."""
    replica_keys: Literal["auto", "folded", "same"]
    """Fold each replica's number into keys of random numbers; auto: where weights stay alike all
    the same."""
    shards: int | Literal["auto"] | None
    """IPUs to place the ops of a step without stages on; auto: as few as have room; by default
    those it is annotated with."""
    mesh: str | Mapping[str, int] | None
    """Axes of the mesh of IPUs that arrays are divided over, major to minor; auto: find axes and
    shardings for as many IPUs as --ipus says; by default those of the module."""
    shard: Mapping[str, Any] | Sequence[str | tuple[str, Any]]
    """Axes of the mesh that divide the dimensions of a parameter, of all in a group or that match
    NAM*; the first match counts; repeatable."""
    stages: int | None
    """Pipeline stages to cut the step into; by default those it is annotated with, or one."""
    schedule: Literal["grouped", "interleaved", "sequential"]
    """Order of a pipeline's stages."""
    micro_batches: int
    """Micro-batches per weight update; each is one element of the feeds."""
    reduction: Literal["sum", "mean", "running_mean"]
    """How micro-batches' gradients combine."""
    accumulator_dtype: Literal["f32", "f16", "bf16"] | None
    """Type of gradient accumulators; by default the gradient's own."""
    accumulator: Mapping[str, str] | Sequence[str | tuple[str, str]]
    """Type of the accumulator of one weight, or of a group of weights; repeatable."""
    loss_output: int | None
    """Number of the result that is the loss, where a step is cut; by default it is found."""
    recompute: Literal["none", "cheap", "blocks", "full", "auto"]
    """Make cheap values again in place of keeping them, or all of a cut step's blocks or stages
    from their inputs; auto: what costs least of it where nothing else fits."""
    gather_weights: Literal["batch", "micro-batch", "auto"]
    """Gather weights that are divided, and scatter their gradients, once a batch (or before a loop
    that does not change them), with both whole in between, or in each micro-batch (or each time);
    auto: once, unless that does not fit."""
    shard_optimizer: bool
    """Keep on each replica one part of the state that elementwise updates read."""
    offload: Literal["on", "off", "auto"]
    """Keep what only the update reads in remote buffers; auto: where micro-batches run."""
    offload_activations: bool
    """Keep what waits for a later stage, or a backward one, in remote buffers."""
    offload_weights: bool
    """Keep weights in remote buffers, and bring them to stages that read them."""
    offload_accumulators: bool
    """Keep the sums of micro-batches' gradients in remote buffers."""
    batch_serialization: int
    """Micro-batches that a stage does one after the other before the next stage does; on the
    sequential schedule."""
    cut_at: int | Sequence[int] | None
    """Where stages begin but the first, by how many forward ops there are before."""
    device_map: str | Sequence[int | Sequence[int]] | None
    """The IPU of each stage, or its IPUs."""
    plan: Literal["none", "auto"] | None
    """Let hloipu find the best way to cut the step over the IPUs of the system; by default where
    several IPUs are asked for and nothing says how to use them, with micro-batches as they are."""
    over_memory: Literal["refuse", "allow"]
    """What to do with a program that does not fit."""
    code_memory: bool
    """Count the bytes of code in the tiles' memory; without, plans take it to cost nothing."""
    assume_trips: int | None
    """Trips to assume of a loop that data decides."""
    passes: str | None
    """Pipeline of passes in place of the usual one."""
    plugin: Sequence[str | PathLike[str]]
    """Python file with passes of one's own; runs its code; repeatable."""
    define: Mapping[str, Any]
    """HLO of what a custom call's target computes: its entry takes the call's operands and gives
    its results; repeatable."""
    available_memory_proportion: float
    """Share of a tile's memory that one matmul's plan may take."""
    partials_type: Literal["f32", "f16"]
    """Type in which matmuls of f16 add up."""
    random_bits: Literal["hardware", "philox"]
    """What rng-bit-generator draws with where it leaves the algorithm open (rng_default): the
    chip's own generator, at its price, or Philox in integer code; the bits are Philox's either way,
    as on XLA:CPU."""
    outline: Literal["auto", "on", "off"]
    """Make equal blocks, such as layers, one function, whose code is there once; auto: where the
    program does not fit otherwise."""
    hoist: Literal["auto", "all", "none"]
    """Copy what loops do not change once before them, and load constants where they are read; auto:
    as many as there is room for."""
    cache: bool
    """Keep compiled programs, and use them again."""
    cache_dir: str | PathLike[str] | None
    """Folder of the compile cache."""
    cache_size_bytes: int | str
    """Size that the compile cache may grow to."""
    io_tiles: int
    """Tiles of each IPU set apart for the queues, to transfer beside computing."""
    time_limit: float | None
    """Look for a cut, for shardings, or for what fits, for so long at most, compiling included, by
    default for 16 seconds of the processor of a long module; then the best so far is taken, and
    compiled to its end if it was not yet."""


class CompileOptions(PlainOptions, total=False):
    """Options of `hloipu.compile`; docs/options.md has them all."""

    loop: int | None
    """Wrap the program, a single step, in a loop of N steps."""
    role: Mapping[str, str] | Sequence[str | tuple[str, str]]
    """State a parameter's role; repeatable."""
    feed: Mapping[str, int | Sequence[int]] | Sequence[str | tuple[str, int | Sequence[int]]]
    """Feed parameters from the queue NAME; repeatable."""
    outfeed: Sequence[str]
    """Send results to a queue: NAME=N,…, or NAME for the others, or NAME:MODE for NAME to keep all,
    last, first or every=N, or their sum or mean; N may be KEY=N, a name for it; repeatable."""
