"""Arrays of files are mapped where they can be, and damaged files are refused."""

import io
import os
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams.arrays import from_arrays, from_file
from hloipu_runtime.streams.element import ElementSpec, LeafSpec
from hloipu_runtime.streams.files import mapped_arrays
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.source import Source

X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.asfortranarray(np.arange(18, dtype=np.int16).reshape(6, 3))


def test_npy_is_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    found = mapped_arrays(str(tmp_path / "x.npy"))
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, X)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_by_name(tmp_path: Path, save: Callable[..., None]) -> None:
    path = str(tmp_path / "d.npz")
    save(path, x=X, y=Y, empty=np.zeros((0, 3)), scalar=np.int32(4))
    found = mapped_arrays(path)
    assert isinstance(found, dict)
    for name, array in (("x", X), ("y", Y), ("empty", np.zeros((0, 3))), ("scalar", np.int32(4))):
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    assert isinstance(found["x"], np.memmap) == (save is np.savez)


def test_elements_of_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "d.npz")
    np.savez(path, x=X, y=Y)
    second = list(from_file(path).elements())[1]
    assert second["x"].tolist() == X[1].tolist()
    chosen = next(from_file(path, ("y", "x")).batch(2).elements())
    assert chosen[0].tolist() == Y[:2].tolist()
    assert next(from_file(path, ("y",)).elements()).tolist() == Y[0].tolist()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_no_file_stays_open(tmp_path: Path) -> None:
    path = str(tmp_path / "d.npz")
    np.savez(path, x=X, y=Y)
    before = len(os.listdir("/proc/self/fd"))
    source = from_file(path)
    list(source.elements())
    del source
    assert len(os.listdir("/proc/self/fd")) == before


def _pickled(path: Path) -> None:
    np.save(path, np.array([{}], object), allow_pickle=True)


def _pickled_in_archive(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, x=np.array([{}], object))


def _cut_short(path: Path) -> None:
    np.save(path, X)
    path.write_bytes(path.read_bytes()[:-8])


def _lying_header(path: Path) -> None:
    """Write an archive whose array says that it is larger than its member."""
    data = io.BytesIO()
    np.save(data, X)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", data.getvalue().replace(b"(6, 4)", b"(9, 9)"))


def _no_array(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "nothing")


@pytest.mark.parametrize(
    "damage",
    [
        _pickled,
        _pickled_in_archive,
        _cut_short,
        _lying_header,
        _no_array,
        lambda path: path.write_bytes(b"PK\x03\x04 and no more"),
        lambda path: path.write_bytes(b"1,2,3\n"),
        lambda path: path.write_bytes(b""),
        lambda path: path.mkdir(),
        lambda path: None,
    ],
)
def test_unusable_files_are_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "d.npy"
    damage(path)
    with pytest.raises(StreamError) as caught:
        mapped_arrays(str(path))
    assert caught.value.code == "E2032"
    assert str(path) in str(caught.value)


def test_every_flipped_byte_of_a_header_is_refused_or_read(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x=X)
    whole = path.read_bytes()
    for at in (*range(0, 260), *range(len(whole) - 80, len(whole))):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        with suppress(StreamError):
            mapped_arrays(str(path))


def test_a_name_that_is_not_there(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X)
    with pytest.raises(StreamError, match="no array named 'z'"):
        from_file(str(tmp_path / "d.npz"), ("z",))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    os.mkfifo(path)
    with pytest.raises(StreamError, match=r"E2032.*not a regular file"):
        mapped_arrays(str(path))


def test_types_that_numpy_does_not_know_come_back_from_files(tmp_path: Path) -> None:
    rows = np.array([[1, -2.5], [3, 0.125]], ml_dtypes.bfloat16)
    np.savez(tmp_path / "d.npz", x=rows)
    spec = ElementSpec((LeafSpec("bf16", (2,)),))
    with InfeedQueue("data", spec, from_file(str(tmp_path / "d.npz"))) as queue:
        found = [spec.to_user(queue.take()) for _ in rows]
    assert found[0].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found, rows)


def test_arrays_that_nobody_asks_for_are_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "x.npz")
    np.savez_compressed(path, small=np.ones((3, 2), np.float32), large=np.zeros(100_000))
    monkeypatch.setattr("hloipu_runtime.streams.files.MAX_UNPACKED_BYTES", 1000)
    assert len(list(from_file(path, ("small",)).elements())) == 3
    with pytest.raises(StreamError, match=r"unpack from .* more than 1,000"):
        from_file(path)
    with pytest.raises(StreamError, match=r"unpack from .* more than 1,000"):
        from_file(path, ("large",))
    with pytest.raises(StreamError):
        from_file(path, ("small", "absent"))


@pytest.mark.parametrize("batch", [0, 4])
@pytest.mark.parametrize("columns", [4, 1024, 1 << 15])
def test_a_file_that_becomes_shorter_is_no_crash(batch: int, columns: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.ones(((1 << 22) // columns, columns), np.float32))
    source: Source = from_file(str(path))
    source = source.batch(batch) if batch else source
    rows = source.elements()
    assert next(rows).sum() == columns * (batch or 1)
    os.truncate(path, 50_000)
    with pytest.raises(StreamError, match="has become shorter") as caught:
        sum(row.sum() for row in rows)
    assert caught.value.code == "E2032"


def test_copies_and_parts_of_mapped_arrays_are_sources(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(8, dtype=np.float32))
    mapped = np.load(path, mmap_mode="r")
    for rows in (mapped[2:5], mapped[[2, 3, 4]], mapped[2:5] + 0):
        assert [float(row) for row in from_arrays(rows).elements()] == [2, 3, 4]
