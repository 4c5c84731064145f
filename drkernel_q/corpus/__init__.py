"""Training data as files: conversations and prompts, chosen from the store, without duplicates, in public schemas."""
