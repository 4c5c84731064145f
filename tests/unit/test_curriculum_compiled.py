"""Generated kernels pass Triton's compiler for a GPU, which is stricter than the interpreter that judges them here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.need import PATIENT_S, ROOT

#: Compiles the fused kernels of the first problems without a device; types are those of the launches.
COMPILE = """
import importlib.util, pathlib, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from drkernel_q.curriculum import generate

for exercise in generate(2, int(sys.argv[1])):
    source = next(each.kernel.source for each in exercise.solutions if each.kernel.name == "fused1.py")
    file = pathlib.Path(f"{exercise.problem.name}.py")
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    types, constants = {}, {}
    for place, name in enumerate(module.kernel.arg_names):
        types[name] = "*fp32" if name.endswith("_ptr") else "constexpr" if name.isupper() and len(name) > 1 else "i32"
        if types[name] == "constexpr":
            block = re.search(rf"\\b{name}=(\\d+)", source)
            constants[(place,)] = int(block[1]) if block else 4096
    compiled = triton.compile(ASTSource(module.kernel, types, constants), target=GPUTarget("cuda", 90, 32))
    assert "ptx" in compiled.asm
    print(exercise.level)
"""


@pytest.mark.slow
def test_fused_kernels_of_every_level_compile_for_an_h200(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", COMPILE, "3"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"1", "2", "3"}
