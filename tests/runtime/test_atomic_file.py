"""Files that are written whole or not at all, and what writers that were killed leave."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hloipu_runtime.atomic_file import check_writable, remove_unfinished, replacing
from hloipu_runtime.errors import UsageError

WRITER = """
import sys, time
from hloipu_runtime.atomic_file import check_writable, remove_unfinished, replacing
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


def written(path: str | Path, data: bytes = b"new") -> None:
    with replacing(path) as stream:
        stream.write(data)


def test_a_device_is_written_through_and_stays_one(tmp_path: Path) -> None:
    written("/dev/null")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(UsageError, match=r"E3004.*No space"):
        written("/dev/full")


def test_a_pipe_gets_the_bytes_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        written(pipe, b"x" * 20_000)
        assert reader.stdout is not None
        assert reader.stdout.read() == b"x" * 20_000
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_failure_writes_nothing_through(tmp_path: Path) -> None:
    read, write = os.pipe()
    with pytest.raises(ZeroDivisionError), replacing(f"/dev/fd/{write}") as stream:  # noqa: PT012
        stream.write(b"half")
        raise ZeroDivisionError
    os.close(write)
    assert os.read(read, 10) == b""
    os.close(read)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_goes_on_where_it_is(tmp_path: Path, name: str) -> None:
    place, link = tmp_path / "out", tmp_path / "link"
    link.symlink_to(name)
    place.write_bytes(b"before ")
    with place.open("ab") as stdout:
        subprocess.run(
            [sys.executable, "-c", "import sys; from hloipu_runtime.atomic_file import replacing\n"
             "print('printed', end=' ')\n"
             "with replacing(sys.argv[1]) as stream: stream.write(b'new')\n"
             "print(' after', end='')", str(link)],
            stdout=stdout, check=True,
        )  # fmt: skip
    assert place.read_bytes() == b"before printed new after"
    assert link.is_symlink()


@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path, absolute: bool) -> None:
    folder, link, second = tmp_path / "folder", tmp_path / "link", tmp_path / "second"
    folder.mkdir()
    link.symlink_to(folder / "file" if absolute else "folder/file")
    second.symlink_to("link")
    for data in (b"new", b"newer"):  # the file is not there, then it is
        written(second, data)
        assert link.is_symlink()
        assert second.is_symlink()
        assert (folder / "file").read_bytes() == data
    assert os.listdir(folder) == ["file"]
    killed_writer(link)
    remove_unfinished(second)
    assert os.listdir(folder) == ["file"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o755])
def test_permissions_are_kept(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(mode)
    written(path)
    assert path.stat().st_mode & 0o7777 == mode
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    os.chown(path, 1234, 2345)
    written(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


@pytest.mark.parametrize("name", ["", "folder", "circle", "none/file", "a\0b", "file/below"])
def test_what_cannot_be_written_is_told_before_the_work_and_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "circle").symlink_to("circle")
    for attempt in (check_writable, written):
        with pytest.raises(UsageError, match="E3004"):
            attempt(name)
    assert sorted(os.listdir(tmp_path)) == ["circle", "file", "folder"]


def test_a_folder_that_was_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    for attempt in (check_writable, written):
        with pytest.raises(UsageError, match="E3004"):
            attempt("file")
