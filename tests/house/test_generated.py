"""Pages that are made from the code say what the code says."""

import runpy
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.need import ROOT

GENERATE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "generate.py"))


@pytest.mark.parametrize("name", GENERATE["PAGES"])
def test_page_is_up_to_date(name: str) -> None:
    page = ROOT / "docs" / "reference" / name
    assert page.read_text() == GENERATE["PAGES"][name](), "run `python docs/generate.py`"


def test_pictures_are_well_formed_and_have_a_title() -> None:
    pictures = sorted((ROOT / "docs").rglob("*.svg"))
    assert pictures
    for picture in pictures:
        root = ElementTree.parse(picture).getroot()
        assert root.tag.endswith("svg"), picture
        assert root.get("viewBox"), picture
        assert root.find("{http://www.w3.org/2000/svg}title") is not None, picture
