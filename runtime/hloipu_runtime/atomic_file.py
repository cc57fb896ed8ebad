"""Files that are written whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
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
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(handle, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
    except OSError as error:
        raise UsageError(
            "E3004",
            f"cannot write {str(path)!r}: {error.strerror}",
            hint="the folder must exist and have room; nothing was changed",
        ) from error


def _sync_folder(folder: Path) -> None:
    """Bring a new name to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
