"""Data and pure functions: no I/O, clock, randomness or environment. Safe inside the workflow sandbox."""
