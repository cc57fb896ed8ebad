"""Placement of a step's ops on IPUs, as annotated or in blocks of like cost."""
