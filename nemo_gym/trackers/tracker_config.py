"""Where a run is tracked. Every field's text is what `--help` prints."""

from pydantic import Field

from nemo_gym.config_types import BaseNeMoGymCLIConfig


class TrackerConfig(BaseNeMoGymCLIConfig):
    """W&B is used where `wandb_project` is set, MLflow where `mlflow_tracking_uri` is."""

    wandb_project: str | None = None
    """The W&B project that the run goes to when it ends. null: no W&B."""
    wandb_name: str | None = None
    """The name of the W&B run. null: W&B makes one up."""
    wandb_api_key: str | None = Field(default=None, repr=False)
    """The W&B API key. null: the login of this machine (`wandb login` or WANDB_API_KEY)."""
    mlflow_tracking_uri: str | None = None
    """The MLflow server, database or folder that the run goes to when it ends: http://host:5000,
    sqlite:///mlflow.db. null: no MLflow."""
    mlflow_experiment_name: str | None = None
    """The MLflow experiment; made if it is not there. null: MLflow's `Default`."""
    mlflow_run_name: str | None = None
    """The name of the MLflow run. null: MLflow makes one up."""
