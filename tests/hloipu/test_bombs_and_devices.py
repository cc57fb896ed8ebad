"""Files that are no input, devices and bombs: refused at once, whichever command reads them."""

import os
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import hloipu
from tests.support.arrays import f32

MOST_EXTRA_BYTES = 200 << 20
MOST_CPU_SECONDS = 2.0
BOMB_BYTES = 256 << 20
STEP = """HloModule m, input_output_alias={ {0}: (0, {}, may-alias) }
ENTRY e {
  s = f32[3,4] parameter(0)
  a = f32[4] parameter(1)
  p = f32[3,4] broadcast(a), dimensions={1}
  u = f32[3,4] add(s, p)
  ROOT r = (f32[3,4], f32[4]) tuple(u, a)
}
"""
COMMANDS = {
    "verify": "verify {}", "eval": "eval {}", "run": "run {} --random 0", "opt": "opt {}",
    "reduce": "reduce {} --test true", "eval inputs": "eval {m} --inputs {}",
    "run inputs": "run {x} --inputs {} --infeed data={f}",
    "against": "check {m} --inputs {i} --against {}",
    "infeed": "run {x} --inputs {i} --infeed data={}", "bench": "feed-bench {}",
    "bench executable": "feed-bench {f} --executable {}", "compare": "compare {} {}",
    "target": "targets {}", "config": "run {m} --random 0 --config {}",
    "define": "run {m} --random 0 --define T={}",
}  # fmt: skip
TEXTS = ("verify", "eval", "opt", "compare")
ARRAYS = ("eval inputs", "run inputs", "against", "infeed", "bench")


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def bomb(path: Path, dtype: str, shape: tuple[int, ...], size_bytes: int = BOMB_BYTES) -> None:
    """Write an archive of an array of zeros under all names that commands ask for.

    The layout is PKWARE's APPNOTE 4.3; what is compressed once is repeated, as writing takes time.
    """
    head = header(dtype, shape)
    zeros = bytes(1 << 20)
    data = flushed(head) + flushed(zeros) * (size_bytes >> 20) + b"\x03\x00"  # an empty last block
    check = zlib.crc32(head)
    for _ in range(size_bytes >> 20):
        check = zlib.crc32(zeros, check)
    files, listed = b"", b""
    for name in (b"in_0.npy", b"in_1.npy", b"out_0.npy"):
        sizes = (0, 8, 0, 0, check, len(data), len(head) + size_bytes, len(name), 0)
        listed += struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, *sizes, 0, 0, 0, 0, len(files))
        listed += name
        files += struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, *sizes) + name + data
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 3, 3, len(listed), len(files), 0)
    path.write_bytes(files + listed + end)


def flushed(data: bytes) -> bytes:
    """Return data deflated, to be put between others."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflate.compress(data) + deflate.flush(zlib.Z_FULL_FLUSH)


def sparse(path: Path, head: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(100 * 10**9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "step.hlo").write_text(STEP)
    program = hloipu.compile(STEP, loop=2, feed={"data": (1,)}, target="tiny", cache=False)
    program.save(folder / "step.ipux")
    np.savez(folder / "start.npz", in_0=np.zeros((3, 4), np.float32), in_1=f32([1, 2, 3, 4]))
    np.savez(folder / "rows.npz", in_1=np.ones((4, 4), np.float32))
    bomb(folder / "shape", "<f4", (BOMB_BYTES // 4,))
    bomb(folder / "rows", "<f4", (BOMB_BYTES // 16, 4))
    bomb(folder / "elements", "<c16", (4,), 1 << 24)
    (folder / "header").write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{" * 99)
    sparse(folder / "npy", header("<f4", (1, 24_999_999_968)))
    sparse(folder / "zeros", b"")
    sparse(folder / "text", b'{"a": ' + b" " * 8192)
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    return folder


ANY = ("/dev/zero", "/dev/urandom", "zeros", "folder", "loop", "pipe", "absent")
FILES = {
    name: (*ANY, *(("text",) if name in TEXTS else ()),
           *(("shape", "rows", "elements", "header", "npy") if name in ARRAYS else ()))
    for name in COMMANDS
}  # fmt: skip
CASES = [(command, file) for command, files in FILES.items() for file in files]
CASES.remove(("bench", "elements"))  # numbers of any type can be fed


class Ended(NamedTuple):
    """How a command ended, and what it took."""

    code: int
    said: str
    cpu_seconds: float
    most_bytes: int


def ended(folder: Path, command: str, file: str) -> Ended:
    """Run a command of the table on a file in a process of its own."""
    places = {"m": "step.hlo", "x": "step.ipux", "i": "start.npz", "f": "rows.npz"}
    known = {key: str(folder / name) for key, name in places.items()}
    words = [word.format(str(folder / file), **known) for word in COMMANDS[command].split()]
    with subprocess.Popen(
        [sys.executable, "-m", "hloipu", *words], text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        said = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    return Ended(child.returncode, said, used.ru_utime + used.ru_stime, used.ru_maxrss << 10)


@pytest.fixture(scope="module")
def usual(folder: Path) -> Ended:
    """What a command takes of which all inputs are right."""
    found = ended(folder, "run inputs", "start.npz")
    assert found.code == 0, found
    return found


@pytest.mark.parametrize(("command", "file"), CASES)
@pytest.mark.thinned(22)
def test_what_is_no_input_is_refused_at_once(
    command: str, file: str, folder: Path, usual: Ended
) -> None:
    begun = time.monotonic()
    found = ended(folder, command, file)
    assert found.code in (2, 4, 7, 8, 9), found
    assert "error[E" in found.said, found
    assert "Traceback" not in found.said, found
    assert found.cpu_seconds < usual.cpu_seconds + MOST_CPU_SECONDS, found
    assert found.most_bytes < usual.most_bytes + MOST_EXTRA_BYTES, found
    assert time.monotonic() - begun < 60
