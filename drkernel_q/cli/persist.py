"""Write the replies of a cluster's workers to the store."""

import logging
import signal
import threading

import click


@click.command()
def command() -> None:
    """Write the replies of a cluster's workers to the store.

    One is enough, several do no harm. SIGTERM ends it after the batch in hand; whatever it does not get to write
    stays in the broker. A single machine needs none: there the embedded stack writes.

    \b
    Examples:
      DRKQ_BROKER_URL=rediss://... DRKQ_STORE_URL=postgresql+psycopg://... drkq persist
    """  # noqa: D301 - click wants the backspace character itself
    # Imported here: SQL and Celery take longer to import than help may take to appear.
    from redis.exceptions import RedisError

    from drkernel_q.errors import NoBroker
    from drkernel_q.persist import Persister
    from drkernel_q.queue.connection import connect
    from drkernel_q.settings import load_settings
    from drkernel_q.store import Store

    settings = load_settings()
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
