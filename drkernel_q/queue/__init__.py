"""The job queue: one Celery app, a ledger of claims in Redis, and the asyncio client that awaits replies."""
