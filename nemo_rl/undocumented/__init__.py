"""The only modules of `nemo_rl` that use undocumented APIs; see `nemo_gym.undocumented`."""
