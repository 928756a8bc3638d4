"""Supervises a run from the start of its first process to the end of its last.

start buffer, learner ─► buffer ready ─► start actors ─► watch progress, deaths, signals ─► stop all
       ▲                                                     │
       └── restart a dead process ◄──────────────────────────┘ (a learner: from its last checkpoint)

The ports are chosen first. So a process can start before the services that it needs.
If the supervisor itself is killed, launch/backends/run_keeper.py ends the processes.
"""

import math
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from launch.backends.process_commands import ProcessCommands
from launch.backends.processes import Child, Children
from launch.console import NoticeReader, Startup, bill_line, end_lines, eval_line, step_line
from launch.inspection.agent_training import AgentWatch
from launch.inspection.evidence import change
from launch.inspection.learning import LearningWatch
from launch.inspection.reward_rules import RewardWatch
from launch.inspection.snapshot import RECENT
from launch.restarts import FINAL, Restarts
from launch.topology.placement import Plan
from launch.unresponsive import Unresponsive
from learner.checkpoint import CHECKPOINTS, latest, read_state
from learner.exit_codes import EXIT_CODES
from r3l.errors import LearnerHung, UserError
from r3l.run.cards import write_model_cards
from r3l.run.files.json_lines import GrowingFile, parse_lines
from r3l.run.files.progress_lines import AgainLine, EvalLine, StepLine, from_json
from r3l.run.files.run_folder import RunFolder, run_name
from r3l.run.process.endpoints import reached
from r3l.run.process.free_space import lacking_space
from r3l.text import printable

WATCH_S = 0.2
BUFFER_START_S = 60.0
LOG_LINES = 15
ROOM_S = 10.0
STOPPING_S = 30.0  # between two lines about a learner that was asked to end
QUIET_S = 300.0  # without progress until the user is warned


class Run:
    """Starts and watches the processes of one plan.

    `say`: prints a line. `quiet`: prints no lines about steps, evaluations and starts. `commands`:
    builds command lines. `children`: starts and ends processes, by default on this machine.
    """

    def __init__(
        self,
        plan: Plan,
        say: Callable[[str], None],
        commands: ProcessCommands | None = None,
        children: Children | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        self.plan, self._print, self.quiet = plan, say, quiet
        self.commands = commands or ProcessCommands(plan)
        self.children = children or Children(plan.run / "logs", plan.config.learner.hang_s)
        self.folder = RunFolder(plan.run)
        self.progress = GrowingFile(self.folder.progress)
        self.startup = Startup()
        self.notices = NoticeReader(plan.run / "logs")
        config, self.actor_names = plan.config, [f"actor-{index}" for index in range(plan.actors)]
        self.restarts = Restarts(
            {"buffer": config.buffer.restarts, "learner": config.learner.restarts}
            | dict.fromkeys(self.actor_names, config.actor.restarts)
        )
        self.due: dict[str, float] = {}  # when processes that died are started again
        self.killed: Child | None = None  # a learner that hung and was killed here
        self.unresponsive = Unresponsive(config.buffer, self.say)
        # Earlier launches of the run count too.
        history = self.folder.history()
        self.learning, self.agents = LearningWatch(history), AgentWatch()
        self.reward = RewardWatch(history)
        self.evaluations, self.steps = history.evaluations, history.reached
        self.recent = deque(history.steps, maxlen=RECENT + 1)
        self.began = self.moved = time.monotonic()
        self.quiet_s = QUIET_S
        self.room_at, self.lack = self.began, ""
        self.interrupted = ""
        self.stopping_at = math.inf

    def say(self, line: str) -> None:
        """Prints a line. A closed terminal or a full disk does not end the run."""
        with suppress(OSError, UserError):
            self._print(printable(line))

    def execute(self) -> int:
        """Runs to the end and returns the exit code. Leaves no process behind."""
        handlers = {}
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            nohup = signum == signal.SIGHUP and signal.getsignal(signum) is signal.SIG_IGN
            if not nohup:
                handlers[signum] = signal.signal(signum, self._interrupt)
        try:
            return self._run_and_stop()
        finally:
            for signum, handler in handlers.items():
                signal.signal(signum, handler)

    def _run_and_stop(self) -> int:
        try:
            with self.commands.ports():
                code = self._run()
        finally:
            self.unresponsive.close()
            self.stopping_at = time.monotonic() + STOPPING_S / 10
            killed = self.children.stop(self._report_stopping)
            self._show_progress()
            self.folder.drop_next_settings()
        if killed:
            when = "at the second Ctrl-C" if self.children.impatient else "after the deadline"
            self.say(f"killed {when}: {', '.join(killed)}")
        if code != 0:
            self._report_checkpoint()
        if code == 0:
            self._write_cards()
            for line in (self._summary(), *end_lines(self.plan.run)):
                self.say(line)
        if code == 0 or self.steps:  # the line before says why a run ended that made none
            self._report_bill()
        return code

    def _write_cards(self) -> None:
        try:
            write_model_cards(self.folder)
        except (OSError, UserError) as error:
            self.say(f"the model's card was not written: {error}")

    def _report_bill(self) -> None:
        try:
            line = bill_line(self.plan.run, self.plan.config, self.steps)
        except UserError as error:  # it is damaged
            line = str(error)
        if line:
            self.say(line)

    def _run(self) -> int:
        buffer = self._start("buffer")
        self._start("learner", resume=self.plan.resume)
        if not self._wait_ready(buffer, BUFFER_START_S):
            return self._report_interrupt() if self.interrupted else self._report_death(buffer)
        address = self.commands.buffer_endpoint
        self.unresponsive.watch(reached(address), self.plan.keys)
        if self.plan.keys is not None:
            client = self.plan.keys / "client.json"
            self.say(f"buffer listens at {address}; an actor that joins from another machine needs "
                     f"--keys {client}")  # fmt: skip
        for name in self.actor_names:
            self._start(name, resume=self.plan.resume)
        while not self.interrupted:
            self._show_progress()
            self._report_start()
            self._report_room()
            self._report_no_progress()
            self.children.keep()
            self._kill_unresponsive()
            self._kill_hung_learner()
            for child in self.children.dead():
                if child.name in self.due:
                    self._start_if_due(child.name)
                elif (code := self._after_death(child)) is not None:
                    return code
            time.sleep(WATCH_S)
        return self._report_interrupt()

    def _report_interrupt(self) -> int:
        where = run_name(self.plan.run)
        self.say(f"{self.interrupted}: stopping; continue with r3l-launch --resume --run {where}")
        return 130

    def _report_stopping(self) -> None:
        """Shows what the learner is still doing after it was asked to end."""
        self._show_progress()
        learner = self.children.members.get("learner")
        if learner is None or learner.ended or time.monotonic() < self.stopping_at:
            return
        self.stopping_at = time.monotonic() + STOPPING_S
        doing = self.children.heartbeat.doing or "to start"
        self.say(f"waiting for the learner to save step {self.steps} (it has begun {doing}); "
                 "Ctrl-C kills it")  # fmt: skip

    def _report_checkpoint(self) -> None:
        """Shows the last checkpoint, and how many steps a resumed run would repeat."""
        newest = latest(self.plan.run / CHECKPOINTS)
        kept = read_state(newest).version if newest else 0
        if self.steps:
            again = max(self.steps - kept, 0)
            self.say(f"last checkpoint: step {kept}; {again} steps will be made again")

    def _after_death(self, child: Child) -> int | None:
        """Returns the run's exit code if this death ends the run. If not, restarts the process."""
        # DeepSpeed's launcher exits with 0 when it is killed, so the report is needed too.
        if child.exit_code == 0 and (last := child.status) and last.state == "done":
            return 0
        if child is self.killed or child.exit_code == EXIT_CODES[LearnerHung]:
            self._count_hang(child)
        if not self.restarts.allow(child):
            return self._report_death(child)
        count, limit = len(self.restarts.deaths[child.name]), self.restarts.limits[child.name]
        where = " from its last checkpoint" if child.name == "learner" else ""
        why = f": {reason:.200}" if (reason := child.reason()) else ""
        delay_s = self.restarts.delay_s(child)
        when = f" in {delay_s:g} s" if delay_s else ""
        self.say(
            f"{child.name} ended with exit code {child.exit_code}{why}; restarted{where}{when} "
            f"({count} of {limit} restarts within an hour; see {child.log})"
        )
        self.due[child.name] = time.monotonic() + delay_s
        self._start_if_due(child.name)
        return None

    def _start_if_due(self, name: str) -> None:
        if time.monotonic() >= self.due[name]:
            del self.due[name]
            self._start(name, resume=True)

    def _start(self, name: str, *, resume: bool = False) -> Child:
        """Starts a process. Replaces an earlier process with the same name."""
        if name == "buffer":
            self.unresponsive.buffer_s = 0.0
        if name == "learner":
            self.children.heartbeat.renew()
        return self.children.start(name, self.commands.of(name, resume=resume))

    def _wait_ready(self, child: Child, deadline_s: float) -> bool:
        """Waits until a process is ready, at most `deadline_s`. Returns whether it is ready."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end and not self.interrupted and child.exit_code is None:
            if child.ready:
                return True
            time.sleep(0.05)
        return False

    def _report_death(self, child: Child) -> int:
        self._show_progress()
        code, reason = child.exit_code, child.reason()
        how = "was not ready in time" if code is None else f"ended with exit code {code}"
        if code in FINAL and reason:  # it ended on purpose
            self.say(f"{child.name} {how}: {reason} (log: {child.log})")
            return code
        why = f": {reason}" if reason else ""
        self.say(f"{child.name} {how}{why}; its last log lines ({child.log}):")
        for line in child.last_lines(LOG_LINES):
            self.say(f"  {line}")
        return code if code in FINAL else 1

    def _kill_unresponsive(self) -> None:
        """Reports an unresponsive buffer or actor. After a time limit, kills it to restart it.

        A stopped actor is killed sooner. A running actor may just be starting a new engine.
        """
        self.unresponsive.report(self._actors())
        lease_s, engine_s = self.plan.config.buffer.lease_s, self.plan.config.actor.engine_timeout_s
        for child in self.children.members.values():
            if child.name in self.due:
                continue
            silent_s = self.unresponsive.actors_s.get(child.name, 0.0)
            if silent_s > lease_s + (0.0 if child.stopped else engine_s):
                how = "stopped" if child.stopped else "hung"
                child.killed_for = f"{how}, and silent for {silent_s:.0f} s, so it was killed"
                self.unresponsive.actors_s.pop(child.name)
                child.kill()
        if self.unresponsive.buffer_s > (limit := self.plan.config.buffer.reply_s):
            self.say(f"buffer is killed: no reply for {limit:g} s (buffer.reply_s)")
            self.unresponsive.buffer_s = 0.0
            self.children.members["buffer"].kill()

    def _actors(self) -> dict[str, Child]:
        """Returns the ready actors, keyed by their name in the buffer."""
        actors = [self.children.members[name] for name in self.actor_names]
        return {status.name: child for child in actors if (status := child.status)}

    def _kill_hung_learner(self) -> None:
        """Kills a learner whose heartbeat is overdue. Most hung learners end themselves, but a
        learner paused by a signal cannot end itself."""
        learner = self.children.members["learner"]
        if learner.exit_code is None and self.children.heartbeat.overdue():
            learner.show_stacks()
            learner.kill()
            self.killed = learner

    def _count_hang(self, learner: Child) -> None:
        doing = self.children.heartbeat.doing
        ended_by = "launcher" if learner is self.killed else "itself"
        self.folder.add_hang(doing, ended_by)
        self.say(
            f"learner hung: no heartbeat for {self.children.hang_s:g} s (learner.hang_s) "
            f"since it began {doing}; ended by {ended_by}, stacks in {learner.log}"
        )

    def _report_start(self) -> None:
        """Shows which processes are still starting, every few seconds."""
        if self.startup.ended:
            return
        names, members = ("buffer", "learner", *self.actor_names), self.children.members
        line = self.startup.line({name: name in members and members[name].ready for name in names})
        if line and not self.quiet:
            self.say(line)

    def _report_room(self) -> None:
        """Reports when the disk or shared memory is nearly full, and when both have room again."""
        if time.monotonic() < self.room_at:
            return
        self.room_at, lack = time.monotonic() + ROOM_S, lacking_space(self.plan.run)
        if bool(lack) != bool(self.lack):
            self.say(lack or "the disk and the shared memory have room again")
        self.lack = lack

    def _report_no_progress(self) -> None:
        """After QUIET_S without progress, reports what the learner is doing. Doubles the wait after
        each report."""
        silent = time.monotonic() - self.moved
        if silent > self.quiet_s:
            self.quiet_s *= 2
            doing, log = (
                self.children.heartbeat.doing or "none",
                self.children.members["learner"].log,
            )
            self.say(f"no step for {silent:.0f} s; the learner's last heartbeat: {doing} ({log})")

    def _show_progress(self) -> None:
        for notice in self.notices.new():
            self.say(notice)
        for line in parse_lines(self.progress.new(), from_json).values:
            self.moved, self.quiet_s, shown = time.monotonic(), QUIET_S, ""
            if isinstance(line, EvalLine):
                self.evaluations.append(line)
                shown = eval_line(line)
            elif isinstance(line, AgainLine):
                self.say(f"learner continues from step {line.step} (it had reached {line.reached})")
                self.learning.go_back(line.step)
                self.reward.go_back(line.step)
                continue
            else:
                self.steps = line.step
                self._settle_config()
                self.recent.append(line)
                shown = step_line(self.recent, self.plan.config.learner.steps)
            if shown and not self.quiet:
                self.say(shown)
            for why in self.learning.lines(line):
                self.say(why)
            for why in self.agents.lines(line) if isinstance(line, StepLine) else ():
                self.say(why)
            for why in self.reward.lines(line):
                self.say(why)

    def _settle_config(self) -> None:
        try:
            self.folder.settle_settings(self.steps)
        except OSError as error:
            self.say(f"{self.plan.run}: the settings could not be written ({error})")

    def _summary(self) -> str:
        seconds = time.monotonic() - self.began
        if not self.evaluations:
            return f"done ({self.steps} steps, {seconds:.0f} s)"
        first, last = self.evaluations[0], self.evaluations[-1]
        success, doubt = f"{first.success:.2f} -> {last.success:.2f}", ""
        known = change(first, last, "success")
        if first.step == last.step:  # nothing to compare, as after a budget that ended early
            since = ", not evaluated since" if last.step < self.steps else ""
            success = f"{last.success:.2f} at step {last.step}{since}"
        elif known and known.low <= 0 <= known.high:
            doubt = (
                f"; not a clear change (95 % interval {known.low:+.2f} to {known.high:+.2f}): "
                "r3l-launch report compares the tasks one by one"
            )
        measured = f"({last.tasks} tasks, {self.steps} steps, {seconds:.0f} s)"
        return f"eval success {success} {measured}{doubt}"

    def _interrupt(self, signum: int, frame: object) -> None:
        if self.interrupted and signum == signal.SIGINT:
            self.children.impatient = True
        self.interrupted = signal.Signals(signum).name
