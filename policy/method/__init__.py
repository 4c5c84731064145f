"""Method: what the article computes, one algorithm a file; pure functions, of tensors at most."""
