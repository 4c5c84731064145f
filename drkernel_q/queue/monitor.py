"""The Celery app of who only looks, with the broker of the settings: `celery -A drkernel_q.queue.monitor flower`."""

from drkernel_q.queue.app import celery_app
from drkernel_q.settings import load_settings

app = celery_app(load_settings())
