"""From computations to straight-line plans of steps over slots."""
