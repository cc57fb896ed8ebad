"""Scripts behind the Makefile's targets."""
