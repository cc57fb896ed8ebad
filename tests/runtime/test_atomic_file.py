"""Files that are written whole or not at all, and what writers that were killed leave."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hloipu_runtime.atomic_file import remove_unfinished, replacing
from hloipu_runtime.errors import UsageError

WRITER = """
import sys, time
from hloipu_runtime.atomic_file import replacing
with replacing(sys.argv[1]) as stream:
    stream.write(b"half")
    stream.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


def killed_writer(path: Path) -> None:
    """Have a process killed while it writes a file."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        writer.send_signal(signal.SIGKILL)


def test_a_file_keeps_what_it_held_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path) as stream:
        stream.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_failure_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), replacing(path) as stream:  # noqa: PT012
        stream.write(b"new")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="E3004"), replacing(tmp_path / "none" / "file"):
        pass
    remove_unfinished(tmp_path / "none" / "file")


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    killed_writer(path)
    assert len(os.listdir(tmp_path)) == 2
    remove_unfinished(path)
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"


def test_files_that_others_write_or_that_are_of_other_names_stay(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "file2"
    killed_writer(other)
    with replacing(path) as stream:
        remove_unfinished(path)
        stream.write(b"new")
    assert path.read_bytes() == b"new"
    assert [name[:7] for name in os.listdir(tmp_path) if name != "file"] == [".file2."]
