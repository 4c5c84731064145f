"""Supervised fine-tuning: conversations in, a model that writes such answers out; on TRL's SFTTrainer."""
