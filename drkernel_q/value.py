"""The base of every value that crosses a process: frozen, typed, and hashed by content."""

import hashlib

from pydantic import BaseModel, ConfigDict

#: Algorithm tag in front of every content hash (blake2b, 128 bits), so that the algorithm can change later.
HASH_TAG = "b2"


class Value(BaseModel):
    """An immutable value; unknown fields are an error, and the string under a field is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def content_hash(*parts: str) -> str:
    """Hash `parts` by content, as `b2:<32 hex digits>`; part boundaries count."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return f"{HASH_TAG}:{digest.hexdigest()}"
