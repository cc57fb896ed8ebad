"""Tampered programs are found out, and the tool sees it where they are not."""

from dataclasses import replace
from random import Random

import pytest

from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import ComputeSet, Exchange
from tests.support.program_checker import misread, violations
from tools.prove_exchanges.editing import blocks_of, with_steps
from tools.prove_exchanges.kinds import PLAIN_KINDS, mutant
from tools.prove_exchanges.places import Subject
from tools.prove_exchanges.subjects import subjects
from tools.prove_exchanges.table import failures, table
from tools.prove_exchanges.trial import (
    CAUGHT,
    DECLARED,
    EQUIVALENT,
    MASKED,
    UNRUN,
    Original,
    Verdict,
    judged,
)
from tools.prove_exchanges.watching import run_exact
from tools.prove_exchanges.workers import verdicts_of

KINDS = tuple(PLAIN_KINDS)
SAMPLES = ("attention", "newton_while", "scan_rnn", "sort_topk")
"""Small ones: `make prove-exchanges` takes all."""


@pytest.fixture(scope="module")
def programs() -> list[Subject]:
    return subjects(16, 3, large=False, cut=False, samples=SAMPLES)


@pytest.mark.large
def test_mutants_of_every_kind_are_caught_twice(programs: list[Subject]) -> None:
    originals = [Original(x) for x in programs]
    verdicts = [v for _, v in verdicts_of(originals, 3, range(3 * len(KINDS)), KINDS)]

    live = [v for v in verdicts if v.exact != EQUIVALENT]
    assert {v.kind for v in verdicts} == set(KINDS)
    assert failures(verdicts) == []
    assert [v for v in live if not v.static] == []
    assert len(live) > 0.75 * len(verdicts)
    ran = [v for v in live if v.exact != UNRUN]
    assert len([v for v in ran if v.exact in CAUGHT]) > 0.9 * len(ran)


def test_a_seed_always_draws_the_same_mutants(programs: list[Subject]) -> None:
    small = programs[8:12]
    first = [list(verdicts_of([Original(x) for x in small], 1, range(22), KINDS)) for _ in range(2)]
    assert first[0] == first[1]
    assert first[0] != list(verdicts_of([Original(x) for x in small], 2, range(22), KINDS))


def test_a_mutant_keeps_the_logical_form(programs: list[Subject]) -> None:
    def logical(subject: Subject) -> list[str]:
        found: list[object] = []
        for block in blocks_of(subject.program):
            for step in block.steps:
                if isinstance(step, ComputeSet):
                    found += [(g.codelet, g.reads, g.writes) for g in step.groups]
                elif isinstance(step, Exchange):
                    found.append(step.definitions)
        return sorted(map(repr, found))

    rng = Random(5)
    made = 0
    for subject in programs:
        expected = logical(subject)
        for kind in KINDS:
            if kind in DECLARED:
                continue
            changed = mutant(subject, kind, rng)
            if changed is not None:
                made += 1
                assert changed != subject.program
                assert logical(replace(subject, program=changed)) == expected
    assert made > 100


def test_the_referee_finds_nothing_in_what_the_compiler_made(programs: list[Subject]) -> None:
    for subject in programs:
        if subject.tiles_per_ipu < 100:
            assert violations(subject.program, subject.tiles_per_ipu) == []


@pytest.mark.large
def test_the_referee_sees_whatever_a_run_shows(programs: list[Subject]) -> None:
    originals = [Original(x) for x in programs]
    rng = Random(9)
    shown = 0
    kinds = [kind for kind in KINDS if kind not in DECLARED]
    for kind in 2 * kinds:
        original = rng.choice(originals)
        changed = mutant(original.subject, kind, rng)
        if changed is not None and judged(original, kind, changed).exact in ("values", "poison"):
            shown += 1
            assert misread(changed), (original.subject.name, kind)
    assert shown > 5


def test_the_referee_knows_a_lost_transfer_from_one_that_nobody_misses(
    programs: list[Subject],
) -> None:
    subject = next(x for x in programs if x.name.startswith("attention"))
    original = Original(subject)
    rng = Random(0)
    for _ in range(10):
        changed = mutant(subject, "transfer dropped", rng)
        assert changed is not None
        verdict = judged(original, "transfer dropped", changed)
        assert bool(misread(changed)) == (verdict.exact != EQUIVALENT)


def test_an_untouched_program_passes_every_catcher(programs: list[Subject]) -> None:
    for subject in programs[:4]:
        verdict = judged(Original(subject), "none", subject.program)
        assert (verdict.static, verdict.exact) == ("", EQUIVALENT)
        assert failures([verdict]) == []


def test_what_only_the_run_would_catch_counts_as_passed() -> None:
    passed = Verdict("p", "transfer dropped", "", "values")
    caught = Verdict("p", "transfer dropped", "transfer", MASKED)

    assert failures([passed, caught]) == [passed]
    assert "50.0%" in table([passed, caught]).splitlines()[-1]


def test_a_sequence_deep_in_the_tree_is_replaced_in_its_place(programs: list[Subject]) -> None:
    subject = next(x for x in programs if x.name.startswith("scan_rnn"))
    inner = [block for block in subject.blocks if len(block.path) > 1 and block.steps]
    assert inner
    for block in inner:
        emptied = with_steps(subject.program, block.path, ())
        again = with_steps(emptied, block.path, block.steps)
        assert emptied != subject.program
        assert again == subject.program


def test_a_run_that_does_not_end_is_ended(programs: list[Subject]) -> None:
    subject = next(x for x in programs if x.name.startswith("newton_while"))
    original = Original(subject)
    assert any(original.run(n) is None for n in range(original.most)) or run_exact(
        subject.program, original.inputs(0)
    )
    assert faults_of(subject.program, subject.tiles_per_ipu) == []
