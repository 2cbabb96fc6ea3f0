"""The top-level keys that this package itself reads."""

from pydantic import BaseModel, Field

from nemo_gym.config_types import BaseServerConfig

DEFAULT_HOST = "127.0.0.1"
DEFAULT_HEAD_SERVER_PORT = 11000
PORT_RANGE_LOW = 10001
PORT_RANGE_HIGH = 20000


class HeadServerSettings(BaseModel):
    host: str = DEFAULT_HOST
    port: int = Field(default=DEFAULT_HEAD_SERVER_PORT, ge=1, le=65535)


class GymSettings(BaseModel, use_attribute_docstrings=True):
    """Settings of the whole configuration."""

    head_server: HeadServerSettings = HeadServerSettings()
    """Address of the head server."""
    default_host: str = DEFAULT_HOST
    """Host of every server whose block sets none."""
    port_range_low: int = Field(default=PORT_RANGE_LOW, ge=1, le=65535)
    """Lowest port to assign to a server."""
    port_range_high: int = Field(default=PORT_RANGE_HIGH, ge=1, le=65535)
    """Highest port to assign to a server."""
    disallowed_ports: list[int] = Field(default_factory=list)
    """Ports that are never assigned to a server."""
    error_on_almost_servers: bool = True
    """Whether a block that looks like a server but is not valid is an error; otherwise it is ignored."""

    allowed_hosts: list[str] = Field(default_factory=list)
    """Further names under which servers are called: values of the Host header that they accept."""
    access_token: str | None = None
    """The token that servers on other hosts than loopback require. ng_run makes one if there is none."""

    plain_http_client: bool = True
    """Whether calls over HTTP may use the plain HTTP client; without it aiohttp sends all of them."""
    max_response_mb: float = Field(default=256, gt=0)
    """Largest body of a response over HTTP, decompressed."""
    max_response_header_kb: float = Field(default=64, gt=0)
    """Largest block of headers of a response over HTTP."""
    max_request_mb: float = Field(default=256, gt=0)
    """Largest body of a request that a server accepts."""
    max_aggregate_metrics_mb: float = Field(default=4096, gt=0)
    """Largest request and response of `/aggregate_metrics`, which has every rollout of a run."""

    def head(self) -> BaseServerConfig:
        return BaseServerConfig(host=self.head_server.host, port=self.head_server.port)
