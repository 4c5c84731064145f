"""Remote: how servers are asked over HTTP: what is tried again, and what each failure means."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import openai
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from drkernel_q.errors import BadModel, BadSettings, DrkqError, NoSampler, PromptTooLong

log = logging.getLogger(__name__)
Result = TypeVar("Result")

_PASSING, _SERVERS_FAULT = frozenset({408, 409, 429}), 500
#: A completion may take as long as it likes to be written, but not for ever.
TIMEOUT_S = 3600.0


class Malformed(NoSampler):
    """The server answered with something that is no completion."""


class Patience(NamedTuple):
    """How long a server is insisted on."""

    tries: int = 6
    """Tries of one request."""
    wait_s: float = 30.0
    """Longest wait between two of them, seconds."""


def may_pass(error: BaseException) -> bool:
    """Whether it may go better next time: no connection, a time-out, 408, 409, 429, 5xx, an answer that is none."""
    if isinstance(error, openai.APIStatusError):
        return error.status_code in _PASSING or error.status_code >= _SERVERS_FAULT
    return isinstance(error, openai.APIConnectionError | Malformed)


def connect(url: str | None, key: str | None = None) -> openai.AsyncOpenAI:
    """Make a client; nothing is sent. Without a key, the one of the environment is used, if there is one.

    Raises:
        BadSettings: the service needs a key, and there is none.
    """
    try:
        return openai.AsyncOpenAI(api_key=key, base_url=url, max_retries=0, timeout=TIMEOUT_S)
    except openai.OpenAIError as error:
        if url is None:
            raise BadSettings("The service needs a key; set OPENAI_API_KEY.") from error
        return openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0, timeout=TIMEOUT_S)


async def insist(ask: Callable[[], Awaitable[Result]], *, where: str, patience: Patience) -> Result:
    """Ask, and ask again after what may pass, with growing random waits, or as long as the server wants.

    Raises:
        NoSampler: the last try failed too.
        BadModel, BadSettings, PromptTooLong: the server says what is wrong with the request.
    """
    wait_s = patience.wait_s
    growing = wait_random_exponential(multiplier=min(1.0, wait_s), max=wait_s)

    def wait(state: RetryCallState) -> float:
        wanted = _retry_after_s(state.outcome.exception() if state.outcome else None)
        return growing(state) if wanted is None else min(wanted, wait_s)

    retrying = AsyncRetrying(
        retry=retry_if_exception(may_pass), stop=stop_after_attempt(patience.tries), wait=wait, reraise=True
    )

    async def attempt() -> Result:
        return await ask()

    try:
        return await retrying(attempt)
    except openai.OpenAIError as error:
        raise explain(error, where) from error


def explain(error: openai.OpenAIError, where: str) -> DrkqError:
    """Say in one sentence what an error of the client means."""
    said = " ".join(str(getattr(error, "message", error)).split()).rstrip(".")
    if isinstance(error, openai.NotFoundError):
        return BadModel(f"{where} has no such model: {said}.")
    if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
        return BadSettings(f"{where} does not take the key (set OPENAI_API_KEY): {said}.")
    if isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError):
        too_long = "context length" in said or "context_length" in said or "max_model_len" in said
        return PromptTooLong(f"{where}: {said}.") if too_long else BadModel(f"{where} refuses the request: {said}.")
    return NoSampler(f"{where} does not answer: {said}.")


def _retry_after_s(error: BaseException | None) -> float | None:
    headers: Any = getattr(getattr(error, "response", None), "headers", None)
    try:
        return None if headers is None else float(headers["retry-after"])
    except (KeyError, ValueError):
        return None
