"""What an OpenEnv server says over HTTP: its schemas, a description, and its tasks if it has any.

GET /schema, /metadata, /list_environments, /NAME/splits      POST /NAME/num_tasks
"""

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from envs.base import SPLITS, ListedTasks, Split
from r3l.errors import UserError
from r3l.records import Task
from r3l.run.process.endpoints import is_near

LARGEST_PAGE = 1 << 20  # bytes
PAGE_S = 10.0
"""Time limit for an answer, its head included, seconds."""
MOST_TASKS = 100_000
"""The most tasks of a split that are used."""


def address_of(url: str) -> str:
    """Returns a server's address in the form that every URL of the server begins with. Raises
    UserError if it is not the address of a server."""
    scheme, rest = [*url.split("://", 1), ""][:2]
    if scheme.lower() not in ("http", "https") or not rest or set("?#") & set(rest):
        raise UserError(
            f"env openenv:{url}: is not the address of a server; write http://HOST:PORT, or https://"
        )
    return f"{scheme.lower()}://{rest.rstrip('/')}"


def page(name: str, url: str, path: str, asked: Mapping[str, Any] | None = None) -> Any:
    """Returns the JSON that a server shows at `path`; None if it has no such page. `asked`: the
    body of a POST. Raises UserError in one line if the server does not answer within PAGE_S, or
    answers with an error or something other than JSON."""
    with ThreadPoolExecutor(1) as thread:  # this thread may have an event loop of its own
        text = thread.submit(asyncio.run, _fetch(name, url, path, asked)).result()
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _none(name, path, "is not JSON") from None


async def _fetch(name: str, url: str, path: str, asked: Mapping[str, Any] | None) -> bytes | None:
    """Returns the text of a page; None if there is no such page. The head and the body together
    have PAGE_S; a time limit of the library would hold for each byte. Raises UserError."""
    how: dict[str, Any] = {"method": "GET"} if asked is None else {"method": "POST", "json": asked}
    try:
        async with (
            asyncio.timeout(PAGE_S),
            httpx.AsyncClient(timeout=PAGE_S, trust_env=not is_near(url)) as client,
            client.stream(**how, url=url + path) as answer,
        ):
            if answer.status_code in (httpx.codes.NOT_FOUND, httpx.codes.NOT_IMPLEMENTED):
                return None
            return await _whole(name, path, answer.raise_for_status())
    except httpx.HTTPStatusError as error:
        raise _none(name, path, f"answers {error.response.status_code}") from None
    except (httpx.TimeoutException, TimeoutError):
        raise _none(name, path, f"does not answer in {PAGE_S:g} s") from None
    except UserError:
        raise
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):  # of an address without a host
        raise _none(name, path, "does not answer") from None


async def _whole(name: str, path: str, answer: httpx.Response) -> bytes:
    text, limit = bytearray(), f"{LARGEST_PAGE >> 20} MiB in {PAGE_S:g} s"
    slow = UserError(f"env {name}: its {path} is larger or slower than {limit}")
    try:
        async for part in answer.aiter_bytes():
            text += part
            if len(text) > LARGEST_PAGE:
                raise slow
    except asyncio.CancelledError:  # by the time limit
        raise slow from None
    return bytes(text)


def schemas_of(name: str, url: str) -> dict[str, dict[str, Any]]:
    """Returns the JSON schemas of a server, keyed by name. Raises UserError unless there is one
    each for actions, observations and states, as in openenv 0.3 and later."""
    found = page(name, url, "/schema")
    if found is None:
        raise _none(name, "/schema", "is missing")
    for kind in ("action", "observation", "state"):
        if not isinstance(found, dict) or not isinstance(found.get(kind), dict):
            raise UserError(
                f"env {name}: its /schema has no {kind}; it must be a server of openenv 0.3 or "
                "later: pip install -U openenv, for the server"
            )
    return dict(found)


def description_of(name: str, url: str) -> str:
    """Returns the server's description of its task; "" if it has none of its own."""
    said = page(name, url, "/metadata")
    said = said if isinstance(said, dict) else {}
    title, text = (str(said.get(key) or "") for key in ("name", "description"))
    return "" if text == f"{title} environment" else " ".join(text.split())


def tasks_of(name: str, url: str, splits: Mapping[str, str]) -> ListedTasks:
    """Returns the tasks of a server's own splits. `splits`: the server's names of the splits, keyed
    by r3l's names. A task is reset by `split` and `index`. Raises UserError for an unknown split,
    or an empty one."""
    if not isinstance(splits, Mapping):
        raise UserError(
            f"env option splits is {splits!r:.80}; map r3l's splits to the server's, such as "
            "{train: train}"
        )
    if wrong := sorted(set(splits) - set(SPLITS)):
        raise UserError(f"env option splits: {wrong[0]} is not a split; use {', '.join(SPLITS)}")
    served = page(name, url, "/list_environments")
    title = served[0] if isinstance(served, list) and served else ""
    known = page(name, url, f"/{title}/splits") if title else None
    if not isinstance(known, list):
        raise UserError(f"env {name}: has no splits of tasks; leave out the env option splits")
    names = [str(each.get("name")) for each in known if isinstance(each, dict)]
    listed: dict[Split, list[Task]] = {}
    for split in (each for each in SPLITS if each in splits):
        theirs = splits[split]
        if theirs not in names:
            raise UserError(f"env {name}: has no split {theirs!r}; it has {', '.join(names)}")
        said = page(name, url, f"/{title}/num_tasks", {"split": theirs})
        count = said.get("num_tasks") if isinstance(said, dict) else None
        if type(count) is not int or count < 1:
            raise UserError(f"env {name}: its split {theirs!r} has {count!r:.80} tasks")
        listed[split] = [
            Task(f"{name}/{theirs}/{n:06d}", name, n, {"split": theirs, "index": n})
            for n in range(min(count, MOST_TASKS))
        ]
    return ListedTasks(listed)


def _none(name: str, path: str, why: str) -> UserError:
    return UserError(
        f"env {name}: no OpenEnv server answers: {path} {why}; start the server, and give its full "
        "address, with http:// and the port"
    )
