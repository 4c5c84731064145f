"""CUDA's libdevice in NumPy, by symbol, for kernels that Triton's interpreter runs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]
Function = Callable[..., Any]


def call(symbol: str, *arrays: Array) -> Array:
    """Return the value of the libdevice function `symbol`, such as `__nv_tanhf`, for `arrays`.

    Raises:
        NotImplementedError: the CPU device does not have this function; a GPU does.
    """
    name = symbol.removeprefix("__nv_")
    function = _FUNCTIONS.get(name) or _FUNCTIONS.get(name.removesuffix("f"))
    if function is None:
        raise NotImplementedError(f"libdevice's {symbol} is not available on the CPU device; it is on a GPU")
    return np.asarray(function(*arrays))


def by_torch(function: Function) -> Function:
    """Make a function of tensors one of arrays."""

    def of_arrays(*arrays: Array) -> Array:
        with torch._C._DisableTorchDispatch():  # the interpreter's business, and not a kernel's
            result: Array = function(*[torch.from_numpy(np.array(array)) for array in arrays]).numpy()
        return result

    return of_arrays


def _round_half_away(x: Array) -> Array:
    whole = np.trunc(x)
    rounded: Array = whole + np.where(np.abs(x - whole) >= 0.5, np.sign(x), 0)  # noqa: PLR2004 - a half
    return rounded.astype(x.dtype)


def _count_leading_zeros(x: Array) -> Array:
    width = x.dtype.itemsize * 8
    digits = np.array([int(value).bit_length() for value in x.view(f"u{x.dtype.itemsize}").flat])
    return (width - digits).reshape(x.shape)


def _find_first_set(x: Array) -> Array:
    return np.array([(int(value) & -int(value)).bit_length() for value in x.flat]).reshape(x.shape)


def _saturate(x: Array) -> Array:
    return np.where(np.isnan(x), 0, np.clip(x, 0, 1)).astype(x.dtype)


_SQRT2 = 2**0.5
_FUNCTIONS: dict[str, Function] = {
    **{name: getattr(np, name) for name in ("ceil", "floor", "rint", "trunc", "copysign", "nextafter", "isnan")},
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "fabs")},
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "hypot", "fmod")},
    **{name: getattr(np, name) for name in ("sqrt", "cbrt", "abs", "signbit", "ldexp")},
    **{name: by_torch(getattr(torch.special, name)) for name in ("erf", "erfc", "erfinv", "erfcx")},
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "clz": _count_leading_zeros,
    "clzll": _count_leading_zeros,
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "cyl_bessel_i0": by_torch(torch.special.i0),
    "cyl_bessel_i1": by_torch(torch.special.i1),
    "erfcinv": by_torch(lambda x: torch.special.ndtri(x / 2) / -_SQRT2),
    "exp10": lambda x: np.power(10, x, dtype=x.dtype),
    "fdim": lambda x, y: np.maximum(x - y, 0),
    "ffs": _find_first_set,
    "ffsll": _find_first_set,
    "finite": np.isfinite,
    "fma": lambda x, y, z: x * y + z,
    "isfinited": np.isfinite,
    "isinf": np.isinf,
    "isinfd": np.isinf,
    "isnand": np.isnan,
    "j0": by_torch(torch.special.bessel_j0),
    "j1": by_torch(torch.special.bessel_j1),
    "lgamma": by_torch(torch.lgamma),
    "llabs": np.abs,
    "llrint": np.rint,
    "llround": _round_half_away,
    "nearbyint": np.rint,
    "normcdf": by_torch(torch.special.ndtr),
    "normcdfinv": by_torch(torch.special.ndtri),
    "popc": np.bitwise_count,
    "popcll": np.bitwise_count,
    "pow": np.power,
    "powi": np.power,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "remainder": lambda x, y: x - y * np.rint(x / y),
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "round": _round_half_away,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "saturate": _saturate,
    "scalbn": np.ldexp,
    "signbitd": np.signbit,
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)),
    "y0": by_torch(torch.special.bessel_y0),
    "y1": by_torch(torch.special.bessel_y1),
}
_ARITHMETIC: dict[str, Function] = {
    "add": np.add,
    "div": np.divide,
    "fma": _FUNCTIONS["fma"],
    "mul": np.multiply,
    "rcp": np.reciprocal,
    "rsqrt": _FUNCTIONS["rsqrt"],
    "sqrt": np.sqrt,
    "sub": np.subtract,
}
_FUNCTIONS |= {f"{prefix}{name}_rn": one for name, one in _ARITHMETIC.items() for prefix in ("f", "d", "")}
_FUNCTIONS |= {"fmaf_rn": _FUNCTIONS["fma"]}
# The fast variants differ from the others by rounding errors only.
_FUNCTIONS |= {
    f"fast_{name}": _FUNCTIONS[name] for name in ("sin", "cos", "tan", "exp", "exp10", "log", "log2", "log10", "pow")
}
_FUNCTIONS |= {"fast_fdividef": np.divide}
# The caller casts to the type that the function returns, so a conversion only has to round.
_ROUNDINGS: dict[str, Function] = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
_FUNCTIONS |= {
    f"{source}2{target}_{mode}": rounding
    for source in ("float", "double")
    for target in ("int", "uint", "ll", "ull")
    for mode, rounding in _ROUNDINGS.items()
}
_FUNCTIONS |= {
    f"{source}2{target}_rn": np.asarray
    for source in ("int", "uint", "ll", "ull", "double")
    for target in ("float", "double")
}
_FUNCTIONS |= {
    f"{source}_as_{target}": lambda x, target=kind: x.view(target)
    for source, target, kind in (
        ("int", "float", np.float32),
        ("uint", "float", np.float32),
        ("float", "int", np.int32),
        ("float", "uint", np.uint32),
        ("longlong", "double", np.float64),
        ("double", "longlong", np.int64),
    )
}
