"""Partitioning of steps over many IPUs: training stages, scans, placement, search."""
