"""`ng_validate`."""

from nemo_gym.cli.command import Command, ConfigPaths
from nemo_gym.cli.output import say
from nemo_gym.config import GymConfig
from nemo_gym.errors import ConfigError
from nemo_gym.launch.check import check_server
from nemo_gym.terminal import counted, table


def run(config: GymConfig, options: ConfigPaths) -> int:
    if not config.servers:
        raise ConfigError("the configuration defines no servers; give its files with '+config_paths=[…]'")
    problems = [problem for instance in config.servers for problem in check_server(config, instance)]
    if problems:
        raise ConfigError("\n".join(problems))
    rows = [
        (server.name, server.kind, server.implementation, len(server.settings.get("datasets") or []))
        for server in config.servers
    ]
    say(table(("name", "kind", "implementation", "datasets"), rows))
    say(f"The configuration is valid: {counted(len(rows), 'server')}.")
    return 0


COMMAND = Command(
    "validate",
    ConfigPaths,
    run,
    "ng_validate '+config_paths=[resources_servers/calculator/configs/calculator.yaml,"
    "responses_api_models/openai_model/configs/openai_model.yaml]' "
    "+policy_base_url=http://127.0.0.1:8000/v1 +policy_api_key=none +policy_model_name=my-model",
)
