"""Whatever is sent, the answer is no 500, and it is one that the description of the interface names."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drkernel_q.gateway.limits import Limits
from drkernel_q.store import Store
from tests.gateway.conftest import Served, gateway_on
from tests.gateway.test_watch import fill
from tests.queue.conftest import own_broker, worker_starter

pytestmark = [pytest.mark.redis, pytest.mark.slow]
#: Waits are short, since many a request asks for an hour; a few orders are in the broker, and the others wait.
LIMITS = Limits(wait_s=0.02, kernelgym_wait_s=0.02, rate_per_s=10_000, burst=10_000, waiting_of_one=50)
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with (
        own_broker() as broker,
        worker_starter(tmp_path / "log") as start,
        Store.open(f"sqlite:///{tmp_path / 'drkq.sqlite'}") as store,
    ):
        store.upgrade()
        fill(store)
        start(broker)
        with gateway_on(broker, tmp_path, store=store, limits=LIMITS) as served:
            yield served


def test_schemathesis_finds_nothing(served: Served, tmp_path: Path) -> None:
    # fmt: off
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json", "--no-color",
        "--header", "Authorization: Bearer own-has-a-long-token", "--checks", CHECKS, "--max-examples", "12",
        "--phases", "examples,coverage,fuzzing", "--max-time", "5", "--generation-deterministic",
        "--continue-on-failure",
        "--exclude-path-regex", "events", "--request-timeout", "10",
    ]
    # fmt: on
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ | {"CI": ""}
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    # How many fit into the time says how busy the machine is; that there were some says that this test tests.
    assert re.search(r"[1-9]\d* generated", done.stdout), done.stdout
