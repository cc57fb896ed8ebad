"""The proof of the proof: programs whose exchanges and vertices were tampered with are found out.

`kinds` tamper, `trial` judges one mutant, `subjects` are the programs, `table` shows the rates.
"""
