"""A counter for each session: what one rollout counts, no other rollout sees."""

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY


class ExampleSessionStateMgmtConfig(BaseResourcesServerConfig):
    max_sessions: int = Field(default=65_536, ge=1)
    """Counters kept at once. Verification forgets a session's; rollouts that failed before it leave theirs,
    and beyond this number the oldest go."""


class CounterSeedSessionRequest(BaseSeedSessionRequest):
    initial_count: int = 0


class IncrementCounterRequest(BaseModel):
    count: int


class CounterResponse(BaseModel):
    count: int


class CounterVerifyRequest(BaseVerifyRequest):
    expected_count: int


class CounterVerifyResponse(BaseVerifyResponse):
    expected_count: int
    final_count: int | None
    """None where the session has no counter: it never began, or was verified before."""


class ExampleSessionStateMgmtServer(SimpleResourcesServer):
    config: ExampleSessionStateMgmtConfig
    counters: dict[str, int] = Field(default_factory=dict)
    """Session id → count, oldest session first."""

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/increment_counter")(self.increment_counter)
        app.post("/get_counter_value")(self.get_counter_value)
        return app

    async def seed_session(
        self, request: Request, body: CounterSeedSessionRequest
    ) -> BaseSeedSessionResponse:
        session_id = request.session[SESSION_ID_KEY]
        self.counters.pop(session_id, None)
        self._set_counter(session_id, body.initial_count)
        return BaseSeedSessionResponse()

    async def increment_counter(self, request: Request, body: IncrementCounterRequest) -> CounterResponse:
        session_id = request.session[SESSION_ID_KEY]
        self._set_counter(session_id, self.counters.get(session_id, 0) + body.count)
        return CounterResponse(count=self.counters[session_id])

    async def get_counter_value(self, request: Request) -> CounterResponse:
        return CounterResponse(count=self.counters.get(request.session[SESSION_ID_KEY], 0))

    async def verify(self, request: Request, body: CounterVerifyRequest) -> CounterVerifyResponse:
        final_count = self.counters.pop(request.session[SESSION_ID_KEY], None)
        score = {"reward": float(final_count == body.expected_count), "final_count": final_count}
        return CounterVerifyResponse.model_validate(dict(body) | score)

    def _set_counter(self, session_id: str, count: int) -> None:
        self.counters[session_id] = count
        if len(self.counters) > self.config.max_sessions:
            del self.counters[next(iter(self.counters))]


if __name__ == "__main__":
    ExampleSessionStateMgmtServer.run_webserver()
