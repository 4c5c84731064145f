"""Pages that are made from the code say what the code says; pictures are ones."""

import subprocess
import sys
from xml.etree import ElementTree

from tests.need import ROOT


def test_pages_are_up_to_date() -> None:
    """In a process of its own: click keeps what it made of a command for other tests."""
    command = [sys.executable, ROOT / "docs" / "generate.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_pictures_are_well_formed_and_have_a_title() -> None:
    pictures = sorted((ROOT / "docs").rglob("*.svg"))
    assert pictures
    for picture in pictures:
        root = ElementTree.parse(picture).getroot()
        assert root.tag.endswith("svg"), picture
        assert root.get("viewBox"), picture
        assert root.find("{http://www.w3.org/2000/svg}title") is not None, picture
