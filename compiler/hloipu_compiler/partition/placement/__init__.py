"""Ops of one step on several IPUs: as annotated, or in blocks of like cost."""
