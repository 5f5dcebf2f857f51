"""Experts: where their bytes are, which of them are in memory, and what the router asked for."""
