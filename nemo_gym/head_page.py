"""The page on which a head server publishes its configuration: YAML in a JSON string.

Another program may listen at that address, so nothing about the page is assumed.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

from nemo_gym.codec import decode_json
from nemo_gym.config.plain_data import frozen_dictconfig
from nemo_gym.http.blocking_get import not_a_head_server

if TYPE_CHECKING:
    from omegaconf import DictConfig


def config_text(values: dict[str, Any]) -> str:
    """The YAML of a configuration, without aliases."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True)


def config_on_page(url: str, page: str) -> "DictConfig":
    """The configuration on a page; raises a NotAHeadServerError if it is another page."""
    import yaml
    from omegaconf.errors import OmegaConfBaseException

    try:
        text = decode_json(page)
        values = yaml.load(text, Loader=_loader_class()) if isinstance(text, str) else None
        if isinstance(values, dict) and all(isinstance(key, str) for key in values):
            return frozen_dictconfig(values)
    except (ValueError, TypeError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())[:200]
        raise not_a_head_server(url, f"its page is not a configuration: {reason}") from error
    raise not_a_head_server(url, "its page is not a configuration")


@cache
def _loader_class() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses aliases: nested ones expand a small page to any size."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it contains an alias")
            return super().compose_node(parent, index)

    return Loader
