"""Many clients on one gateway at once: is anything lost, how much memory, in what order, what is said when it is full.

`python benchmarks/gateway_load.py --clients 1000 --workers 4` starts a broker, a persister, `cpu` workers and
`drkq serve`, each a process, and prints one JSON line. First one client sends a batch of `--greedy` orders; then all
others come at the same moment, each with a connection, a token and an order of its own, over `--distinct` kernels.
Orders are more than the gateway takes (`--waiting`), so many are refused; who is refused comes again when told. At the
end every client must have the reply to its own order, and the store every request once.

The judging is as short as it gets (one trial of correctness), since the gateway is what is measured here.
"""

import asyncio
import json
import os
import resource
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
from sqlalchemy import text

from drkernel_q.local.broker import Broker
from drkernel_q.queue.connection import connect
from drkernel_q.queue.registry import workers
from drkernel_q.store import Store

SOURCE = (Path(__file__).parents[1] / "examples" / "softmax.py").read_text()
PROTOCOL = {"stages": ["correctness"], "trials": 1, "weight_seeds": 1}
#: One look at an order that waits, seconds.
LOOK_S = 30


class Client:
    """One client with a connection of its own, which speaks as much HTTP as is needed here."""

    def __init__(self, port: int, name: str) -> None:
        self.port = port
        self.head = f"Host: localhost\r\nAuthorization: Bearer {token(name)}\r\nContent-Type: application/json\r\n"
        self.refusals: Counter[int] = Counter()
        self.waited_s = 0.0

    async def __aenter__(self) -> "Client":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def ask(self, method: str, path: str, document: object = None) -> tuple[int, dict[str, str], Any]:
        body = b"" if document is None else json.dumps(document).encode()
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{self.head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await self.writer.drain()
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        answer = await self.reader.readexactly(int(headers["content-length"]))
        return int(lines[0].split()[1]), headers, json.loads(answer)

    async def judge(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send an order until it is taken, and wait for the reply."""
        start = time.monotonic()
        while True:
            code, headers, answer = await self.ask("POST", f"/v1/evaluations?wait_s={LOOK_S}", order)
            if code in {200, 202}:
                break
            assert code in {429, 503}, (code, answer)
            assert answer["detail"]
            self.refusals[code] += 1
            await asyncio.sleep(int(headers["retry-after"]))
        while answer["reply"] is None:
            code, _, answer = await self.ask("GET", f"/v1/evaluations/{order['id']}?wait_s={LOOK_S}")
            assert code == 200, (code, answer)
        self.waited_s = time.monotonic() - start
        found: dict[str, Any] = answer
        return found


def token(name: str) -> str:
    return f"token-of-the-client-{name}"


def an_order(number: int) -> dict[str, Any]:
    return {
        "id": uuid.uuid4().hex,
        "problem": "softmax",
        "kernel": f"{SOURCE}\n# {number}\n",
        "protocol": PROTOCOL,
        "device": "cpu",
        "priority": "training",
        "deadline_s": 600,
    }


@contextmanager
def running(command: list[str], environment: dict[str, str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of this benchmark's for the length of the block."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env=environment, stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def memory_mb(pid: int, what: str) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(what))
    return round(int(line.split()[1]) / 1024, 1)


def told_last(log: Path) -> str:
    """The last lines of a log that are not about single requests."""
    return "\n".join([line for line in log.read_text().splitlines() if '"action"' not in line][-20:])


async def load(port: int, clients: int, distinct: int, greedy: int) -> dict[str, Any]:
    """Let all clients come at once, and tell how it went."""
    own = secrets.randbelow(10**9)
    many = [an_order(own + 10**9 + number) for number in range(greedy)]
    orders = [an_order(own + number % distinct) for number in range(clients)]
    async with Client(port, "greedy") as first:
        code, _, answer = await first.ask("POST", "/v1/batches", {"evaluations": many, "device": "cpu"})
        assert code == 202, answer
    start = time.monotonic()
    everybody = [Client(port, str(number)) for number in range(clients)]

    async def serve(client: Client, order: dict[str, Any]) -> dict[str, Any]:
        async with client:
            return await client.judge(order)

    answers = await asyncio.gather(*map(serve, everybody, orders))
    took_s = time.monotonic() - start
    # On a connection of its own: the first one was idle for so long that the gateway closed it.
    async with Client(port, "greedy") as first:
        _, _, left = await first.ask("GET", "/v1/evaluations?open=true&limit=1000")
        for each in left["evaluations"]:
            await first.ask("DELETE", f"/v1/evaluations/{each['id']}")
    waits = sorted(client.waited_s for client in everybody)
    wrong = [
        a for a, order in zip(answers, orders, strict=True) if a["id"] != order["id"] or not a["reply"]["evaluation"]
    ]
    outcomes = Counter(a["reply"]["evaluation"]["outcome"] for a in answers if a["reply"]["evaluation"])
    return {
        "replies": len(answers),
        "not_own_or_without_facts": len(wrong),
        "outcomes": dict(outcomes),
        "refused": {str(code): sum(c.refusals[code] for c in everybody) for code in (429, 503)},
        "seconds": round(took_s, 1),
        "wait_s": {
            "median": round(statistics.median(waits), 1),
            "p95": round(waits[int(0.95 * len(waits))], 1),
            "most": round(waits[-1], 1),
        },
        "greedy_left_when_all_others_were_done": len(left["evaluations"]),
        "ids": [order["id"] for order in orders],
    }


def count(store: Store, ids: list[str], limit_s: float = 60) -> dict[str, int]:
    """How many of the requests the store has, and how often; waits for the persister."""
    end = time.monotonic() + limit_s
    while True:
        with store.reading() as connection:
            rows = Counter(connection.execute(text("SELECT request_id FROM evaluations")).scalars())
        found = {"stored": sum(bool(rows[each]) for each in ids), "doubled": sum(rows[each] > 1 for each in ids)}
        if found["stored"] == len(ids) or time.monotonic() > end:
            return found | {"lost": len(ids) - found["stored"]}
        time.sleep(0.5)


@click.command()
@click.option("--clients", default=1000, show_default=True)
@click.option("--workers", "number", default=4, show_default=True)
@click.option("--distinct", default=200, show_default=True, help="Kernels that the clients ask about.")
@click.option("--greedy", default=200, show_default=True, help="Orders of the one client that was first.")
@click.option("--waiting", default=700, show_default=True, help="Orders that the gateway takes.")
def main(clients: int, number: int, distinct: int, greedy: int, waiting: int) -> None:
    """Measure a gateway under many clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 3 * clients)), hard))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dq-")))
        broker = Broker(folder)
        stack.callback(broker.stop)
        tokens = folder / "tokens"
        tokens.write_text("".join(f"{n} {token(n)}\n" for n in ["greedy", *map(str, range(clients))]))
        environment = os.environ | {
            "DRKQ_BROKER_URL": broker.url,
            "DRKQ_STORE_URL": f"sqlite:///{folder / 'drkq.sqlite'}",
            "DRKQ_GATEWAY_TOKENS": str(tokens),
            "DRKQ_LOCK_DIR": str(folder / "locks"),
            "DRKQ_STATE_DIR": str(folder / "state"),
        }
        store = stack.enter_context(Store.open(environment["DRKQ_STORE_URL"]))
        store.upgrade()
        log = folder / "log"
        stack.enter_context(running(["drkernel_q", "persist"], environment, log))
        for place in range(number):
            command = ["workers", "--device", "cpu" if place == 0 else f"cpu:{place}"]
            stack.enter_context(running(command, environment, log))
        with connect(broker.url) as redis:
            while len(workers(redis)) < number:
                time.sleep(0.2)
        command = ["drkernel_q", "serve", "--port", "0", "--limit", f"waiting={waiting}"]
        gateway = stack.enter_context(running(command, environment, folder / "gateway.log"))
        while "Serving on" not in (told := (folder / "gateway.log").read_text()):
            assert gateway.poll() is None, told
            time.sleep(0.1)
        port = int(told.partition("Serving on http://127.0.0.1:")[2].partition(".\n")[0])
        before = memory_mb(gateway.pid, "VmRSS")
        try:
            found = asyncio.run(load(port, clients, distinct, greedy))
        except (OSError, EOFError) as error:
            raise SystemExit(
                f"{error!r}; the gateway: {gateway.poll()}, {told_last(folder / 'gateway.log')}"
            ) from error
        ids = found.pop("ids")
        errors = sum('"level": "error"' in line for line in (folder / "gateway.log").read_text().splitlines())
        line = {
            "clients": clients,
            "workers": number,
            "distinct": distinct,
            "greedy": greedy,
            "waiting": waiting,
        } | found
        line |= count(store, ids)
        line |= {"gateway_mb": {"start": before, "peak": memory_mb(gateway.pid, "VmHWM")}, "gateway_errors": errors}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
