"""Draws a flame graph: where a program's time goes, one box a function, as wide as its share, callers below.

    py-spy record --native --format raw --output decode.folded --pid PID
    python benchmarks/flamegraph.py decode.folded docs/images/decode.svg --title "decode, OLMoE shape, 2 threads"

Input: lines "frame;frame;frame count", the outermost first, as `py-spy --format raw` and stackcollapse-perf.pl write
them. Line numbers and C++ types are left out so that equal functions meet, and boxes below --least of the whole are not
drawn, which keeps the file small. Python is drawn in blue, native code in orange.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

WIDTH, HEIGHT, FONT, TOP = 1200, 18, 11, 40
CHARACTER = 6.2  # its width in pixels
PYTHON, NATIVE = ("#4f86c6", "#6ba3dc", "#87b9e6"), ("#e07b39", "#e9964f", "#f0ad6b")


@dataclass
class Node:
    """A function and what it called."""

    name: str
    python: bool
    count: int = 0
    children: dict[str, Node] = field(default_factory=dict)


def frame(text: str) -> tuple[str, bool]:
    """The short name of a frame and whether it is Python's."""
    name, _, place = text.rpartition(" (")
    name, place = (name, place.rstrip(")")) if name else (text, "")
    python = ".py" in place
    if python:
        return f"{name} ({place.split(':')[0].removeprefix('colibri/')})", True
    name = name.replace("(anonymous namespace)::", "").split("(")[0].split("<")[0]
    name = re.sub(r"\.(part|isra|constprop|cold)(\.\d+)?", "", name)
    library = re.split(r"[.-]", Path(place).name)[0]
    return (f"{name} ({library})" if library and library != "_native" else name), False


def tree(lines: list[str], root: str | None) -> Node:
    """All stacks merged; with `root`, only what is below the first function of that name."""
    whole = Node("all", True)
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = [frame(text) for text in stack.split(";") if text and not text.startswith("0x")]
        if root is not None:
            starts = [place for place, (name, _) in enumerate(frames) if name.split(" ")[0] == root]
            if not starts:
                continue
            frames = frames[starts[0] :]
        node = whole
        node.count += int(count)
        for name, python in frames:
            if name.startswith("nanobind::detail::func_create"):  # a wrapper with the types of every argument
                continue
            node = node.children.setdefault(name, Node(name, python))
            node.count += int(count)
    return whole


def depth(node: Node, least: float) -> int:
    """Rows that are drawn."""
    return 1 + max((depth(child, least) for child in node.children.values() if child.count >= least), default=0)


def boxes(node: Node, whole: int, least: float, x: float, row: int, rows: int) -> Iterator[str]:
    """The SVG of a function and of all that it called, alphabetically so that two graphs compare."""
    width = node.count / whole * WIDTH
    y = TOP + (rows - 1 - row) * HEIGHT
    shades = PYTHON if node.python else NATIVE
    fill = shades[sum(node.name.encode()) % len(shades)]
    label = escape(f"{node.name}: {node.count / whole:.1%}")
    yield f'<g><title>{label}</title><rect x="{x:.1f}" y="{y}" width="{max(width - 0.4, 0.2):.1f}" '
    yield f'height="{HEIGHT - 1}" fill="{fill}" rx="1"/>'
    letters = int((width - 6) / CHARACTER)
    if letters > 3:
        text = node.name if len(node.name) <= letters else node.name[: letters - 1] + "…"
        yield f'<text x="{x + 3:.1f}" y="{y + 13}">{escape(text)}</text>'
    yield "</g>\n"
    for name in sorted(node.children):
        child = node.children[name]
        if child.count >= least:
            yield from boxes(child, whole, least, x, row + 1, rows)
        x += child.count / whole * WIDTH


def draw(root: Node, title: str, least: float) -> str:
    """The whole picture."""
    rows = depth(root, least * root.count)
    height = TOP + rows * HEIGHT + 6
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" '
        f'font-size="{FONT}">\n<rect width="100%" height="100%" fill="#fffdf8"/>\n'
        f'<text x="{WIDTH / 2}" y="18" text-anchor="middle" font-size="14">{escape(title)}</text>\n'
        f'<text x="{WIDTH / 2}" y="33" text-anchor="middle" fill="#777">{root.count} samples; blue is Python, '
        f"orange is native code; boxes under {least:.1%} are left out</text>\n"
    )
    return head + "".join(boxes(root, root.count, least * root.count, 0.0, 0, rows)) + "</svg>\n"


def main() -> None:
    """Read stacks, write the SVG."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stacks", type=Path)
    parser.add_argument("svg", type=Path)
    parser.add_argument("--title", default="flame graph")
    parser.add_argument("--root", help="show this function and what it calls, as Engine.step")
    parser.add_argument("--least", type=float, default=0.001, help="share of the whole below which a box is left out")
    options = parser.parse_args()
    root = tree(options.stacks.read_text(encoding="utf-8").splitlines(), options.root)
    options.svg.write_text(draw(root, options.title, options.least), encoding="utf-8")


if __name__ == "__main__":
    main()
