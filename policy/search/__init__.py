"""Search: test-time scaling, one model refining its kernels for one problem over many turns."""
