"""Plants small faults in the code, one at a time, and counts which of them the tests find.

    python -m tools.mutants [--count N] [--seed S] [--room ROOM] [--only FILE:LINE] [--once]
                            [--record-minutes M] [--minutes M]
                            [--workers N | --scheduler ADDRESS]

A sample of changes (`operators`) over the rooms of `rooms`, the same number of each room, drawn by
a seed. Each change meets the tests that execute its line (`reach` finds those out once and keeps
them in out/), the nearest and the fastest first, until one fails. Files of tests that there was no
time to record are run whole, where their folder mirrors that of the changed file. Each test has a
limit of time; one that takes too long has found the change. A test that fails without the change,
too, finds none. What all tests pass is tried once more in a process of its own, unless `--once` is
given. Changes that alter nothing, or only the time that the compiler itself takes, are listed with
their reasons in equivalents.toml and not drawn. Exit status 1: fewer than 92 % were found.

`mutmut` writes every mutant of every file before it runs one, and draws no sample. `cosmic-ray`
runs one command for all mutants, in a process each: importing the compiler and collecting its tests
takes longer than most tests. Here a worker collects the tests of some changes and forks; the child
gives living functions their new code, so that a change that the first test finds costs half a
second.
"""
