"""Frames: what is written is read, and nothing else is."""

import hashlib
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import ArtefactError, UsageError
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.program_io.frame.frame import (
    ArrayRow,
    Frame,
    Header,
    encode,
    encode_frame,
    parse_frame,
    read_frame,
    table_of,
    write_frame,
)
from hloipu_runtime.program_io.frame.layout import MAGIC, MOST_DIMENSIONS, PRELUDE

ARRAY_TYPES = [name for name, element in ELEMENT_TYPES.items() if element.is_array]


def framed(frame: Frame) -> bytes:
    return b"".join(encode_frame(frame))


def refused(data: bytes, code: str, **options: str) -> str:
    with pytest.raises(ArtefactError) as caught:
        parse_frame(data, name="m.ipux", **options)
    assert caught.value.code == code
    assert caught.value.exit_code == 9
    assert caught.value.message.startswith("m.ipux: ")
    return caught.value.message


def sealed(data: bytes) -> bytes:
    """Return bytes with their length written in and their digest appended."""
    length = (len(data) + 32).to_bytes(8, "little")
    data = data[:16] + length + data[24:]
    return data + hashlib.sha256(data).digest()


def test_a_frame_of_two_arrays_byte_for_byte() -> None:
    frame = Frame("k", {"b": 1, "a": [None, 0.5]}, {
        "x": np.array([1, 2, 3], np.int16), "y": np.array([], np.float32),
    })  # fmt: skip
    header = (
        b'{"arrays":[{"length":6,"name":"x","offset":0,"shape":[3],"type":"s16"},'
        b'{"length":0,"name":"y","offset":64,"shape":[0],"type":"f32"}],'
        b'"kind":"k","meta":{"a":[null,0.5],"b":1},"schema":"hloipu.frame/1"}'
    )
    start = (24 + len(header) + 63) // 64 * 64
    body = b"\x93hloipu\n" + (1).to_bytes(4, "little") + len(header).to_bytes(4, "little")
    body += (start + 64 + 32).to_bytes(8, "little") + header
    body = body.ljust(start, b"\0") + bytes([1, 0, 2, 0, 3, 0]) + bytes(58)
    assert framed(frame) == body + hashlib.sha256(body).digest()


@pytest.mark.parametrize("element_type", ARRAY_TYPES)
def test_every_element_type_comes_back(element_type: str, tmp_path: Path) -> None:
    dtype = user_dtype(element_type)
    values = np.arange(12).reshape(3, 4) % 2
    array = values.astype(dtype)
    path = tmp_path / "a"
    write_frame(path, Frame("k", {}, {"a": array, "scalar": array[0, 1], "none": array[:0]}))
    arrays = read_frame(path, kind="k").arrays
    assert [(a.dtype, a.shape) for a in arrays.values()] == [
        (dtype, (3, 4)), (dtype, ()), (dtype, (0, 4)),
    ]  # fmt: skip
    assert arrays["a"].tobytes() == array.tobytes()


def test_arrays_that_were_read_cannot_be_changed(tmp_path: Path) -> None:
    write_frame(tmp_path / "a", Frame("k", {}, {"a": np.zeros(4)}))
    frame = read_frame(tmp_path / "a")
    with pytest.raises(ValueError, match="read-only"):
        frame.arrays["a"][0] = 1
    with pytest.raises(ValueError, match=r"cannot set WRITEABLE|read-only"):
        frame.arrays["a"].flags.writeable = True
    with pytest.raises(TypeError):
        frame.arrays["b"] = frame.arrays["a"]  # type: ignore[index]


def test_strided_and_negative_views_are_written_in_their_order() -> None:
    array = np.arange(24).reshape(4, 6)[::-2, ::3].T
    read = parse_frame(framed(Frame("k", {}, {"a": array}))).arrays["a"]
    assert read.tolist() == array.tolist()


def test_negative_numbers_of_four_bits() -> None:
    array = np.array([-8, -1, 0, 7]).astype(ml_dtypes.int4)
    unused_bits_set = np.array([0xF8, 0xFF, 0xF0, 0x17], np.uint8).view(ml_dtypes.int4)
    plain, dirty = (framed(Frame("k", {}, {"a": a})) for a in (array, unused_bits_set))
    assert plain == dirty
    assert parse_frame(plain).arrays["a"].astype(int).tolist() == [-8, -1, 0, 7]


def test_equal_frames_give_equal_bytes_whatever_the_order_of_keys() -> None:
    one = framed(Frame("k", {"a": 1, "b": {"d": 2, "c": 3}}))
    other = framed(Frame("k", {"b": {"c": 3, "d": 2}, "a": 1}))
    assert one == other


@pytest.mark.parametrize(
    "meta",
    [
        {"a": float("nan")}, {"a": {1, 2}}, {"a": b"x"}, {"a": np.int64(1)}, {1: 2, "b": 3},
        {"a": float("inf")},
    ],
)  # fmt: skip
def test_what_is_not_json_is_not_written(meta: dict[Any, Any]) -> None:
    with pytest.raises(ArtefactError) as caught:
        framed(Frame("k", meta))
    assert caught.value.code == "E4005"


def test_what_contains_itself_is_not_written() -> None:
    meta: dict[str, Any] = {}
    meta["a"] = meta
    with pytest.raises(ArtefactError) as caught:
        framed(Frame("k", meta))
    assert caught.value.code == "E4005"


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("a", np.array(["x"])),
        ("a", np.array([object()])),
        ("a", np.zeros(2, ">f4")),
        ("a", np.zeros(2, [("x", "f4")])),
        ("a", np.zeros(2, "M8[s]")),
        ("a", np.zeros((1,) * (MOST_DIMENSIONS + 1))),
        ("", np.zeros(2)),
        ("a\n", np.zeros(2)),
        ("a" * 1025, np.zeros(2)),
    ],
)
def test_arrays_that_a_frame_cannot_hold(name: str, array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ArtefactError) as caught:
        framed(Frame("k", {}, {name: array}))
    assert caught.value.code == "E4006"


def test_a_pred_that_is_neither_true_nor_false_is_not_written() -> None:
    with pytest.raises(ArtefactError) as caught:
        framed(Frame("k", {}, {"a": np.array([2], np.uint8).view(np.bool_)}))
    assert caught.value.code == "E4009"


# --- reading what is wrong ------------------------------------------------------------------------


def test_other_files() -> None:
    assert "not a file of hloipu" in refused(b"HloModule m" * 20, "E4001")
    assert "not a file of hloipu" in refused(b"PK", "E4001")
    assert "cut off after 0 bytes" in refused(b"", "E4002")
    assert "cut off after 20 bytes" in refused(framed(Frame("k"))[:20], "E4002")


def test_another_version_names_both() -> None:
    data = framed(Frame("k"))
    message = refused(data[:8] + (7).to_bytes(4, "little") + data[12:], "E4003")
    assert "version 7" in message
    assert "reads version 1" in message


def test_another_kind() -> None:
    message = refused(framed(Frame("profile")), "E4008", kind="executable")
    assert "it holds a 'profile', expected is 'executable'" in message


def with_header(header: bytes, arrays: bytes = b"") -> bytes:
    start = -(-(24 + len(header)) // 64) * 64
    body = PRELUDE.pack(MAGIC, 1, len(header), 0) + header
    return sealed(body.ljust(start, b"\0") + arrays)


GOOD = encode(Header("k", {}, ()))


def test_with_header_makes_good_frames() -> None:
    assert parse_frame(with_header(GOOD)).kind == "k"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b"1" * 10_000,
        b"[]",
        b"null",
        GOOD + b" ",
        b" " + GOOD,
        GOOD.replace(b":", b": "),
        GOOD.replace(b"{}", b'{"a":1,"a":1}'),
        GOOD.replace(b"{}", b'{"a":NaN}'),
        GOOD.replace(b"{}", b'{"a":1e999}'),
        GOOD.replace(b"{}", b'{"a":1.0e0}'),
        GOOD.replace(b"{}", b"[]"),
        GOOD.replace(b'"k"', b"1"),
        GOOD.replace(b"frame/1", b"frame/2"),
        GOOD.replace(b'"arrays":[],', b""),
        GOOD.replace(b"[]", b"{}"),
        GOOD.replace(b"}", b',"zzz":1}'),
    ],
)
def test_headers_that_cannot_be_used(header: bytes) -> None:
    refused(with_header(header), "E4005")


def test_a_header_longer_than_the_file() -> None:
    for length in (2**32 - 1, 2**28 + 1, 1000):
        data = framed(Frame("k"))
        refused(sealed(data[:12] + length.to_bytes(4, "little") + data[16:-32]), "E4005")


ROW = {"name": "a", "type": "u8", "shape": [4], "offset": 0, "length": 4}


def table(*rows: dict[str, Any]) -> bytes:
    import json  # only here: the header's own encoder refuses to write most of these

    record = {"schema": "hloipu.frame/1", "kind": "k", "meta": {}, "arrays": list(rows)}
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


def test_table_makes_good_tables() -> None:
    data = with_header(table(ROW, ROW | {"name": "b", "offset": 64}), bytes([1] * 4 + [0] * 124))
    assert parse_frame(data).arrays["a"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": 1},
        {"name": "a" * 1025},
        {"name": "\u001b[31m"},
        {"type": "u9"},
        {"type": "token"},
        {"type": None},
        {"shape": 4},
        {"shape": [4.0]},
        {"shape": [True, 4]},
        {"shape": [-4]},
        {"shape": ["4"]},
        {"shape": [5]},
        {"shape": [1] * 33},
        {"shape": [2**62, 2**62], "length": 2**124},
        {"shape": [2**40], "length": 2**40},
        {"offset": 64},
        {"offset": 1},
        {"offset": -64},
        {"offset": None},
        {"length": 5},
        {"length": 0},
        {"length": -4},
        {"length": 4.0},
        {"extra": 1},
    ],
    ids=str,
)
def test_tables_that_cannot_be(change: dict[str, Any]) -> None:
    refused(with_header(table(ROW | change), bytes([1] * 4 + [0] * 60)), "E4006")


@pytest.mark.parametrize(
    ("rows", "length"),
    [
        ([ROW, ROW | {"offset": 64}], 128),  # one name twice
        ([ROW, ROW | {"name": "b"}], 64),  # two arrays in one place
        ([ROW, ROW | {"name": "b", "offset": 4}], 64),
        ([ROW, ROW | {"name": "b", "offset": 128}], 192),  # a gap
        ([{k: v for k, v in ROW.items() if k != "shape"}], 64),
        ([ROW], 128),  # more than the table tells of
        ([ROW], 0),
        ([], 64),
    ],
)
def test_arrays_in_the_wrong_place(rows: list[dict[str, Any]], length: int) -> None:
    refused(with_header(table(*rows), bytes(length)), "E4006")


def test_something_between_the_parts() -> None:
    hidden = bytes([1] * 4 + [0] * 59 + [9])
    refused(with_header(table(ROW), hidden), "E4007")
    data = bytearray(framed(Frame("k"))[:-32])
    data[-1] = 1  # the last zero after the header
    refused(sealed(bytes(data)), "E4007")


@pytest.mark.parametrize(
    ("element_type", "largest"), [("pred", 1), ("u4", 15), ("s2", 3), ("f6e2m3fn", 63), ("u8", 255)]
)
def test_bytes_that_are_no_value_of_the_type(element_type: str, largest: int) -> None:
    header = table(ROW | {"type": element_type})
    assert parse_frame(with_header(header, bytes([largest] * 4 + [0] * 60))).arrays["a"].size == 4
    if largest < 255:
        refused(with_header(header, bytes([0, 0, 0, largest + 1] + [0] * 60)), "E4009")


# --- files ----------------------------------------------------------------------------------------


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for name, error in (
        ("missing", UsageError), ("nul\0", UsageError), ("pipe", ArtefactError),
        ("empty", ArtefactError), (".", UsageError),
    ):  # fmt: skip
        with pytest.raises((UsageError, ArtefactError)) as caught:
            read_frame(f"{tmp_path}/{name}")
        assert isinstance(caught.value, error), name


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_frame(path, Frame("k", {"n": 1}))
    with pytest.raises(ArtefactError):
        write_frame(path, Frame("k", {"n": 2}, {"a": np.array([object()])}))
    assert read_frame(path).meta == {"n": 1}
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UsageError) as caught:
        write_frame(tmp_path / "missing" / "a", Frame("k"))
    assert caught.value.code == "E3004"


def test_a_file_that_is_replaced_stays_what_it_was_for_its_readers(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_frame(path, Frame("k", {}, {"a": np.full(5000, 1.0)}))
    old = read_frame(path)
    write_frame(path, Frame("k", {}, {"a": np.full(2, 2.0)}))
    assert old.arrays["a"].sum() == 5000
    assert read_frame(path).arrays["a"].sum() == 4


def test_a_table_is_placed_by_its_shapes() -> None:
    rows = table_of({"a": np.zeros((2, 3), np.float16), "b": np.zeros(17), "c": np.zeros(())})
    assert rows == (
        ArrayRow("a", "f16", (2, 3), 0, 12),
        ArrayRow("b", "f64", (17,), 64, 136),
        ArrayRow("c", "f64", (), 256, 8),
    )
