"""Decisions of the compiler as frozen records: printed, pinned by a user, tested."""
