"""Guesses of the tokens that come next, which a step verifies together, and how many of them are worth their rows."""
