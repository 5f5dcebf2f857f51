"""What is in the built native library, as binutils tells it: its functions, whose they are, its instructions."""

from __future__ import annotations

import re
import subprocess
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

SYMBOL = re.compile(r"\s*\d+: ([0-9a-f]+)\s+(\w+) (\w+)\s+(\w+)\s+\w+\s+(?:\[.*\] +)?(\w+) ?(\S*)")
INSTRUCTION = re.compile(r" *([0-9a-f]+):\t((?:[0-9a-f]{2} )+) *\t(\S+) *([0-9a-f]+)?")
VECTOR_EXTENSIONS = {"c4", "c5", "62"}  # first bytes of VEX and EVEX; in 64-bit mode nothing else begins so


@dataclass(frozen=True)
class Symbol:
    name: str
    kind: str
    binding: str
    start: int
    size: int
    owner: str  # the instruction set; "": compiled for every processor


@dataclass(frozen=True)
class Instruction:
    at: int
    vector_extension: bool
    mnemonic: str
    target: int | None  # of a call or a jump


class Library:
    """Read once; `sets` are the instruction sets of the build."""

    def __init__(self, path: str, sets: tuple[str, ...]) -> None:
        self.path, self.sets = path, sets

    def _lines(self, *command: str) -> list[str]:
        return subprocess.run([*command, self.path], capture_output=True, text=True, check=True).stdout.splitlines()

    def _owner(self, file: str, name: str) -> str:
        """Sources are named for their set; symbols without a file were visible to other sources, so they are too."""
        label = file.removesuffix(".c") or re.sub(r"\.(cold|part|constprop|isra).*", "", name)
        return next((isa for isa in self.sets if label.endswith("_" + isa) and isa != "portable"), "")

    @cached_property
    def symbols(self) -> list[Symbol]:
        found, file = [], ""
        for match in map(SYMBOL.fullmatch, self._lines("readelf", "-sW")):
            if not match:
                continue
            value, size, kind, binding, section, name = match.groups()
            if kind == "FILE":
                file = name
            elif section not in ("UND", "ABS"):
                owner = self._owner(file if binding == "LOCAL" else "", name)
                found.append(Symbol(name, kind, binding, int(value, 16), int(size, 0), owner))
        return found

    @cached_property
    def _functions(self) -> list[Symbol]:
        return sorted((s for s in self.symbols if s.kind in ("FUNC", "IFUNC")), key=lambda s: s.start)

    @cached_property
    def _starts(self) -> list[int]:
        return [f.start for f in self._functions]

    def owner_at(self, address: int) -> str:
        """Whose function the address lies in; "" outside of all."""
        at = bisect_right(self._starts, address) - 1
        function = self._functions[at] if at >= 0 else None
        return function.owner if function and address < function.start + function.size else ""

    def instructions(self) -> Iterator[Instruction]:
        for match in map(INSTRUCTION.match, self._lines("objdump", "-dw")):
            if match:
                at, content, mnemonic, target = match.groups()
                jumps = mnemonic.startswith(("call", "j")) and target
                yield Instruction(
                    int(at, 16), content[:2] in VECTOR_EXTENSIONS, mnemonic, int(target, 16) if jumps else None
                )

    def relocations(self) -> Iterator[tuple[int, str, int]]:
        """(where, type, value) of those that need no symbol."""
        for line in self._lines("readelf", "-rW"):
            match = re.fullmatch(r"([0-9a-f]{12,}) +[0-9a-f]+ (R_\w+) +([0-9a-f]+)", line)
            if match:
                yield int(match[1], 16), match[2], int(match[3], 16)

    def section(self, name: str) -> range:
        """Its addresses; empty if there is none."""
        for line in self._lines("readelf", "-SW"):
            match = re.search(rf" {re.escape(name)} +\w+ +([0-9a-f]+) [0-9a-f]+ ([0-9a-f]+) ", line)
            if match:
                return range(int(match[1], 16), int(match[1], 16) + int(match[2], 16))
        return range(0)
