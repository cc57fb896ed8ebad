"""`sharding={…}`: how a value is spread over devices, in all three generations of the syntax.

Source: openxla/xla `xla/hlo/parser/hlo_parser.cc` (ParseSharding), `xla/hlo/ir/hlo_sharding.cc`.
What XLA aborts on or reads out of bounds for (more devices than tiles, an iota of another count)
is a fault here.
"""

from math import prod

from hloipu_compiler.hlo.attributes.mesh import (
    PLAIN_ORDER,
    DeviceOrder,
    is_mesh,
    read_iota,
    take_tiles,
)
from hloipu_compiler.hlo.attributes.metadata import OpMetadata, take_metadata_list
from hloipu_compiler.hlo.attributes.named_sharding import take_named_sharding
from hloipu_compiler.hlo.attributes.sharding_value import Sharding, ShardingKind
from hloipu_compiler.hlo.attributes.value_cursor import Cursor, Kind
from hloipu_compiler.hlo.syntax.text_fault import TextFault

__all__ = ["Sharding", "ShardingKind", "read_sharding", "take_sharding"]

_CODE = "E0151"


def read_sharding(text: str) -> Sharding:
    """Read the text of `sharding=`, braces included; TextFault where XLA's parser refuses it."""
    cursor = Cursor(text, _CODE)
    sharding = take_sharding(cursor)
    cursor.finish()
    return sharding


def take_sharding(cursor: Cursor) -> Sharding:
    """Read one sharding or a tuple of them at the cursor."""
    cursor.expect("{")
    if not cursor.at("{") and not cursor.at("}"):
        return _take_single(cursor)
    elements: list[Sharding] = []
    if not cursor.at("}"):
        cursor.expect("{")
        elements.append(_take_single(cursor))
        while cursor.take(","):
            cursor.expect("{")
            elements.append(_take_single(cursor))
    cursor.expect("}")
    return Sharding(ShardingKind.TUPLE, elements=tuple(elements))


_WORDS = {kind.value: kind for kind in ShardingKind}
_ORDER = ("replicated", "maximal", "manual", "unknown", "unreduced")
"""Several words may stand together; the first of these wins."""
_SUBGROUPS = frozenset({"maximal", "replicated", "manual", "unreduced"})


class _Draft:
    """Words and keys of one sharding read so far, in any order."""

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.tiles: tuple[int, ...] = ()
        self.order = PLAIN_ORDER
        self.subgroups: list[ShardingKind] = []
        self.shard_group = ""
        self.is_shard_as = False
        self.metadata: list[OpMetadata] = []


def _take_single(cursor: Cursor) -> Sharding:
    """Read a sharding whose opening brace is behind the cursor."""
    if is_mesh(cursor):
        return Sharding(ShardingKind.NAMED, named=take_named_sharding(cursor))
    start = cursor.start
    draft = _Draft()
    while not cursor.at("}"):
        if cursor.kind is Kind.WORD:
            _take_word(cursor, draft)
        elif cursor.kind is Kind.KEY:
            _take_key(cursor, draft)
        else:
            raise cursor.fault(expected="a word like `replicated`, or `devices=`")
    cursor.expect("}")
    return _finished(draft, start)


def _take_word(cursor: Cursor, draft: _Draft) -> None:
    word = cursor.text
    if word in ("shard_as", "shard_like"):
        cursor.advance()
        number = cursor.integer()
        if word == "shard_as" or not draft.is_shard_as:
            draft.shard_group = f"{word} {number}"
        else:
            draft.shard_group = f"shard_as {number}"
        draft.is_shard_as |= word == "shard_as"
    elif word in _ORDER or word == "last_tile_dim_replicate":
        draft.words.add(word)
        cursor.advance()
    else:
        raise cursor.fault(expected="replicated, maximal, manual, unknown or unreduced")


def _take_key(cursor: Cursor, draft: _Draft) -> None:
    key = cursor.text[:-1]
    if key not in ("device", "devices", "metadata", "last_tile_dims"):
        raise cursor.fault(expected="device=, devices=, metadata= or last_tile_dims=")
    cursor.advance()
    if key == "device":
        draft.order = DeviceOrder(listed=(cursor.integer(),))
    elif key == "devices":
        _take_devices(cursor, draft)
    elif key == "metadata":
        draft.metadata += take_metadata_list(cursor)
    else:
        draft.subgroups += cursor.items("{", "}", lambda: _take_subgroup(cursor))


def _take_devices(cursor: Cursor, draft: _Draft) -> None:
    draft.tiles, is_iota = take_tiles(cursor)
    if is_iota:
        draft.order = read_iota(cursor, prod(draft.tiles))
        return
    devices = [cursor.integer()]
    while cursor.take(","):
        devices.append(cursor.integer())
    draft.order = DeviceOrder(listed=tuple(devices))


def _take_subgroup(cursor: Cursor) -> ShardingKind:
    if cursor.text not in _SUBGROUPS or cursor.kind is not Kind.WORD:
        raise cursor.fault(expected="manual, replicated, unreduced or maximal")
    kind = _WORDS[cursor.text]
    cursor.advance()
    return kind


def _finished(draft: _Draft, start: int) -> Sharding:
    kind = next((_WORDS[word] for word in _ORDER if word in draft.words), ShardingKind.TILED)
    metadata = tuple(draft.metadata)
    listed = draft.order.listed
    if kind is ShardingKind.MAXIMAL:
        if len(listed) != 1:
            raise TextFault(
                _CODE, "a maximal sharding names one device", start, expected="device=n"
            )
        return Sharding(kind, devices=draft.order, shard_group=draft.shard_group, metadata=metadata)
    if kind is not ShardingKind.TILED:
        if listed:
            raise TextFault(_CODE, f"a {kind.value} sharding names no devices", start)
        return Sharding(kind, shard_group=draft.shard_group, metadata=metadata)
    _check_tiled(draft, start)
    return Sharding(
        kind,
        draft.tiles,
        draft.order,
        tuple(draft.subgroups),
        "last_tile_dim_replicate" in draft.words,
        draft.shard_group,
        metadata,
    )


def _check_tiled(draft: _Draft, start: int) -> None:
    listed = draft.order.listed
    if not draft.tiles:
        raise TextFault(_CODE, "the sharding says no tiles", start, expected="devices=[…]…")
    if not draft.order.reshape and len(listed) <= 1:
        raise TextFault(_CODE, "a tiled sharding needs more than one device", start)
    if len(listed) > prod(draft.tiles):
        raise TextFault(
            _CODE,
            f"{len(listed)} devices are listed for {prod(draft.tiles)} tiles",
            start,
            expected=str(prod(draft.tiles)),
        )
    subgroups = len(draft.subgroups) + ("last_tile_dim_replicate" in draft.words)
    both = draft.subgroups and "last_tile_dim_replicate" in draft.words
    if both or subgroups > len(draft.tiles):
        raise TextFault(_CODE, f"{subgroups} subgroups do not fit the tiles {draft.tiles}", start)
