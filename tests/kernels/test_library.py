"""The built library: no instruction that a processor may lack lies where it can run before the processor was asked."""

from __future__ import annotations

import platform
import shutil

import pytest
from native_library import Library

from colibri import ops
from colibri.ops import _native

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="reads instructions of x86-64"),
    pytest.mark.skipif(not (shutil.which("readelf") and shutil.which("objdump")), reason="binutils is not installed"),
]


@pytest.fixture(scope="module")
def library() -> Library:
    found = Library(_native.__file__, ops.isas_of_build())
    if not found.symbols:
        pytest.skip("the library was stripped of its symbols")
    return found


def test_the_functions_of_every_set_are_found(library: Library) -> None:
    for isa in set(library.sets) - {"portable"}:
        owned = [s for s in library.symbols if s.owner == isa and s.kind == "FUNC"]
        assert len(owned) > 50
        extended = {i.at for i in library.instructions() if i.vector_extension and library.owner_at(i.at) == isa}
        assert len(extended) > 1000


def test_vector_extensions_only_in_functions_of_their_set(library: Library) -> None:
    strays = [hex(i.at) for i in library.instructions() if i.vector_extension and not library.owner_at(i.at)]
    assert not strays


def test_functions_of_a_set_are_reached_through_its_table_only(library: Library) -> None:
    crossing = [
        (hex(i.at), i.mnemonic, hex(i.target))
        for i in library.instructions()
        if i.target and library.owner_at(i.target) not in ("", library.owner_at(i.at))
    ]
    assert not crossing


def test_nothing_of_a_set_runs_when_the_library_is_loaded(library: Library) -> None:
    for name in (".init_array", ".preinit_array", ".fini_array"):
        entries = library.section(name)
        for where, kind, target in library.relocations():
            assert where not in entries or kind == "R_X86_64_RELATIVE"
            assert where not in entries or not library.owner_at(target)
    assert not library.section(".preinit_array")
    assert not [kind for _, kind, _ in library.relocations() if kind == "R_X86_64_IRELATIVE"]
    assert not library.owner_at(library.section(".init").start)


def test_no_symbol_of_a_set_can_stand_for_another(library: Library) -> None:
    assert not [s.name for s in library.symbols if s.owner and s.binding != "LOCAL"]


def test_the_tables_are_constant(library: Library) -> None:
    constant = library.section(".data.rel.ro")
    tables = {s.name: s.start for s in library.symbols if s.kind == "OBJECT" and s.name.startswith("kernels_")}
    assert tables.keys() == {f"kernels_{isa}" for isa in library.sets}
    assert all(start in constant for start in tables.values())
