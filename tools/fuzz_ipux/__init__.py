"""Forged executables: files whose digest is right and whose content was changed.

`cases` makes them, `mutations` says how, `trial` loads and runs them, `worker` does so in a process
with little memory.
"""
