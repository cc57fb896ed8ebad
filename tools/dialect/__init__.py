"""The dialect that hloipu reads, against XLA's: judges, documented differences, round trips."""
