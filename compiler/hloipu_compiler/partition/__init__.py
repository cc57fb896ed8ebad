"""Steps over many IPUs: training steps cut into stages, loops, placements, and their search."""
