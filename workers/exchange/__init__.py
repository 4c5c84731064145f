"""Exchange: what judge and candidate have in common: shared memory, the stop-watch, traces, what an output may be."""
