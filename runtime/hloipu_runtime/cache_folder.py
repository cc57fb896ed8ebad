"""The folder that a user's caches stand in, and who else could write there.

Entries are whole files, put in place at once, so that any number of processes can share it.
"""

import os
import stat
import time
from contextlib import suppress
from pathlib import Path

_STALE_SECONDS = 3600
"""Age at which an unfinished file has no writer any more."""


def default_folder() -> Path | None:
    """Return the platform's folder for caches of hloipu (XDG Base Directory Specification).

    None where its user has no home: neither HOME nor an account, as in some containers.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given) / "hloipu"
    with suppress(RuntimeError):
        return Path.home() / ".cache" / "hloipu"
    return None


def why_not_own(folder: Path, *, make: bool) -> str:
    """Return why a folder is not its user's own (mode 0700), "" where it is; OSError if not there.

    With `make` it is made where it is not there.
    """
    if make:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not (stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()):
        return "it is not a folder of yours"
    return "others can reach it" if status.st_mode & 0o077 else ""


def make_room(folder: Path, suffix: str, size_bytes: int, kept: Path) -> None:
    """Remove the entries used longest ago until the rest fits, and what writers left."""
    entries = []
    now = time.time()
    with suppress(OSError), os.scandir(folder) as files:
        for entry in files:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if entry.name.endswith(suffix):
                    entries.append((status.st_mtime_ns, entry.name, status.st_size))
                elif entry.name.endswith(".tmp") and now - status.st_mtime > _STALE_SECONDS:
                    os.unlink(entry.path)
    total = sum(size for _, _, size in entries)
    for _, name, size in sorted(entries):
        if total <= size_bytes:
            return
        if name != kept.name:
            with suppress(OSError):
                (folder / name).unlink()
            total -= size
