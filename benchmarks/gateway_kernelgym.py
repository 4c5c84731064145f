"""KernelGYM's own training client against `drkq serve`: its request code as it is, from a checkout of KernelGYM.

`python benchmarks/gateway_kernelgym.py CHECKOUT KERNEL.py... --reference MODEL.py --url URL`, with a URL such as
`http://x:TOKEN@127.0.0.1:8765/kernelgym`, loads `drkernel/kernel/rewards/reward_client.py` of the checkout, has its
client judge the kernels, and prints one JSON line for each with what the client made of it. The client needs `httpx`;
ray and verl, which only carry its calls to other processes and hold its token bucket, are played by the lines below.
"""

import asyncio
import importlib.util
import json
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import click

CLIENT = Path("drkernel/kernel/rewards/reward_client.py")
SHOWN = ("status", "compiled", "correctness", "decoy_kernel", "speedup", "reward", "error", "error_message")
_THREADS = ThreadPoolExecutor(64)


class Remote:
    """A class whose methods run in threads, called as ray calls them."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def options(self, **_: Any) -> "Remote":
        return self

    def remote(self, *arguments: Any, **named: Any) -> "Actor":
        return Actor(self.cls(*arguments, **named))


class Actor:
    """An object of such a class."""

    def __init__(self, target: object) -> None:
        self.target = target

    def __getattr__(self, name: str) -> types.SimpleNamespace:
        method: Callable[..., Any] = getattr(self.target, name)
        return types.SimpleNamespace(remote=lambda *arguments, **named: _THREADS.submit(method, *arguments, **named))


class TokenBucketWorker:
    """The bucket that bounds how many requests are being sent."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.tokens = threading.Semaphore(size)

    def acquire(self) -> None:
        self.tokens.acquire()

    def release(self) -> None:
        self.tokens.release()

    def get_current_count(self) -> int:
        return 0


def ready(
    futures: list["Future[Any]"], num_returns: int = 1, timeout: float | None = None
) -> tuple[list[Any], list[Any]]:
    """Wait as ray does, for one at least."""
    assert num_returns == 1
    done, left = wait(futures, timeout=timeout, return_when="FIRST_COMPLETED")
    return list(done), list(left)


def load(path: Path) -> Any:
    """Load the client with the stand-ins in place."""
    ray = types.ModuleType("ray")
    tools = types.ModuleType("verl.tools.sandbox_fusion_tools")
    vars(ray).update(remote=Remote, get=lambda future: future.result(), wait=ready, ObjectRef=Future)
    vars(tools).update(TokenBucketWorker=Remote(TokenBucketWorker))
    sys.modules |= {"ray": ray, "verl": types.ModuleType("verl"), "verl.tools": types.ModuleType("verl.tools")}
    sys.modules["verl.tools.sandbox_fusion_tools"] = tools
    spec = importlib.util.spec_from_file_location("reward_client", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configuration(url: str) -> types.SimpleNamespace:
    """The numbers of the paper's training scripts, as far as the client reads them."""
    return types.SimpleNamespace(
        server_url=url,
        timeout=300,
        task_timeout_in_client=2400,
        max_retries=3,
        rate_limit=64,
        max_concurrent=32,
        acquire_timeout=2400,
        reward_func_name="calculate_reward_weighted",
        init_correct_weight=1.0,
        init_performance_weight=1.0,
        speedup_eps=0.05,
        speedup_reward_upper_bound=3.0,
        speedup_reward_lower_bound=0.0,
        reward_policy=types.SimpleNamespace(penalties=types.SimpleNamespace(penalty_score=0.0)),
        coverage_reward=types.SimpleNamespace(enable=True, reward_type="time_coverage", weight=1.0),
    )


@click.command()
@click.argument("checkout", type=click.Path(path_type=Path))
@click.argument("kernels", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--url", required=True, help="The gateway with a token, and /kernelgym behind it.")
@click.option("--reference", required=True, type=click.Path(path_type=Path), help="The reference module.")
def main(checkout: Path, kernels: tuple[Path, ...], url: str, reference: Path) -> None:
    """Have KernelGYM's client judge kernels."""
    client = load(checkout / CLIENT).KernelRewardClient(reward_config=configuration(url))
    tasks = [
        {"reference_code": reference.read_text(), "kernel_code": kernel.read_text(), "entry_point": "Model"}
        for kernel in kernels
    ]
    for kernel, found in zip(kernels, asyncio.run(client.compute_batch_rewards(tasks)), strict=True):
        print(json.dumps({"kernel": kernel.name} | {name: found.get(name) for name in SHOWN}))


if __name__ == "__main__":
    main()
