"""A repository on a hub: its files, and ranges of their bytes; the faults of a network in our words."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from colibri.errors import FileError, FormatError

TRIES: Final = 5  # without a byte more
WAIT_S: Final = 1.0  # before the second of them, longer each time
_SAFE: Final = re.compile(r"[^\\\0]{1,500}")
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")
_LOGIN: Final = "`hf auth login` stores a token, HF_TOKEN names one"


@dataclass(frozen=True)
class RemoteFile:
    """A file's size, and the SHA-256 of its bytes where the hub tells it."""

    name: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class Repository:
    """What a repository holds at one commit."""

    repo: str
    commit: str
    files: dict[str, RemoteFile]

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes by name."""
        return {name: file.size for name, file in self.files.items()}

    def url(self, name: str) -> str:
        """Where a file is fetched from."""
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self.repo, name, revision=self.commit, endpoint=endpoint())


def endpoint() -> str:
    """The hub's address: HF_ENDPOINT, or Hugging Face's own."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def list_repository(repo: str) -> Repository:
    """The files of the main branch. Raises FileError for whatever stands between us and them."""
    from huggingface_hub import HfApi

    with told(repo):
        info = HfApi(endpoint=endpoint()).model_info(repo, files_metadata=True, timeout=30)
    commit = info.sha or ""
    if not _COMMIT.fullmatch(commit):
        raise FormatError(f"{endpoint()}: names {commit!r:.80} as the commit of {repo}; a hash is expected")
    files = {}
    for sibling in info.siblings or ():
        name, size = sibling.rfilename, sibling.size
        if not _SAFE.fullmatch(name) or name.startswith("/") or ".." in name.split("/"):
            raise FormatError(f"{endpoint()}: {repo} has a file {name!r:.80}; a path inside the repository is expected")
        if type(size) is not int or size < 0:
            continue
        files[name] = RemoteFile(name, size, sibling.lfs.sha256 if sibling.lfs else None)
    return Repository(repo, commit, files)


def read_range(repository: Repository, name: str, size: int) -> bytes:
    """The first `size` bytes of a file; a fault that may pass is waited for."""
    wait = WAIT_S
    for _ in range(TRIES - 1):
        try:
            return _read_range(repository, name, size)
        except transport_errors() as error:
            if not passes(error):
                break
        time.sleep(wait)
        wait *= 2
    with told(repository.repo):
        return _read_range(repository, name, size)


def _read_range(repository: Repository, name: str, size: int) -> bytes:
    with stream(repository.url(name), {"Range": f"bytes=0-{size - 1}"}) as response:
        data = bytearray()
        for piece in response.iter_bytes():
            data += piece
            if len(data) >= size:  # a server that knows no ranges sends all
                break
        return bytes(data[:size])


@contextmanager
def stream(url: str, headers: dict[str, str]) -> Iterator[Any]:
    """An answer whose body is read piece by piece; the library's session, token and proxies."""
    from huggingface_hub import get_session
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    asked = {**build_hf_headers(library_name="colibri"), "Accept-Encoding": "identity", **headers}
    with get_session().stream("GET", url, headers=asked, timeout=30, follow_redirects=True) as response:
        if response.status_code >= 400:
            response.read()
        hf_raise_for_status(response)
        yield response


def passes(error: Any) -> bool:
    """Whether a fault may go away by itself: one of the connection, or a status that says so."""
    response = getattr(error, "response", None)
    return response is None or response.status_code in (408, 429, 500, 502, 503, 504)


def transport_errors() -> tuple[type[BaseException], ...]:
    """What a connection that fails or breaks off raises."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    return HTTPError, ConnectionError, TimeoutError


@contextmanager
def told(repo: str) -> Iterator[None]:
    """What the library raises becomes a FileError that says what to do."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        yield
    except OfflineModeIsEnabled:
        raise FileError(f"{repo}: is not in the cache, and HF_HUB_OFFLINE forbids to fetch it") from None
    except HFValidationError as error:
        raise FileError(f"{repo}: is no name of a repository: {error!s:.200}") from None
    except HfHubHTTPError as error:
        raise FileError(f"{repo}: {_refusal(repo, error)}") from None
    except transport_errors() as error:
        found = str(error) or type(error).__name__
        raise FileError(
            f"{repo}: {endpoint()} cannot be reached: {found:.200}; what is in the cache runs without a network, and "
            "HF_ENDPOINT names a mirror"
        ) from None


def _refusal(repo: str, error: Any) -> str:
    from huggingface_hub.errors import DisabledRepoError, GatedRepoError, RepositoryNotFoundError

    status = error.response.status_code
    if isinstance(error, GatedRepoError):
        page = f"{endpoint()}/{repo}"
        return f"is gated: accept its terms at {page} with your account, and use a token of that account; {_LOGIN}"
    if isinstance(error, DisabledRepoError):
        return "was disabled by the hub"
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        return f"is not at {endpoint()}, or is private; look at the name's spelling, or use a token ({_LOGIN})"
    if status in (401, 403):
        return f"the hub asks for a token, or refuses the one that it got (status {status}); {_LOGIN}"
    if status == 429:
        return "the hub asks to wait (too many requests); try again in a few minutes, or use a token"
    return f"the hub answers with status {status}; try again later"
