"""Fetching from a hub that breaks off, lies, refuses and is not there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import huggingface_hub
import pytest
from fake_hub import COMMIT, DIRECTORY, GOLDEN, MODEL, Hub, Repo, etag_of

import colibri
from colibri.cli import main
from colibri.errors import ColibriError, FileError, FormatError, MemoryBudgetError, UnsupportedError
from colibri.hub import choice, pull as pulling
from colibri.hub.cache import cached_models, repo_folder
from colibri.hub.fit import Fit
from colibri.hub.pull import cached, pull
from colibri.hub.reference import Reference, parse
from colibri.hub.remote import TRIES
from colibri.models.registry import open_checkpoint

NAME = "model-Q8_0.gguf"
SIZE = len(MODEL)
Usage = namedtuple("Usage", "total used free")


def get(reference: str = "org/model") -> tuple[Path, list[str], list[tuple[int, int]]]:
    said: list[str] = []
    steps: list[tuple[int, int]] = []
    parsed = parse(reference)
    assert parsed is not None
    path = pull(parsed, said.append, lambda done, total: steps.append((done, total)))
    return path, said, steps


def refused(kind: type[ColibriError], found: str, reference: str = "org/model") -> None:
    with pytest.raises(kind, match=found):
        get(reference)


def partial() -> Path:
    return repo_folder("org/model") / "blobs" / f"{etag_of(NAME, MODEL)}.incomplete"


def test_a_file_is_fetched_once_and_found_by_the_librarys_own_programs(hub: Hub, tmp_path: Path) -> None:
    path, said, steps = get()
    assert path.read_bytes() == MODEL
    assert path == tmp_path / "home/hub/models--org--model/snapshots" / COMMIT / NAME
    assert path.is_symlink()
    assert said == []
    assert steps[-1] == (SIZE, SIZE)
    assert cached(Reference("org/model")) == cached(Reference("org/model", "q8_0")) == path
    assert open_checkpoint(path).name
    (repo,) = huggingface_hub.scan_cache_dir(tmp_path / "home/hub").repos
    assert (repo.repo_id, repo.size_on_disk, repo.nb_files) == ("org/model", SIZE, 1)
    assert [name for name, _ in hub.gets] == [NAME]
    assert get()[0] == path
    assert len(hub.gets) == 1


def test_a_directory_is_fetched_without_what_it_does_not_need(hub: Hub) -> None:
    more = {"README.md": b"x", "consolidated.safetensors": b"y", "pytorch_model.bin": b"z", "a/b.safetensors": b"n"}
    hub.repos["org/folder"] = Repo({**DIRECTORY, **more})
    path, _, _ = get("org/folder")
    assert sorted(file.name for file in path.iterdir()) == sorted(DIRECTORY)
    assert open_checkpoint(path).name == "org/folder"


def test_all_files_of_a_split(hub: Hub, tmp_path: Path) -> None:
    source = GOLDEN / "qwen3_moe-gqa-f32" / "model.gguf"
    assert main(["convert", str(source), str(tmp_path / "s.gguf"), "-q", "f32", "--split", "200K"]) == 0
    parts = {f"Q4_K_M/{path.name}": path.read_bytes() for path in tmp_path.glob("s-*.gguf")}
    assert len(parts) > 1
    hub.repos["org/split"] = Repo(parts)
    path, _, steps = get("org/split:Q4_K_M")
    assert path.name.startswith("s-00001-of-")
    assert open_checkpoint(path).layers
    total = sum(map(len, parts.values()))
    assert steps[-1] == (total, total)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    del parts[min(parts)]
    hub.repos["org/cut"] = Repo(parts)
    refused(UnsupportedError, "holds no model", "org/cut")


# ---- interruptions ----


@pytest.mark.parametrize("cdn", [False, True])
def test_it_goes_on_where_a_connection_broke_off(hub: Hub, cdn: bool) -> None:
    hub.cdn, hub.cut[NAME] = cdn, [1000, 0, 5000, 1]
    path, _, steps = get()
    assert path.read_bytes() == MODEL
    assert hub.bytes_sent[NAME] == SIZE
    assert [asked for _, asked in hub.gets] == ["", *(f"bytes={start}-" for start in (1000, 1000, 6000, 6001))]
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def test_it_gives_up_after_some_tries_and_the_next_command_goes_on(hub: Hub) -> None:
    hub.cut[NAME] = [7000, *[0] * TRIES]
    refused(FileError, f"broke off at byte 7000 of {SIZE}.*the same command goes on there")
    assert partial().stat().st_size == 7000
    path, _, steps = get()
    assert path.read_bytes() == MODEL
    assert hub.gets[-1] == (NAME, "bytes=7000-")
    assert steps[0][0] == 7000
    assert not partial().exists()


def test_a_server_without_ranges_is_asked_for_all(hub: Hub) -> None:
    hub.ranges, hub.cut[NAME] = False, [3000]
    assert get()[0].read_bytes() == MODEL
    assert hub.bytes_sent[NAME] == SIZE + 3000


@pytest.mark.parametrize("statuses", [[503], [429, 500], [502] * (TRIES - 1)])
def test_a_fault_that_passes_is_waited_for(hub: Hub, statuses: list[int]) -> None:
    hub.statuses[NAME] = list(statuses)
    assert get()[0].read_bytes() == MODEL


@pytest.mark.parametrize(("statuses", "found"), [
    ([403], "asks for a token"), ([404], "is not at"), ([418], "status 418"), ([503] * TRIES, "broke off at byte 0"),
])  # fmt: skip
def test_a_fault_that_stays_is_told(hub: Hub, statuses: list[int], found: str) -> None:
    hub.statuses[NAME] = list(statuses)
    refused(FileError, found)


def test_a_killed_process_is_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    hub.cut[NAME] = [9000, *[0] * 50]
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "colibri.cli", "pull", "org/model"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(hub.gets) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    assert partial().exists()
    assert partial().stat().st_size <= 9000
    hub.cut.clear()
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr
    assert Path(finished.stdout.strip()).read_bytes() == MODEL


def test_two_at_once_do_not_write_one_file(hub: Hub) -> None:
    import fcntl

    partial().parent.mkdir(parents=True)
    with partial().open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refused(FileError, "another process is fetching this file")
    assert get()[0].read_bytes() == MODEL


# ---- what is not what was promised ----


def test_other_bytes_are_refused_and_removed(hub: Hub) -> None:
    hub.sent[NAME] = MODEL[:-1] + b"?"
    refused(FormatError, "has the checksum .* is expected; what was fetched is removed")
    assert list(repo_folder("org/model").glob("**/*.incomplete")) == []
    assert cached(Reference("org/model")) is None
    hub.sent.clear()
    assert get()[0].read_bytes() == MODEL


def test_a_part_of_something_else_is_not_gone_on_with(hub: Hub) -> None:
    partial().parent.mkdir(parents=True)
    partial().write_bytes(b"x" * 5000)
    refused(FormatError, "has the checksum")
    assert get()[0].read_bytes() == MODEL
    shutil.rmtree(repo_folder("org/model"), ignore_errors=True)
    partial().parent.mkdir(parents=True)
    partial().write_bytes(b"x" * (SIZE + 1))  # too much of it is not even asked about
    assert get()[0].read_bytes() == MODEL


def test_small_files_have_a_checksum_too(hub: Hub) -> None:
    hub.repos["org/folder"] = Repo(dict(DIRECTORY))
    config = DIRECTORY["config.json"]
    hub.sent["config.json"] = config[:-1] + b" "
    refused(FormatError, r"config\.json has the checksum", "org/folder")


def test_wrong_sizes_are_refused(hub: Hub) -> None:
    hub.listed[NAME] = SIZE - 10  # both of the list and of the file
    refused(UnsupportedError, "truncated or damaged")  # seen in the header, before anything is fetched
    refused(FormatError, f"is longer than the {SIZE - 10} bytes", "org/model:q8_0")
    hub.listed[NAME] = SIZE + 10
    refused(FileError, f"broke off at byte {SIZE} of {SIZE + 10}")
    hub.listed.clear()
    assert get()[0].read_bytes() == MODEL


@pytest.mark.parametrize("name", ["../../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf", "a\\evil.gguf"])
def test_files_outside_the_repository_are_refused(hub: Hub, name: str) -> None:
    hub.repos["org/model"].files[name] = MODEL
    refused(FormatError, "a path inside the repository is expected")


def test_odd_hashes_are_refused(hub: Hub) -> None:
    hub.etags[NAME] = "../../../evil"
    refused(FormatError, "ETag is")
    hub.etags.clear()
    hub.repos["org/model"].commit = "../../x"
    refused(FormatError, "a hash is expected")


# ---- who may not, and what is not there ----


def test_refusals_say_what_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = hub.repos["org/model"]
    refused(FileError, r"org/none: is not at http.*or is private; look at the name's spelling", "org/none")
    repo.status, repo.error = 403, "GatedRepo"
    refused(FileError, r"is gated: accept its terms at http.*/org/model.*hf auth login")
    repo.status, repo.error = 401, "GatedRepo"
    refused(FileError, "is gated")
    repo.status, repo.error = 429, ""
    refused(FileError, "asks to wait")
    repo.status, repo.error = 500, ""
    refused(FileError, "status 500; try again later")
    repo.status, repo.token = 200, "hf_right"
    refused(FileError, "asks for a token, or refuses the one that it got")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    hub.authorizations.clear()
    assert get()[0].read_bytes() == MODEL
    assert set(hub.authorizations) == {"Bearer hf_right"}


def test_a_token_stays_with_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files come from another host, by an address that needs no token."""
    hub.cdn, hub.repos["org/model"].token = True, "hf_right"
    hub.cut[NAME] = [100, 100]
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert get()[0].read_bytes() == MODEL
    assert len(hub.cdn_authorizations) >= 3
    assert set(hub.cdn_authorizations) == {None}


def test_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    refused(FileError, "http://127.0.0.1:9 cannot be reached.*HF_ENDPOINT names a mirror")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    path, _, _ = get()
    count = len(hub.gets)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    try:
        refused(FileError, "HF_HUB_OFFLINE forbids")
        assert cached(Reference("org/model", "Q8_0")) == path
        assert main(["inspect", "-m", "org/model"]) == 0
    finally:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        huggingface_hub.close_session()
    assert len(hub.gets) == count


def test_no_space(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling.shutil, "disk_usage", lambda _: Usage(10**9, 0, SIZE - 1))
    refused(FileError, "free, .* more are needed; free space")
    assert hub.gets == []


def test_a_disk_that_fills_up_while_writing(hub: Hub, tmp_path: Path) -> None:
    """A limit on files' sizes gives the same kind of fault as a full disk."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); "
        "from colibri.cli import main; sys.exit(main(['pull', 'org/model:q8_0']))"
    )
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "the same command goes on" in ended.stderr
    assert get()[0].read_bytes() == MODEL


# ---- which quantisation ----


def several(hub: Hub, *labels: str) -> None:
    files = {f"model-{label}.gguf": MODEL + bytes(count) for count, label in enumerate(labels)}
    hub.repos["org/model"] = Repo({**files, "mmproj-model-F16.gguf": b"x", "model.imatrix.gguf": b"y"})


def judge(monkeypatch: pytest.MonkeyPatch, fits: dict[str, str]) -> list[str]:
    """Fits by label instead of those of this machine; what was asked about."""
    asked: list[str] = []

    def remote_fit(_: object, variant: pulling.Variant) -> Fit:
        asked.append(variant.label)
        return Fit(fits[variant.label], f"about {variant.label}")  # type: ignore[arg-type]

    monkeypatch.setattr(choice, "remote_fit", remote_fit)
    return asked


def test_the_named_one(hub: Hub) -> None:
    several(hub, "Q4_K_M", "Q8_0")
    assert get("org/model:q4_k_m")[0].name == "model-Q4_K_M.gguf"
    refused(UnsupportedError, r"has no Q5_K_M; it has Q8_0, Q4_K_M", "org/model:Q5_K_M")


LABELS = ("Q2_K", "Q4_0", "Q4_K_M", "Q5_K_M", "Q8_0", "BF16")


@pytest.mark.parametrize(("fits", "chosen", "why"), [
    (["whole"] * 6, "Q8_0", "the largest up to 8 bits whose experts all go into"),
    (["whole", "whole", "whole", "part", "part", "part"], "Q4_K_M", "whose experts all go into"),
    (["part"] * 6, "Q4_K_M", "the best of 4 bits or fewer whose dense part fits"),
    (["part", "part", "small", "small", "small", "small"], "Q4_0", "the best of 4 bits or fewer"),
    (["no", "no", "no", "part", "part", "part"], "Q5_K_M", "the smallest whose dense part fits"),
])  # fmt: skip
def test_the_best_whose_plan_fits(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, fits: list[str], chosen: str, why: str
) -> None:
    several(hub, *LABELS)
    judge(monkeypatch, dict(zip(LABELS, fits, strict=True)))
    path, (said,), _ = get()
    assert path.name == f"model-{chosen}.gguf"
    assert said.startswith(f"{chosen} of BF16, Q8_0, Q5_K_M, Q4_K_M, Q4_0, Q2_K: ")
    assert why in said


def test_none_fits_or_is_run(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    several(hub, *LABELS)
    judge(monkeypatch, dict.fromkeys(LABELS, "small"))
    refused(MemoryBudgetError, "no quantisation fits here; .*about")
    judge(monkeypatch, dict.fromkeys(LABELS, "no"))
    refused(UnsupportedError, "no quantisation of it is run here: about")


def test_plans_are_made_from_headers_alone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_FIRST_BYTES", 1 << 12)  # a part of the header: more is asked for
    several(hub, "Q4_K_M", "Q8_0")
    path, (said,), _ = get()
    assert path.name == "model-Q8_0.gguf"
    assert "the largest up to 8 bits" in said
    assert hub.headers[0] == ("model-Q8_0.gguf", "bytes=0-4095")
    assert len(hub.headers) > 1
    assert {name for name, _ in hub.headers} == {"model-Q8_0.gguf"}
    assert hub.gets == [("model-Q8_0.gguf", "")]


def test_headers_are_asked_for_again(hub: Hub) -> None:
    hub.header_cut[NAME], hub.header_statuses[NAME] = [10, 0], [503]
    assert get()[0].read_bytes() == MODEL
    shutil.rmtree(repo_folder("org/model"), ignore_errors=True)
    hub.header_statuses[NAME] = [503] * TRIES
    refused(FileError, "status 503; try again later")
    hub.header_statuses[NAME] = [403, 403]
    refused(FileError, "asks for a token")
    hub.header_statuses[NAME] = [503] * TRIES
    shutil.rmtree(repo_folder("org/model"), ignore_errors=True)
    assert get("org/model:q8_0")[0].read_bytes() == MODEL  # which is not asked whether it fits


def test_what_is_no_mixture_is_told_before_it_is_fetched(hub: Hub) -> None:
    from colibri.weights.gguf_writer import gguf_header

    dense = gguf_header({"general.architecture": "qwen3"}, [])
    hub.repos["org/dense"] = Repo({"d-Q4_0.gguf": dense, "d-Q8_0.gguf": dense + b"\0"})
    refused(UnsupportedError, "this is a dense model", "org/dense")
    hub.repos["org/single"] = Repo({"d-Q4_0.gguf": dense})
    refused(UnsupportedError, "this is a dense model", "org/single")
    config = json.dumps({"model_type": "llama"}).encode()
    hub.repos["org/folder"] = Repo(DIRECTORY | {"config.json": config})
    refused(UnsupportedError, "config.json: .*not a Mixture-of-Experts", "org/folder")
    assert not any(repo_folder(name).exists() for name in ("org/dense", "org/single", "org/folder"))
    path, (said,), _ = get("org/single:q4_0")  # it was asked for by name: to convert it, say
    assert "this machine does not run it" in said
    assert path.read_bytes() == dense
    hub.repos["org/other"] = Repo({"README.md": b"x", "model.onnx": b"y"})
    refused(UnsupportedError, "neither GGUF files nor config.json", "org/other")


# ---- the commands ----


def test_run_fetches_what_is_missing_and_says_so(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "-m", "org/model:q8_0", "--prompt-ids", "1,2", "--max-tokens", "2", "--json"]
    assert main(command) == 0
    assert "note: org/model:q8_0 is not in the cache and is fetched" in capsys.readouterr().err
    count = len(hub.gets)
    assert main(command) == 0
    assert "fetched" not in capsys.readouterr().err
    assert len(hub.gets) == count
    assert main(["plan", "-m", "org/none"]) == 2
    assert "fetch it: colibri pull org/none" in capsys.readouterr().err
    monkeypatch.setenv("COLIBRI_MODEL", "org/model")
    assert main(["inspect"]) == 0


def test_the_list_and_the_removal(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    assert "no model in" in capsys.readouterr().out
    several(hub, "Q4_K_M", "Q8_0")
    for reference in ("org/model:Q4_K_M", "org/model:Q8_0"):
        assert main(["pull", reference]) == 0
    assert [str(model.reference) for model in cached_models()] == ["org/model:Q8_0", "org/model:Q4_K_M"]
    capsys.readouterr()
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert "org/model:Q4_K_M" in shown
    assert "fits with all its experts" in shown
    assert main(["rm", "org/model:q8_0"]) == 0
    assert "freed" in capsys.readouterr().out
    assert [str(model.reference) for model in cached_models()] == ["org/model:Q4_K_M"]
    assert sum(1 for _ in repo_folder("org/model").glob("blobs/*")) == 1
    assert main(["rm", "org/model:q8_0"]) == 1
    assert main(["rm", "org/model"]) == 0
    assert not repo_folder("org/model").exists()
    assert main(["rm", "org/model"]) == 1
    assert main(["rm", "no-name"]) == 2
    assert "write it as ORG/NAME" in capsys.readouterr().err


def test_files_that_two_snapshots_share_stay_for_the_other(hub: Hub) -> None:
    several(hub, "Q4_K_M", "Q8_0")
    get("org/model:Q4_K_M")
    get("org/model:Q8_0")
    hub.repos["org/model"].commit = "f" * 40
    get("org/model:Q8_0")
    assert main(["rm", "org/model:Q8_0"]) == 0
    assert cached_models() == []  # of the newest commit
    assert len(list(repo_folder("org/model").glob("snapshots/*/*"))) == 1
    assert len(list(repo_folder("org/model").glob("blobs/*"))) == 1


def test_a_program_loads_by_name(hub: Hub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with colibri.load("org/model") as model:
        fetched = list(model.generate([1, 2], max_tokens=3, seed=1))
    gets = len(hub.gets)
    assert gets
    with colibri.load("org/model:Q8_0") as model:
        assert list(model.generate([1, 2], max_tokens=3, seed=1)) == fetched
    monkeypatch.setenv("COLIBRI_MODEL", "org/model")
    assert len(colibri.infer(None, [1, 2])) == 2
    assert len(hub.gets) == gets
    with pytest.raises(FileError, match="org/other"):
        colibri.load("org/other")
    with pytest.raises(FileError):  # a path is no name
        colibri.load(Path("org/model"))
    assert capfd.readouterr().out == ""
