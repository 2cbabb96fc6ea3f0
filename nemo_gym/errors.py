"""The exception tree. An error a user can cause says what was wrong, where, and what to do.

NeMoGymError
├── ConfigError                     also a ValueError; a command ends with exit code 2
│   ├── ConfigPathNotFoundError     a file named in config_paths is not there
│   ├── ConfigSyntaxError           a file is not YAML, an override is not in the grammar
│   ├── ConfigMissingValuesError    `???` or an interpolation left without a value
│   ├── InheritPathNotFoundError    inherit_from / copy names a node that is not there
│   ├── ServerRefNotFoundError      a reference names a server that is not there
│   ├── AlmostServerError           a block looks like a server and does not validate
│   ├── ComponentError              an app.py that cannot be found, imported or built
│   ├── InputError                  a row of the input that cannot be played
│   └── ChangedInputsError          a resumed run that is not the run it resumes
├── HostingError                    a server cannot be hosted; exit code 2
│   ├── PortInUseError              somebody else listens where a server should
│   ├── ServerNotReadyError         a server did not answer in time
│   └── ServerDiedError             a server's process ended; exit code 1
├── HeadServerUnreachableError      nobody answers at the head server's address; exit code 2
├── OutputInUseError                another process collects into the same output; exit code 2
├── JournalError                    a file of the run cannot be read or written; exit code 1
├── WorkerError                     worker processes that cannot be started, or die again and again
└── JudgeError                      a call to a judge model failed: no verdict, not a wrong answer
"""


class NeMoGymError(Exception):
    """Base of all errors raised on purpose here."""

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


class OutputInUseError(NeMoGymError):
    exit_code = 2


class JournalError(NeMoGymError):
    pass


class WorkerError(NeMoGymError):
    pass


class JudgeError(NeMoGymError):
    pass
