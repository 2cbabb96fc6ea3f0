"""Agents: they play a row, from seeding to the verified result."""

from typing import Any

from fastapi import Body, FastAPI
from pydantic import Field

from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest, BaseRunServerInstanceConfig
from nemo_gym.failures import FailureKind
from nemo_gym.http import FAILURE_KIND_HEADER, ClientResponse
from nemo_gym.servers.aggregation import AggregatesMetrics
from nemo_gym.servers.non_finite import names_non_finite
from nemo_gym.servers.rollout_record import rollout_record
from nemo_gym.servers.run_sessions import RunSessions
from nemo_gym.servers.server_base import SimpleServer
from nemo_gym.types import STEPS_KEY_NAME, STOPPED_BY_KEY_NAME, TOOLS_KEY_NAME, UNKNOWN_TOOL_HEADER

__all__ = [
    "STEPS_KEY_NAME",
    "STOPPED_BY_KEY_NAME",
    "TOOLS_KEY_NAME",
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseResponsesAPIAgentConfig",
    "Body",
    "SimpleResponsesAPIAgent",
    "is_reserved_tool_name",
    "is_session_ended",
    "is_unknown_tool",
    "rollout_record",
]

_RESERVED = frozenset(
    {"", ".", "..", "verify", "seed_session", "close_session", "aggregate_metrics", "run", "mcp"}
)


def is_reserved_tool_name(name: str) -> bool:
    """Whether a function name that a model chose must not be called: it would reach more than a tool."""
    return name in _RESERVED or not name.isprintable() or not set(name).isdisjoint("/\\?#%")


def is_session_ended(response: ClientResponse) -> bool:
    """Whether the server refused the request because its session has ended: the rollout cannot continue."""
    # A tool may use 410 for something else; that is not infrastructure.
    return response.status == 410 and response.headers.get(FAILURE_KIND_HEADER) == FailureKind.INFRASTRUCTURE


def is_unknown_tool(response: ClientResponse) -> bool:
    """Whether a 404 says that there is no such tool, and was not chosen by a tool."""
    return response.status == 404 and (
        UNKNOWN_TOOL_HEADER in response.headers or response.body == b'{"detail":"Not Found"}'
    )


class BaseResponsesAPIAgentConfig(BaseRunServerInstanceConfig):
    """The settings that every agent has."""

    close_session_timeout_s: float = Field(default=1.0, gt=0)
    """How long the end of a run waits for its sessions to close. Servers go on closing after that."""


class SimpleResponsesAPIAgent(AggregatesMetrics, SimpleServer):
    """Base of agents: override `responses` and `run`.

    When a run ends, however it ends, the sessions that began in it are closed on the servers that keep them.
    """

    config: BaseResponsesAPIAgentConfig

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        self.setup_session_middleware(app)
        app.post("/v1/responses")(self.responses)
        app.post("/run")(names_non_finite(self.run))
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        app.get("/aggregate_metrics")(self.report_own_metrics)
        return app

    def _run_sessions(self) -> RunSessions:
        return RunSessions(self.config.close_session_timeout_s)

    async def responses(self, body: dict[str, Any] = Body()) -> Any:
        """Play the turns: model and tools until the model is done."""
        raise NotImplementedError(f"{type(self).__name__} must define responses")

    async def run(self, body: dict[str, Any] = Body()) -> Any:
        """Play a row: seed, turns, verification."""
        raise NotImplementedError(f"{type(self).__name__} must define run")
