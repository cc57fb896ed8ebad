"""Keys of Graphcore's IPUConfig: types, defaults, and the options that they map to.

Source: graphcore/tensorflow: tensorflow/python/ipu/config.py (IPUConfig).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar

from hloipu.options.kinds import Choice, Flag, Integer, Kind
from hloipu_runtime.frozen import dataclass

_MACHINES = {"ipu1": "gc2", "ipu2": "gc200"}
_BOOLEAN = Flag()
_COUNT = Integer(0, 2**62)
_VERSION = Choice(("ipu1", "ipu2", "ipu21"))


class AnyText(Kind):
    """Any text, the empty one included."""

    __slots__ = ()
    expected_text: ClassVar[str] = "a text"

    def check(self, value: object) -> object:
        """Return a text as it is, a plain number or truth as JSON writes it."""
        if isinstance(value, bool):
            return str(value).lower()
        return str(value) if isinstance(value, str | int | float) else None


class Ids(Kind):
    """An integer, or a list of integers that may be empty."""

    __slots__ = ()
    expected_text: ClassVar[str] = "an integer, or a list of integers"

    def read(self, text: str) -> object:
        """Return the integers between commas, brackets around them or none."""
        words = text.strip("[] ").split(",")
        return self.check([_COUNT.read(word.strip()) for word in words if word.strip()])

    def check(self, value: object) -> object:
        """Return a list of integers; one integer is a list of it."""
        numbers = [
            _COUNT.check(number)
            for number in (value if isinstance(value, list | tuple) else [value])
        ]
        return None if None in numbers else tuple(numbers)


_TEXT = AnyText()
_IDS = Ids()


@dataclass(frozen=True, slots=True)
class Key:
    """One name of Graphcore's, with what it means here."""

    kind: Kind
    default: object
    """The value that asks for nothing: it is so anyway."""
    option: str = ""
    """The option that it means; most mean none."""
    value: Callable[[object], object] = lambda value: value
    """The option's value for the key's; None: it cannot be had, unless it is the default."""
    instead: str = ""
    """What serves in its place, where it means no option."""


def _machine(value: object) -> object:
    return _MACHINES.get(str(value))


def tiles(value: object) -> object:
    """Return what `set` is for a number of tiles; 0 is the machine's own."""
    return {"tiles_per_ipu": value} if value else None


def _first(value: object) -> object:
    """Several are for `/device:IPU:0`, `/device:IPU:1` and so on: a program is for the first."""
    return value[0] if isinstance(value, tuple) and value else None


def no_effect(kind: Kind, default: object, names: str, instead: str = "") -> dict[str, Key]:
    """Return keys without a meaning here, by the words of a text."""
    return {name: Key(kind, default, instead=instead) for name in names.split()}


KEYS: Mapping[str, Key] = MappingProxyType({
    "allow_recompute": Key(
        _BOOLEAN, False, "recompute", lambda value: "auto" if value else "none"
    ),
    "auto_select_ipus": Key(_IDS, (), "ipus", _first),
    "select_ipus": Key(_IDS, (), "ipu_ids", lambda value: (value and (_first(value),)) or None),
    "device_connection.version": Key(Choice(("", *_VERSION.words)), "", "target", _machine),
    "io_tiles.num_io_tiles": Key(Integer(0, 192), 0, "io_tiles"),
    "ipu_model.compile_ipu_code": Key(_BOOLEAN, True, "code_memory"),
    "ipu_model.tiles_per_ipu": Key(_COUNT, 0, "set", tiles),
    "optimizations.enable_graph_outlining": Key(
        _BOOLEAN, True, "outline", lambda value: "auto" if value else "off"
    ),
    "ipu_model.version": Key(_VERSION, "ipu2", "target", _machine),
    **no_effect(_BOOLEAN, False, """
        matmuls.clear_pass_type device_connection.enable_remote_buffers
        experimental.always_rearrange_copies_on_the_host experimental.enable_prng_stability
        experimental.enable_remote_buffer_embedding floating_point_behaviour.inv
        floating_point_behaviour.div0 floating_point_behaviour.oflo floating_point_behaviour.nanoo
        floating_point_behaviour.set_all io_tiles.place_ops_on_io_tiles norms.use_stable_statistics
        optimizations.math.fast optimizations.combine_embedding_lookups
        optimizations.combine_matmuls optimizations.enable_fast_math"""),
    **no_effect(_BOOLEAN, True, """
        optimizations.math.dot_strength optimizations.prefetch_data_streams
        optimizations.merge_infeed_io_copies
        optimizations.enable_gather_simplifier optimizations.enable_dynamic_slice_replacement"""),
    **no_effect(_COUNT, 0, """
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
    "serialization_output_folder": Key(
        _TEXT, "", instead="hloipu compile -o FILE writes an executable"
    ),
    "selection_order": Key(
        Choice(("AUTO", "ZIGZAG", "SNAKE", "HOOF")),
        "AUTO",
        "selection_order",
        lambda value: str(value).lower(),
    ),
    "device_connection.type": Key(
        Choice(("ALWAYS", "ON_DEMAND", "PRE_COMPILE", "NEVER")), "ALWAYS"
    ),
    "floating_point_behaviour.esr": Key(
        Choice(("OFF", "ON", "REPLICA_IDENTICAL_ONLY")),
        "OFF",
        instead="numbers are rounded to the nearest, ties to even",
    ),
    "optimizations.merge_remote_buffers": Key(
        Choice(("NO_MERGING", "MERGE", "IF_BENEFICIAL")), "IF_BENEFICIAL"
    ),
    "scheduling.algorithm": Key(
        Choice(("CHOOSE_BEST", "CLUSTERING", "POST_ORDER", "LOOK_AHEAD", "SHORTEST_PATH")),
        "CHOOSE_BEST",
    ),
})  # fmt: skip
"""Every key but those that hold options of libraries."""
