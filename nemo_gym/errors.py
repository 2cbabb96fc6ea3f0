"""The exception tree. An error that users can cause says what is wrong, where, and what to do.

NeMoGymError
├── ConfigError                     also a ValueError; a command ends with exit code 2
│   ├── ConfigPathNotFoundError     a file in config_paths does not exist
│   ├── ConfigSyntaxError           a file is not valid YAML, or an override does not follow the grammar
│   ├── ConfigMissingValuesError    `???` or an interpolation without a value
│   ├── InheritPathNotFoundError    inherit_from / copy refers to a node that does not exist
│   ├── ServerRefNotFoundError      a reference names a server that is not defined
│   ├── AlmostServerError           a block looks like a server but is not valid
│   ├── ComponentError              an app.py that cannot be found, imported or built
│   ├── InputError                  a file, or a line of it, that cannot be used
│   └── ChangedInputsError          a resumed run differs from the run it would resume
├── HostingError                    a server cannot be hosted; exit code 2
│   ├── PortInUseError              another program listens on a server's port
│   ├── ServerNotReadyError         a server did not start in time
│   └── ServerDiedError             a server's process ended; exit code 1
├── HeadServerUnreachableError      no head server responds at its address; exit code 2
│   ├── HeadServerRefusedError      it requires an access token, or another name in the Host header
│   └── NotAHeadServerError         another program listens there
├── OutputInUseError                another process writes the same output; exit code 2
├── JournalError                    a file of the run cannot be read or written; exit code 1
│   └── InterferenceError           another program changed a file that the run was writing
├── WorkerError                     worker processes cannot be started, or die repeatedly
└── JudgeError                      a call to a judge model failed: there is no verdict
"""


class NeMoGymError(Exception):
    """Base class of all errors that this package raises deliberately."""

    exit_code = 1


class ConfigError(NeMoGymError, ValueError):
    exit_code = 2


class ConfigPathNotFoundError(ConfigError):
    pass


class ConfigSyntaxError(ConfigError):
    pass


class ConfigMissingValuesError(ConfigError):
    pass


class InheritPathNotFoundError(ConfigError):
    pass


class ServerRefNotFoundError(ConfigError):
    pass


class AlmostServerError(ConfigError):
    pass


class ComponentError(ConfigError):
    pass


class InputError(ConfigError):
    pass


class ChangedInputsError(ConfigError):
    pass


class HostingError(NeMoGymError):
    exit_code = 2


class PortInUseError(HostingError):
    pass


class ServerNotReadyError(HostingError):
    pass


class ServerDiedError(HostingError):
    exit_code = 1


class HeadServerUnreachableError(NeMoGymError):
    exit_code = 2


class HeadServerRefusedError(HeadServerUnreachableError):
    pass


class NotAHeadServerError(HeadServerUnreachableError):
    pass


class OutputInUseError(NeMoGymError):
    exit_code = 2


class JournalError(NeMoGymError):
    pass


class InterferenceError(JournalError):
    pass


class WorkerError(NeMoGymError):
    pass


class JudgeError(NeMoGymError):
    failure_count = 1
    """How many of the failures that its rollout may have it counts as."""
    kind: str | None = None
    """The kind of the failure, if it is not `judge_failed`."""
