"""The command `r3l-buffer import`: inserts the groups of a file into a store or a running service.

file ─► all lines are checked ─► line by line ─► one transaction of a store
                                            └► a request per group to a service

A group is held in memory only until it is inserted.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import click

from buffer.client.clients import BufferClient
from buffer.groups import insertion
from buffer.groups.unit_of_work import Rules, UnitOfWork
from buffer.indexes.index import Index
from buffer.server.service import rules_of
from buffer.storage.store import Store
from buffer.storage.store_path import check_store, store_path
from buffer.tools.outside_groups import LeftOut, OutsideGroup, read
from buffer.tools.outside_traces import read_traces
from buffer.wire import operations
from r3l.errors import Conflict, R3LError, UserError
from r3l.models.model_folder import check_model_folder, read_tokenizer
from r3l.models.model_path import model_path
from r3l.records.imported import Chat
from r3l.rollout.chat import ChatFormat, EarlierReasoning
from r3l.run import config as configuration
from r3l.run.process.command_line import echo
from r3l.views.session_trace import is_trace

PATH = click.Path(path_type=Path)


@click.command("import")
@click.argument("place", metavar="RUN_OR_ENDPOINT")
@click.argument("file", type=PATH)
@click.option("--source", help="where groups come from that name no source; by default, the file")
@click.option("--keys", type=PATH, help="learner.json that keygen wrote, for an endpoint")
@click.option("--reward", type=float, help="of sessions that name none")
@click.option("--config", "config_path", type=PATH,
              help="a run's config.yaml; by default that beside the store")  # fmt: skip
def import_(
    place: str,
    file: Path,
    source: str | None,
    keys: Path | None,
    reward: float | None,
    config_path: Path | None,
) -> None:
    """Insert the groups of a file of JSON lines, as material for replay.

    A line is what `r3l-buffer export` wrote, or an object with `task` and `attempts`. An attempt
    has `token_ids`, `spans` of its responses, `reward`, and perhaps `logprobs`; or `messages` and
    `reward`. FILE may also be session traces, or a folder of them (`export --as traces`). RUN is a
    run that does not run; ENDPOINT is the address of a running service.
    """
    folder = None if "://" in place else store_path(place)
    if folder is not None:
        empty = f"r3l-buffer serve --store {folder} --bind tcp://127.0.0.1:5555"
        hint = f"; {empty} makes an empty one"
        check_store(folder, hint=hint)
    settings = config_path or _beside(folder)
    config = configuration.load(settings)
    chat = _chat(config.model, config.actor.earlier_reasoning)
    trace = is_trace(file)
    if reward is not None and not trace:
        raise UserError("--reward: is only for session traces; leave it out")
    reader = partial(read_traces, reward=reward) if trace else read
    entries, left = partial(reader, file, source or file.name, chat), Counter[str]()
    for _ in _groups(file, entries(), Counter()):  # refuses the file before a store is touched
        pass
    if folder is None:
        inserted = _send(place, keys, _groups(file, entries(), left), left)
    else:
        inserted = _write(folder, rules_of(config), _groups(file, entries(), left), left)
    for why, count in sorted(left.items()):
        echo(f"left out {count}: {why}", err=True)
    if folder is not None and settings is None:
        echo(
            f"store {folder}: there is no config.yaml beside it, so the tokens were "
            "checked against those of the shipped model; name a run's settings with --config",
            err=True,
        )
    echo(f"{inserted} groups inserted")


def _groups(
    file: Path, entries: Iterator[OutsideGroup | LeftOut], left: Counter[str]
) -> Iterator[OutsideGroup]:
    """Yields the groups of a file, and counts in `left` what is left out. Raises UserError."""
    is_empty = True
    for each in entries:
        is_empty = False
        if isinstance(each, LeftOut):
            left[each.why] += 1
        else:
            yield each
    if is_empty:
        raise UserError(f"file {file}: holds no lines; give what r3l-buffer export writes")


def _beside(folder: Path | None) -> Path | None:
    """Returns the settings of the run whose store is in `folder`, if there are any."""
    path = None if folder is None else folder.parent / "config.yaml"
    return path if path is not None and path.is_file() else None


def _chat(model: str, earlier_reasoning: EarlierReasoning) -> Callable[[], Chat]:
    """Returns what makes the chat format of a model, once it is needed."""

    @cache
    def make() -> Chat:
        folder = model_path(model)
        check_model_folder(folder, f"model {model}", weights=False)
        tokenizer = read_tokenizer(folder, f"model {model}")
        return ChatFormat(tokenizer, earlier_reasoning=earlier_reasoning)

    return make


def _request(group: OutsideGroup) -> operations.Insert:
    return operations.Insert(
        group.task,
        operations.encoded(group.results),
        group.source,
        operations.encoded(group.reflections),
        group.kind,
    )


def _refused(error: Conflict) -> str:
    """Returns the cause for which the run's algorithm refuses a group, or ""."""
    return str(error.facts.get("cause", ""))


def _write(folder: Path, rules: Rules, groups: Iterator[OutsideGroup], left: Counter[str]) -> int:
    """Inserts all groups or none into a store that no service uses. Returns their number."""
    inserted = 0
    with Store(folder, map_gib=None) as store:
        index = Index.load(store, rules.buffer)
        with store.write() as txn:
            work = UnitOfWork(txn, index, rules, time.time())
            for group in groups:
                try:
                    insertion.insert(work, _request(group))
                    inserted += 1
                except R3LError as error:
                    if not (isinstance(error, Conflict) and (cause := _refused(error))):
                        raise UserError(f"{group.where}: {error}; nothing was inserted") from None
                    left[f"refused by the run's algorithm ({cause})"] += 1
            work.finish()
    return inserted


def _send(
    endpoint: str, keys: Path | None, groups: Iterator[OutsideGroup], left: Counter[str]
) -> int:
    """Sends all groups to a service, one by one. Returns how many were inserted."""
    inserted = 0
    with BufferClient(endpoint, name="r3l-buffer import", keys=keys) as client:
        for group in groups:
            try:
                client.insert(
                    group.task, group.results, source=group.source,
                    reflections=group.reflections, kind=group.kind,
                )  # fmt: skip
                inserted += 1
            except R3LError as error:
                if not (isinstance(error, Conflict) and (cause := _refused(error))):
                    raise UserError(
                        f"{group.where}: {error}; {inserted} groups before it are inserted, so "
                        "remove their lines before you import the file again"
                    ) from None
                left[f"refused by the run's algorithm ({cause})"] += 1
    return inserted
