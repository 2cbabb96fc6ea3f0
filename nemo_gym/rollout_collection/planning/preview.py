"""A preview of a resumption, for a dry run: the same rules, and no file is changed."""

from dataclasses import dataclass, field
from pathlib import Path

from nemo_gym.journal import read_lines
from nemo_gym.path_utils import failures_path_for, manifest_path_for
from nemo_gym.records import packed
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.planning.prepare import broken_plan, fewer_rollouts, missing_to_resume
from nemo_gym.rollout_collection.planning.remaining import WorkCount, packed_key_of
from nemo_gym.rollout_collection.recording.manifest import Manifest
from nemo_gym.rollout_collection.recording.recovery import read_failures, read_keyed
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

    @classmethod
    def of(cls, config: RolloutCollectionConfig, max_attempts: int) -> "ResumePreview | None":
        """None if there is nothing to resume."""
        if not config.resume_from_cache or missing_to_resume(config):
            return None
        output, plan = Path(config.output_jsonl_fpath), config.materialized_jsonl_fpath
        done = {packed(key) for key, _ in read_keyed(output)}
        work = WorkCount(plan, done, read_failures(failures_path_for(output)), max_attempts)
        is_broken = broken_plan(plan, 0) is not None  # then a run plans again
        lines = () if is_broken else read_lines(plan)
        rows = {packed_key_of(line.data, plan): hash(line.data) for line in lines}
        return cls(Manifest.load(manifest_path_for(output)), work, plan, rows)

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
        if self.num_changed:
            changes.append(f"{counted(self.num_changed, 'rollout')} with different inputs")
        if self.rows:
            changes.append(fewer_rollouts(len(self.rows)))
        return changes
