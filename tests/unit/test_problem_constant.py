"""Constants of a reference are replaced in its text, and nothing else of it changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.errors import BadInput, BadProblem
from drkernel_q.problem import Constant, Problem, parse_override

SOURCE = """# é: columns count bytes
pi, name = 3.5, 'é'; batch = 4  # keep
rate: float = -1e-3
M = 1024 * 2 ** 2
height = width = (224)
D, H, W = (24, 32,
           48)
shape = 3, 5
layers = [1, (2, 3)]
widths = [1024] * 16
pair = (2, 3) * 2
flag = True
nothing = None
label = '''two
lines'''
follows = batch * 2
endless = [1] * 2 ** 40
mixed = [1, 'a'] * 2
half = [1] * 0.5
joined = [1] + [2]
bias_shape = (batch, 1)
later: int
huge = 2 ** 63
deep = 9 ** 9 ** 9
broken = 1 // 0
root = (-8) ** 0.5
data = b'bytes'
CPU_SIZES = {'batch': 2, 'M': 2 * 8}

def inside():
    hidden = 1
"""
PROBLEM = Problem(name="text", source=SOURCE)
#: What stands in `CPU_SIZES`, as text.
PROBLEM_SIZES = {"batch": "2", "M": "2 * 8"}


def values(source: str) -> dict[str, object]:
    namespace: dict[str, object] = {}
    for line in ("deep = 9 ** 9 ** 9", "broken = 1 // 0", "endless = [1] * 2 ** 40", "half = [1] * 0.5"):
        source = source.replace(line, "pass")
    exec(source, namespace)
    return namespace


def test_constants_are_literals_and_arithmetic_on_them() -> None:
    assert PROBLEM.constants == {
        "pi": 3.5,
        "name": "é",
        "batch": 4,
        "rate": -1e-3,
        "M": 4096,
        "height": 224,
        "width": 224,
        "D": 24,
        "H": 32,
        "W": 48,
        "shape": (3, 5),
        "layers": [1, (2, 3)],
        "widths": [1024] * 16,
        "pair": (2, 3, 2, 3),
        "flag": True,
        "nothing": None,
        "label": "two\nlines",
    }
    assert {name: values(SOURCE)[name] for name in PROBLEM.constants} == PROBLEM.constants


@pytest.mark.parametrize(
    ("name", "value", "old", "new"),
    [
        ("batch", 16, "batch = 4  # keep", "batch = 16  # keep"),
        ("name", "ü'", "'é'; batch", '"ü\'"; batch'),
        ("rate", 0.5, "= -1e-3", "= 0.5"),
        ("M", -1, "= 1024 * 2 ** 2", "= -1"),
        ("H", 8, "(24, 32,", "(24, 8,"),
        ("shape", (7,), "= 3, 5", "= (7,)"),
        ("layers", [4], "[1, (2, 3)]", "[4]"),
        ("widths", [64, 32], "[1024] * 16", "[64, 32]"),
        ("flag", False, "flag = True", "flag = False"),
        ("nothing", 1, "= None", "= 1"),
        ("label", "x", "'''two\nlines'''", "'x'"),
        ("height", 32, "height = width = (224)", "height = width = (224); height = 32"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_only_the_value_changes(name: str, value: Constant, old: str, new: str, newline: str) -> None:
    source = SOURCE.replace("\n", newline)
    resized = Problem(name="text", source=source).resized({name: value})
    assert SOURCE.count(old) == 1
    expected = SOURCE.replace(old, new).replace(f"'{name}': {PROBLEM_SIZES.get(name)}", f"'{name}': {value!r}")
    assert resized.source == expected.replace("\n", newline)
    assert resized.constants == PROBLEM.constants | {name: value}


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(sorted(PROBLEM.constants)),
        st.one_of(
            st.integers(-(2**62), 2**62),
            st.floats(allow_nan=False, allow_infinity=False, max_value=1e18, min_value=-1e18),
            st.booleans(),
            st.text(),
            st.tuples(st.integers(0, 9), st.integers(0, 9)),
        ),
    )
)
def test_python_sees_the_new_values_and_the_old_rest(overrides: dict[str, Constant]) -> None:
    resized = PROBLEM.resized(overrides)
    assert resized.constants == PROBLEM.constants | overrides
    batch = overrides.get("batch", 4)
    if isinstance(batch, int):
        assert values(resized.source)["follows"] == 2 * batch


def test_every_assignment_of_a_name_is_replaced() -> None:
    problem = Problem(name="text", source="N = 1\nN = 2\n")
    assert problem.resized({"N": 3}).source == "N = 3\nN = 3\n"


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(BadProblem, match="no module-level constant `hidden`; it has pi, name, batch, rate"):
        PROBLEM.resized({"hidden": 1})
    with pytest.raises(BadProblem, match="it has none"):
        Problem(name="text", source="").resized({"N": 1})


@pytest.mark.parametrize("value", [float("inf"), float("nan"), (1, float("inf"))])
def test_a_value_that_is_no_literal_is_refused(value: Constant) -> None:
    with pytest.raises(BadProblem, match="`batch` cannot be set"):
        PROBLEM.resized({"batch": value})


def test_small_takes_the_sizes_for_a_cpu() -> None:
    assert PROBLEM.cpu_sizes == {"batch": 2, "M": 16}
    assert PROBLEM.small().constants == PROBLEM.resized({"batch": 2, "M": 16}).constants
    plain = Problem(name="text", source="N = 1\n")
    assert plain.small() == plain


@pytest.mark.parametrize("sizes", ["[4]", "{'N': N}", "{**{}}", "{key: 1}", "dict(N=1)"])
def test_sizes_that_are_no_literals_are_refused(sizes: str) -> None:
    with pytest.raises(BadProblem, match="text, line 2: `CPU_SIZES` must be a dict of literals"):
        Problem(name="text", source=f"N = 4\nCPU_SIZES = {sizes}\n").small()


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("batch_size=4", "batch_size", 4),
        (" lr = -0.5 ", "lr", -0.5),
        ("M=1024*2", "M", 2048),
        ("bias=False", "bias", False),
        ("kernel_size=(3, 3)", "kernel_size", (3, 3)),
        ("mode='a=b'", "mode", "a=b"),
    ],
)
def test_an_override_is_read(text: str, name: str, value: Constant) -> None:
    assert parse_override(text) == (name, value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "=4",
        "N",
        "N=",
        "N=x",
        "N=f()",
        "N={}",
        "1N=4",
        "for=4",
        "a.b=4",
        "N=9**9**9",
        "N=1\0",
        "N=" + "(" * 5000,
    ],
)
def test_a_bad_override_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_override(text)
    assert caught.value.exit_code == 65


def test_what_somebody_asks_for_holds_on_the_cpu_too() -> None:
    source = "n = 1\nm = 2\nCPU_SIZES = {'n': 3, \"m\": 4}\nclass Model: pass\ndef get_inputs(): return []\n"
    problem = Problem(name="p", source=source).resized({"n": 7})
    assert problem.constants == {"n": 7, "m": 2}
    assert problem.small().constants == {"n": 7, "m": 4}
