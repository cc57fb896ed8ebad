"""What keeps a compiled program slow or large, from its costs and its memory alone."""
