"""Stores for the viewer: groups with retries, written without a service."""

from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from buffer.storage.result_checksums import checksum
from buffer.storage.store import Store
from buffer.storage.stored_rows import GroupRow, LedgerRow, TrainedAttempt
from buffer.storage.transaction import Parts
from r3l import codec
from r3l.records import (
    Extra,
    GroupPlan,
    ReflectionRecord,
    Segment,
    SlotResult,
    Task,
    Trajectory,
    done,
)
from r3l.views.tape import TapedCall, write_tape
from tests.buffer.fakes import thought

PLAN = GroupPlan(4)


@dataclass
class Made:
    """What a group is made of."""

    reward: float = 0.0  # of the base attempts
    steps: int = 3
    tokens: int = 4  # of each response
    observation: str = "a door"
    state: str = "trained"


def attempt(slot, made: Made, *, version=0, reward=0.0, **more) -> Trajectory:
    """Steps of an observation of 3 tokens and a response each; the second token surprises. `more`:
    other fields."""
    size = 3 + made.tokens
    spans = np.array([[k * size + 3, (k + 1) * size] for k in range(made.steps)], np.int32)
    logprobs = np.zeros(made.steps * size, np.float32)
    for start, end in spans:
        logprobs[start:end] = -0.25
        logprobs[start + 1] = -2.0
    return Trajectory(
        slot=slot,
        token_ids=np.arange(made.steps * size, dtype=np.int32) % 50,
        logprobs=logprobs,
        step_spans=spans,
        step_versions=np.full(made.steps, version, np.int32),
        step_newest_versions=np.full(made.steps, version, np.int32),
        step_seconds=np.full(made.steps, 0.5, np.float32),
        reward=reward,
        system="be brief",
        observations=(made.observation,) * (made.steps + 1),
        actions=tuple(f"act {k}" for k in range(made.steps)),
        **more,
    )


def results(made: Made, version=0) -> list[SlotResult]:
    """Two base attempts; a retry of the first from step 1, one of the second that failed."""
    more = {"of": 0, "pivot": 1, "reflection": "reflect-0"}
    return [
        done(attempt(0, made, version=version)),
        done(attempt(1, made, version=version, reward=made.reward)),
        done(attempt(2, made, version=version, reward=1.0, **more)),
        SlotResult(3, "failed", cause="replay_diverged", of=1),
    ]


def reflections() -> list[ReflectionRecord]:
    """The reflections on the two base attempts of `results`."""
    text = '{"root_cause_analysis": "step 1 spoils"}'
    names = (("reflect-0", 0), ("reflect-1", 1))
    return [thought(n, text, of=of, outcome="failure", pivot=1, tokens=9) for n, of in names]


plain_results = results


def tool_call(name: str) -> dict:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": '{"a": 1}'}}


def agent_results(made: Made, version=0) -> list[SlotResult]:
    """The same, but an agent made the first pair's calls. The base: call 0 uses a tool, call 1
    continues it, call 2 parts from it, call 3 is a conversation that the record does not have."""
    slots = plain_results(replace(made, steps=2), version)
    asked, told = {"role": "user", "content": made.observation}, {"role": "tool", "content": "2"}
    tool = {"role": "assistant", "content": None, "tool_calls": [tool_call("add")]}
    says = {"role": "assistant", "content": "it is 2"}
    other = {"role": "user", "content": "make it short"}
    tokens = made.tokens
    first = TapedCall("chat", "a", -1, (asked,), tool, "stop", ("add",), tokens=tokens, read=3)
    first = structs.replace(first, seconds=0.25, conversation=0)
    second = TapedCall("chat", "b", 0, (told,), says, "stop", tokens=tokens, read=6 + tokens)
    second = structs.replace(second, conversation=0)
    third = structs.replace(second, request_hash="c", messages=(told, other), conversation=1)
    fourth = TapedCall("messages", "d", -1, (other,), says, "stop", tokens=3, trained=False)

    def with_tape(slot: SlotResult, *calls: TapedCall) -> SlotResult:
        main = slot.trajectory
        names = ("token_ids", "logprobs", "step_spans", "step_versions", "step_newest_versions")
        segment = Segment(**{name: getattr(main, name) for name in names}, start=1)
        extra = Extra(segments=(segment,) * (len(calls) > 2), tape=write_tape(calls))
        return structs.replace(slot, trajectory=structs.replace(main, extra=extra))

    slots[0] = with_tape(slots[0], first, second, third, fourth)
    slots[2] = with_tape(slots[2], first, second)
    return slots


def write(store: Store, groups: int, tasks: int = 20, **made) -> None:
    """Add finished groups to a store, each task's in turn; version and step grow with them."""
    for first in range(0, groups, 1000):
        with store.write() as txn:
            for index in range(tasks) if first == 0 else ():
                txn.add_task("train", "", index, Task(f"door/{index:04}", "doors", index))
            for number in range(first, min(first + 1000, groups)):
                _write_group(txn, number, number % tasks, Made(reward=number % 2, **made))
            txn.put_count("group/train/trained", min(first + 1000, groups))


def write_group(store: Store, made, thoughts, plan: GroupPlan) -> None:
    """Add one unfinished group of these results and reflections to an empty store."""
    with store.write() as txn:
        txn.add_task("train", "", 0, Task("door/0000", "doors", 0))
        row = GroupRow(
            group_id="g0000000001",
            task_id="door/0000",
            task_index=0,
            plan=plan,
            env="doors",
            state="filling",
            resolved_slots=tuple(one.slot for one in made),
            of=tuple(one.of for one in made),
            played=tuple(one.slot for one in made if one.trajectory),
            rewards=tuple(one.trajectory.reward for one in made if one.trajectory),
            checksums=tuple(checksum(codec.encode(one)) for one in made),
            reflections=tuple(
                (one.name, checksum(codec.encode(one), ReflectionRecord)) for one in thoughts
            ),
            times={"leased": 1000.0},
        )
        txn.put_row(row)
        encoded = {one.slot: codec.encode(one) for one in made}
        txn.put_parts(row.group_id, Parts(encoded, {t.name: codec.encode(t) for t in thoughts}))


def _write_group(txn, number, task, made) -> None:
    version, at = number // 10, 1000.0 + number
    encoded = {one.slot: codec.encode(one) for one in results(made, version)}
    thoughts = {one.name: codec.encode(one) for one in reflections()}
    everything = [*encoded.values(), *thoughts.values()]
    row = GroupRow(
        group_id=f"g{number + 1:010}",
        task_id=f"door/{task:04}",
        task_index=task,
        plan=PLAN,
        env=txn.task("train", "", task).env,
        state=made.state,
        actor="actor-0",
        resolved_slots=tuple(encoded),
        of=(-1, -1, 0, 1),
        played=(0, 1, 2),
        oldest_version=version,
        rewards=(0.0, made.reward, 1.0),
        nbytes=sum(map(len, everything)),
        checksums=tuple(map(checksum, encoded.values())),
        failures=("distilled/replay_diverged",),
        reflections=tuple((n, checksum(x, ReflectionRecord)) for n, x in thoughts.items()),
        times={"leased": at, "filling": at + 1, "complete": at + 2, "drawn": at + 3,
               "trained": at + 4},
        steps=(version + 1,),
    )  # fmt: skip
    txn.put_row(row)
    txn.add_tag(row)
    txn.list_state(row)
    txn.write_record(row, Parts(encoded, thoughts))
    before = txn.step(version + 1)
    used = trained(row.group_id) if made.state == "trained" else ()
    txn.put_step(
        LedgerRow(version + 1, 1, version + 1, (), at, (before.attempts if before else ()) + used)
    )


def trained(group_id: str) -> tuple[TrainedAttempt, ...]:
    """How a step trained on a group: a retry and its base from the pivot on."""
    return (
        TrainedAttempt(group_id, group_id, 0, -0.5, 1, 0.01),
        TrainedAttempt(group_id, group_id, 1, 0.25, 0, 0.01),
        TrainedAttempt(group_id, group_id, 2, 3.0, 1, 0.02, reliance=-0.75),
    )
