"""Configuration: files and overrides become one frozen GymConfig.

roots, files, yaml_file     find and read the files, in the order in which they override each other
merge, directives           deep merge; inherit_from, copy, _delete_key
resolve, unresolved         interpolation, and why one has no value
grammar, overrides          the command line
known_settings, unknown      which settings of the command line and of Python callers are known
validation, blocks, references   checks of fields, of server blocks, and of references between servers
load, gym_config            all of this in order, and its result
ports, secrets, instances   free ports, hidden secrets, the servers of a configuration
current, parser             the published accessors of `nemo_gym.global_config`
"""

from nemo_gym.config.global_keys import DEFAULT_HEAD_SERVER_PORT, DEFAULT_HOST
from nemo_gym.config.gym_config import GymConfig, config_from_bytes, dump_config
from nemo_gym.config.instances import ServerInstance
from nemo_gym.config.load import load_config
from nemo_gym.config.overrides import Overrides, overrides_from, parse_arguments
from nemo_gym.config.ports import assign_ports, fill_ports, find_open_port
from nemo_gym.config.roots import component_roots, find_file
from nemo_gym.config.secrets import MASK, mask_secrets, redact, secret_values
from nemo_gym.config.validation import flag_fields, string_fields, validate_fields
from nemo_gym.environment_variables import max_rollout_attempts

__all__ = [
    "DEFAULT_HEAD_SERVER_PORT",
    "DEFAULT_HOST",
    "MASK",
    "GymConfig",
    "Overrides",
    "ServerInstance",
    "assign_ports",
    "component_roots",
    "config_from_bytes",
    "dump_config",
    "fill_ports",
    "find_file",
    "find_open_port",
    "flag_fields",
    "load_config",
    "mask_secrets",
    "max_rollout_attempts",
    "overrides_from",
    "parse_arguments",
    "redact",
    "secret_values",
    "string_fields",
    "validate_fields",
]
