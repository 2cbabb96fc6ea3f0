"""One counter per session: what one rollout counts, no other rollout sees."""

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
    """Nothing beyond the base."""


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
    """None if the session has no counter."""


class ExampleSessionStateMgmtServer(SimpleResourcesServer):
    config: ExampleSessionStateMgmtConfig
    counters: dict[str, int] = Field(default_factory=dict)
    """Session id → count."""

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/increment_counter")(self.increment_counter)
        app.post("/get_counter_value")(self.get_counter_value)
        return app

    async def seed_session(
        self, request: Request, body: CounterSeedSessionRequest
    ) -> BaseSeedSessionResponse:
        self.counters[request.session[SESSION_ID_KEY]] = body.initial_count
        return BaseSeedSessionResponse()

    async def close_session(self, session_id: str) -> None:
        self.counters.pop(session_id, None)

    async def increment_counter(self, request: Request, body: IncrementCounterRequest) -> CounterResponse:
        session_id = request.session[SESSION_ID_KEY]
        self.counters[session_id] = self.counters.get(session_id, 0) + body.count
        return CounterResponse(count=self.counters[session_id])

    async def get_counter_value(self, request: Request) -> CounterResponse:
        return CounterResponse(count=self.counters.get(request.session[SESSION_ID_KEY], 0))

    async def verify(self, request: Request, body: CounterVerifyRequest) -> CounterVerifyResponse:
        final_count = self.counters.get(request.session[SESSION_ID_KEY])
        score = {"reward": float(final_count == body.expected_count), "final_count": final_count}
        return CounterVerifyResponse.model_validate(dict(body) | score)


if __name__ == "__main__":
    ExampleSessionStateMgmtServer.run_webserver()
