"""Poplar's own names: options of its engine and libraries, and the words of TF_POPLAR_FLAGS.

Sources: graphcore/tensorflow: tensorflow/compiler/plugin/poplar/driver/tools/flags.cc
(TF_POPLAR_FLAGS) and tensorflow/python/ipu/ops/pipelining_ops.py (arguments of a pipeline);
docs.graphcore.ai: Poplar and PopLibs API, Engine and RuntimeOptions, and PopVision Graph Analyser,
Capturing IPU reports; graphcore/poplibs: tools/ and graphcore/examples, which use these options.
Those of an engine differ from release to release: what this table lacks is taken with a warning.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from hloipu.options.ipu_keys import KEYS, AnyText, Key, no_effect, tiles
from hloipu.options.kinds import Choice, Flag, Integer, Kind, Proportion
from hloipu_runtime.nearest import did_you_mean, nearest

_BOOLEAN = Flag()
_COUNT = Integer(0, 2**62)
_TEXT = AnyText()
_WORKERS = 6
_SUPERVISOR_STACK_BYTES = 224
"""Of a tile; osmarks/ipu-stack: crates/ipu-codegen/src/memory.rs, beside 256 for each worker."""

_NO_DEVICE = "no device is attached, the machine is a model"
_PROFILE = "--profile FILE writes a profile, with every step's cycles and every tile's bytes"
_ESTIMATED = "cycles of every step are known without instrumentation; --profile FILE writes them"
_ONE_THREAD = "compiling takes one thread"
_MADE_UP = "--synthetic-data feeds made-up elements, and transfers count as with real ones"


class _FromText(Kind):
    """A kind whose values are taken as texts, too: engines and libraries have no others."""

    __slots__ = ()

    def check(self, value: object) -> object:
        """Return a value of the kind, from its text as well."""
        return self.read(value) if isinstance(value, str) else super().check(value)


class _Hex(_FromText, Integer):
    """An integer, in Poplar's own writing too: `0x200`."""

    __slots__ = ()

    def read(self, text: str) -> object:
        is_hex = text[:2].lower() == "0x" and text[2:18].isalnum() and len(text) <= 18
        try:
            return self.check(int(text, 16)) if is_hex else Integer.read(self, text)
        except ValueError:
            return None


class _Truth(_FromText, Flag):
    """True or false."""

    __slots__ = ()


class _Share(_FromText, Proportion):
    """A proportion."""

    __slots__ = ()


def _stacks(value: object) -> object:
    return {"stack_bytes": _SUPERVISOR_STACK_BYTES + _WORKERS * int(str(value))}


def _idle(instead: str, names: str) -> dict[str, Key]:
    """Return options without a meaning; "false" asks for nothing."""
    return no_effect(_TEXT, "false", names, instead)


POPLAR_FLAGS: Mapping[str, Key] = MappingProxyType({
    "executable_cache_path": Key(_TEXT, "", "cache_dir", lambda value: value or None),
    "ipu_model_tiles": Key(_COUNT, 0, "set", tiles),
    "use_ipu_model": Key(_BOOLEAN, True, instead="programs always run on a model"),
    "use_synthetic_data": Key(_BOOLEAN, False, "synthetic_data"),
    "null_data_feed": Key(_BOOLEAN, False, "synthetic_data"),
    **no_effect(_TEXT, "", "synthetic_data_categories synthetic_data_initializer", _MADE_UP),
    **no_effect(_BOOLEAN, False, "use_on_demand sync_replica_start", _NO_DEVICE),
    "on_demand_device_poll_time": Key(_COUNT, 1000, instead=_NO_DEVICE),
    "on_demand_device_timeout": Key(_COUNT, 3_600_000, instead=_NO_DEVICE),
    "dump_schedule_as_dot": Key(
        _BOOLEAN, False, instead="hloipu emit FILE --format=dot prints the graph"
    ),
    "save_vertex_graph": Key(_TEXT, "", instead="hloipu emit --stage=program prints compute sets"),
    "tensor_map_file_path": Key(_TEXT, "", instead="hloipu emit --stage=program prints mappings"),
    "log_cycle_count": Key(_TEXT, "-1", instead="each report begins with the cycles"),
    "max_compilation_threads": Key(_TEXT, "-1", instead=_ONE_THREAD),
    "max_infeed_threads": Key(_TEXT, "-1", instead="each feed has one thread"),
    "while_loop_brute_force_max_trip_count": Key(
        _COUNT, 128, instead="--assume-trips N says how often a loop turns"
    ),
    "show_progress_bar": Key(_TEXT, "auto", instead="--no-progress shows none"),
    "enable_hlo_verifier": Key(_BOOLEAN, True, instead="every module is verified"),
    "allow_nans": Key(_BOOLEAN, True, instead="NaNs are values as others"),
    **no_effect(_BOOLEAN, False, "fallback_scheduler disable_poplar_version_check"),
})  # fmt: skip
"""The words of TF_POPLAR_FLAGS, which HLOIPU_FLAGS takes as well."""

ENGINE: Mapping[str, Key] = MappingProxyType({
    "debug.allowOutOfMemory": Key(
        _Truth(), None, "over_memory", lambda value: "allow" if value else "refuse"
    ),
    "prng.seed": Key(_Hex(0, 2**64 - 1), 0, "seed"),
    "target.workerStackSizeInBytes": Key(_Hex(0, 2**20), None, "set", _stacks),
    **_idle(_PROFILE, """
        autoReport.all autoReport.directory autoReport.executionProfileProgramRunCount
        autoReport.outputArchive autoReport.outputDebugInfo autoReport.outputExecutionProfile
        autoReport.outputGraphProfile autoReport.outputLoweredVars autoReport.outputSerializedGraph
        autoReport.streamAtEachRun debug.graphReportDestination debug.loweredVarDumpFile
        debug.outputAllSymbols debug.retainDebugInformation profiler.format profiler.programs
        profiler.includeFlopEstimates profiler.includeCycleEstimates profiler.replicaToProfile
        profiler.perExecutionStreamCopyCycles"""),
    **_idle(_ESTIMATED, """
        debug.instrument debug.instrumentCompute debug.instrumentControlFlow
        debug.instrumentExternalExchange debug.computeInstrumentationLevel debug.profilingTile
        debug.branchRecordTile"""),
    **_idle("every program is proved before it runs; --mode exact --poison runs tile by tile", """
        debug.runtimeVerify debug.verify debug.globalExchangeVerify debug.trace debug.traceFile
        debug.checkpointFile"""),
    **_idle("infinities and NaNs are values as others; hloipu check finds where they begin", """
        debug.floatPointOpException debug.nanOverflowException"""),
    **_idle("numbers are rounded to the nearest, ties to even", "prng.enableStochasticRounding"),
    **_idle(_ONE_THREAD, """
        opt.maxCompilationThreads opt.maxLinkerThreads debug.cpuMultiThreadExecution"""),
    **_idle("--io-tiles N has transfers go on beside computing", """
        exchange.enablePrefetch exchange.streamBufferOverlap exchange.multicastPolicy"""),
    **_idle("plans are chosen by price; --available-memory-proportion bounds what they take", """
        opt.internalExchangeOptimisationTarget opt.maxComputeSetsPerLoweredCopy
        opt.maxCopyMergeSize opt.enableMultiAccessCopies opt.limitVertexStateToLower256K"""),
    **_idle("--outline says what becomes a function", "opt.enableInlining opt.enableOutlining"),
    **_idle("--set stack_bytes=N: all stacks of a tile", "target.supervisorStackSizeInBytes"),
    **_idle("values are the same in each run", "target.deterministicWorkers"),
    **_idle(_NO_DEVICE, """
        opt.useAutoloader target.saveArchive target.textSectionSizeInBytes target.gatewayMode
        target.gatewayWriteCombining target.hostSyncTimeout target.syncMethod
        target.syncPollPeriodUs target.exceptionPollPeriodUs target.syncReplicasIndependently
        target.maxStreamCallbackThreadsPerNumaNode streamCallbacks.multiThreadMode
        streamCallbacks.numaAware streamCallbacks.numWorkerThreads"""),
})  # fmt: skip
"""Options of an engine: POPLAR_ENGINE_OPTIONS, and `compilation_poplar_options` of IPUConfig."""

_PARTIALS = {"half": "f16", "float": "f32"}
_PLANNED: Mapping[str, Key] = MappingProxyType({
    "availableMemoryProportion": Key(_Share(), None, "available_memory_proportion"),
    "partialsType": Key(
        Choice(tuple(_PARTIALS)), None, "partials_type", lambda value: _PARTIALS[str(value)]
    ),
    **_idle("plans are chosen by price; `hloipu explain plan OP FILE` tells what was", """
        planConstraints planConstraintsOutputFilename planType partialsType.maxNumInputs
        use128BitConvUnitLoad enableMultiStageReduce enableFastReduce enableConvDithering
        enableAmpHalfEnginesPlan fullyConnectedPass inputRHSIsPreArranged remapOutputTensor
        insertTransformsCycleCountProportion"""),
})  # fmt: skip
_COLLECTIVES = _idle(
    "collectives are planned by hops and links of the machine",
    """
    useReplicatedImplementation useSynclessCollectives collectiveImplementation topology link
    method maxBytesPerTile syncful.useOptimisedLayout
    syncful.useForwardingToSupportStridedGroups""",
)

DICTIONARIES: Mapping[str, Mapping[str, Key]] = MappingProxyType({
    "compilation_poplar_options": ENGINE,
    "gcl_poplar_options": _COLLECTIVES,
    "convolutions.poplar_options": _PLANNED,
    "matmuls.poplar_options": _PLANNED,
    "slices.poplar_options": _idle("plans are chosen by price", """
        availableMemoryProportion planMinimisationTarget usedForSlice usedForUpdate
        partialsType operationForUpdate opForUpdate indicesDistribution"""),
    "pooling.poplar_options": _idle("plans are chosen by price", """
        poolUseIntrospectiveMapping optimizeForSpeed"""),
})  # fmt: skip
"""Keys of IPUConfig that hold options of Graphcore's libraries -> those options, by name."""

ARGUMENTS: Mapping[str, str] = MappingProxyType({
    "computational_stages": "stages", "device": "ipu_ids", "device_id": "ipu_ids",
    "device_mapping": "device_map", "gradient_accumulation_count": "micro_batches",
    "gradient_accumulation_dtype": "accumulator_dtype",
    "gradient_accumulation_steps_per_replica": "micro_batches",
    "reduction_method": "reduction", "gradient_accumulation_reduction_method": "reduction",
    "pipeline_schedule": "schedule", "recomputation_mode": "recompute", "repeat_count": "loop",
    "steps_per_execution": "loop", "replication_factor": "replicas", "num_ipus": "ipus",
    "batch_serialization_iterations": "batch_serialization",
    "offload_weight_update_variables": "offload",
    "offload_gradient_accumulation_buffers": "offload_accumulators",
    "replicated_optimizer_state_sharding": "shard_optimizer",
    "infeed_queue": "feed",
    "outfeed_queue": "outfeed", "outfeed_loss": "loss_output",
})  # fmt: skip
"""Arguments of Graphcore's functions -> options."""


def key_of(name: str) -> Key | None:
    """Return what a key of IPUConfig means, a library's option within it as well; None: no key.

    Options that the tables do not have are keys without a meaning.
    """
    if name in KEYS:
        return KEYS[name]
    for dictionary, known in DICTIONARIES.items():
        if name.startswith(f"{dictionary}."):
            option = name.removeprefix(f"{dictionary}.")
            near = did_you_mean(option, known, "no such option is known here")
            return known[option] if option in known else Key(_TEXT, None, instead=near)
    return None


def option_hint(name: str, candidates: Iterable[str], otherwise: str, prefix: str = "") -> str:
    """Return a hint for a name that no option has, without dashes before it.

    A name of Graphcore's gets what it is here, any other the nearest names, of Graphcore's the
    nearest one alone; `prefix` goes before those of options.
    """
    if replacement := _served_by(name):
        return replacement
    option_names = list(dict.fromkeys(candidates))
    close = nearest(name, [*option_names, *_NAMES], 3)
    if close and close[0] not in option_names:
        return f"did you mean {close[0]}? {_served_by(close[0])}"
    shown = [prefix + option_name for option_name in close if option_name in option_names]
    return f"did you mean {' or '.join(shown)}?" if shown else otherwise


_NAMES = (*ARGUMENTS, *KEYS, *POPLAR_FLAGS, *ENGINE, *_PLANNED, *_COLLECTIVES)


def _served_by(name: str) -> str:
    """Return the option that replaces a name of Graphcore's, as a hint; '' for other names."""
    written = name.replace("-", "_")
    if written in ARGUMENTS:
        return f"it is --{ARGUMENTS[written].replace('_', '-')} here"
    key = key_of(name) or key_of(written)
    for table in (ENGINE, POPLAR_FLAGS, _PLANNED, _COLLECTIVES):
        key = key or table.get(name) or table.get(written)
    if key is None:
        return ""
    if key.option:
        return f"it is --{key.option.replace('_', '-')} here"
    return f"a name of Graphcore's without a meaning here{key.instead and f': {key.instead}'}"
