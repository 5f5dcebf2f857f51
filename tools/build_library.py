"""Build libcolibri.so and colibri.h for C programs, over the Colibri of this Python's environment: `make lib`.

The library starts this Python, so the environment stays where it is, or COLIBRI_PYTHON says where it went."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from cffi import FFI

SOURCES = Path(__file__).resolve().parent.parent / "native" / "embedding"
EXPORTS = "{ global: colibri_infer; colibri_l*; colibri_vocabulary; colibri_generate*; colibri_close; local: *; };\n"
START = "from colibri.embedded import define\nfrom _libcolibri import ffi\ndefine(ffi)\n"


def glue(folder: Path) -> Path:
    """cffi's part: from the functions of engine.h to Python."""
    ffi = FFI()
    ffi.embedding_api((SOURCES / "engine.h").read_text())
    ffi.set_source("_libcolibri", '#include <stdint.h>\n#include "engine.h"\n')
    ffi.embedding_init_code(START)
    ffi.emit_c_code(str(folder / "_libcolibri.c"))
    return folder / "_libcolibri.c"


def python_library() -> tuple[Path, str]:
    """The folder and the name of this Python's shared library."""
    folder = Path(sysconfig.get_config_var("LIBDIR") or "")
    name = sysconfig.get_config_var("LDLIBRARY") or ""
    if not name.endswith(".so"):
        raise SystemExit(
            f"{sys.executable}: was built without a shared library (found {name}); expected a Python configured with "
            "--enable-shared, as those of Debian and uv are: make clean, then make lib PYTHON=..."
        )
    return folder, name


def command(folder: Path) -> list[str]:
    """How the C compiler is called."""
    where, library = python_library()
    exports = folder / "exports.map"
    exports.write_text(EXPORTS)
    return [
        *shlex.split(os.environ.get("CC", "cc")), "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter",
        "-fPIC", "-shared", "-fvisibility=hidden",
        f'-DCOLIBRI_PYTHON="{sys.executable}"', f"-I{SOURCES}", f"-I{sysconfig.get_path('include')}",
        str(SOURCES / "library.c"), str(glue(folder)), "-o", str(folder / "libcolibri.so"),
        "-Wl,-soname,libcolibri.so", f"-Wl,--version-script={exports}", "-Wl,-z,defs",
        f"-L{where}", f"-Wl,-rpath,{where}", f"-l{library.removeprefix('lib').removesuffix('.so')}", "-ldl",
    ]  # fmt: skip


def main(target: str) -> None:
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCES / "colibri.h", folder)
    subprocess.run(command(folder), check=True)
    print(f"{folder}/libcolibri.so, {folder}/colibri.h")


if __name__ == "__main__":
    main(sys.argv[1])
