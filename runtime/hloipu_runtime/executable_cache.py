"""Cache folder of compiled programs, keyed by their inputs.

The folder is its user's own and nobody else can write to it (mode 0700); entries are whole files,
put in place at once, so that any number of processes can share it.
"""

import hashlib
import importlib.util
import json
import os
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.cache_folder import make_room, why_not_own
from hloipu_runtime.errors import ArtefactError, HloipuError, LimitError, UsageError
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.faults import ProgramError
from hloipu_runtime.program_io.frame.frame import encode_frame

if TYPE_CHECKING:
    from hloipu_runtime.executable import Executable

SUFFIX = ".ipux"
DEFAULT_SIZE_BYTES = 2**30
_SOURCES = (".py", ".toml", ".lark")
_HEX = frozenset("0123456789abcdef")


def _warn(line: str) -> None:
    print(line, file=sys.stderr)


class ExecutableCache:
    """A folder of executables of at most some size; the ones used longest ago go first.

    It never fails: what cannot be read is not there, and what cannot be written is not kept; `warn`
    gets one line about it.
    """

    def __init__(
        self,
        folder: str | Path,
        size_bytes: int = DEFAULT_SIZE_BYTES,
        warn: Callable[[str], None] = _warn,
    ) -> None:
        self.folder = Path(folder)
        self.size_bytes = size_bytes
        self.warn = warn

    def get(self, key: str) -> "Executable | None":
        """Return what was kept under a key; a damaged entry is taken away."""
        path = self._path(key)
        try:
            kind = path.lstat().st_mode
        except OSError:
            return None
        if not self._is_ready(make=False):
            return None
        try:
            if not stat.S_ISREG(kind):
                raise ArtefactError("E4001", "not a file", name=str(path))
            from hloipu_runtime.executable import load

            executable = load(path, is_own=True)
            if executable.fingerprint != key:
                raise ArtefactError("E4012", "it was compiled from something else", name=str(path))
        except (ArtefactError, ProgramError) as error:
            self.warn(f"warning: a cached program is not used: {error.message}; compiling again")
            with suppress(OSError):
                path.unlink()
            return None
        except UsageError:  # taken away by another process meanwhile
            return None
        with suppress(OSError):
            os.utime(path)
        return executable

    def put(self, key: str, executable: "Executable") -> bool:
        """Keep an executable under its key, and make room; say whether it is kept."""
        path = self._path(key)
        try:
            from hloipu_runtime.executable import to_frame

            pieces = [bytes(piece) for piece in encode_frame(to_frame(executable))]
        except (LimitError, ArtefactError) as error:
            self.warn(f"warning: the compiled program is not cached: {error.message}")
            return False
        size = sum(map(len, pieces))
        if size > self.size_bytes or not self._is_ready(make=True):
            return False
        try:
            with replacing(path, mode=0o600) as stream:
                stream.writelines(pieces)
        except HloipuError as error:
            self.warn(f"warning: the compiled program is not cached: {error.message}")
            return False
        make_room(self.folder, SUFFIX, self.size_bytes, kept=path)
        return True

    def _path(self, key: str) -> Path:
        if not 16 <= len(key) <= 128 or not _HEX.issuperset(key):
            raise UsageError("E3148", f"{key[:40]!r} is not a key: keys are hexadecimal digits")
        return self.folder / f"{key}{SUFFIX}"

    def _is_ready(self, *, make: bool) -> bool:
        """Whether the folder is there and its user's own."""
        try:
            reason = why_not_own(self.folder, make=make)
        except OSError as error:
            self.warn(f"warning: no compile cache in {str(self.folder)!r}: {error.strerror}")
            return False
        if reason:
            self.warn(
                f"warning: no compile cache in {str(self.folder)!r}: {reason}; `chmod 700` it, or "
                "give another folder"
            )
        return not reason


def compile_key(
    module_text: bytes, options: Mapping[str, Any], machine: Machine, compiler: str
) -> str:
    """Return the key of what is compiled: SHA-256 of all that decides about the result.

    `options` is JSON data, `compiler` the fingerprint of who compiles (`source_fingerprint`).
    """
    numbers = [list(number) for number in machine.numbers()]
    facts = json.dumps(
        {
            "options": dict(options),
            "machine": [machine.name, machine.description, numbers],
            "compiler": compiler,
        },
        sort_keys=True,
        separators=(",", ":"),
    ).encode()
    digest = hashlib.sha256()
    for part in (b"hloipu.compile-key/1", facts, module_text):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


@lru_cache(maxsize=16)
def source_fingerprint(*packages: str) -> str:
    """Return the SHA-256 of all sources of some packages: names and contents, in order."""
    digest = hashlib.sha256()
    for package in packages:
        spec = importlib.util.find_spec(package)
        for root in sorted((spec.submodule_search_locations or ()) if spec else ()):
            for path in sorted(Path(root).rglob("*")):
                if path.suffix in _SOURCES:
                    data = path.read_bytes()
                    name = f"{package}/{path.relative_to(root).as_posix()}:{len(data)}\n"
                    digest.update(name.encode())
                    digest.update(data)
    return digest.hexdigest()
