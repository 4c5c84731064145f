"""Training data as files: conversations and prompts, chosen from the store, without duplicates, in public schemas."""

from drkernel_q.corpus.conversation import Conversation, from_trajectory, turns_of
from drkernel_q.corpus.file import FORMS, read_rows, write_rows
from drkernel_q.corpus.selection import Selection, select

__all__ = ["FORMS", "Conversation", "Selection", "from_trajectory", "read_rows", "select", "turns_of", "write_rows"]
