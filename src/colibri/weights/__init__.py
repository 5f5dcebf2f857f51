"""Checkpoints: reading, writing and converting the files that hold a model."""
