"""Settings of the trackers. `--help` prints the docstrings of the fields."""

from pydantic import Field

from nemo_gym.config_types import BaseNeMoGymCLIConfig


class TrackerConfig(BaseNeMoGymCLIConfig):
    """W&B is used if `wandb_project` is set, MLflow if `mlflow_tracking_uri` is set."""

    wandb_project: str | None = None
    """The W&B project to send the run to when it ends. null: W&B is not used."""
    wandb_name: str | None = None
    """The name of the W&B run. null: W&B chooses one."""
    wandb_api_key: str | None = Field(default=None, repr=False)
    """The W&B API key. null: the login of this machine (`wandb login` or WANDB_API_KEY)."""
    mlflow_tracking_uri: str | None = None
    """The MLflow server, database or folder to send the run to when it ends, such as http://host:5000 or
    sqlite:///mlflow.db. null: MLflow is not used."""
    mlflow_experiment_name: str | None = None
    """The MLflow experiment, created if it does not exist. null: MLflow's `Default`."""
    mlflow_run_name: str | None = None
    """The name of the MLflow run. null: MLflow chooses one."""
