"""The journal: structured log lines, one JSON object each, which an evaluation's id leads through.

A line has `at`, `level`, `action` and `message`; where they are known, `http_request` (also the answer's header
`X-Request-Id`), `evaluation` (the id under which the gateway, the workers, `drkq status` and the store know it),
`client`, `worker`, `pid` (of the process that judges), `code`, `outcome`, `failure` and `duration_s`. Tokens, bodies
and query strings are never in it.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

FIELDS = (
    *("action", "http_request", "evaluation", "client", "worker", "pid"),
    *("code", "outcome", "failure", "duration_s"),
)


class JsonLines(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told = {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        line = {"at": at, "level": record.levelname.lower(), **told, "message": record.getMessage()}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


def journal(target: TextIO | None = None) -> logging.Handler:
    """Make a handler that writes to standard error, or `target`: as JSON, and for people at a terminal as text."""
    target = target or sys.stderr
    handler = logging.StreamHandler(target)
    if target.isatty():
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    else:
        handler.setFormatter(JsonLines())
    return handler


def keep_journal() -> None:
    """Write every record from here on into the journal."""
    logging.basicConfig(level=logging.INFO, handlers=[journal()])
    # uvicorn tells of its own start and end, and asks for Ctrl-C, which `drkq serve` says better.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
