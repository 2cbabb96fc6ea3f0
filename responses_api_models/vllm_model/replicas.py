"""The replicas of one model, and which of them a session uses.

Invariant: a session stays with the replica of its first call, whose cache holds its history, as long as that
replica responds.
"""

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from nemo_gym.openai_utils import NeMoGymAsyncOpenAI

logger = logging.getLogger(__name__)

T = TypeVar("T")
Session = MutableMapping[str, Any]

REPLICA_KEY = "vllm_replica"
"""The session key for the number of its replica."""
REPLICA_TRIES = 3
"""How often a call is sent to a replica that cannot be reached."""
DOWN_S = 30.0
"""How long a replica that did not respond is skipped: without calls in flight it would be chosen first."""


@dataclass(eq=False)
class Replica:
    """One server of the model."""

    number: int
    endpoint: NeMoGymAsyncOpenAI
    in_flight: int = 0
    down_until: float = float("-inf")


class Replicas:
    """Chooses a replica for each session, and another one if that does not respond."""

    def __init__(
        self,
        server_name: str,
        endpoints: Sequence[NeMoGymAsyncOpenAI],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server_name = server_name
        self._replicas = [Replica(number, endpoint) for number, endpoint in enumerate(endpoints)]
        self._clock = clock
        self._next = 0

    async def call(self, session: Session, request: Callable[[NeMoGymAsyncOpenAI], Awaitable[T]]) -> T:
        """The response of the session's replica, or of another one if that cannot be reached."""
        untried = list(self._replicas)
        while True:
            replica = self._choose(session, untried)
            untried.remove(replica)
            replica.in_flight += 1
            try:
                response = await request(replica.endpoint)
            except aiohttp.ClientConnectionError as error:  # after the endpoint's own retries
                if not untried:
                    if not getattr(error, "is_outage", False):
                        raise
                    untried = list(self._replicas)  # all are down: wait for the first that responds
                self._mark_down(replica, error)
            else:
                replica.down_until = float("-inf")
                return response
            finally:
                replica.in_flight -= 1

    def _choose(self, session: Session, untried: Sequence[Replica]) -> Replica:
        if len(self._replicas) == 1:  # the session stays empty, which costs no memory
            return self._replicas[0]
        now = self._clock()
        up = [replica for replica in untried if replica.down_until <= now] or untried
        for replica in up:
            if replica.number == session.get(REPLICA_KEY):
                return replica
        count = len(self._replicas)
        chosen = min(up, key=lambda replica: (replica.in_flight, (replica.number - self._next) % count))
        self._next = (chosen.number + 1) % count
        session[REPLICA_KEY] = chosen.number
        return chosen

    def _mark_down(self, replica: Replica, error: Exception) -> None:
        now = self._clock()
        if replica.down_until <= now:  # logged once per outage, not once per session
            logger.warning(
                "%s: a replica is down: %s; its sessions move to other replicas", self._server_name, error
            )
        replica.down_until = now + DOWN_S
