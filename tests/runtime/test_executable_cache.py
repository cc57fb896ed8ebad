"""The compile cache: what was put is got, and nothing in its folder can do harm."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hloipu
from hloipu_runtime.cache_folder import default_folder
from hloipu_runtime.errors import UsageError
from hloipu_runtime.executable import Executable
from hloipu_runtime.executable_cache import (
    ExecutableCache,
    compile_key,
    source_fingerprint,
)
from hloipu_runtime.kernels.native.settings import Settings
from hloipu_runtime.machine.load import load_machine
from tests.support.forging import executables, file_bytes
from tests.support.program_texts import small_programs
from tests.support.same_programs import assert_same

KEYS = [f"{n:064x}" for n in range(5)]
ROOT = Path(__file__).parents[2]


def executable(key: str, name: str = "double") -> Executable:
    return Executable(small_programs()[name], load_machine("tiny"), fingerprint=key)


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, lines: list[str]) -> ExecutableCache:
    return ExecutableCache(tmp_path / "of" / "mine", 2**20, lines.append)


def test_what_was_put_is_got(cache: ExecutableCache, lines: list[str]) -> None:
    assert cache.get(KEYS[0]) is None
    assert cache.put(KEYS[0], executable(KEYS[0]))
    found = cache.get(KEYS[0])
    assert found is not None
    assert_same(found.program, small_programs()["double"])
    assert cache.get(KEYS[1]) is None
    assert lines == []


def test_nobody_else_can_look_into_it(cache: ExecutableCache) -> None:
    cache.put(KEYS[0], executable(KEYS[0]))
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    (entry,) = cache.folder.iterdir()
    assert entry.stat().st_mode & 0o777 == 0o600


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def exchange(path: Path) -> None:
    path.write_bytes(file_bytes(executable(KEYS[1])))


def link(path: Path) -> None:
    other = path.with_name("elsewhere")
    path.rename(other)
    path.symlink_to(other)


@pytest.mark.parametrize("harm", [damage, truncate, empty, exchange, link])
def test_a_bad_entry_is_made_anew_after_one_line(
    cache: ExecutableCache, lines: list[str], harm: Callable[[Path], None]
) -> None:
    cache.put(KEYS[0], executable(KEYS[0]))
    harm(cache.folder / f"{KEYS[0]}.ipux")
    assert cache.get(KEYS[0]) is None
    assert len(lines) == 1
    assert lines[0].startswith("warning: a cached program is not used: ")
    assert "\n" not in lines[0]
    assert cache.get(KEYS[0]) is None
    assert cache.put(KEYS[0], executable(KEYS[0]))
    assert cache.get(KEYS[0]) is not None
    assert len(lines) == 1


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    size = len(file_bytes(executable(KEYS[0])))
    cache = ExecutableCache(tmp_path / "c", size * 3 + 10)
    for age, key in enumerate(KEYS[:3]):
        cache.put(key, executable(key))
        os.utime(tmp_path / "c" / f"{key}.ipux", (1000 + age, 1000 + age))
    assert cache.get(KEYS[0]) is not None  # used now
    cache.put(KEYS[3], executable(KEYS[3]))
    kept = {path.stem for path in (tmp_path / "c").iterdir()}
    assert kept == {KEYS[0], KEYS[2], KEYS[3]}


def test_what_is_larger_than_the_cache_is_not_kept(tmp_path: Path) -> None:
    cache = ExecutableCache(tmp_path / "c", 100)
    assert not cache.put(KEYS[0], executable(KEYS[0]))
    assert cache.get(KEYS[0]) is None


def test_what_an_ended_writer_left_goes_away(cache: ExecutableCache) -> None:
    cache.put(KEYS[0], executable(KEYS[0]))
    old, new = cache.folder / ".a.1-2.tmp", cache.folder / ".b.1-2.tmp"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (1000, 1000))
    cache.put(KEYS[1], executable(KEYS[1]))
    assert not old.exists()
    assert new.exists()


def test_a_folder_that_others_can_write_to_is_not_used(
    cache: ExecutableCache, lines: list[str]
) -> None:
    cache.put(KEYS[0], executable(KEYS[0]))
    cache.folder.chmod(0o777)
    assert cache.get(KEYS[0]) is None
    assert not cache.put(KEYS[1], executable(KEYS[1]))
    assert [line.count("others can reach it") for line in lines] == [1, 1]


def test_a_link_to_a_folder_is_not_used(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    cache = ExecutableCache(tmp_path / "link", warn=lines.append)
    assert not cache.put(KEYS[0], executable(KEYS[0]))
    assert list((tmp_path / "real").iterdir()) == []
    assert "not a folder of yours" in lines[0]


def test_a_folder_that_cannot_be_made_is_said_once(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "file").write_text("")
    cache = ExecutableCache(tmp_path / "file" / "c", warn=lines.append)
    assert cache.get(KEYS[0]) is None
    assert not cache.put(KEYS[0], executable(KEYS[0]))
    assert len(lines) == 1


def test_keys_are_no_paths(cache: ExecutableCache) -> None:
    for key in ("../../etc/passwd", "", "a" * 15, "A" * 64, "a" * 129):
        with pytest.raises(UsageError) as caught:
            cache.get(key)
        assert caught.value.code == "E3148"


def test_a_key_changes_with_all_that_decides() -> None:
    tiny = load_machine("tiny")
    keys = [
        compile_key(b"HloModule m", {"a": 1}, tiny, "c"),
        compile_key(b"HloModule n", {"a": 1}, tiny, "c"),
        compile_key(b"HloModule m", {"a": 2}, tiny, "c"),
        compile_key(b"HloModule m", {"a": 1}, load_machine("tiny", {"clock_hz": "5"}), "c"),
        compile_key(b"HloModule m", {"a": 1}, load_machine("unit"), "c"),
        compile_key(b"HloModule m", {"a": 1}, tiny, "d"),
    ]
    assert len(set(keys)) == len(keys)
    assert compile_key(b"x", {"a": 1, "b": 2}, tiny, "") == compile_key(
        b"x", {"b": 2, "a": 1}, tiny, ""
    )


def test_the_fingerprint_is_of_names_and_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "some_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def fingerprint() -> str:
        source_fingerprint.cache_clear()
        return source_fingerprint("some_package")

    first = fingerprint()
    assert fingerprint() == first
    (package / "a.pyc").write_text("compiled")
    assert fingerprint() == first
    (package / "a.py").write_text("x = 2\n")
    second = fingerprint()
    (package / "a.py").rename(package / "b.py")
    assert len({first, second, fingerprint()}) == 3


def test_the_folder_is_where_the_platform_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/caches")
    assert default_folder() == Path("/var/caches/hloipu")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_folder() == Path("/home/ada/.cache/hloipu")


def test_who_has_no_home_has_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 9)  # of no account
    assert default_folder() is None
    assert Settings().code_folder is None
    text = "HloModule m\nENTRY e {\n  ROOT p = f32[2] parameter(0)\n}\n"
    assert hloipu.compile(text, target="unit", cache=True).fits


WRITER = """
import sys
from hloipu_runtime.executable_cache import ExecutableCache
from tests.runtime.test_executable_cache import KEYS, executable
cache = ExecutableCache(sys.argv[1], 60_000, warn=lambda line: sys.exit(line))
for turn in range(5):
    for key in KEYS:
        cache.put(key, executable(key))
        found = cache.get(key)
        assert found is None or found.fingerprint == key
"""


def test_many_processes_can_share_it(tmp_path: Path) -> None:
    path = ":".join(str(ROOT / part) for part in (".", "compiler", "runtime"))
    command = [sys.executable, "-c", WRITER, str(tmp_path / "c")]
    environment = {**os.environ, "PYTHONPATH": path}
    children = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    ends = [(child.communicate()[1], child.returncode) for child in children]
    assert ends == [("", 0)] * 3
    assert not list((tmp_path / "c").glob("*.tmp"))


def test_programs_of_all_kinds_are_kept(cache: ExecutableCache) -> None:
    for key, name in zip(KEYS, executables(), strict=False):
        assert cache.put(key, executable(key, name))
        found = cache.get(key)
        assert found is not None
        assert_same(found.program, small_programs()[name])
