"""Model: weights, a tokenizer, and their sizes."""
