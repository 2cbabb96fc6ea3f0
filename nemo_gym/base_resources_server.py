"""Resources servers: an environment's tools and its verifier."""

from enum import StrEnum
from typing import Any, Literal, Self

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Receive, Scope, Send

from nemo_gym.config_types import (
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseRunServerInstanceConfig,
)
from nemo_gym.judge import judge_failsafe
from nemo_gym.machine import available_cores
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.servers.aggregation import AggregatesMetrics
from nemo_gym.servers.non_finite import names_non_finite
from nemo_gym.servers.server_base import BaseServer, Hosting, SimpleServer
from nemo_gym.servers.verify_route import verify_route
from nemo_gym.servers.verify_thread import in_threads
from nemo_gym.types import UNKNOWN_TOOL_HEADER

__all__ = [
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseMultiRewardVerifyResponse",
    "BaseResourcesServer",
    "BaseResourcesServerConfig",
    "BaseRunRequest",
    "BaseSeedSessionRequest",
    "BaseSeedSessionResponse",
    "BaseVerifyRequest",
    "BaseVerifyResponse",
    "NeMoGymResponse",
    "ReverifyMode",
    "SimpleResourcesServer",
]


class BaseResourcesServerConfig(BaseRunServerInstanceConfig):
    """The settings that every environment has."""

    verify_in: Literal["event_loop", "thread", "process"] = "event_loop"
    """Where `verify` runs. `thread` or `process` if it computes for long: other rollouts go on meanwhile."""
    verify_workers: int = Field(default_factory=available_cores, ge=1)
    """How many threads or processes verify at once; the default is the number of cores."""


class BaseResourcesServer(BaseServer):
    config: BaseResourcesServerConfig


class BaseRunRequest(BaseModel):
    """A row: the task of one rollout. Fields that an environment does not declare are kept."""

    model_config = ConfigDict(extra="allow")

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming


class BaseVerifyRequest(BaseRunRequest):
    """A row with the agent's response to it."""

    response: NeMoGymResponse


class BaseVerifyResponse(BaseVerifyRequest):
    """A scored rollout. Fields that a subclass does not declare are dropped; the agent adds the row's."""

    model_config = ConfigDict(extra="ignore")

    reward: float


class BaseMultiRewardVerifyResponse(BaseVerifyResponse):
    reward_components: dict[str, float]


class BaseSeedSessionRequest(BaseModel):
    """The whole row."""

    model_config = ConfigDict(extra="allow")


class BaseSeedSessionResponse(BaseModel):
    model_config = ConfigDict(extra="allow")


class ReverifyMode(StrEnum):
    """Whether a finished rollout can be verified again from its record alone."""

    STATELESS = "stateless"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


class SimpleResourcesServer(BaseResourcesServer, AggregatesMetrics, SimpleServer):
    """Base of environments: override `verify`, add tools in `setup_webserver`.

    One that keeps state per session may define `async close_session(self, session_id: str)` to free it. It is
    called once when the session ends, also after a failure. A plain `def` runs in a thread.
    """

    config: BaseResourcesServerConfig

    @classmethod
    def from_instance(cls, hosting: Hosting) -> Self:
        """Record the failures of the judge also if the environment builds an application of its own."""
        server = super().from_instance(hosting)
        verify = server.verify
        if server.config.verify_in == "thread":
            verify = in_threads(server, verify, server.config.verify_workers)
            object.__setattr__(server, "verify", verify)  # not a field of the model
        if verify_route(verify) is verify:  # others are served by `setup_webserver` only
            verify = names_non_finite(judge_failsafe(verify))
            object.__setattr__(server, "verify", verify)
        return server

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        self.setup_session_middleware(app)
        app.post("/seed_session")(self.seed_session)
        app.post("/verify")(names_non_finite(judge_failsafe(verify_route(self.verify))))
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        app.get("/aggregate_metrics")(self.report_own_metrics)
        app.router.default = _no_such_tool
        return app

    async def seed_session(self, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:
        """The start of one rollout's session."""
        return BaseSeedSessionResponse()

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """Score a rollout. May also be a plain function, take `(self, task, response)`, and return a dict."""
        raise NotImplementedError(f"{type(self).__name__} must define verify")


async def _no_such_tool(scope: Scope, receive: Receive, send: Send) -> None:
    """A 404 for the model to read, with the names of the tools."""
    if scope["type"] != "http":
        raise HTTPException(404)
    routes: list[Any] = scope["app"].router.routes
    own = {"/seed_session", "/verify", "/aggregate_metrics"}
    tools = [route.path[1:] for route in routes if "POST" in (getattr(route, "methods", None) or ())]
    names = ", ".join(name for name in tools if f"/{name}" not in own)
    asked = scope["path"].removeprefix("/")
    detail = f"there is no tool named {asked!r}; the tools are: {names or 'none'}"
    raise HTTPException(404, detail, headers={UNKNOWN_TOOL_HEADER: "1"})
