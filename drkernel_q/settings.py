"""Settings: flags > DRKQ_* > ./drkq.toml > user TOML > defaults. The only reader of the environment."""

import difflib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import platformdirs
from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from drkernel_q.errors import BadSettings

PROJECT_FILE = Path("drkq.toml")
USER_FILE = platformdirs.user_config_path("drkq") / "config.toml"
#: Unix socket paths longer than this fail (sun_path is 108 bytes with its terminator).
MAX_SOCKET_PATH = 107


class _TomlFile(TomlConfigSettingsSource):
    """A TOML source whose errors name the file."""

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        try:
            return super()._read_file(file_path)
        except (ValueError, OSError) as error:
            raise SettingsError(f"{file_path}: {error}") from error


class Settings(BaseSettings):
    """Every setting, typed and documented; a name that is not here is an error in a TOML file."""

    model_config = SettingsConfigDict(
        env_prefix="DRKQ_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    # Before the URLs that they complete: pydantic validates in this order.
    broker_password_file: Path | None = None
    """File whose first line is the broker's password; it takes the place of one in the URL."""
    store_password_file: Path | None = None
    """File whose first line is PostgreSQL's password; it takes the place of one in the URL."""
    broker_url: SecretStr | None = None
    """Redis URL of a cluster's broker; none starts the embedded one."""
    store_url: SecretStr | None = None
    """SQLAlchemy URL of the store; none is SQLite in the data directory."""
    data_dir: Path = Field(default_factory=lambda: platformdirs.user_data_path("drkq"))
    """Where the SQLite store lives."""
    cache_dir: Path = Field(default_factory=lambda: platformdirs.user_cache_path("drkq"))
    """Where compile caches of trusted code live."""
    device: str = "auto"
    """Device when no flag names one: `auto`, `cpu` or `cuda:N`."""
    recorded: str | None = None
    """Kind of device, such as `sm_90/NVIDIA H200`, whose recorded facts answer before any device is asked."""
    kernelbench: Path | None = None
    """A checkout of KernelBench, for problems named `1/23`."""
    sandbox: str = Field(default="default", pattern="^(default|strict)$")
    """`default` uses what the machine allows; `strict` refuses to start a worker with less than all of it."""
    candidate_memory_bytes: int = Field(default=16 * 2**30, ge=2**28)
    """Most host memory that a candidate and its children may hold."""
    candidate_uid: int = Field(default=64_000, ge=1)
    """First user id that candidates run as when the worker is root; each worker takes the next free eight."""
    lanes: int = Field(default=0, ge=0, le=64)
    """Evaluations that a worker has in hand at a time; 0 is one on the CPU, and what its cores allow on a GPU."""
    worker_id: str | None = None
    """Identity of a worker, which its supervisor gives to its pool child."""
    stack_idle_s: float = Field(default=0.0, ge=0)
    """Seconds that the embedded stack outlives the last command that uses it."""
    state_dir: Path = Field(default_factory=lambda: platformdirs.user_state_path("drkq"))
    """Where devices that are out of service are written down; it must outlive the worker."""
    lock_dir: Path = Field(default_factory=lambda: Path(tempfile.gettempdir()) / "drkq-locks")
    """Where the device locks live; the same for every user and container of a machine."""
    gateway_tokens: Path | None = None
    """File of the tokens that `drkq serve` lets in, NAME TOKEN [RIGHTS] a line."""
    gateway_name: str = "gateway"
    """Under which name it keeps what it has accepted; each of several gateways needs one of its own."""
    gateway_token: SecretStr | None = None
    """Or the only token that it lets in, with every right."""
    debug: bool = False
    """Show tracebacks."""

    @field_validator("broker_password_file", "store_password_file")
    @classmethod
    def _hold_a_password(cls, path: Path | None) -> Path | None:
        if path is not None:
            _first_line(path)
        return path

    @field_validator("broker_url", "store_url")
    @classmethod
    def _take_the_password(cls, url: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        path = info.data.get(str(info.field_name).replace("_url", "_password_file"))
        if url is None or path is None:
            return url
        return SecretStr(_with_password(url.get_secret_value(), _first_line(path)))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Name the sources in the order in which they win."""
        return (
            init_settings,
            env_settings,
            _TomlFile(settings_cls, [USER_FILE, PROJECT_FILE], deep_merge=True),
        )

    @property
    def store(self) -> str:
        """SQLAlchemy URL of the store, the SQLite default included; holds the password, if there is one."""
        if self.store_url is not None:
            return self.store_url.get_secret_value()
        return f"sqlite:///{self.data_dir / 'drkq.sqlite'}"

    @property
    def runtime_dir(self) -> Path:
        """Where the embedded stack keeps sockets and locks: one a store, short enough for a socket path."""
        base = os.environ.get("XDG_RUNTIME_DIR")
        digest = hashlib.blake2b(self.store.encode(), digest_size=6).hexdigest()
        home = Path(base) / "drkq" if base else Path(tempfile.gettempdir()) / f"drkq-{os.getuid()}"
        if len(str(home / digest / "control.sock")) > MAX_SOCKET_PATH:
            home = Path("/tmp") / f"drkq-{os.getuid()}"  # noqa: S108 - the only short path; made 0700 by its maker
        return home / digest


def _first_line(path: Path) -> str:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise PydanticCustomError("password_file", f"{path} cannot be read: {reason}") from None
    if not lines or not lines[0]:
        raise PydanticCustomError("password_file", f"{path} holds no password")
    return lines[0]


def without_password(url: str) -> str:
    """Take the password out of a URL; the user stays."""
    return _with_password(url, None)


def _with_password(url: str, password: str | None) -> str:
    """Put a password into a URL, or none; one of a file has no place for it, and stays."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return url
    login, _, host = parts.netloc.rpartition("@")
    login = login.partition(":")[0] + ("" if password is None else f":{quote(password, safe='')}")
    return urlunsplit(parts._replace(netloc=f"{login}@{host}" if login else host))


def load_settings(**flags: Any) -> Settings:
    """Resolve the settings; a flag that is None was not given.

    Raises:
        BadSettings: a value does not fit, a file does not parse, or a key is unknown; the message names it.
    """
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        # Without the cause: it would quote the value, and a misspelt URL may hold a password.
        raise BadSettings(_sentence(error)) from None
    except (SettingsError, ValueError, OSError) as error:
        raise BadSettings(f"The settings cannot be read: {error}.") from error


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] != "extra_forbidden":
        return f"The setting `{key}` is wrong: {first['msg']}."
    near = difflib.get_close_matches(key, Settings.model_fields, n=1)
    return f"There is no setting `{key}`" + (f"; did you mean `{near[0]}`?" if near else ".")


def explain(settings: Settings) -> list[tuple[str, str, str, str]]:
    """List `(name, value, source, description)` of every setting; secrets are masked."""
    files: dict[str, Any] = {}
    for path in (USER_FILE, PROJECT_FILE):
        for name in _TomlFile(Settings, path)():
            files[name] = str(path)
    rows = []
    for name, field in Settings.model_fields.items():
        source = files.get(name, "default")
        if f"DRKQ_{name.upper()}" in os.environ:
            source = f"DRKQ_{name.upper()}"
        value = getattr(settings, name)
        rows.append((name, "" if value is None else str(value), source, field.description or ""))
    return rows


def stray_variables() -> list[str]:
    """Name the DRKQ_* variables of the environment that are no setting, most likely misspelt."""
    known = {f"DRKQ_{name.upper()}" for name in Settings.model_fields}
    return sorted(name for name in os.environ if name.startswith("DRKQ_") and name.upper() not in known)
