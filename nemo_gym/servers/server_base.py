"""The base of all three server kinds: a pydantic object that builds its FastAPI application."""

import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from nemo_gym.client import ServerClient
from nemo_gym.config import (
    GymConfig,
    ServerInstance,
    assign_ports,
    load_config,
    parse_arguments,
    validate_fields,
)
from nemo_gym.config.component_files import ComponentFiles
from nemo_gym.config.current import set_global_config_dict
from nemo_gym.config.known_settings import FOR_PYTHON
from nemo_gym.config.unknown import refuse_unknown_fields
from nemo_gym.config_types import BaseRunServerInstanceConfig, ConfigError
from nemo_gym.errors import ComponentError, NeMoGymError
from nemo_gym.http.transport_choice import apply_client_settings
from nemo_gym.log_output import start_logging
from nemo_gym.servers.hosted import HostedServer
from nemo_gym.servers.run_sessions import RunSessions
from nemo_gym.servers.secured import with_given_access_token
from nemo_gym.servers.session_middleware import add_sessions
from nemo_gym.servers.sessions import SessionStore
from nemo_gym.session_cookies import session_cookie_name
from nemo_gym.terminal import safe_text


@dataclass(frozen=True)
class Hosting:
    """The instance that a component is being loaded for."""

    config: GymConfig
    instance: ServerInstance
    client: ServerClient
    file: Path
    worker: int | None = None
    """Number of this process among the instance's workers; None if there is only one."""
    working_dir: Path | None = None
    """Where the command was started, if this process has changed to the component's folder since."""

    @property
    def folder(self) -> Path:
        return component_folder(self.instance, self.file)


current_hosting: ContextVar[Hosting | None] = ContextVar("current_hosting", default=None)


def is_nemo_gym_fastapi_entrypoint(file: str) -> bool:
    """Whether `file` is being loaded as one of several workers, whose module may expose `app`."""
    hosting = current_hosting.get()
    return hosting is not None and hosting.worker is not None and hosting.file == Path(file).resolve()


def component_folder(instance: ServerInstance, file: Path) -> Path:
    """The component's folder; its entrypoint `file` may be in a subfolder."""
    return file.parents[len(Path(instance.entrypoint).parts) - 1]


def configure(
    config_class: type[BaseModel],
    config: GymConfig,
    instance: ServerInstance,
    file: Path,
    working_dir: Path | None = None,
) -> BaseModel:
    """The block of an instance, validated by the configuration class of its server in `file`."""
    files = ComponentFiles(component_folder(instance, file), working_dir or Path.cwd())
    settings = files.located(instance.settings, config_class, instance.path)
    data = {**settings, "name": instance.name, "host": instance.host, "port": instance.port or 0}
    refuse_unknown_fields(config_class, instance.path, config.undeclared, config.texts)
    texts = {key: text for key, text in config.texts.items() if key not in files.changed}
    return validate_fields(config_class, data, texts, instance.path, roots=config.roots)


class BaseServer(BaseModel):
    """A configured server."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    config: BaseRunServerInstanceConfig

    @classmethod
    def config_class(cls) -> type[BaseModel]:
        """The class in the annotation of the field `config`."""
        annotation: Any = cls.model_fields["config"].annotation
        return cast(type[BaseModel], annotation)

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Raise a ConfigError if the settings cannot work, such as a missing file or an invalid address.

        Called before anything starts.
        """

    @classmethod
    def from_instance(cls, hosting: Hosting) -> Self:
        """Build the server that an instance of the configuration describes."""
        config = configure(
            cls.config_class(), hosting.config, hosting.instance, hosting.file, hosting.working_dir
        )
        cls.check_config(config)
        return cls(config=config, server_client=hosting.client)


class SimpleServer(BaseServer):
    """A server that other components call through their client."""

    server_client: ServerClient

    @classmethod
    def is_one_per_run(cls, settings: Mapping[str, Any]) -> bool:
        """Whether all worker processes of a run share one server in a separate process.

        For a server that is large, or whose state cannot exist twice.
        """
        return False

    def setup_webserver(self) -> FastAPI:
        """The application with all its routes."""
        raise NotImplementedError(f"{type(self).__name__} must define setup_webserver")

    def get_session_middleware_key(self) -> str:
        return session_cookie_name(self.config.name)

    def setup_session_middleware(self, app: FastAPI) -> None:
        """Give every caller of the application a session of its own.

        `close_session(session_id)`, if the server defines it, is called when a session ends.
        """
        hosting = current_hosting.get()
        worker = hosting.worker if hosting is not None else None
        store = SessionStore(
            self.get_session_middleware_key(), worker=worker, close_session=self._close_session_hook()
        )
        add_sessions(app, store, self._run_sessions())

    def _close_session_hook(self) -> Callable[[str], Any] | None:
        hook = getattr(self, "close_session", None)
        if hook is None:
            return None
        try:
            inspect.signature(hook).bind("")
        except TypeError as error:
            raise ComponentError(
                f"{type(self).__name__}.close_session must take one argument, the session id: {error}"
            ) from error
        return cast(Callable[[str], Any], hook)

    def _run_sessions(self) -> RunSessions | None:
        """Closes the sessions that the runs of an agent received; None if the server is not an agent."""
        return None

    @classmethod
    def run_webserver(cls) -> FastAPI | None:
        """Serve this class until stopped, as the instance that the command line configures.

        While a worker loads the module, returns the application instead.
        """
        hosting = current_hosting.get()
        if hosting is not None:
            return cls.from_instance(hosting).setup_webserver()
        from nemo_gym.servers.serve import serve  # loads uvicorn, which embedded servers do not need

        logs = start_logging(logging.INFO, with_names=True)
        try:
            given = parse_arguments(sys.argv[1:])
            config = assign_ports(load_config(overrides=given, accepted=FOR_PYTHON))
            hosting = cls._hosting_from(with_given_access_token(config))
            logs.hide(hosting.config.secrets)
            set_global_config_dict(hosting.config.values)
            apply_client_settings(hosting.config.data)
            current_hosting.set(hosting)
            app = cls.from_instance(hosting).setup_webserver()
        except NeMoGymError as error:  # run as a script: there is no command that prints the error
            sys.stderr.write(safe_text(f"{type(error).__name__}: {error}\n"))
            sys.exit(error.exit_code)
        server = HostedServer(hosting.instance.name, app, hosting.config.secrets)
        serve(server, hosting.instance, hosting.config)
        return None

    @classmethod
    def _hosting_from(cls, config: GymConfig) -> Hosting:
        file = Path(inspect.getfile(cls)).resolve()
        kind, implementation = file.parent.parent.name, file.parent.name
        wanted = config.values.get("server_name")
        instances = [
            instance
            for instance in config.servers
            if (instance.kind, instance.implementation) == (kind, implementation)
            and wanted in (None, instance.name)
        ]
        if len(instances) != 1:
            names = ", ".join(instance.name for instance in instances) or "none"
            raise ConfigError(
                f"the configuration must have one instance of {kind}/{implementation} (found: {names}); "
                "pass +config_paths=[…] and, if there are several, +server_name=<instance>"
            )
        client = ServerClient(config.head_server, config.values)
        return Hosting(config, instances[0], client, file)
