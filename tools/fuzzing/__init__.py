"""Hostile variants of real texts, and the processes that read them under limits."""
