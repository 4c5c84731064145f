"""docs/reference/store.md names every table, column and query that there is."""

import pytest

from drkernel_q.store.query import QUERIES
from drkernel_q.store.table import Row
from tests.need import ROOT

PAGE = (ROOT / "docs/reference/store.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(Row.metadata.tables))
def test_every_table_and_column_is_in_the_reference(name: str) -> None:
    assert f"**{name}**" in PAGE
    # Up to the next table.
    section = PAGE.split(f"**{name}**")[1].split("\n**")[0]
    missing = [column.name for column in Row.metadata.tables[name].columns if f"`{column.name}`" not in section]
    assert missing == []


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_every_query_and_parameter_is_in_the_reference(name: str) -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
    assert [parameter for parameter in QUERIES[name].parameters if f"`{parameter}`" not in line] == []
