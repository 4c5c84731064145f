"""Faults: exceptions and ends of processes have a word, whatever a candidate makes of its exceptions."""

import os
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.isolation import fault
from workers.judging.judge import _failure


class AcceleratorError(RuntimeError):
    """As torch raises it: the number of the error is an attribute of the object."""

    def __init__(self, number: int) -> None:
        super().__init__(f"CUDA error: number {number}")
        self.error_code = number


class OutOfMemoryError(RuntimeError):
    """As torch raises it."""


class Hostile(RuntimeError):
    """Its attributes are code of the candidate's."""

    @property
    def error_code(self) -> int:
        raise SystemExit

    def __str__(self) -> str:
        raise KeyboardInterrupt


def well() -> bool:
    return True


def lost() -> bool:
    raise AcceleratorError(700)


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (AcceleratorError(700), "cuda:illegal_address"),
        (AcceleratorError(716), "cuda:misaligned_address"),
        (AcceleratorError(702), "cuda:launch_timeout"),
        (AcceleratorError(710), "cuda:assert"),
        (AcceleratorError(9), "cuda:invalid_configuration"),
        (AcceleratorError(214), "cuda:ecc_uncorrectable"),
        (AcceleratorError(12345), "cuda:other"),
        (OutOfMemoryError("CUDA out of memory"), "cuda:out_of_memory"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "cuda:out_of_memory"),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), "cuda:illegal_address"),
        (RuntimeError("CUDA error: misaligned address\nCUDA kernel errors might be"), "cuda:misaligned_address"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "cuda:other"),
        (RuntimeError("Triton Error [CUDA]: something that nobody has heard of"), "cuda:other"),
        (MemoryError(), "host:out_of_memory"),
        (ValueError("Triton is not to blame"), None),
        (SystemExit(1), None),
        (Hostile(), None),
    ],
    ids=repr,
)
def test_an_exception_has_a_word(error: BaseException, word: str | None) -> None:
    assert fault.of_exception(error, well) == word
    assert fault.claimed(word) == word


def test_what_the_device_says_goes_before_what_the_exception_says() -> None:
    for error in (ValueError("nothing to see here"), AcceleratorError(9), MemoryError(), Hostile()):
        assert fault.of_exception(error, lost) == "cuda:illegal_address"


def test_a_device_that_fails_without_a_name_is_lost_too() -> None:
    def fail() -> None:
        raise RuntimeError("words of another release")

    assert fault.loses_context(fault.of_exception(ValueError("nothing to see here"), fail))


@pytest.mark.parametrize(
    ("action", "word"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "signal:SIGTERM"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "signal:SIGKILL"),
        (lambda: os.kill(os.getpid(), 40), "signal:40"),
        (lambda: os._exit(3), "exit:3"),
        (lambda: os._exit(0), "exit:0"),
    ],
)
def test_the_end_of_a_process_has_a_word(action: object, word: str) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            action()  # type: ignore[operator]
        finally:
            os._exit(70)
    assert fault.of_status(os.waitpid(pid, 0)[1]) == word


def test_trusted_code_that_ends_for_want_of_device_memory_says_so_with_its_last_words() -> None:
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB."
    assert fault.of_status(1 << 8, words) == fault.DEVICE_MEMORY
    assert fault.of_status(1 << 8, "MemoryError") == "exit:1"
    assert fault.of_status(signal.SIGKILL, words) == "signal:SIGKILL"


def test_which_faults_call_for_a_look_at_the_device() -> None:
    calls = {"cuda:illegal_address", "cuda:other", "cuda:devices_unavailable", "signal:SIGSEGV", "exit:0", "deadline"}
    calls |= {"host:out_of_memory", "nonsense", "xid:31"}
    assert all(map(fault.is_abnormal, calls))
    assert not any(map(fault.is_abnormal, (None, "cuda:out_of_memory", "cuda:invalid_configuration")))
    assert fault.loses_context("cuda:assert")
    assert not fault.loses_context("cuda:out_of_memory")
    assert fault.is_of_the_device("cuda:ecc_uncorrectable")
    assert not fault.is_of_the_device("cuda:illegal_address")


@given(st.one_of(st.none(), st.integers(), st.text(), st.lists(st.text()), st.from_regex(r"(cuda|signal):\w*")))
def test_only_a_known_word_is_believed(claim: object) -> None:
    word = fault.claimed(claim)
    assert word is None or word == claim
    assert word is None or word == "host:out_of_memory" or fault.describe(word).startswith("CUDA error: ")


def test_a_judge_without_memory_names_what_it_lacked() -> None:
    message, word = _failure(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB."), "cpu").values()
    assert (message["kind"], word) == ("infrastructure", fault.DEVICE_MEMORY)
