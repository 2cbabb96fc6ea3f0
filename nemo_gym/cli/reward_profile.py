"""`ng_reward_profile`."""

from typing import Any

from nemo_gym.analysis.profile_files import AgentRewards, ProfiledRewards, profile_rewards
from nemo_gym.cli.command import Command
from nemo_gym.cli.output import complain, say, say_json
from nemo_gym.config import GymConfig
from nemo_gym.metrics.headline import between
from nemo_gym.metrics.profile import Difficulty, RewardProfileConfig
from nemo_gym.path_utils import materialized_path_for
from nemo_gym.records import BadLines
from nemo_gym.terminal import counted, table
from nemo_gym.types import AGENT_REF_KEY_NAME


class RewardProfileOptions(RewardProfileConfig):
    materialized_inputs_jsonl_fpath: str | None = None  # type: ignore[assignment]  # filled in by `run`
    """The planned rollouts. Default: `<stem>_materialized_inputs.jsonl` next to the rollouts, where
    ng_collect_rollouts writes it."""
    skip_bad_lines: bool = False
    """Skip lines that are not planned rollouts or rollouts, keys that occur in an earlier line, rollouts that
    are not planned, and rollouts by an agent other than their task's, and list them. By default, the first
    such line is an error."""
    json_output: bool = False
    """Print one JSON object instead of text."""


def run(config: GymConfig, options: RewardProfileOptions) -> int:
    rollouts, bad_lines = options.rollouts_jsonl_fpath, BadLines(options.skip_bad_lines)
    files = RewardProfileConfig(
        materialized_inputs_jsonl_fpath=options.materialized_inputs_jsonl_fpath
        or str(materialized_path_for(rollouts)),
        rollouts_jsonl_fpath=rollouts,
        allow_partial_rollouts=options.allow_partial_rollouts,
    )
    done = profile_rewards(files, bad_lines)
    for line in bad_lines.warning_lines():
        complain(line)
    if options.json_output:
        say_json(_as_json(done))
    else:
        say(_as_text(done))
    return 0


def _as_json(done: ProfiledRewards) -> dict[str, Any]:
    return {
        "summary": done.summary,
        "agents": [
            {"num_tasks": agent.tasks, "num_rollouts": agent.rollouts, **agent.metrics}
            for agent in done.agents
        ],
        "difficulty": {
            kind: {"tasks": tasks, "share": _share(tasks, done.difficulty)}
            for kind, tasks in done.difficulty.counts().items()
        },
        "files": {"reward_profiling": str(done.groups_path), "agent_metrics": str(done.agents_path)},
    }


def _as_text(done: ProfiledRewards) -> str:
    parts = [_completion(done.summary)]
    if done.agents:
        header = ("agent", "tasks", "rollouts", "reward", "95 % CI", "std")
        parts += ["", table(header, [_agent_row(agent) for agent in done.agents])]
        parts += ["", table(("tasks by difficulty", "tasks", "share"), _difficulty_rows(done.difficulty))]
    parts += ["", f"Profile of each task: {done.groups_path}", f"Metrics of each agent: {done.agents_path}"]
    return "\n".join(parts)


def _completion(summary: dict[str, int]) -> str:
    missing, tasks = summary["missing_rollouts"], summary["expected_tasks"]
    rollouts = counted(summary["expected_rollouts"], "rollout")
    if not missing:
        return f"All {rollouts} of {counted(tasks, 'task')} are present."
    return (
        f"{summary['completed_rollouts']} of {rollouts} are present, {missing} missing.\n"
        f"Of {counted(tasks, 'task')}, {summary['complete_tasks']} are complete, {summary['partial_tasks']} "
        f"partial, {summary['missing_tasks']} without rollouts."
    )


def _agent_row(agent: AgentRewards) -> list[str]:
    name, reward = agent.metrics[AGENT_REF_KEY_NAME]["name"], agent.reward
    counts = [name, str(agent.tasks), str(agent.rollouts)]
    if reward is None:
        return [*counts, "-", "-", "-"]
    low, high = reward.low, reward.high
    interval = "-" if low is None or high is None else between(low, high)
    return [*counts, _number(reward.mean), interval, _number(agent.metrics.get("std/reward"))]


def _difficulty_rows(difficulty: Difficulty) -> list[list[str]]:
    """The row of tasks without a reward is omitted if there are none."""
    return [
        [kind.replace("_", " "), str(tasks), f"{_share(tasks, difficulty):.1%}"]
        for kind, tasks in difficulty.counts().items()
        if tasks or kind != "without_reward"
    ]


def _share(tasks: int, difficulty: Difficulty) -> float:
    return tasks / difficulty.tasks if difficulty.tasks else 0.0


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


COMMAND = Command(
    "reward_profile",
    RewardProfileOptions,
    run,
    "ng_reward_profile +rollouts_jsonl_fpath=results/calculator.jsonl",
    reads_files=False,
    positional=("rollouts_jsonl_fpath",),
)
