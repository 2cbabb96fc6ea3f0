"""A preview of a resumption, for a dry run: the same rules, and no file is changed."""

from dataclasses import dataclass, field
from pathlib import Path

from nemo_gym.journal import read_lines
from nemo_gym.path_utils import failures_path_for, manifest_path_for
from nemo_gym.records import BadLines
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.planning.belonging import strays
from nemo_gym.rollout_collection.planning.plan_changes import broken_plan, fewer_rollouts
from nemo_gym.rollout_collection.planning.prepare import missing_to_resume
from nemo_gym.rollout_collection.planning.remaining import WorkCount, packed_key_of
from nemo_gym.rollout_collection.recording.manifest import Manifest
from nemo_gym.rollout_collection.recording.recovery import read_failures
from nemo_gym.rollout_collection.recording.scan import find_rollouts
from nemo_gym.rollout_collection.run_servers import Servers
from nemo_gym.terminal import counted


@dataclass
class ResumePreview:
    """How an earlier run would be continued. Its files are not repaired: a torn line counts as missing."""

    manifest: Manifest | None
    work: WorkCount
    plan: Path
    rows: dict[int, int] = field(default_factory=dict)
    """Hashes of the rows of the earlier plan that have not occurred in the new plan yet, by packed key."""
    num_changed: int = 0
    num_foreign: int = 0
    """Rollouts in the output that do not belong to the earlier plan."""

    @classmethod
    def of(cls, config: RolloutCollectionConfig, max_attempts: int) -> "ResumePreview | None":
        """None if there is nothing to resume."""
        if not config.resume_from_cache or missing_to_resume(config):
            return None
        output, plan = Path(config.output_jsonl_fpath), config.materialized_jsonl_fpath
        index = find_rollouts(output, BadLines(are_skipped=True)).index
        work = WorkCount(plan, index.keys, read_failures(failures_path_for(output)), max_attempts)
        manifest = Manifest.load(manifest_path_for(output))
        if broken_plan(plan, 0) is not None:  # a run would plan again
            return cls(manifest, work, plan)
        rows = {packed_key_of(line.data, plan): hash(line.data) for line in read_lines(plan)}
        accepted = manifest.num_accepted() if manifest is not None else 0
        foreign = len(strays(output, index, plan))
        return cls(manifest, work, plan, rows, num_foreign=foreign if foreign > accepted else 0)

    def take(self, line: bytes) -> None:
        """One rollout of the new plan."""
        packed_key = packed_key_of(line, self.plan)
        before = self.rows.pop(packed_key, None)
        if before is not None and before != hash(line.removesuffix(b"\n")):
            self.num_changed += 1
            self.work.forget_failures(packed_key)
        self.work.take(line)

    def changes(self, servers: Servers | None) -> list[str]:
        changes = []
        if self.manifest is not None and servers is not None:
            changes += self.manifest.changed_servers(servers.values)
        if self.num_foreign:
            changes.append(
                f"{counted(self.num_foreign, 'recorded rollout')} that the earlier run did not plan"
            )
        if self.num_changed:
            changes.append(f"{counted(self.num_changed, 'rollout')} with different inputs")
        if self.rows:
            changes.append(fewer_rollouts(len(self.rows)))
        return changes
