"""The file of a study: an SQLite database of points and results.

One process writes it, a short transaction for the results of a batch (write-ahead log), so that
whatever is killed loses nothing that is in it; others may read it meanwhile.
"""

import fcntl
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.errors import ArtefactError, HloipuError, UsageError
from hloipu_runtime.frozen import dataclass

FORMAT = "hloipu.study-file/1"
_TABLES = """
create table about (name text primary key, value text not null) without rowid;
create table modules (digest text primary key, name text not null, text blob not null);
create table results (key text primary key, record text not null) without rowid;
create table points (number integer primary key, name text not null unique, key text not null,
                     command text not null);
"""
_BUSY_SECONDS = 30.0
_MOST_TEXT_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Row:
    """A point of a study, and what came of it."""

    number: int
    settings: Mapping[str, str]
    """Axis -> value."""
    command: str
    """By which the command line gives the same."""
    record: Mapping[str, Any] | None
    """`figures`, or `code` and `message`; None: nothing yet."""

    @property
    def figures(self) -> Mapping[str, Any]:
        """Figure -> number; empty where the point failed or is to come."""
        figures = (self.record or {}).get("figures")
        return figures if isinstance(figures, dict) else {}

    @property
    def code(self) -> str:
        """The code of its error; empty: none."""
        return str((self.record or {}).get("code", ""))

    @property
    def message(self) -> str:
        """The error's message."""
        return str((self.record or {}).get("message", ""))

    @property
    def fits(self) -> bool:
        """Whether it was compiled and fits."""
        return bool(self.figures.get("fits"))


class Store:
    """An open study. Raises ArtefactError E4060 where a file is none."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, lock: IO[bytes] | None = None
    ) -> None:
        self._connection = connection
        self._lock = lock
        self.path = path

    @classmethod
    def new(
        cls, path: Path, plan: Mapping[str, Any], modules: Mapping[str, tuple[str, str]]
    ) -> "Store":
        """Make the file of a study; `modules`: digest -> name and text.

        Raises UsageError E3191 where there is such a file, E3004 where it cannot be written.
        """
        if path.exists():
            raise UsageError(
                "E3191",
                f"there is a file {str(path)!r}",
                hint="--resume continues the study in it; or name another file",
            )
        # Made in memory and put there whole: no killed sweep leaves half a file.
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            connection.executescript(_TABLES)
            connection.executemany(
                "insert into about values (?, ?)",
                [("format", FORMAT), ("plan", json.dumps(plan, sort_keys=True))],
            )
            connection.executemany(
                "insert into modules values (?, ?, ?)",
                [
                    (digest, name, zlib.compress(text.encode("utf-8", "surrogateescape")))
                    for digest, (name, text) in modules.items()
                ],
            )
            data = connection.serialize()
        with replacing(path) as stream:
            stream.write(data)
        return cls.opened(path, writes=True)

    @classmethod
    def opened(cls, path: Path, *, writes: bool = False) -> "Store":
        """Open a study; ArtefactError E4060 for any other file, UsageError E3191 for none.

        `writes`: as the only process that does; E3191 where another one has it.
        """
        if not path.is_file():
            raise UsageError("E3191", f"there is no study {str(path)!r}")
        lock = _locked(path) if writes else None
        store = cls(_opened(path, "rw" if writes else "ro"), path, lock)
        try:
            if store._about("format") != FORMAT:
                raise _damaged(path, f"its format is not {FORMAT}, by which this hloipu writes")
        except HloipuError:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        if self._lock is not None:  # last: closing it ends this process's other locks of the file
            self._lock.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def plan(self) -> dict[str, Any]:
        """Return what the study was begun with."""
        plan = self._json(self._about("plan"))
        if not isinstance(plan, dict):
            raise _damaged(self.path, "it does not say what was asked")
        return plan

    def module(self, digest: str) -> str:
        """Return the text of a module by the beginning of its digest; UsageError E3191 for none."""
        rows = self._fetch_all("select text from modules where substr(digest, 1, ?) = ?",
                          (max(1, len(digest)), digest))  # fmt: skip
        if len(rows) != 1:
            raise UsageError("E3191", f"the study has {len(rows)} modules {digest!r}")
        try:
            data = zlib.decompressobj().decompress(rows[0][0], _MOST_TEXT_BYTES)
        except (zlib.error, TypeError) as error:
            raise _damaged(self.path, str(error)) from error
        return data.decode("utf-8", "surrogateescape")

    def add_points(self, points: Sequence[tuple[int, Mapping[str, str], str, str]]) -> None:
        """Add points: number, settings, key of the compile, command."""
        with self._writing() as connection:
            connection.executemany(
                "insert or ignore into points values (?, ?, ?, ?)",
                [(number, json.dumps(x), key, command) for number, x, key, command in points],
            )

    def add_results(self, results: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Add results of compiles by key, all or none; those that are there stay."""
        with self._writing() as connection:
            connection.executemany(
                "insert or ignore into results values (?, ?)",
                [(key, json.dumps(record)) for key, record in results],
            )

    def keys_done(self) -> set[str]:
        """Return the keys of compiles whose results are there."""
        return {key for (key,) in self._fetch_all("select key from results")}

    def record(self, key: str) -> dict[str, Any]:
        """Return the result of a compile."""
        rows = self._fetch_all("select record from results where key = ?", (key,))
        return dict(self._json(rows[0][0])) if rows else {}

    def count(self) -> tuple[int, int, int]:
        """Return how many points there are, how many are done, and how many of these failed."""
        failed = "sum(json_extract(record, '$.code') is not null)"
        rows = self._fetch_all(
            f"select count(*), count(record), coalesce({failed}, 0) "
            "from points left join results using (key)"
        )
        return rows[0][0], rows[0][1], rows[0][2]

    def rows(self) -> Iterator[Row]:
        """Yield the points in order."""
        for number, name, command, record in self._fetch_all(
            "select number, name, command, record from points left join results using (key) "
            "order by number"
        ):
            settings = self._json(name)
            result = None if record is None else self._json(record)
            is_point = isinstance(settings, dict) and isinstance(number, int)
            if not is_point or not isinstance(result, dict | None):
                raise _damaged(self.path, f"row {number} is none")
            yield Row(number, settings, str(command), result)

    def _about(self, name: str) -> str:
        rows = self._fetch_all("select value from about where name = ?", (name,))
        return str(rows[0][0]) if rows else ""

    def _json(self, text: object) -> Any:
        try:
            return json.loads(str(text))
        except (ValueError, RecursionError) as error:
            raise _damaged(self.path, str(error)) from error

    def _fetch_all(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return self._connection.execute(query, values).fetchall()
        except (sqlite3.Error, ValueError, OverflowError) as error:
            # Reading makes the index of the log, for which a disk may have no room.
            if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_IOERR", "SQLITE_FULL")):
                raise UsageError("E3004", f"cannot open {str(self.path)!r}: {error}") from error
            raise _damaged(self.path, str(error)) from error

    def _writing(self) -> "_Transaction":
        return _Transaction(self._connection, self.path)


class _Transaction:
    """A transaction of one block; UsageError E3004 where the file takes none, as on a full disk."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._connection.execute("begin immediate")
        except sqlite3.Error as error:
            raise _unwritten(self._path, error) from error
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        if kind is not None:
            self._connection.execute("rollback")
            if isinstance(error, sqlite3.Error):
                raise _unwritten(self._path, error) from error
            return
        try:
            self._connection.execute("commit")
        except sqlite3.Error as fault:
            raise _unwritten(self._path, fault) from fault


def _locked(path: Path) -> IO[bytes]:
    """Return what keeps other sweeps from writing; UsageError E3191 where another one writes."""
    try:
        stream = path.open("rb")
    except OSError as error:
        raise UsageError("E3004", f"cannot read {str(path)!r}: {error.strerror}") from error
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        stream.close()
        raise UsageError(
            "E3191",
            f"another sweep is at work on {str(path)!r}",
            hint="wait for its end, or name another file; sweep-show reads it meanwhile",
        ) from error
    except OSError:  # a file system without locks
        pass
    return stream


def _opened(path: Path, mode: str) -> sqlite3.Connection:
    """Return a connection without transactions of its own."""
    log = path.with_name(f"{path.name}-wal")
    if mode == "ro" and not log.exists() and not os.access(path.absolute().parent, os.W_OK):
        mode = "ro&immutable=1"  # else SQLite makes its log's index beside the file
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
        )
        if mode == "rw":
            connection.execute("pragma journal_mode=wal")
            # Of a killed process nothing is lost; the log goes to the disk at its checkpoints.
            connection.execute("pragma synchronous=normal")
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise _unwritten(path, error) from error
        raise _damaged(path, str(error)) from error
    return connection


def _unwritten(path: Path, error: sqlite3.Error) -> UsageError:
    return UsageError(
        "E3004",
        f"cannot write {str(path)!r}: {error}",
        hint="results so far are kept: make room, and continue with --resume",
    )


def _damaged(path: Path, reason: str) -> ArtefactError:
    return ArtefactError(
        "E4060",
        f"it is not the study of a sweep, or is damaged: {reason}",
        name=repr(str(path)),
        hint="hloipu sweep FILE --over … -o FILE.db writes one",
    )
