"""The live page in a real browser: what it shows, by keyboard alone, in light and dark, without the network."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from drkernel_q.kernel import Kernel
from drkernel_q.queue.registry import WorkerCard, WorkerState, announce
from drkernel_q.store import Store
from drkernel_q.trajectory import Trajectory, Turn
from tests.gateway.browser import Browser
from tests.gateway.conftest import Served, gateway_on
from tests.gateway.test_watch import fill
from tests.queue.conftest import Broker
from tests.values import SOFTMAX, an_evaluation

pytestmark = [pytest.mark.redis, pytest.mark.slow]
#: What a model may write to see whether a page takes it for its own.
HOSTILE = "<img src=x onerror='document.title=1'><script>document.title = 1</script>"
TOKEN = "ann-has-a-long-token"
#: Contrast of two colours by WCAG, and the colours that are seen.
CONTRAST = """
(() => {
  const light = (text) => text.match(/[0-9.]+/g).slice(0, 3).map((each) => each / 255)
    .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
    .reduce((sum, each, place) => sum + each * [0.2126, 0.7152, 0.0722][place], 0);
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const seen = [...document.querySelectorAll("main *")].filter((each) => each.checkVisibility()
    && [...each.childNodes].some((child) => child.nodeType === 3 && child.data.trim()));
  return seen.map((each) => {
    const style = getComputedStyle(each);
    const ink = each instanceof SVGElement ? style.fill : style.color;
    const [one, other] = [light(ink), light(ground(each))].sort((a, b) => b - a);
    return [(one + 0.05) / (other + 0.05), `${each.tagName}.${each.getAttribute("class")}`];
  }).filter(([contrast]) => contrast < 4.5);
})()
"""


def hostile() -> Trajectory:
    turns = (
        Turn(number=1, prompt=(), completion=HOSTILE, evaluation=None),
        Turn(
            number=2,
            prompt=(),
            completion="",
            kernel=Kernel(source=HOSTILE),
            evaluation=an_evaluation("runtime_error", error=HOSTILE),
        ),
    )
    return Trajectory(problem_hash=SOFTMAX.hash, turns=turns)


def broken_device(broker: Broker) -> None:
    card = WorkerCard(
        id="gone",
        host="box",
        device="cuda:7",
        device_name="NVIDIA H200",
        device_kind="sm_90/NVIDIA H200",
        queues=(),
        pid=1,
        state=WorkerState.QUARANTINED,
        reason="its canary was wrong",
        started_at="2026-01-01T00:00:00+00:00",
        last_progress="2026-01-01T00:00:00+00:00",
    )
    with broker.client() as redis:
        announce(redis, card, ttl_s=300)


@pytest.fixture(scope="module")
def served(service: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("page")
    with Store.open(f"sqlite:///{folder / 'drkq.sqlite'}") as store:
        store.upgrade()
        fill(store)
        store.add_trajectory("evil", hostile())
        broken_device(service)
        with gateway_on(service, folder, store=store) as served:
            yield served


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser: Browser, served: Served) -> Browser:
    """The page with a token, after its first look at everything."""
    browser.open(f"{served.url}/?{os.urandom(4).hex()}", first=f"sessionStorage.setItem('drkq-token', {TOKEN!r})")
    browser.wait("document.getElementById('pulse').textContent === 'live'")
    browser.wait("document.querySelector('#trajectory details')")
    return browser


def text(page: Browser, id_: str) -> str:
    return str(page.run(f"document.getElementById({id_!r}).innerText"))


def test_everything_is_shown_and_nothing_comes_from_elsewhere(page: Browser, served: Served, tmp_path: Path) -> None:
    assert "cuda:7" in text(page, "devices")
    assert "its canary was wrong" in text(page, "errors")
    assert "the device was lost" in text(page, "errors")
    assert "eval.cpu" in text(page, "queue")
    assert page.run("document.getElementById('run').value") == "t/1"
    charts = page.run("[...document.querySelectorAll('.chart')].map((each) => each.getAttribute('aria-label'))")
    assert charts == [
        "Mean reward, steps 1 to 2; at the end: reward 1.67",
        "Fast@1.2, steps 1 to 2; at the end: turns of the step 33.3 %, validation, any turn 100.0 %",
    ]
    assert page.complaints() == []
    assert {url for url in page.requested() if not url.startswith((served.url, "about:"))} == set()
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000


def test_what_models_write_is_text(page: Browser) -> None:
    assert "evil" in text(page, "trajectories")
    page.wait("document.querySelector('#trajectory').innerText.includes('onerror')")
    assert page.run("document.title") == "drkq"
    assert page.run("document.querySelectorAll('#trajectory img, #trajectory script').length") == 0


def test_keyboard_alone_opens_a_trajectory_and_its_turns(page: Browser) -> None:
    page.tab()
    assert page.run("document.activeElement.className") == "skip"
    for _ in range(30):
        page.tab()
        if page.run("document.activeElement.dataset.key") == "t/1 softmax 1":
            break
    page.enter()
    page.wait("document.activeElement.id === 'h-trajectory'")
    page.wait("document.querySelectorAll('#trajectory details').length === 3")
    assert page.run("[...document.querySelectorAll('#trajectory details')].map((each) => each.open)") == [
        False,
        False,
        True,
    ]
    page.tab()
    page.tab()
    assert page.run("document.activeElement.dataset.key") == "turn 2"
    page.enter()
    page.wait("document.querySelectorAll('#trajectory details')[1].open")
    assert "+x = 2" in text(page, "trajectory")
    # The panel is asked for again, and neither the focus nor the open turn is lost.
    before = page.run("performance.getEntriesByType('resource').length")
    page.wait(f"performance.getEntriesByType('resource').length > {before} + 2")
    assert page.run("document.activeElement.dataset.key") == "turn 2"
    assert page.run("document.querySelectorAll('#trajectory details')[1].open")
    assert "run=t%2F1" in page.run("location.hash")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_colours_can_be_read(page: Browser, served: Served, dark: bool) -> None:
    page.open(f"{served.url}/?{os.urandom(4).hex()}", dark=dark)
    page.wait("document.querySelector('#trajectory details')")
    ground = page.run("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(14, 18, 22)") is dark
    assert page.run(CONTRAST) == []


def test_theme_by_hand_wins(page: Browser) -> None:
    page.run("document.getElementById('theme').focus()")
    page.enter()
    page.enter()
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(14, 18, 22)"
    page.enter()
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(245, 246, 248)"


def test_narrow_screens_need_no_scrolling_sideways(page: Browser, served: Served) -> None:
    page.open(f"{served.url}/?{os.urandom(4).hex()}", width=400, height=800)
    page.wait("document.querySelector('#trajectory details')")
    assert page.run("document.documentElement.scrollWidth") <= 400


def test_a_token_is_asked_for_and_one_that_is_wrong_again(browser: Browser, served: Served) -> None:
    browser.open(served.url)
    browser.run("sessionStorage.clear()")
    browser.open(f"{served.url}/?{os.urandom(4).hex()}")
    for token in ("not-a-token-of-anybody", TOKEN):
        browser.wait("document.getElementById('sign-in').open")
        browser.wait("document.activeElement.id === 'token'")
        browser.write(token)
        browser.enter()
    browser.wait("document.getElementById('pulse').textContent === 'live'")
    assert not browser.run("document.getElementById('sign-in').open")
