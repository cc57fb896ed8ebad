"""No damaged file is accepted: every bit flipped, every length cut, and thousands of forgeries."""

import copy
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.errors import ArtefactError
from hloipu_runtime.program_io.frame.frame import Frame, encode_frame, parse_frame, read_frame

MUTATIONS = 10_000

FRAMES = {
    "empty": Frame("executable", {}),
    "header only": Frame("profile", {"cycles": 12, "steps": [["copy", 1.5], ["dot", None]]}),
    "arrays": Frame(
        "executable",
        {"machine": {"name": "tiny"}},
        {
            "w": np.arange(6, dtype=np.float32).reshape(2, 3),
            "none": np.zeros((0, 4), np.int8),
            "mask": np.array([True, False, True]),
        },
    ),
}


def framed(frame: Frame) -> bytes:
    return b"".join(encode_frame(frame))


def accepted(data: bytes) -> bool:
    try:
        parse_frame(data)
    except ArtefactError:
        return False
    return True


@pytest.mark.parametrize("name", FRAMES)
def test_every_flipped_bit_is_refused(name: str) -> None:
    data = framed(FRAMES[name])
    assert accepted(data)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not accepted(bytes(flipped)), bit


@pytest.mark.parametrize("name", FRAMES)
def test_every_truncation_and_extension_is_refused(name: str) -> None:
    data = framed(FRAMES[name])
    assert not any(accepted(data[:length]) for length in range(len(data)))
    assert not any(accepted(data[length:]) for length in range(1, len(data)))
    assert not any(accepted(data + bytes(count)) for count in (1, 32, 64))


def test_damaged_files_are_refused_from_the_disk_as_well(tmp_path: Path) -> None:
    data = framed(FRAMES["arrays"])
    path = tmp_path / "a.ipux"
    for length in (0, 1, 8, 55, 56, 64, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(ArtefactError, match=r"a\.ipux: "):
            read_frame(path)
    path.write_bytes(data)
    assert read_frame(path).kind == "executable"


# --- forgeries: changed on purpose, with a digest that fits ---------------------------------------


def resealed(body: bytes, *, mend_length: bool) -> bytes:
    if mend_length and len(body) >= 24:
        body = body[:16] + (len(body) + 32).to_bytes(8, "little") + body[24:]
    return body + hashlib.sha256(body).digest()


ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 63, 64, 65, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308,
    "", "a", "w", "f32", "pred", "u4", "token", "\x00", "\ud800", "x" * 2000, [], {}, [[]],
    [2, 3], [6], [-1, -6], [2**32, 2**32], {"name": "w"},
)  # fmt: skip


def spots(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) in a JSON value."""
    found: list[tuple[Any, Any]] = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in pairs:
        found.append((value, key))
        if isinstance(child, dict | list):
            found += spots(child)
    return found


def forged_header(record: Any, draw: random.Random) -> None:
    """Change one thing in a header's data."""
    container, key = draw.choice(spots(record))
    kind = draw.randrange(6)
    if kind == 0:
        container[key] = copy.deepcopy(draw.choice(ODD_VALUES))
    elif kind == 1 and isinstance(container[key], int):
        container[key] += draw.choice((-64, -1, 1, 64, 2**32))
    elif kind == 2:
        del container[key]
    elif kind == 3 and isinstance(container, list):
        container.insert(draw.randrange(len(container) + 1), copy.deepcopy(container[key]))
    elif kind == 4 and isinstance(container, list):
        draw.shuffle(container)
    else:
        other, other_key = draw.choice(spots(record))
        container[key] = copy.deepcopy(other[other_key])


def forged(data: bytes, draw: random.Random) -> bytes:
    """Return a frame changed in one to three ways, its digest mended."""
    body = data[:-32]
    mend_length = draw.random() < 0.9
    for _ in range(draw.randint(1, 3)):
        kind = draw.randrange(5)
        if kind <= 1:
            length = int.from_bytes(body[12:16], "little")
            try:
                record = json.loads(body[24 : 24 + length])
                forged_header(record, draw)
            except (ValueError, IndexError, TypeError, KeyError, AttributeError):
                continue
            text = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
            rest = body[-(-(24 + length) // 64) * 64 :]
            start = -(-(24 + len(text)) // 64) * 64
            body = body[:12] + len(text).to_bytes(4, "little") + body[16:24] + text
            body = body.ljust(start, b"\0") + rest
        elif kind == 2 and body:
            place = draw.randrange(len(body))
            body = body[:place] + bytes([draw.randrange(256)]) + body[place + 1 :]
        elif kind == 3:
            place, count = draw.randrange(len(body) + 1), draw.choice((1, 7, 64))
            extra = bytes(count) if draw.random() < 0.5 else draw.randbytes(count)
            body = body[:place] + extra + body[place:]
        elif body:
            place = draw.randrange(len(body))
            body = body[:place] + body[place + draw.choice((1, 7, 64)) :]
    return resealed(body, mend_length=mend_length)


def test_forgeries_end_in_a_typed_error_or_are_what_would_have_been_written() -> None:
    draw = random.Random(20_21)
    originals = [framed(frame) for frame in FRAMES.values()]
    codes: dict[str, int] = {}
    for number in range(MUTATIONS):
        data = forged(originals[number % 3], draw)
        try:
            frame = parse_frame(data)
        except ArtefactError as error:
            codes[error.code] = codes.get(error.code, 0) + 1
            continue
        codes["accepted"] = codes.get("accepted", 0) + 1
        assert framed(frame) == data
    assert sum(codes.values()) == MUTATIONS
    # The forgeries reach every check but that of the kind and the digest, and some are harmless.
    reached = {"E4001", "E4002", "E4003", "E4005", "E4006", "E4007", "E4009", "accepted"}
    assert set(codes) >= reached, codes
