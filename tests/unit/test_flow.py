"""Flow: nothing overflows, nobody starves, and whoever gives up leaves no hole."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from policy.rollouts.flow import Flow


@given(sizes=st.lists(st.integers(1, 150), max_size=30), limit=st.integers(1, 100))
async def test_tokens_never_overflow_and_everybody_has_a_turn(sizes: list[int], limit: int) -> None:
    flow = Flow(tokens=limit, evaluations=1)
    under_way: list[int] = []

    async def work(size: int) -> None:
        async with flow.sampling(size):
            under_way.append(size)
            assert sum(under_way) <= limit or len(under_way) == 1
            await asyncio.sleep(0)
            under_way.remove(size)

    await asyncio.gather(*map(work, sizes))
    assert flow.tokens_in_flight == 0


async def test_earlier_groups_go_first() -> None:
    flow, order = Flow(tokens=1, evaluations=1), list[int]()

    async def work(rank: int) -> None:
        async with flow.sampling(1, rank):
            order.append(rank)
            await asyncio.sleep(0)

    await asyncio.gather(*map(work, [0, 3, 1, 2, 1]))
    assert order == [0, 1, 1, 2, 3]


async def test_a_long_queue_of_kernels_holds_completions_back() -> None:
    flow = Flow(tokens=10, evaluations=2)
    begun = asyncio.Event()

    async def work() -> None:
        async with flow.sampling(1):
            begun.set()

    with flow.judging(), flow.judging():
        task = asyncio.create_task(work())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not begun.is_set()
    await task
    assert begun.is_set()


@given(cancelled=st.sets(st.integers(0, 9)), at=st.integers(0, 6))
async def test_who_gives_up_leaves_no_hole(cancelled: set[int], at: int) -> None:
    flow, done = Flow(tokens=3, evaluations=1), set[int]()

    async def work(number: int) -> None:
        async with flow.sampling(1 + number % 3, rank=number):
            await asyncio.sleep(0)
            done.add(number)

    tasks = [asyncio.create_task(work(number)) for number in range(10)]
    for _ in range(at):
        await asyncio.sleep(0)
    for number in cancelled:
        tasks[number].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert done >= set(range(10)) - cancelled
    assert flow.tokens_in_flight == 0
