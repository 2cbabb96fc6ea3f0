"""Arguments that only the other rollout implementation uses.

`RolloutManager` passes all its arguments to the implementation it has chosen. Each implementation ignores
those of the other one; a name that neither uses is an error.
"""

import inspect
from collections.abc import Iterable

ONLY_NATIVE = frozenset({"policy_generation", "env_concurrency"})
ONLY_GYM = frozenset({"generation_config", "mask_env_flagged_samples", "stats"})


def refuse_unknown(implementation: type, given: Iterable[str], ignored: frozenset[str]) -> None:
    """Raise TypeError if an argument in `given` is not one that the implementation may ignore."""
    unknown = [name for name in given if name not in ignored]
    if not unknown:
        return
    parameters = inspect.signature(implementation).parameters.values()
    own = {one.name for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD}
    known = ", ".join(sorted(own | ignored))
    raise TypeError(f"{implementation.__name__}: unknown argument {unknown[0]!r}; known: {known}")
