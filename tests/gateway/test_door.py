"""The door: who is let in, how often, and with how much."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from drkernel_q.cli.serve import command
from drkernel_q.errors import BadSettings
from drkernel_q.gateway.access import LOCAL, Right, Tokens, check_host
from drkernel_q.gateway.app import create_app
from drkernel_q.gateway.limits import Limits, read_limits
from drkernel_q.gateway.rate import Rate
from drkernel_q.settings import Settings
from tests.gateway.conftest import LIMITS, Served, gateway_on, serving
from tests.gateway.test_evaluations import order
from tests.queue.conftest import Broker, wait_until

pytestmark = pytest.mark.redis
TIGHT = Limits(rate_per_s=0.001, burst=8, body_bytes=2_000, batch_bytes=3_000, waiting=3, waiting_of_one=2, wait_s=5)


@pytest.fixture(scope="module")
def tight(service: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with gateway_on(service, tmp_path_factory.mktemp("tight"), limits=TIGHT) as served:
        yield served


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic %%%"}])
def test_without_a_valid_token_nothing_is_told(gateway: Served, header: dict[str, str]) -> None:
    answer = httpx2.get(f"{gateway.url}/v1/evaluations", headers=header)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_token_may_be_the_password_of_the_url(gateway: Served) -> None:
    url = gateway.url.replace("://", "://anybody:ann-has-a-long-token@")
    assert httpx2.get(f"{url}/v1/evaluations").status_code == 200


def test_who_may_only_look_submits_nothing(gateway: Served) -> None:
    with gateway.client("eve") as eve:
        assert eve.get("/v1/evaluations").status_code == 200
        assert eve.post("/v1/evaluations", json=order()).status_code == 403


def test_too_large_is_refused_by_its_announcement_and_while_it_comes(tight: Served) -> None:
    with tight.client("bob") as bob:
        answer = bob.post("/v1/evaluations", json=order(kernel="x" * 3_000))
        assert answer.status_code == 413
        chunks = bob.post("/v1/evaluations", content=(b"x" * 500 for _ in range(10)))
        assert chunks.status_code == 413
        assert bob.post("/v1/batches", json={"evaluations": [order("x" * 2_500)]}).status_code == 202


def test_full_is_said_to_whoever_comes_next(tight: Served) -> None:
    slow = [order(order={"sleep": 20}) for _ in range(4)]
    with tight.client("ann") as ann, tight.client("own") as own, tight.client("bob") as bob:
        mine = [ann.post("/v1/evaluations", json=each).headers["Location"] for each in slow[:2]]
        beyond = ann.post("/v1/evaluations", json=slow[2])
        assert beyond.status_code == 429
        assert "ann has 2 evaluations" in beyond.json()["detail"]
        mine_too = own.post("/v1/evaluations", json=slow[2])
        assert mine_too.status_code == 202, mine_too.text
        full = own.post("/v1/evaluations", json=slow[3])
        assert full.status_code == 503
        assert int(full.headers["Retry-After"]) >= 1
        assert bob.get("/readyz").status_code == 200
        assert own.delete(mine_too.headers["Location"]).status_code == 200
        assert [ann.delete(where).status_code for where in mine] == [200, 200]


def test_too_often_is_429_for_that_client_alone(tight: Served) -> None:
    with tight.client("eve") as eve, tight.client("own") as own:
        codes = [eve.get("/v1/evaluations").status_code for _ in range(10)]
        assert codes == [200] * 8 + [429] * 2
        assert own.get("/v1/evaluations").status_code == 200


def test_too_much_that_is_open_is_said_to_whoever_comes_next(service: Broker, tmp_path: Path) -> None:
    limits = LIMITS.model_copy(update={"connections": 1})
    with gateway_on(service, tmp_path, limits=limits) as served, served.client("ann") as ann, served.client() as other:
        where = ann.post("/v1/evaluations", json=order(order={"sleep": 20})).headers["Location"]
        with ann.stream("GET", f"{where}/events"):
            full = other.get("/v1/evaluations")
            assert (full.status_code, other.get("/livez").status_code) == (503, 200)
            assert "2 requests are open" in full.json()["detail"]
            assert full.headers["Retry-After"]
        wait_until(lambda: other.delete(where).status_code == 200, "the stream is gone")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "name a file of tokens"),
        (["--limit", "waitin=3"], "did you mean `waiting`"),
        (["--tokens", "nowhere"], "cannot be read"),
    ],
)
def test_command_says_what_is_wrong_before_it_starts_anything(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(command, arguments)
    assert isinstance(done.exception, BadSettings)
    assert says in str(done.exception)


def test_without_tokens_only_localhost_is_served(service: Broker) -> None:
    with serving(create_app(Settings(), service.url, None)) as served:
        assert httpx2.get(f"{served.url}/v1/evaluations").status_code == 200
        elsewhere = httpx2.get(f"{served.url}/v1/evaluations", headers={"Host": "rebound.example"})
        assert elsewhere.status_code == 421


def test_request_ids_are_given_or_kept(gateway: Served) -> None:
    with gateway.client() as ann:
        assert ann.get("/livez", headers={"X-Request-Id": "mine-1"}).headers["X-Request-Id"] == "mine-1"
        assert len(ann.get("/livez", headers={"X-Request-Id": "no good\tone"}).headers["X-Request-Id"]) == 32


def test_bucket_fills_again() -> None:
    now = [0.0]
    rate = Rate(2.0, 4, lambda: now[0])
    assert [rate.wait_s("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert rate.wait_s("b") == 0
    now[0] = 1.0
    assert [rate.wait_s("a") for _ in range(3)] == [0, 0, 0.5]


def test_tokens_by_hash_and_by_right(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    hashed = "0a7d4f7a4e8e5a4f2ab7f0dbe8d5e6a7b8b9c0d1e2f30415263748596a7b8c9d"
    file.write_text(f"# who\n\nann a-token-of-ann-here\nbob sha256:{hashed} read,problems\n")
    tokens = Tokens.read(file)
    ann = tokens.client("Bearer a-token-of-ann-here")
    assert ann is not None
    assert ann.rights == {Right.READ, Right.SUBMIT}
    assert tokens.client(f"Bearer sha256:{hashed}") is None
    single = Tokens.single("a-token-of-the-owner").client("bearer a-token-of-the-owner")
    assert single is not None
    assert single.rights == LOCAL.rights


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no token"),
        ("ann short", "less than 16"),
        ("ann a-token-of-ann-here fly", "other rights"),
        ("ann", "NAME TOKEN"),
        ("a/b a-token-of-ann-here", "NAME TOKEN"),
        ("ann a-token-of-ann-here\nann another-token-of-ann", "repeats"),
    ],
)
def test_wrong_tokens_are_named_by_line_and_never_quoted(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    with pytest.raises(BadSettings, match=says) as raised:
        Tokens.read(file)
    assert "a-token-of-ann" not in str(raised.value)


def test_changed_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drkernel_q.gateway.access.LOOK_S", 0.0)
    file = tmp_path / "tokens"
    file.write_text("ann a-token-of-ann-here\n")
    tokens = Tokens.read(file)
    file.write_text("bob another-token-for-bob\n")
    assert tokens.client("Bearer a-token-of-ann-here") is None
    assert tokens.client("Bearer another-token-for-bob") is not None
    file.write_text("nonsense\n")
    assert tokens.client("Bearer another-token-for-bob") is not None


def test_nothing_listens_beyond_this_machine_without_tokens() -> None:
    check_host("127.0.0.1", None)
    check_host("localhost", None)
    check_host("0.0.0.0", Tokens.single("a-token-of-the-owner"))
    with pytest.raises(BadSettings, match="tokens"):
        check_host("0.0.0.0", None)


def test_limits_are_read_by_name() -> None:
    assert read_limits(["waiting=5", "rate_per_s=0.5"]).waiting == 5
    with pytest.raises(BadSettings, match="did you mean `waiting`"):
        read_limits(["waitin=5"])
    with pytest.raises(BadSettings, match="waiting"):
        read_limits(["waiting=many"])
