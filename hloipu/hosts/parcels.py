"""Arrays in transit between processes: in the message, or in shared-memory files.

On one machine the arrays of a message go into a file of a folder in memory, one name of it for each
process that reads it: each maps the file and removes its name, so that nobody waits for readers
and nothing is left. The process between them hands on a few bytes.
"""

import fcntl
import mmap
import os
import pickle
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, count, pairwise
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Any, NamedTuple

_LEAST_BYTES = 2**16
"""Of arrays that go into a file: fewer are with the message sooner. Assumed."""
_IN_MEMORY = "/dev/shm"
"""The folder of POSIX shared memory on Linux."""
_PREFIX = "hloipu-hosts-"
_NEW_SECONDS = 60.0
"""From a folder's making to its lock at most. Assumed."""


class Parcel(NamedTuple):
    """An object whose arrays go beside it."""

    pickled: bytes
    sizes: tuple[int, ...]
    """Bytes of each array."""
    data: bytes
    """Of the arrays; empty where they are in a file."""
    file: str
    """Its names but for the reader's number; empty: none."""


class FolderInMemory:
    """A folder of this machine's memory, or of its disk where there is none, for one session.

    It is locked as long as its process lives, so that the next session here removes what killed
    ones left.
    """

    def __init__(self) -> None:
        place = Path(_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else gettempdir())
        for folder in place.glob(f"{_PREFIX}*"):
            _remove_if_left(folder)
        self.path: str = mkdtemp(prefix=_PREFIX, dir=place)
        self._locked = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._locked, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the folder with unread parcels."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._locked >= 0:
            os.close(self._locked)
            self._locked = -1


def _remove_if_left(folder: Path) -> None:
    """Remove a folder of a session that is over; one just made may not be locked yet."""
    with suppress(OSError):
        if (
            folder.stat().st_uid != os.getuid()
            or time.time() - folder.stat().st_mtime < _NEW_SECONDS
        ):
            return
        locked = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(locked)


class Packer:
    """Packs what a process sends to others; `folder`: one that all of them share, or none."""

    def __init__(self, folder: str, sender: int) -> None:
        self._folder = folder
        self._sender = sender
        self._numbers = count()

    def packed(self, value: Any, readers: Sequence[int]) -> Parcel:
        """Return a parcel that processes of these numbers open, each once."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
        raws = [buffer.raw() for buffer in buffers]
        sizes = tuple(raw.nbytes for raw in raws)
        if self._folder and sum(sizes) >= _LEAST_BYTES:
            file = str(Path(self._folder) / f"{self._sender}-{next(self._numbers)}")
            if _written(file, raws, readers):
                return Parcel(pickled, sizes, b"", file)
        return Parcel(pickled, sizes, b"".join(raws), "")


def _written(file: str, raws: Iterable[memoryview], readers: Sequence[int]) -> bool:
    """Write a file under a name for each reader; False where there is no room."""
    names = [f"{file}-{reader}" for reader in readers]
    try:
        with open(names[0], "xb", buffering=0) as stream:
            for raw in raws:
                left = raw
                while left.nbytes:
                    left = left[stream.write(left) :]
        for name in names[1:]:
            os.link(names[0], name)
    except OSError:
        for name in names:
            with suppress(OSError):
                os.unlink(name)
        return False
    return True


def unpacked(parcel: Parcel, reader: int) -> Any:
    """Return what is in a parcel, as the reader of this number; arrays are read only."""
    data = memoryview(parcel.data)
    if parcel.file:
        name = f"{parcel.file}-{reader}"
        with open(name, "rb") as stream:
            data = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        os.unlink(name)
    ends = list(accumulate(parcel.sizes, initial=0))
    parts = [data[start:end] for start, end in pairwise(ends)]
    return pickle.loads(parcel.pickled, buffers=parts)  # noqa: S301 - it has the session's key
