"""Checkpoints of several hosts: a file of each host's replicas, and an index that is written last.

The index has the digest of each part, and parts are named after their step and digest: no part of
an earlier checkpoint is written over, and all stay until a new index is in its place, so that a
process that dies at any moment leaves the one checkpoint or the other.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hloipu_runtime.atomic_file import remove_unfinished, sync_folder
from hloipu_runtime.errors import ArtefactError, UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program_io.frame.frame import Frame, read_frame, write_frame
from hloipu_runtime.program_io.frame.layout import DIGEST_BYTES
from hloipu_runtime.session.checkpoint import KIND, Checkpoint, checkpoint_of, of_participant

INDEX_SCHEMA = "hloipu.checkpoint-of-hosts/1"
_KEYS = {"schema", "program", "steps", "cycles", "participants", "digests"}
_NAMED_DIGITS = 16
"""Of a digest, in the name of its part: 64 bits tell parts apart; the index has all of them."""
_UNNAMED = "new"
"""In place of the digest, until all is written."""
_DIGEST = re.compile(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}")


def part_path(path: str | Path, steps: int, host: int, hosts: int, digest: str) -> Path:
    """Return the file of one host's part."""
    index = Path(path)
    name = f"{index.name}.{steps}.host-{host}-of-{hosts}.{digest[:_NAMED_DIGITS]}"
    return index.with_name(name)


def save_part(path: str | Path, part: Checkpoint, host: int, hosts: int) -> str:
    """Write one host's part of a checkpoint; return its digest, which the index has.

    Raises UsageError E3004 where it cannot be written.
    """
    unnamed = part_path(path, part.steps, host, hosts, _UNNAMED)
    part.save(unnamed)
    digest = _digest(unnamed)
    place = part_path(path, part.steps, host, hosts, digest)
    try:
        unnamed.replace(place)
        sync_folder(place.parent)
    except OSError as error:
        raise UsageError(
            "E3004",
            f"cannot write {str(place)!r}: {error.strerror}",
            hint="the checkpoint that was there is whole still",
        ) from error
    return digest


def save_index(
    path: str | Path, part: Checkpoint, digests: Sequence[str], participants: int
) -> None:
    """Write the index, when all parts are there, and remove parts that it does not name.

    `part`: any of them; `participants`: of all hosts. Raises UsageError E3004 where it cannot be
    written.
    """
    meta = {
        "schema": INDEX_SCHEMA,
        "program": part.program,
        "steps": part.steps,
        "cycles": part.cycles,
        "participants": participants,
        "digests": list(digests),
    }
    remove_unfinished(path)
    write_frame(path, Frame(KIND, meta))
    index, hosts = Path(path), len(digests)
    named = {
        part_path(index, part.steps, host, hosts, digest).name
        for host, digest in enumerate(digests)
    }
    others = re.compile(re.escape(index.name) + r"\.[0-9]+\.host-[0-9]+-of-[0-9]+\.([0-9a-f]+|new)")
    with suppress(OSError):  # what is left over does no harm
        for entry in index.absolute().parent.iterdir():
            if others.fullmatch(entry.name) and entry.name not in named:
                entry.unlink()


@dataclass(frozen=True, slots=True)
class _Index:
    """What an index says."""

    program: str
    steps: int
    cycles: int
    participants: int
    digests: tuple[str, ...]


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Return the checkpoint of a file, or of all parts that an index names.

    Raises UsageError E3001 where it cannot be read, E3160 where a part is missing, E3161 where one
    is of another step or another checkpoint, ArtefactError (E4001 to E4012) where a file is not
    what was written.
    """
    frame = read_frame(path, kind=KIND)
    if frame.meta.get("schema") != INDEX_SCHEMA:
        return checkpoint_of(frame, str(path))
    index = _index(str(path), frame.meta)
    hosts = len(index.digests)
    positions: dict[str, int] = {}
    arrays: dict[str, Any] = {}
    for host in range(hosts):
        part = _part(path, index, host, hosts)
        positions |= part.positions
        first, end = (n * index.participants // hosts for n in (host, host + 1))
        arrays |= _of_all(part, range(first, end))
    return Checkpoint(index.program, index.steps, index.cycles, positions, arrays)


def _of_all(part: Checkpoint, participants: range) -> dict[str, Any]:
    """Return a part's arrays; what is the same as its first participant's is left out no more."""
    arrays = dict(part.arrays)
    before = of_participant("", participants.start)
    of_first = (
        [name for name in part.arrays if name.startswith(before)] if participants.start else []
    )
    for name in of_first:
        for number in participants[1:]:
            arrays.setdefault(of_participant(name.removeprefix(before), number), part.arrays[name])
    return arrays


def _part(path: str | Path, index: _Index, host: int, hosts: int) -> Checkpoint:
    place = part_path(path, index.steps, host, hosts, index.digests[host])
    if not place.exists():
        raise UsageError(
            "E3160",
            f"the checkpoint {str(path)!r} lacks the part of host {host}, {place.name!r}; it has "
            f"{hosts} parts of step {index.steps:,}",
            hint="copy the parts of all hosts into the folder of the index",
        )
    part = checkpoint_of(read_frame(place, kind=KIND), str(place))
    said = (part.program, part.steps, part.cycles)
    if said != (index.program, index.steps, index.cycles):
        raise _foreign(
            path,
            place,
            f"it is of {part.program!r} after {part.steps:,} steps, the index of "
            f"{index.program!r} after {index.steps:,}",
        )
    if _digest(place) != index.digests[host]:
        raise _foreign(path, place, f"it is not the part of host {host} that the index names")
    return part


def _foreign(path: str | Path, place: Path, what: str) -> UsageError:
    return UsageError(
        "E3161",
        f"the part {place.name!r} is not of the checkpoint {str(path)!r}: {what}",
        hint="parts of one checkpoint were written together: take an older one that is whole",
    )


def _index(name: str, meta: Mapping[str, Any]) -> _Index:
    counts = [meta.get("steps"), meta.get("cycles"), meta.get("participants")]
    program, digests = meta.get("program"), meta.get("digests")
    if (
        meta.keys() != _KEYS
        or not all(type(n) is int and 0 <= n < 2**62 for n in counts)
        or not (isinstance(program, str) and program.isprintable())
        or not (isinstance(digests, list) and digests)
        or not all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in digests)
    ):
        raise ArtefactError(
            "E4012",
            "no checkpoint: it is not an index of parts",
            name=name,
            hint="take an older one",
        )
    return _Index(program, meta["steps"], meta["cycles"], meta["participants"], tuple(digests))


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        stream.seek(-DIGEST_BYTES, 2)
        return stream.read(DIGEST_BYTES).hex()
