"""Logs on standard error: one JSON object per line, with the ids of the request and the job."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
job_id: ContextVar[str | None] = ContextVar("job_id", default=None)

EXTRAS = ("method", "path", "status", "ms", "worker", "device", "code", "seconds")


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": getattr(record, "request_id", None) or request_id.get(),
            "job_id": getattr(record, "job_id", None) or job_id.get(),
        }
        document |= {name: getattr(record, name) for name in EXTRAS if hasattr(record, name)}
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps({name: value for name, value in document.items() if value is not None}, default=str)


def set_up_logs(level: str) -> None:
    """Send all logs of this process to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.captureWarnings(True)
    for noisy in ("uvicorn.access", "rasterio", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
