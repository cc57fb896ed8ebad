"""Atomic file writes; devices and pipes are written through."""

import errno
import fcntl
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISREG
from typing import BinaryIO

from hloipu_runtime.errors import UsageError

_KEPT_IN_MEMORY_BYTES = 16 << 20
"""Of what goes to a device or a pipe; more waits in a temporary file."""
_MOST_LINKS = 40
"""As Linux follows (`path_resolution(7)`)."""
_OPEN_FILES = re.compile(r"/proc/([0-9]+)/(?:task/[0-9]+/)?fd")


@contextmanager
def replacing(path: str | Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a stream whose bytes take the place of a file when the block ends well.

    They go to a new file in the same folder, to the disk, and then take the name; an exception in
    the block leaves everything as it was. Of a symbolic link, the file that it leads to is
    replaced. A file that is there keeps its permissions, and its owner where that is allowed;
    `mode`: the permissions of a new one, less the umask. What is no regular file (a device, a
    pipe, /dev/stdout) is written through when the block ends well. Raises UsageError E3004 where
    the file cannot be written.
    """
    try:
        target = target_of(path)
        place = _through(target)
        with _new_file(target, mode) if place is None else _written_through(place) as stream:
            yield stream
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) and "\0" not in str(path):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            "E3004",
            f"cannot write {str(path)!r}: {reason}",
            hint="the folder must exist and have room; nothing was changed",
        ) from error


def check_writable(path: str | Path) -> None:
    """Raise UsageError E3004 where `replacing` could not begin: before long work, not after."""
    try:
        target = target_of(path)
        if _through(target) is None and not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            "E3004",
            f"cannot write {str(path)!r}: {reason}",
            hint="name a file in a folder that is there",
        ) from error


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to would be waited for. An opener of `open`."""
    return os.open(path, flags | os.O_NONBLOCK)


def target_of(path: str | Path) -> Path:
    """Return the file that a path leads to through symbolic links; the last may not be there.

    Links to files that a process has open (/dev/stdout, /dev/fd/3) are left as they are: what they
    name may have another name by now, or none. Raises OSError for links in a circle and for an
    empty path, which is none.
    """
    text = os.fspath(path)
    if not text:
        raise FileNotFoundError(errno.ENOENT, "the name is empty")
    for _ in range(_MOST_LINKS):
        if not os.path.islink(text) or _is_open_file(text):
            return Path(text)
        text = os.path.join(os.path.dirname(text), os.readlink(text))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def remove_unfinished(path: str | Path) -> None:
    """Remove what processes that were killed while they wrote a file left beside it.

    A file that is still being written is locked by its writer, and stays; so does one that cannot
    be removed.
    """
    with suppress(OSError):
        target = target_of(path)
        with os.scandir(target.parent) as entries:
            for entry in entries:
                if entry.name.startswith(_beginning(target)) and entry.name.endswith(".tmp"):
                    with suppress(OSError):
                        _remove_unlocked(entry.path)


def _is_open_file(text: str) -> bool:
    return _OPEN_FILES.fullmatch(os.path.realpath(os.path.dirname(text))) is not None


def _through(target: Path) -> str | None:
    """Return what to open or duplicate where a target is to be written through, or None.

    Raises OSError where it is a folder, or protected against writing.
    """
    if _is_open_file(str(target)):
        return str(target)
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    if S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return None if S_ISREG(status.st_mode) else str(target)


@contextmanager
def _written_through(place: str) -> Iterator[BinaryIO]:
    """Yield a stream whose bytes go to a device, a pipe or an open file when the block ends."""
    with tempfile.SpooledTemporaryFile(_KEPT_IN_MEMORY_BYTES) as kept:
        yield kept  # type: ignore[misc]
        kept.seek(0)
        for standard in (sys.stdout, sys.stderr):
            if standard is not None:
                standard.flush()
        with os.fdopen(_opened(place), "wb") as stream:
            shutil.copyfileobj(kept, stream)


def _opened(place: str) -> int:
    """Return a handle to write to; that of a file this process has open goes on where it is."""
    folder, name = os.path.split(place)
    owner = _OPEN_FILES.fullmatch(os.path.realpath(folder))
    if owner and int(owner[1]) == os.getpid() and name.isdecimal():
        return os.dup(int(name))
    return os.open(place, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)


@contextmanager
def _new_file(target: Path, mode: int) -> Iterator[BinaryIO]:
    """Yield a stream to a new file that takes the target's name when the block ends well."""
    begun: list[Path] = []  # an interrupt may come right after a file is made
    kept = None
    with suppress(FileNotFoundError):
        kept = target.stat()
        mode &= S_IMODE(kept.st_mode)  # nobody else reads it meanwhile
    try:
        with os.fdopen(_locked_file(target, mode, begun), "wb") as stream:
            if kept is not None:
                _take_permissions(stream.fileno(), kept)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            begun[-1].replace(target)
    except BaseException:
        for temporary in begun:
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _take_permissions(handle: int, kept: os.stat_result) -> None:
    """Give a file another's owner and group where that is allowed, and its permissions."""
    own = os.fstat(handle)
    if own.st_uid != kept.st_uid:
        with suppress(OSError):
            os.fchown(handle, kept.st_uid, -1)
    if own.st_gid != kept.st_gid:
        with suppress(OSError):
            os.fchown(handle, -1, kept.st_gid)
    with suppress(OSError):  # Some file systems have no permissions.
        os.fchmod(handle, S_IMODE(kept.st_mode))


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


def sync_folder(folder: Path) -> None:
    """Bring a new name to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
