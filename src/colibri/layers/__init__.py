"""Building blocks that all architectures share."""
