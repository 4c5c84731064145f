"""Write the replies of a cluster's workers to the store."""

import logging
import signal
import threading

import click

from drkernel_q.cli.output import say

#: A reply that waits longer than this is not being written.
LATE_S = 120.0


@click.command()
@click.option("--check", is_flag=True, help="Only say whether replies are written in time; 69 if they are not.")
def command(check: bool) -> None:
    """Write the replies of a cluster's workers to the store.

    One is enough, several do no harm. SIGTERM ends it after the batch in hand; whatever it does not get to write
    stays in the broker. A single machine needs none: there the embedded stack writes.

    \b
    Examples:
      DRKQ_BROKER_URL=rediss://... DRKQ_STORE_URL=postgresql+psycopg://... drkq persist
      drkq persist --check
    """  # noqa: D301 - click wants the backspace character itself
    # Imported here: SQL and Celery take longer to import than help may take to appear.
    from redis.exceptions import RedisError

    from drkernel_q.errors import NoBroker, NoStore
    from drkernel_q.persist import Persister, lag_s
    from drkernel_q.queue.connection import connect
    from drkernel_q.settings import load_settings
    from drkernel_q.store import Store

    settings = load_settings()
    if check:
        try:
            late_s = lag_s(connect(settings, retries=0))
        except RedisError as error:
            raise NoBroker(f"The broker does not answer: {error}.") from error
        if late_s > LATE_S:
            raise NoStore(f"Replies wait to be written for {late_s:.0f} s; is `drkq persist` running, and the store?")
        say(f"Replies wait to be written for {late_s:.0f} s.")
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with Store.open(settings.store) as store:
        store.check()
        broker = connect(settings, retries=0)
        try:
            broker.ping()
        except RedisError as error:
            raise NoBroker(f"The broker does not answer: {error}.") from error
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        Persister(broker, store).run(stop)
