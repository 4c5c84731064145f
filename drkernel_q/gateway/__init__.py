"""The gateway: evaluations over HTTP, for clients that cannot or should not reach the broker.

It is one more client of the queue, and reads the store; it knows neither workers nor policies.
"""
