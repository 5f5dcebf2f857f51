"""A line for each request, and lines of all loggers as people or as programs read them (`--log-format`)."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

log = logging.getLogger("colibri.access")

_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(slots=True)
class Access:
    """What is known of a request when it ends. Seconds count from its arrival; None for what never came.

    queue_s: until its first sequence was taken up. tokens: generated, over all its sequences.
    """

    request_id: str
    client: str | None
    method: str
    path: str
    began: float = field(default_factory=time.monotonic)
    status: int = 0
    prompt_tokens: int | None = None
    tokens: int = 0
    queue_s: float | None = None
    first_token_s: float | None = None

    @classmethod
    def of(cls, scope: Scope, headers: Headers) -> Access:
        """Of a request that arrives; it keeps the id that it came with, if that can be an id."""
        given = headers.get("x-request-id", "")
        client = scope.get("client")
        return cls(
            request_id=given if _ID.fullmatch(given) else uuid.uuid4().hex,
            client=client[0] if client else None, method=scope["method"], path=scope["path"],
        )  # fmt: skip

    def prompted(self, tokens: int) -> None:
        """So many tokens of prompts go to the engine."""
        self.prompt_tokens = (self.prompt_tokens or 0) + tokens

    def went_on(self, tokens: int, *, computed: bool) -> None:
        """A sequence got so many tokens; `computed`: some of its prompt is done."""
        since = time.monotonic() - self.began
        if (computed or tokens) and self.queue_s is None:
            self.queue_s = since
        if tokens and self.first_token_s is None:
            self.first_token_s = since
        self.tokens += tokens

    def write(self) -> None:
        """The line; errors of the server stand out."""
        took = time.monotonic() - self.began
        level = logging.ERROR if self.status >= 500 else logging.WARNING if self.status >= 400 else logging.INFO
        if not log.isEnabledFor(level):
            return
        known = {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}
        del known["began"]
        values = {**known, "duration_s": round(took, 4)}
        text = " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
        log.log(level, "%s", text, extra={"access": values})


current: ContextVar[Access | None] = ContextVar("access", default=None)
"""The request that is being answered."""


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message; fields of a request instead of its message."""

    def format(self, record: logging.LogRecord) -> str:
        """As the base class has it."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03}Z", "level": record.levelname.lower(), "logger": record.name,
        }  # fmt: skip
        access = getattr(record, "access", None)
        line |= {"message": record.getMessage()} if access is None else access
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class PlainLines(logging.Formatter):
    """Time (UTC), level, message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """As the base class has it."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))


FORMATS: dict[str, type[logging.Formatter]] = {"plain": PlainLines, "json": JsonLines}


def set_up(kind: str, requests: bool) -> None:
    """Write all loggers to stderr; requests only when asked for."""
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATS[kind]())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    log.setLevel(logging.INFO if requests else logging.CRITICAL)
