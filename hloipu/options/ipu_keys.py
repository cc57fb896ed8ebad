"""The keys of Graphcore's configuration, with their types, defaults, and what they mean here.

Sources: graphcore/tensorflow: tensorflow/python/ipu/config.py (IPUConfig) and
tensorflow/compiler/plugin/poplar/driver/tools/flags.cc (TF_POPLAR_FLAGS).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hloipu.options.kinds import Choice, Flag, Integer, Kind, Proportion
from hloipu_runtime.frozen import dataclass

Meaning = tuple[str, object]
"""An option and its value."""

_MACHINES = {"ipu1": "gc2", "ipu2": "gc200"}
_PARTIALS = {"half": "f16", "float": "f32"}
_BOOLEAN = Flag()
_COUNT = Integer(0, 2**62)
_VERSION = Choice(("ipu1", "ipu2", "ipu21"))


class AnyText(Kind):
    """Any text, the empty one included."""

    __slots__ = ()

    @property
    def expected(self) -> str:
        """What a value is."""
        return "a text"

    def check(self, value: object) -> object:
        """Return a text as it is, and a plain number as text."""
        return str(value) if isinstance(value, str | int | float) else None


class Share(Proportion):
    """A proportion, which Graphcore's libraries take as text."""

    __slots__ = ()

    def check(self, value: object) -> object:
        """Return the number, from a number or from its text."""
        return self.read(value) if isinstance(value, str) else Proportion.check(self, value)


class Ids(Kind):
    """An integer, or a list of integers that may be empty."""

    __slots__ = ()

    @property
    def expected(self) -> str:
        """What a value is."""
        return "an integer, or a list of integers"

    def read(self, text: str) -> object:
        """Return the integers between commas, brackets around them or none."""
        words = text.strip("[] ").split(",")
        return self.check([_COUNT.read(word.strip()) for word in words if word.strip()])

    def check(self, value: object) -> object:
        """Return a list of integers; one integer is a list of it."""
        numbers = [_COUNT.check(x) for x in (value if isinstance(value, list | tuple) else [value])]
        return None if None in numbers else tuple(numbers)


_TEXT = AnyText()
_IDS = Ids()


@dataclass(frozen=True, slots=True)
class Key:
    """One key: kind, default there, and what it means here (nothing, mostly)."""

    kind: Kind
    default: object
    meaning: Callable[[object], Meaning | None] | None = None


def _means(option: str) -> Callable[[object], Meaning]:
    return lambda value: (option, value)


def _machine(value: object) -> Meaning | None:
    return ("target", _MACHINES[str(value)]) if value in _MACHINES else None


def _tiles(value: object) -> Meaning | None:
    return ("set", {"tiles_per_ipu": value}) if value else None


def _first(option: str) -> Callable[[object], Meaning | None]:
    """Several are those of `/device:IPU:0`, `/device:IPU:1`, …; a program is for one of them."""
    return lambda value: (
        (option, value[0] if option == "ipus" else value[:1])
        if isinstance(value, tuple) and value
        else None
    )


def _no_effect(kind: Kind, default: object, names: str) -> dict[str, Key]:
    return {name: Key(kind, default) for name in names.split()}


KEYS: Mapping[str, Key] = MappingProxyType({
    "allow_recompute": Key(
        _BOOLEAN, False, lambda value: ("recompute", "auto" if value else "none")
    ),
    "auto_select_ipus": Key(_IDS, (), _first("ipus")),
    "select_ipus": Key(_IDS, (), _first("ipu_ids")),
    "device_connection.version": Key(Choice(("", *_VERSION.words)), "", _machine),
    "io_tiles.num_io_tiles": Key(Integer(0, 192), 0, _means("io_tiles")),
    "ipu_model.compile_ipu_code": Key(_BOOLEAN, True, _means("code_memory")),
    "ipu_model.tiles_per_ipu": Key(_COUNT, 0, _tiles),
    "optimizations.enable_graph_outlining": Key(
        _BOOLEAN, True, lambda value: ("outline", "auto" if value else "off")
    ),
    "ipu_model.version": Key(_VERSION, "ipu2", _machine),
    **_no_effect(_BOOLEAN, False, """
        matmuls.clear_pass_type device_connection.enable_remote_buffers
        experimental.always_rearrange_copies_on_the_host experimental.enable_prng_stability
        experimental.enable_remote_buffer_embedding floating_point_behaviour.inv
        floating_point_behaviour.div0 floating_point_behaviour.oflo floating_point_behaviour.nanoo
        floating_point_behaviour.set_all io_tiles.place_ops_on_io_tiles norms.use_stable_statistics
        optimizations.math.fast optimizations.combine_embedding_lookups
        optimizations.combine_matmuls optimizations.enable_fast_math"""),
    **_no_effect(_BOOLEAN, True, """
        optimizations.math.dot_strength optimizations.prefetch_data_streams
        optimizations.merge_infeed_io_copies
        optimizations.enable_gather_simplifier optimizations.enable_dynamic_slice_replacement"""),
    **_no_effect(_COUNT, 0, """
        experimental.multi_replica_distribution.process_index
        experimental.multi_replica_distribution.process_count
        optimizations.maximum_cross_replica_sum_buffer_size
        optimizations.maximum_reduce_scatter_buffer_size
        optimizations.maximum_all_gather_buffer_size
        optimizations.maximum_inter_ipu_copies_buffer_size
        optimizations.maximum_reduce_many_buffer_size
        optimizations.maximum_send_recv_cluster_size
        optimizations.triangular_solve_expander_block_size optimizations.cholesky_block_size"""),
    "norms.experimental.distributed_batch_norm_replica_group_size": Key(_COUNT, 1),
    "optimizations.minimum_remote_tensor_size": Key(_COUNT, 128),
    "scheduling.maximum_scheduler_lookahead_depth": Key(_COUNT, 5),
    "scheduling.maximum_scheduler_search_space_size": Key(_COUNT, 64),
    "io_tiles.available_memory_proportion": Key(_TEXT, "0.9"),
    "serialization_output_folder": Key(_TEXT, ""),
    "selection_order": Key(
        Choice(("AUTO", "ZIGZAG", "SNAKE", "HOOF")),
        "AUTO",
        lambda value: ("selection_order", str(value).lower()),
    ),
    "device_connection.type": Key(
        Choice(("ALWAYS", "ON_DEMAND", "PRE_COMPILE", "NEVER")), "ALWAYS"
    ),
    "floating_point_behaviour.esr": Key(Choice(("OFF", "ON", "REPLICA_IDENTICAL_ONLY")), "OFF"),
    "optimizations.merge_remote_buffers": Key(
        Choice(("NO_MERGING", "MERGE", "IF_BENEFICIAL")), "IF_BENEFICIAL"
    ),
    "scheduling.algorithm": Key(
        Choice(("CHOOSE_BEST", "CLUSTERING", "POST_ORDER", "LOOK_AHEAD", "SHORTEST_PATH")),
        "CHOOSE_BEST",
    ),
})  # fmt: skip
"""Every key but those of the dictionaries below."""

DICTIONARIES = (
    "compilation_poplar_options", "gcl_poplar_options", "convolutions.poplar_options",
    "matmuls.poplar_options", "slices.poplar_options", "pooling.poplar_options",
)  # fmt: skip
"""Keys that hold options of Graphcore's libraries, by names which are theirs."""

POPLAR_FLAGS: Mapping[str, Key] = MappingProxyType(
    {
        "ipu_model_tiles": Key(_COUNT, 0, _tiles),
        "executable_cache_path": Key(
            _TEXT, "", lambda value: ("cache_dir", value) if value else None
        ),
        **_no_effect(_BOOLEAN, False, """
            use_ipu_model use_synthetic_data null_data_feed dump_schedule_as_dot fallback_scheduler
            allow_nans use_on_demand sync_replica_start enable_hlo_verifier
            disable_poplar_version_check"""),
        **_no_effect(_TEXT, "", """
            synthetic_data_categories synthetic_data_initializer tensor_map_file_path"""),
        **_no_effect(_TEXT, "-1", "log_cycle_count max_compilation_threads max_infeed_threads"),
        "while_loop_brute_force_max_trip_count": Key(_COUNT, 128),
        "show_progress_bar": Key(_TEXT, "auto"),
        "on_demand_device_poll_time": Key(_COUNT, 1000),
        "on_demand_device_timeout": Key(_COUNT, 3_600_000),
    }
)  # fmt: skip
"""The words of TF_POPLAR_FLAGS, which HLOIPU_FLAGS takes as well."""

_PLANNED = ("convolutions.poplar_options", "matmuls.poplar_options")


def library_option(name: str) -> Key:
    """Return the key of an entry of a dictionary: two of them mean something here."""
    dictionary, _, option = name.rpartition(".")
    if dictionary in _PLANNED and option == "availableMemoryProportion":
        return Key(Share(), None, _means("available_memory_proportion"))
    if dictionary in _PLANNED and option == "partialsType":
        return Key(
            Choice(tuple(_PARTIALS)), None, lambda value: ("partials_type", _PARTIALS[str(value)])
        )
    return Key(_TEXT, None)
