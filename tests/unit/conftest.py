"""What several of these tests need."""

from collections.abc import Iterator

import pytest

from drkernel_q.settings import Settings
from workers.device import find_device
from workers.family import Family


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    """Start a zygote of the cpu device, which forks candidates."""
    family = Family(Settings(cache_dir=tmp_path_factory.mktemp("cache")), find_device("cpu"))
    family.wait_ready()
    yield family
    family.close()
