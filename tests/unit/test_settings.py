"""Settings: which source wins, what a typo says, and that secrets stay secret."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from drkernel_q import settings as module
from drkernel_q.errors import BadSettings
from drkernel_q.settings import MAX_SOCKET_PATH, Settings, explain, load_settings, stray_variables, without_password

SECRET = "redis://user:correct-horse@broker.example:6379/0"


@pytest.fixture(autouse=True)
def toml_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files live in this test's own folder; neither exists yet."""
    monkeypatch.setattr(module, "USER_FILE", tmp_path / "user.toml")
    monkeypatch.setattr(module, "PROJECT_FILE", tmp_path / "drkq.toml")


def write_user(text: str) -> None:
    module.USER_FILE.write_text(text)


def write_project(text: str) -> None:
    module.PROJECT_FILE.write_text(text)


def test_flag_beats_environment_beats_project_beats_user_beats_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load_settings().device == "auto"
    write_user('device = "cuda:1"')
    assert load_settings().device == "cuda:1"
    write_project('device = "cuda:2"')
    assert load_settings().device == "cuda:2"
    monkeypatch.setenv("DRKQ_DEVICE", "cuda:3")
    assert load_settings().device == "cuda:3"
    assert load_settings(device="cuda:4").device == "cuda:4"


def test_flag_that_was_not_given_overrides_nothing() -> None:
    write_user('device = "cpu"')
    assert load_settings(device=None).device == "cpu"


def test_files_merge_by_key() -> None:
    write_user('device = "cpu"\nsandbox = "strict"')
    write_project('device = "cuda:0"')
    settings = load_settings()
    assert (settings.device, settings.sandbox) == ("cuda:0", "strict")


@pytest.mark.parametrize("write", [write_user, write_project])
def test_typo_in_a_file_is_named(write: Callable[[str], None]) -> None:
    write('devcie = "cpu"')
    with pytest.raises(BadSettings, match="no setting `devcie`; did you mean `device`"):
        load_settings()


def test_wrong_value_is_named() -> None:
    with pytest.raises(BadSettings, match="`sandbox`"):
        load_settings(sandbox="none")


def test_file_that_is_no_toml_is_bad_settings_and_named() -> None:
    write_project("device = ")
    with pytest.raises(BadSettings, match=r"drkq\.toml"):
        load_settings()


def test_wrong_environment_value_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_CANDIDATE_MEMORY_BYTES", "plenty")
    with pytest.raises(BadSettings, match="`candidate_memory_bytes`"):
        load_settings()


def test_misspelt_variable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_DEVICE", "cpu")
    monkeypatch.setenv("DRKQ_BROKER", "redis://localhost")
    assert stray_variables() == ["DRKQ_BROKER"]


def test_secrets_are_masked_wherever_a_person_looks() -> None:
    settings = load_settings(broker_url=SECRET)
    shown = [repr(settings), str(settings), settings.model_dump_json(), str(explain(settings))]
    assert not [text for text in shown if "correct-horse" in text]
    assert settings.broker_url is not None
    assert settings.broker_url.get_secret_value() == SECRET


@pytest.mark.parametrize(
    ("url", "complete"),
    [
        ("redis://broker:6379/0", "redis://:p%40ss%2Fw@broker:6379/0"),
        (
            "rediss://me:old@broker:6380/0?ssl_cert_reqs=required",
            "rediss://me:p%40ss%2Fw@broker:6380/0?ssl_cert_reqs=required",
        ),
        ("redis+socket:///run/b.sock?virtual_host=0", "redis+socket://:p%40ss%2Fw@/run/b.sock?virtual_host=0"),
        ("postgresql+psycopg://drkq@/x?host=/tmp", "postgresql+psycopg://drkq:p%40ss%2Fw@/x?host=/tmp"),
        ("sqlite:////data/drkq.sqlite", "sqlite:////data/drkq.sqlite"),
    ],
)
def test_a_password_may_come_by_a_file(
    url: str, complete: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("p@ss/w\n")
    kind = "broker" if url.startswith("redis") else "store"
    monkeypatch.setenv(f"DRKQ_{kind.upper()}_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv(f"DRKQ_{kind.upper()}_URL", url)
    settings = load_settings()
    found = settings.broker_url if kind == "broker" else settings.store_url
    assert found is not None
    assert found.get_secret_value() == complete
    assert "p%40" not in str(explain(settings))
    assert without_password(complete) == without_password(url)
    assert "p%40" not in without_password(complete)


@pytest.mark.parametrize(("text", "said"), [(None, "cannot be read: No such file"), ("\n", "holds no password")])
def test_a_password_file_that_holds_none_is_named(text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "password").write_text(text)
    with pytest.raises(BadSettings, match=f"`broker_password_file` is wrong: .*{said}"):
        load_settings(broker_password_file=tmp_path / "password", broker_url="redis://broker")


def test_error_about_a_misspelt_secret_does_not_quote_it() -> None:
    write_project(f'brocker_url = "{SECRET}"')
    with pytest.raises(BadSettings, match="brocker_url") as caught:
        load_settings()
    assert "correct-horse" not in "".join(traceback.format_exception(caught.value))


def test_explain_names_the_source_of_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    write_user('sandbox = "strict"\ndevice = "cpu"')
    write_project('device = "cuda:0"')
    monkeypatch.setenv("DRKQ_DEBUG", "1")
    rows = {name: (value, source) for name, value, source, _ in explain(load_settings())}
    assert set(rows) == set(Settings.model_fields)
    assert rows["sandbox"] == ("strict", str(module.USER_FILE))
    assert rows["device"] == ("cuda:0", str(module.PROJECT_FILE))
    assert rows["debug"] == ("True", "DRKQ_DEBUG")
    assert rows["stack_idle_s"] == ("0.0", "default")


def test_every_setting_has_a_description() -> None:
    assert [name for name, _, _, description in explain(load_settings()) if not description] == []


def test_default_store_is_sqlite_in_the_data_directory(own_folders: Path) -> None:
    assert load_settings().store == f"sqlite:///{own_folders}/data/drkq/drkq.sqlite"


def test_socket_path_fits_even_when_the_runtime_directory_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("deep" * 40)))
    assert len(str(load_settings().runtime_dir / "control.sock")) <= MAX_SOCKET_PATH


def test_each_store_has_its_own_runtime_directory(tmp_path: Path) -> None:
    one, other = (load_settings(data_dir=tmp_path / name).runtime_dir for name in ("one", "other"))
    assert one != other
