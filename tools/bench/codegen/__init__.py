"""How near compiled kernels come to what the machine can do, and plans to the best there are."""
