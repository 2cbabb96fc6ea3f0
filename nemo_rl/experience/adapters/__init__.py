"""Groups in the batch formats of trainers: one function per format."""

from nemo_rl.experience.adapters.hf_dataset import to_dataset
from nemo_rl.experience.adapters.nemo_rl_grpo import nemo_rl_batch
from nemo_rl.experience.adapters.rows import Advantages
from nemo_rl.experience.adapters.trl_grpo import trl_batch
from nemo_rl.experience.adapters.verl_ppo import verl_batch

__all__ = ["Advantages", "nemo_rl_batch", "to_dataset", "trl_batch", "verl_batch"]
