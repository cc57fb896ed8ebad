"""Files that a user gives: headers and limits first, so that none takes the memory or the time."""

import io
import resource
import struct
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import hloipu
from hloipu.inputs import load_arguments
from hloipu_compiler.hlo.syntax.limits import DEFAULT_LIMITS, Limits
from hloipu_runtime.errors import LimitError, StreamError, UsageError
from hloipu_runtime.streams.files import mapped_arrays

MODULE = """HloModule m

ENTRY e {
  p = f32[4] parameter(0)
  ROOT n = f32[4] negate(p)
}
"""
MOST_BYTES = 2 << 30
"""Address space of a process that reads a hostile file: numpy's threads take much of it."""


def npy(header: str, data: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    """Return the bytes of an .npy file whose header says what it likes."""
    text = header.encode("latin1")
    packed = struct.pack("<H" if version == 1 else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + packed + text + data


def described(dtype: str, shape: str) -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}\n"


def zipped(data: bytes, method: int = zipfile.ZIP_DEFLATED, name: str = "p.npy") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        archive.writestr(name, data)
    return made.getvalue()


def encrypted(data: bytes) -> bytes:
    """Return an archive whose members say that they are encrypted."""
    made = bytearray(data)
    made[made.index(b"PK\x03\x04") + 6] |= 1
    made[made.index(b"PK\x01\x02") + 8] |= 1
    return bytes(made)


GOOD = described("'<f4'", "(4,)")
HOSTILE = {
    "huge shape": zipped(npy(described("'<f4'", "(4611686018427387904,)"))),
    "huge product": zipped(
        npy(described("'<f4'", "(0, 4611686018427387904, 4611686018427387904)"))
    ),
    "negative": zipped(npy(described("'<f4'", "(-4,)"), bytes(16))),
    "no numbers in the shape": zipped(npy(described("'<f4'", "('a',)"), bytes(16))),
    "huge elements": zipped(npy(described("'S1000000000'", "(4,)"))),
    "objects": zipped(npy(described("'|O'", "(4,)"), bytes(32))),
    "records": zipped(npy(described("[('a', '<f4')]", "(4,)"), bytes(16))),
    "a pickle": zipped(b"\x80\x04]\x94."),
    "nothing": zipped(b""),
    "long header": zipped(npy(GOOD, bytes(16), 2, 2**32 - 1)),
    "long header of blanks": zipped(npy(" " * 10**6 + GOOD, bytes(16), 2)),
    "unbalanced header": zipped(npy("(" * 5000, bytes(16))),
    "unknown version": zipped(npy(GOOD, bytes(16), 9)),
    "cut": zipped(npy(GOOD, bytes(15))),
    "encrypted": encrypted(zipped(npy(GOOD, bytes(16)))),
    "lzma": zipped(npy(GOOD, bytes(16)), zipfile.ZIP_LZMA),
    "wrong check sum": zipped(npy(GOOD, bytes(16)), zipfile.ZIP_STORED)[:-30],
    "not an archive": b"PK\x03\x04" + bytes(100),
    "no archive": npy(GOOD, bytes(16)),
    "another shape": zipped(npy(described("'<f4'", "(5,)"), bytes(20))),
    "zeros": bytes(10**6),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_arguments_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(UsageError, match=r"E310[2378]"):
        load_arguments(str(path), hloipu.verify(MODULE))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_feeds_are_refused_or_no_larger_than_their_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(HOSTILE[name])
    found: object = ()
    with suppress(StreamError):
        found = mapped_arrays(str(path))
    arrays = found.values() if isinstance(found, dict) else found
    assert sum(array.nbytes for array in arrays) < 100  # type: ignore[attr-defined]


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 MB that unpack to more than a process may have."""
    path = tmp_path_factory.mktemp("bomb") / "bomb.npz"
    count = 9 << 26
    header = npy(described("'<f4'", f"({count},)"))
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("p.npy", "w", force_zip64=True) as member,
    ):
        member.write(header)
        for _ in range(9):
            member.write(bytes(1 << 28))
    return path


@pytest.mark.large
@pytest.mark.parametrize("command", ["eval", "run"])
@pytest.mark.thinned(2)
def test_a_bomb_takes_no_memory(command: str, bomb: Path, tmp_path: Path) -> None:
    module = tmp_path / "m.hlo"
    module.write_text(MODULE)
    child = subprocess.run(
        [sys.executable, "-m", "hloipu", command, str(module), "--inputs", str(bomb)],
        capture_output=True, text=True, timeout=60, preexec_fn=limited,
    )  # fmt: skip
    assert child.returncode == 2, child.stderr
    assert "E3102" in child.stderr


@pytest.mark.parametrize("command", ["eval", "run"])
def test_a_device_is_no_file_of_arrays(command: str, tmp_path: Path) -> None:
    module = tmp_path / "m.hlo"
    module.write_text(MODULE)
    child = subprocess.run(
        [sys.executable, "-m", "hloipu", command, str(module), "--inputs", "/dev/zero"],
        capture_output=True, text=True, timeout=60, preexec_fn=limited,
    )  # fmt: skip
    assert child.returncode == 2, child.stderr
    assert "E3108" in child.stderr


def test_good_arguments_are_read_whatever_else_the_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    for save in (np.savez, np.savez_compressed):
        save(path, p=np.arange(4, dtype=np.float32), other=np.ones((3, 3)))
        (found,) = load_arguments(str(path), hloipu.verify(MODULE))
        assert found.tolist() == [0, 1, 2, 3]
        assert found.flags.writeable


@pytest.mark.parametrize("order", ["C", "F"])
def test_compressed_arrays_keep_their_order(order: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    array = np.asarray(np.arange(24).reshape(2, 3, 4), order=order)  # type: ignore[call-overload]
    np.savez_compressed(path, a=array)
    found = mapped_arrays(str(path))
    assert isinstance(found, dict)
    assert np.array_equal(found["a"], array)


class Endless(io.RawIOBase):
    """Text without end; `taken` says how much was read of it."""

    def __init__(self) -> None:
        self.taken = 0

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            pytest.fail("all of it is asked for")
        self.taken += size
        return b" " * size


def test_no_more_of_a_text_is_read_than_its_limit() -> None:
    text = Endless()
    with pytest.raises(LimitError, match="E5001"):
        hloipu.parse(text, limits=Limits(input_bytes=100_000))  # type: ignore[arg-type]
    assert text.taken == 100_001
    text = Endless()
    with pytest.raises(LimitError, match="E5001"):
        hloipu.compile(text)  # type: ignore[arg-type]
    assert text.taken == DEFAULT_LIMITS.input_bytes + 1


def test_a_pipe_is_read_by_every_command(tmp_path: Path) -> None:
    """The bytes that tell an executable from a text are not lost."""
    child = subprocess.run(
        ["bash", "-c", 'exec "$0" -m hloipu estimate <(echo "$1")', sys.executable, MODULE],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
