"""Files that are replaced whole or not at all."""

import os
import tempfile
from pathlib import Path

from hloipu_runtime.errors import UsageError


def replace_text(path: str, text: str) -> None:
    """Write a text under a temporary name in the same folder, then rename it over the path.

    Raises UsageError E3114 where the folder does not let us.
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8", errors="surrogateescape"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise _unwritable(path, error) from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _unwritable(path: str, error: OSError) -> UsageError:
    return UsageError(
        "E3114",
        f"cannot write {path!r}: {error.strerror or error}",
        hint="give the path of a file in a folder that can be written to",
    )
