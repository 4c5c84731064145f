"""`drkq config`: every setting and where it comes from."""

import json
import re

import pytest
from click.testing import CliRunner

from drkernel_q import settings
from drkernel_q.cli import drkq
from drkernel_q.cli.config import COLUMNS
from drkernel_q.settings import Settings


def test_json_has_every_setting_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_DEVICE", "cpu")
    result = CliRunner().invoke(drkq, ["config", "show", "--json"])
    assert result.exit_code == 0
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert list(rows) == list(Settings.model_fields)
    assert {key: rows["device"][key] for key in ("value", "source")} == {
        "value": "cpu",
        "source": "DRKQ_DEVICE",
    }


def test_table_masks_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_STORE_URL", "postgresql+psycopg://drkq:hunter2@db.example/drkq")
    result = CliRunner().invoke(drkq, ["config", "show"])
    assert result.stdout.splitlines()[0].split() == list(COLUMNS)
    assert re.search(r"store_url +\*{10} +DRKQ_STORE_URL", result.stdout)
    assert "hunter2" not in result.output


def test_path_is_the_users_file() -> None:
    result = CliRunner().invoke(drkq, ["config", "path"])
    assert result.stdout == f"{settings.USER_FILE}\n"


def test_wrong_setting_ends_with_78(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_CANDIDATE_UID", "-5")
    result = CliRunner().invoke(drkq, ["config", "show"])
    assert result.exit_code == 78
    assert "`candidate_uid`" in result.stderr
