"""Files that are written whole or not at all."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hloipu_runtime.errors import UsageError


@contextmanager
def replacing(path: str | Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a stream whose bytes take the place of a file when the block ends well.

    They go to a new file in the same folder, to the disk, and then take the name; an exception in
    the block leaves everything as it was. `mode`: its permissions, less the umask. Raises
    UsageError E3004 where the file cannot be written.
    """
    target = Path(path)
    begun: list[Path] = []  # an interrupt may come right after a file is made
    try:
        try:
            with os.fdopen(_locked_file(target, mode, begun), "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
                begun[-1].replace(target)
        except BaseException:
            for temporary in begun:
                temporary.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
    except OSError as error:
        raise UsageError(
            "E3004",
            f"cannot write {str(path)!r}: {error.strerror}",
            hint="the folder must exist and have room; nothing was changed",
        ) from error


def remove_unfinished(path: str | Path) -> None:
    """Remove what processes that were killed while they wrote a file left beside it.

    A file that is still being written is locked by its writer, and stays; so does one that cannot
    be removed.
    """
    target = Path(path)
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if entry.name.startswith(_beginning(target)) and entry.name.endswith(".tmp"):
                with suppress(OSError):
                    _remove_unlocked(entry.path)


def _beginning(target: Path) -> str:
    return f".{target.name[:100]}."


def _locked_file(target: Path, mode: int, begun: list[Path]) -> int:
    """Return a new file beside `target`, locked as long as it is open; its path ends `begun`."""
    while True:
        name = f"{_beginning(target)}{os.getpid()}-{secrets.token_hex(4)}.tmp"
        begun.append(target.with_name(name))
        handle = os.open(begun[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with suppress(OSError):  # Some file systems have no locks.
            fcntl.flock(handle, fcntl.LOCK_EX)
        # Between those two calls it looked like one that nobody writes.
        if os.fstat(handle).st_nlink:
            return handle
        os.close(handle)


def _remove_unlocked(path: str) -> None:
    """Remove a file, or raise OSError where somebody has it locked."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    """Bring a new name to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
