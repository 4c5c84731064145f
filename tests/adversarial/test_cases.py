"""The adversarial suite: files that are well formed, and the judge's word on those marked `ci: yes`.

`python -m tests.adversarial` judges all of them, on a GPU too.
"""

import ast
import re

import pytest

from tests.adversarial.cases import Case, load_cases
from tests.judging import Bench

CASES = load_cases()
NAMES = [case.name for case in CASES]


def test_there_are_enough_and_no_name_twice() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert sum(not case.clean for case in CASES) >= 60
    assert sum(case.clean for case in CASES) >= 25


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_file_is_well_formed(case: Case) -> None:
    """It defines the class, its problem exists, and the header holds nothing that a search for code would find."""
    tree = ast.parse(case.source)
    assert "ModelNew" in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert case.problem.source
    assert case.devices
    assert case.devices <= {"cpu", "cuda"}
    assert bool(re.fullmatch(r"[A-F]\d{1,2}", case.code)) is not case.clean
    assert not re.search(r"@triton|^(import |from |def |class |@)", ast.get_docstring(tree) or "", re.MULTILINE)


def _marked(case: Case) -> object:
    marks = [pytest.mark.xfail(strict=True, reason=case.pending)] if case.pending else []
    return pytest.param(case, id=case.name, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("case", [_marked(case) for case in CASES if case.ci and "cpu" in case.devices])
def test_judge_gets_it_right(bench: Bench, case: Case) -> None:
    result = bench.result(case.problem, case.source, backend=case.backend, kernel_deadline_s=10.0, timing_budget_s=0.2)
    assert case.holds(result), result
