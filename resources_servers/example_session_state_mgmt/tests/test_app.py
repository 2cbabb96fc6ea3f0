import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.hosted import HostedServer
from resources_servers.example_session_state_mgmt.app import (
    CounterVerifyRequest,
    ExampleSessionStateMgmtConfig,
    ExampleSessionStateMgmtServer,
)

EXAMPLES = Path(__file__).parents[1] / "data" / "example.jsonl"


def counter_server() -> ExampleSessionStateMgmtServer:
    config = ExampleSessionStateMgmtConfig(host="0.0.0.0", port=8080, entrypoint="", name="counter")
    return ExampleSessionStateMgmtServer(config=config, server_client=MagicMock(spec=ServerClient))


class Caller:
    """One rollout's view of the server: its cookies go along from call to call."""

    def __init__(self, client: ServerClient) -> None:
        self.client = client
        self.cookies: dict[str, Any] = {}

    async def post(self, path: str, body: Any) -> Any:
        response = await self.client.post("counter", path, json=body, cookies=self.cookies)
        self.cookies.update(response.cookies)
        assert response.status == 200
        return await response.json()

    async def seed(self, initial_count: int) -> None:
        await self.post("/seed_session", {"initial_count": initial_count})

    async def increment(self, count: int) -> int:
        return (await self.post("/increment_counter", {"count": count}))["count"]

    async def read(self) -> int:
        return (await self.post("/get_counter_value", {}))["count"]

    async def verify(self, expected_count: int) -> tuple[float, int | None]:
        row = {"responses_create_params": {"input": "count"}, "response": {"output": []}}
        scored = await self.post("/verify", {**row, "expected_count": expected_count})
        return scored["reward"], scored["final_count"]


def client_of(server: ExampleSessionStateMgmtServer) -> ServerClient:
    return ServerClient(local_servers={"counter": HostedServer("counter", server.setup_webserver())})


def test_counter_starts_at_the_count_of_the_row_and_is_verified_at_the_end() -> None:
    async def episode() -> None:
        caller = Caller(client_of(counter_server()))
        await caller.seed(3)
        assert await caller.increment(4) == 7
        assert await caller.increment(3) == 10
        assert await caller.read() == 10
        assert await caller.verify(10) == (1.0, 10)

    asyncio.run(episode())


def test_wrong_count_is_not_rewarded() -> None:
    async def episode() -> None:
        caller = Caller(client_of(counter_server()))
        await caller.seed(3)
        assert await caller.verify(10) == (0.0, 3)

    asyncio.run(episode())


def test_interleaved_rollouts_never_see_each_other() -> None:
    async def episodes() -> None:
        client = client_of(counter_server())
        callers = [Caller(client) for _ in range(20)]
        for start, caller in enumerate(callers):
            await caller.seed(start)
        await asyncio.gather(*[caller.increment(100) for caller in callers])
        for start, caller in enumerate(callers):
            assert await caller.verify(start + 100) == (1.0, start + 100)

    asyncio.run(episodes())


def test_seeding_again_resets_the_session() -> None:
    async def episode() -> None:
        caller = Caller(client_of(counter_server()))
        await caller.seed(3)
        await caller.increment(4)
        await caller.seed(5)
        assert await caller.read() == 5

    asyncio.run(episode())


def test_closing_a_session_removes_its_counter() -> None:
    async def episode() -> None:
        server = counter_server()
        client = client_of(server)
        caller, other = Caller(client), Caller(client)
        await caller.seed(3)
        await other.seed(4)
        assert await caller.verify(3) == (1.0, 3)
        closed = await client.post("counter", "/close_session", cookies=caller.cookies)
        assert closed.status == 204
        assert list(server.counters.values()) == [4]

    asyncio.run(episode())


def test_unseeded_session_counts_from_zero() -> None:
    async def episode() -> None:
        caller = Caller(client_of(counter_server()))
        assert await caller.read() == 0
        assert await caller.increment(2) == 2

    asyncio.run(episode())


def test_example_rows_have_what_seeding_and_verification_need() -> None:
    lines = EXAMPLES.read_text(encoding="utf-8").splitlines()
    assert len(set(lines)) >= 5
    for line in lines:
        row = json.loads(line)
        CounterVerifyRequest.model_validate({**row, "response": {"output": []}})
        assert isinstance(row["initial_count"], int)
        names = [tool["name"] for tool in row["responses_create_params"]["tools"]]
        assert names == ["increment_counter", "get_counter_value"]
