"""The card of a data set: what is in it, where it is from, and how it was chosen."""

from collections.abc import Mapping

from drkernel_q import __version__

_TEMPLATE = """---
license: {license}
task_categories: [text-generation]
tags: [triton, kernels, drkq]
configs:
- config_name: default
  data_files: data/*.parquet
---

# {title}

{sentence}

| | |
|---|---|
{facts}
| written by | drkq {version} |

## Columns

{columns}
"""


def write_card(
    title: str, sentence: str, facts: Mapping[str, object], columns: Mapping[str, str], *, licence: str = "other"
) -> str:
    """Write a card; nothing is claimed about a licence that nobody named."""
    return _TEMPLATE.format(
        license=licence,
        title=title,
        sentence=sentence,
        facts="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        version=__version__,
        columns="\n".join(f"* `{name}`: {meaning}" for name, meaning in columns.items()),
    )
