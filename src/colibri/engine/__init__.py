"""The step loop, sequences and sampling."""
