"""The recorder: takes every outcome, writes it to a journal, then counts it.

A rollout is on disk before anything counts it as done. An error while recording ends the run: the recorder
keeps the error, stops the run, and ignores later outcomes.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from nemo_gym.errors import InterferenceError, JournalError, NeMoGymError
from nemo_gym.journal import Journal
from nemo_gym.path_utils import failures_path_for
from nemo_gym.records import packed
from nemo_gym.rollout_collection.outcome import Failure, Outcome, Success
from nemo_gym.rollout_collection.recording.interference import Interference, interference
from nemo_gym.rollout_collection.recording.ledger import FailureBudget, Ledger
from nemo_gym.rollout_collection.recording.recovery import read_keyed
from nemo_gym.rollout_collection.recording.scan import Found


class Recorder:
    """Writes outcomes to the output and to the failures file. Open between `__enter__` and `__exit__`."""

    def __init__(
        self,
        output: Path,
        found: Found,
        ledger: Ledger,
        budget: FailureBudget,
        on_recorded: Callable[[Outcome], None],
    ) -> None:
        self.ledger = ledger
        self.error: NeMoGymError | None = None
        self.is_over_budget = False
        self.ignores_failures = False
        """Set when the run ends for a reason that no rollout is to blame for: those in flight remain to be
        played."""
        self.end_run: Callable[[], None] = lambda: None
        """Called when no more outcomes can or need to be recorded."""
        self.in_flight: Callable[[], int] = lambda: 0
        self._output = output
        self._failures_place = failures_path_for(output).absolute()  # the working directory may change
        self._found = found
        self._budget = budget
        self._on_recorded = on_recorded
        self._files = ExitStack()
        self._rollouts: Journal | None = None
        self._failures: Journal | None = None

    def __enter__(self) -> "Recorder":
        self._rollouts = self._files.enter_context(Journal(self._output))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.__exit__(kind, error, trace)

    def record(self, outcome: Outcome) -> None:
        if self.error is not None:
            return  # it cannot be written, so it counts as not run
        if self.ignores_failures and isinstance(outcome, Failure):
            return
        try:
            self._write(outcome)
            self.ledger.take(outcome)
            self._on_recorded(outcome)
        except Exception as error:  # the boundary of recording: a run that cannot keep count must end
            known = error if isinstance(error, JournalError) else None
            self.fail(known or JournalError(f"cannot record {outcome.key}: {error!r}"))
            return
        if isinstance(outcome, Failure) and not self.is_over_budget:
            self._check_budget()

    def fail(self, error: NeMoGymError) -> None:
        """Keep the first error, and end the run."""
        self.error = self.error or error
        self.end_run()

    def _check_budget(self) -> None:
        if self._budget.is_exceeded(self.ledger, self.in_flight()):
            self.is_over_budget = True
            self.end_run()

    def _write(self, outcome: Outcome) -> None:
        if isinstance(outcome, Success):
            assert self._rollouts is not None, "the recorder is open"
            offset = self._rollouts.append(outcome.line)
            self._found.index.add(outcome.key, offset)
            columns = self._found.columns[outcome.agent]
            columns.add(*outcome.key, outcome.numbers, outcome.odd, outcome.is_retried, outcome.copied)
            columns.tool_use.take(outcome.tool_use)
        elif outcome.is_kept:
            if self._failures is None:
                self._failures = self._files.enter_context(
                    Journal(failures_path_for(self._output), self._failures_place)
                )
            self._failures.append(outcome.line())

    def check_files(self) -> None:
        """End the run if another program has changed a file that it writes."""
        for journal in (self._rollouts, self._failures):
            if journal is not None and self.error is None and (found := interference(journal)) is not None:
                self.fail(self._interfered(journal, found))

    def _interfered(self, journal: Journal, found: Interference) -> InterferenceError:
        """The error that says what happened; the ledger no longer counts what the output does not hold."""
        what = f"{journal.path} {found.what} while this run was writing it"
        if journal is not self._rollouts:
            return InterferenceError(
                f"{what}. The rollouts are safe; continue with +resume_from_cache=true, which plays rollouts "
                "again whose failures are missing from it"
            )
        recorded = set(self._found.index.keys)
        held = len(recorded & {packed(key) for key, _ in read_keyed(journal.place)})
        self.ledger.lost = len(recorded) - held
        if found.moved_to is not None:
            return InterferenceError(
                f"{what}. All {len(recorded)} rollouts recorded so far are in {found.moved_to}; move it "
                "back, then continue with +resume_from_cache=true"
            )
        return InterferenceError(
            f"{what}. It holds {held} of the {len(recorded)} rollouts recorded so far; continue with "
            "+resume_from_cache=true, which checks every line and plays what is missing"
        )

    def sync(self) -> None:
        """Make what was written survive a power failure. Blocks; any thread may call it."""
        for journal in (self._rollouts, self._failures):
            if journal is not None:
                journal.sync()
