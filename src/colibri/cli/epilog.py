"""What stands below the options in every --help: examples, and where to read on."""

from __future__ import annotations

DOCS = "docs"  # of the source tree, as there is no project page yet


def epilog(page: str, *examples: str) -> str:
    """Lines of a shell, and the page of the documentation."""
    lines = "\n".join(f"  {example}" for example in examples)
    return f"\b\nExamples:\n{lines}\n\nDocumentation: {DOCS}/{page}"
