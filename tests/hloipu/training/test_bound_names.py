"""Arrays are bound to parameters by name, or refused: names drawn at random, in every entry."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu.training.trainer import Trainer
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError
from tests.support.arrays import Array
from tests.support.command_line import run

PATHS = ("batch['ids']", "batch['mask']", "batch['more']['ids_2']")
FORMS = (
    lambda words: words[0] + "".join(f"['{word}']" for word in words[1:]), "/".join, ".".join,
    lambda words: "".join(f"['{word}']" for word in words[1:]), lambda words: words[-1],
)  # fmt: skip
ALIKE, APART = (4, 4, 4), (4, 5, 6)
"""Sizes of the arrays: of one type and shape, so that names alone tell, or of another each."""
CHANGES = "order partial extra twice ambiguous case foreign swapped unclear all".split()
Named = Mapping[str, int]
"""For each name of an entry, whose array it holds."""


def text(sizes: tuple[int, ...]) -> str:
    """Return a step that keeps the first number of each array that it is fed."""
    fed = "".join(
        f'  p{n} = f32[2,{size}] parameter({n + 1}), metadata={{op_name="{path}"}}\n'
        f"  i{n} = f32[1,1] slice(p{n}), slice={{[0:1], [0:1]}}\n"
        f"  n{n} = f32[1] reshape(i{n})\n"
        for n, (size, path) in enumerate(zip(sizes, PATHS, strict=True))
    )
    return (
        "HloModule m, input_output_alias={ {0}: (0, {}, may-alias) }\nENTRY e {\n" + fed +
        '  s = f32[3] parameter(0), metadata={op_name="state"}\n'
        "  n = f32[3] concatenate(n0, n1, n2), dimensions={0}\n"
        "  t = f32[3] add(s, n)\n"
        "  ROOT r = (f32[3], f32[1]) tuple(t, n0)\n}\n"
    )  # fmt: skip


def words_of(name: str) -> list[str]:
    return re.findall(r"\w+", name)


def named_by(key: str) -> list[int]:
    """Return the parameters whose path ends with the words of a key."""
    words = words_of(key)
    return [n for n, path in enumerate(PATHS) if words_of(path)[-len(words) :] == words]


def expected(
    entries: Named, sizes: tuple[int, ...], *, is_file: bool, by_kind: bool = True
) -> list[int] | None:
    """Return whose array each parameter gets, or None: names do not tell, nor do types."""
    places: list[str | None] = []
    for number, path in enumerate(PATHS):
        full = [key for key in entries if words_of(key) == words_of(path)]
        ends = [key for key in entries if named_by(key) == [number]]
        keys = full or ends
        places.append(keys[0] if len(keys) == 1 else None)
    if None not in places and (is_file or len(entries) == len(PATHS)):
        return [entries[str(key)] for key in places]
    owners = list(entries.values())
    kinds_tell = by_kind and len(set(sizes)) == len(sizes) and sorted(owners) == [0, 1, 2]
    if kinds_tell and all(key is None or entries[key] == n for n, key in enumerate(places)):
        return [0, 1, 2]
    return None


def drawn(random: Random) -> Named:
    """Return entries: names of parameters in some form and order, and often not quite these."""
    owners = random.sample(range(3), 3)
    names = [random.choice(FORMS)(words_of(PATHS[owner])) for owner in owners]
    at = random.randrange(3)
    match random.choice(
        "permuted partial extra twice ambiguous case foreign swapped unclear all".split()
    ):
        case "partial":
            del names[at], owners[at]
        case "extra":
            names.append("other")
            owners.append(at)
        case "twice":
            names.append(random.choice(FORMS)(words_of(PATHS[at])))
            owners.append((at + 1) % 3)
        case "ambiguous":
            names[at - 1], names[at] = "x/ids", "y/ids"
        case "case":
            names[at] = names[at].upper()
        case "foreign":
            names[at] = f"z{at}"
        case "swapped":
            owners[at - 1], owners[at] = owners[at], owners[at - 1]
        case "unclear":
            names[at] = f"z{at}"
            owners[at - 1], owners[at - 2] = owners[at - 2], owners[at - 1]
        case "all":
            names = ["u", "v", "w"]
    return dict(zip(names, owners, strict=True))


DRAWS = [drawn(Random(seed)) for seed in range(40)]


def test_draws_are_bound_and_refused_in_many_ways() -> None:
    wanted = [
        expected(entries, sizes, is_file=False) for entries in DRAWS for sizes in (ALIKE, APART)
    ]
    assert min(wanted.count(None), sum(order not in (None, [0, 1, 2]) for order in wanted)) >= 8


def rows(entries: Named, sizes: tuple[int, ...], count: int = 2) -> dict[str, Array]:
    return {name: np.full((count, sizes[n]), 1 + n, np.float32) for name, n in entries.items()}


@pytest.fixture(scope="module", params=[ALIKE, APART], ids=["alike", "apart"])
def sizes(request: pytest.FixtureRequest) -> tuple[int, ...]:
    found: tuple[int, ...] = request.param
    return found


@pytest.fixture(scope="module")
def program(sizes: tuple[int, ...]) -> CompiledProgram:
    return hloipu.compile(text(sizes), loop=1, feed={"data": (1, 2, 3)}, target="tiny", cache=False)


def judged(
    act: Callable[[dict[str, Array]], Array],
    sizes: tuple[int, ...],
    draws: Sequence[Named],
    *,
    is_file: bool,
    by_kind: bool = True,
) -> None:
    """Expect that entries are bound, or refused with an error that names what is wrong."""
    for entries in draws:
        wanted = expected(entries, sizes, is_file=is_file, by_kind=by_kind)
        if wanted is not None and all(sizes[a] == sizes[b] for a, b in enumerate(wanted)):
            assert list(act(rows(entries, sizes))) == [1 + owner for owner in wanted], entries
            continue
        with pytest.raises(HloipuError) as caught:
            pytest.fail(f"{entries} gave {act(rows(entries, sizes))}")
        said = str(caught.value).replace("\\", "")
        assert caught.value.code in REFUSALS, said
        assert wanted is not None or any(name in said for name in entries), (said, entries)


REFUSALS = ("E2023", "E3107", "E3102")
START = np.zeros(3, np.float32)


def test_elements_of_sessions(program: CompiledProgram, sizes: tuple[int, ...]) -> None:
    def act(given: dict[str, Array]) -> Array:
        with program.session(state=[START], infeeds={"data": [given]}) as session:
            session.run(1)
            state = session.state()
            assert isinstance(state, Mapping)
            return np.asarray(state["state"])

    judged(act, sizes, DRAWS, is_file=False)


def test_rows_of_trainers(sizes: tuple[int, ...]) -> None:
    feeds = {"data": (1, 2, 3)}
    trainer = Trainer(text(sizes), state=[START], feeds=feeds, target="tiny", cache=False)

    def act(given: dict[str, Array]) -> Array:
        trainer.state = [START]
        trainer.fit(given, steps_per_epoch=1, progress=False)
        state: Any = trainer.state
        return np.asarray(state["state"])

    judged(act, sizes, DRAWS, is_file=False)


def outcome_of(out: Path, *command: str) -> Array:
    """Return the first output of a command; raises HloipuError for the error that it shows."""
    done = run(*command, "-o", str(out))
    if done.code:
        code = re.search(r"error\[(E\d{4})\]", done.err)
        raise HloipuError(code[1] if code else "none", done.err)
    with np.load(out) as found:
        return np.array(found["out_0"])


@pytest.mark.parametrize("form", ["infeed", "inputs"])
def test_arrays_of_files(
    form: str, program: CompiledProgram, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    given, start, out = (tmp_path / name for name in ("given.npz", "start.npz", "out.npz"))
    np.savez(start, in_0=START)
    module, executable = tmp_path / "m.hlo", tmp_path / "m.ipux"
    module.write_text(text(sizes))
    program.save(executable)

    def act(arrays: dict[str, Array]) -> Array:
        if form == "infeed":
            np.savez(given, **arrays)  # type: ignore[arg-type]
            command = ["run", str(executable), "--inputs", str(start), "--infeed", f"data={given}"]
        else:
            np.savez(given, in_0=START, **arrays)  # type: ignore[arg-type]
            command = ["eval", str(module), "--inputs", str(given)]
        return outcome_of(out, *command)

    draws = DRAWS[::2]
    judged(act, sizes, draws, is_file=True, by_kind=form == "infeed")


def test_names_of_files_fake_no_lines(program: CompiledProgram, tmp_path: Path) -> None:
    given, executable = tmp_path / "given.npz", tmp_path / "m.ipux"
    program.save(executable)
    np.savez(given, **{"a\nfits: 0 bytes": np.zeros((2, 9)), "b": np.zeros((2, 9))})  # type: ignore[arg-type]
    np.savez(tmp_path / "start.npz", in_0=START)
    command = ("run", str(executable), "--inputs", str(tmp_path / "start.npz"))
    done = run(*command, "--infeed", f"data={given}")
    assert "E2023" in done.err
    assert "a?fits: 0 bytes float64" in done.err
