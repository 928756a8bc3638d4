"""One attempt of an agent: its secret key, its calls and its result.

request ─► repeats an earlier request? ── yes ─► the earlier request's answer
                   │ no  (actors.gateway.open_requests)
                   ▼
           the tree: tokens to read ─► on the tape of an earlier attempt? ── yes ─► its reply
                                                       │ no
                                                       ▼
                                                policy.sample ─► reply
                                                       │ does not fit the shape that is asked for
                                                       ▼
                                                policy.sample under a grammar ─► reply, not trained
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from actors.dialects.chat_completions import AgentRequest, Answer, Refused, bad, too_deep, write
from actors.gateway.call_tree import CallTree, Kind, Node
from actors.gateway.grammars import grammar_of, is_answer
from actors.gateway.open_requests import Gone, OpenRequest, OpenRequests
from actors.gateway.parsers import Reply, ReplyReader
from actors.gateway.passed_calls import Message, PassedCalls
from actors.gateway.recorded_call import RecordedCall, RetryPlayer, TapePlayer, hash_of_request
from r3l.errors import (
    EngineDead,
    EnvironmentFailed,
    EpisodeError,
    R3LError,
    RequestRefused,
    UserError,
)
from r3l.records import Task
from r3l.rollout.agent_chat import AgentMessage, TextTooLong
from r3l.rollout.attempt import ParamsOfStep
from r3l.rollout.policy_interface import Policy, Sample, SampleParams
from r3l.run.actor_metrics import ActorMetrics
from r3l.views.tape import TapedCall, without

log = logging.getLogger(__name__)

MOST_CALLS = 256
MOST_CONVERSATIONS = 64
MOST_REFUSED = 16
"""The most refused grammars of an attempt. A further one is not even tried, since trying takes
time."""
MOST_LOGGED = 20
"""The most refused grammars that an actor writes to its log. All are counted."""
AnswerMcp = Callable[[str, Message, Mapping[str, str]], Awaitable[Message | None]]
"""The type of `McpRelay.answer`. Takes a server's name, a message and its HTTP headers."""


@dataclass(eq=False)
class Session:
    """An attempt at a task. The policy reads `guidance` in trained calls of the kind `main`.

    `shown`: what the agent may see of its task. `graded`: a grader gives the reward; a result that
    the agent posts then only ends the attempt. `at_call`: saves or restores the agent's world while
    a reply is sampled. `keep`: saves the progress before the agent gets the reply. `shapes`:
    actor.agent.shapes. `restored`: set once a retry's world is put back or the attempt ends.
    `ended`: set once no further call is answered. `full`: whether the context of a call was full.
    `passed`: the calls to other models and MCP servers. `names`: the model names by which the
    policy was asked. `policy` stands for all names that are known to mean the trained policy.
    """

    policy: Policy
    reader: ReplyReader
    metrics: ActorMetrics
    task: Task
    params: ParamsOfStep
    ignore: Sequence[str] = ()  # patterns of text that may differ in a replay
    tape: TapePlayer | None = None  # answers calls in place of the policy
    guidance: str = ""
    main: Kind | None = None  # default: the kind of the first call
    keep: Callable[[], Awaitable[None]] | None = None
    at_call: Callable[[Node], Awaitable[None]] | None = None
    answer_mcp: AnswerMcp | None = None
    graded: bool = False
    shapes: Literal["free_first", "grammar"] = "free_first"
    shown: dict[str, Any] = field(init=False)
    restored: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    ended: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    result: dict[str, Any] | None = field(default=None, init=False)
    problem: R3LError | None = field(default=None, init=False)
    full: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.key, self.began = secrets.token_urlsafe(24), time.monotonic()
        self.shown = self.task.options.get("task", {})
        self.context_length: int | None = getattr(self.policy, "context_length", None)
        self.tree = CallTree(self.reader.chat, self.context_length)
        self.passed, self.reading_long = PassedCalls(self.began), asyncio.Lock()
        self.trying = asyncio.Lock()
        self.open_requests = self.held = 0
        """How many requests are being read or wait for an answer, and their bytes."""
        self.refused_grammars = 0
        self.names = set[str]()
        self._requests = OpenRequests()

    def sampling(
        self,
        request: AgentRequest,
        body_hash: str,
        dialect: str,
        *,
        again: bool,
        ready: Node | None = None,
        gone: Gone = lambda: False,
    ) -> asyncio.Task[Answer]:
        """Returns the asyncio task that answers a request. A repeated request gets the same task; a
        new request with equal content gets a task of its own.

        `again`: the client says that it repeats a request. `ready`: the request's node, if it is
        rendered already. `gone`: whether the client has disconnected. The task continues if the
        agent disconnects. This method and the task may raise Refused.
        """
        open_ = self._requests.repeated(body_hash, again=again)
        if open_ is None:
            node, answering = self._begin(request, dialect, ready)
            sampling = asyncio.create_task(_until_over(answering))
            sampling.add_done_callback(lambda task: task.cancelled() or task.exception())
            open_ = OpenRequest(node, sampling)
            self._requests.add(body_hash, open_)
        open_.clients.append(gone)
        return open_.answering

    def received(self, sampling: asyncio.Task[Answer]) -> None:
        """Notes that the agent got the answer of a task."""
        self._requests.received(sampling)

    def finish(self, result: dict[str, Any]) -> None:
        """Ends the attempt with a result from the agent. Raises Refused if it has ended already."""
        self.check_open()
        self.result = result
        self.end()

    def end(self) -> None:
        """Ends the attempt: no further call is answered."""
        self.ended.set()
        self.restored.set()

    def close(self) -> None:
        self.end()
        self._requests.cancel()

    def repeated(self, request_hash: str) -> TapedCall | None:
        """Looks on the tape for a call to another model or an MCP server. Returns the recorded
        answer, or None."""
        recorded = self.tape.take_passed(request_hash) if self.tape else None
        if recorded:
            self.passed.repeat(recorded)
        return recorded

    @property
    def pivot(self) -> Node:
        """The call at which a retry starts to sample: the tape's pivot, or else the first call with
        guidance, or else the first call."""
        if isinstance(self.tape, RetryPlayer) and (reached := self.tape.pivot_node):
            return reached
        guided = (node for node in self.tree.nodes if node.guided)
        return next(guided, self.tree.nodes[0])

    def check_open(self) -> None:
        """Raises Refused if the attempt has ended."""
        if self.ended.is_set():
            raise Refused(400, "attempt_is_over", "this attempt has ended; no call is answered")

    def check_calls(self, calls: int, most: int) -> None:
        """Raises Refused if the attempt has ended, or if `calls` has reached the limit `most`."""
        self.check_open()
        if calls >= most:
            raise Refused(400, "too_many_calls", f"an attempt has at most {most} calls")

    def place(self, request: AgentRequest, ready: Node | None = None) -> Node:
        """Makes the node of a request (`CallTree.next`). Raises Refused if the messages do not fit
        the context, or if the chat template refuses them."""
        try:
            return self.tree.next(request.messages, request.tools, request.arguments, ready=ready)
        except TextTooLong as error:
            raise self.too_long(str(error)) from None
        except UserError as error:
            raise bad(str(error)) from None

    def too_long(self, why: str) -> Refused:
        """Returns the refusal of messages that exceed the context, and notes that it was full."""
        self.full = True
        return Refused(
            400,
            "context_length_exceeded",
            f"this model's maximum context length is exceeded: {why}; shorten them",
        )

    def _begin(
        self, request: AgentRequest, dialect: str, ready: Node | None
    ) -> tuple[Node, Awaitable[Answer]]:
        self.check_calls(len(self.tree.nodes), MOST_CALLS)
        began = time.perf_counter()
        try:
            params, constrained = self._sampling(request)
            if request.begun:
                self._check_begun(request.messages[-1])
            node = self.place(request, ready)
            if self.tree.branches_with(node) > MOST_CONVERSATIONS:
                raise Refused(
                    400,
                    "too_many_conversations",
                    f"at most {MOST_CONVERSATIONS} conversations are allowed",
                )
            shaped = "grammar" if constrained and self.shapes == "grammar" else ""
            node.untrained = shaped if request.trained else "asked"
            node.asked = replace(request, messages=())
            node.dialect, node.began = dialect, time.monotonic() - self.began
            node.request_hash = hash_of_request(request, self.ignore)
            recorded = self.tape and self.tape.take(node.request_hash, request, node)
            if recorded is None and request.trained and self._guides(node):
                self._guide(node)
        except UserError as error:
            raise Refused(400, "invalid_request_error", str(error)) from None
        except EpisodeError as error:
            self.fail(error)
            raise Refused(400, str(error.cause), str(error)) from None
        self.metrics.render_s += time.perf_counter() - began
        self.tree.add(node)  # what is refused is not a call
        self.metrics.agent["calls"] += 1
        self.metrics.agent["rebased"] += node.parent is None and node.number > 0
        if recorded:
            return node, self._repeat(node, recorded)
        return node, self._sample(node, request, params)

    def _check_begun(self, last: AgentMessage) -> None:
        """Raises UserError if the last message is the beginning of a reply, unless the policy has
        finished that reply in this attempt."""
        if not self.tree.replied(last):
            raise UserError(
                "messages: the last message is a reply that the agent has begun, which this "
                "gateway cannot continue; end with a user message"
            )

    def _guides(self, node: Node) -> bool:
        """Returns whether there is guidance and the call has the guided kind. Before comparing
        kinds, removes the text that `ignore` matches."""
        if not self.guidance:
            return False
        first = self.tree.nodes[0] if self.tree.nodes else node
        (system, tools), (main, named) = node.kind, self.main or first.kind
        return tools == named and without(system, self.ignore) == without(main, self.ignore)

    def _guide(self, node: Node) -> None:
        """Adds guidance to a call. Raises EnvironmentFailed if the chat template refuses it."""
        try:
            self.tree.guide(node, self.guidance)
        except UserError as error:
            raise EnvironmentFailed(f"agent: {error}", cause="guidance_refused") from None

    def _sampling(self, request: AgentRequest) -> tuple[SampleParams, bool]:
        """Returns the sampling parameters of a reply, and whether a grammar constrains it."""
        own = self.params(len(self.tree.nodes))
        grammar = grammar_of(self.reader, request)
        budget = min(own.max_tokens, request.max_tokens or own.max_tokens)
        stop = (*own.stop, *request.stop)
        return replace(own, max_tokens=budget, stop=stop, **grammar), bool(grammar)

    async def _repeat(self, node: Node, recorded: RecordedCall) -> Answer:
        self.metrics.agent["taped"] += 1
        recorded.answer(node)
        self.full = self.full or node.finish == "overflow"
        return _written(node, recorded.call.read, recorded.call.tokens)

    async def _sample(self, node: Node, request: AgentRequest, params: SampleParams) -> Answer:
        context, began = node.context(guided=True), time.monotonic()
        if _has_grammar(params):
            await self._check_grammar(request, params)
        try:
            sampling = self._sampled(node, request, params, context)
            world = self.at_call(node) if self.at_call else asyncio.sleep(0)
            (sample, reply), _ = await asyncio.gather(sampling, world)
        except EngineDead as error:
            self.fail(error)
            raise Refused(503, "engine_replaced", "a new engine is started; ask again") from error
        except RequestRefused as error:
            raise self._refused(request, error) from error
        except EpisodeError as error:
            self.fail(error)
            raise Refused(400, "attempt_failed", str(error)) from error
        self.full = self.full or sample.finish_reason == "overflow"
        if not sample.token_ids:
            raise self.too_long(f"the messages have {len(context)} tokens")
        self.metrics.agent["with_tools"] += bool(request.tools) and request.choice != "none"
        self.metrics.agent["tools_called"] += bool(reply.calls)
        self.metrics.agent["tool_parse_failed"] += reply.broken
        node.sample, node.finish, node.reply = sample, sample.finish_reason, reply.message()
        node.stop = reply.stop
        node.seconds = time.monotonic() - began
        if self.keep:
            await self.keep()
        read = len(node.context())  # without guidance, which the agent must not notice
        return _written(node, read, len(sample.token_ids))

    async def _sampled(
        self, node: Node, request: AgentRequest, params: SampleParams, context: list[int]
    ) -> tuple[Sample, Reply]:
        """Samples a reply. If the request has a grammar and the reply may be trained, first samples
        it freely. If that does not answer the request, samples once more under the grammar."""
        counts, shaped = self.metrics.agent, _has_grammar(params) and request.trained
        counts["shapes_asked"] += shaped
        if shaped and self.shapes == "free_first":
            free = replace(params, json_schema=None, structural_tag=None)
            sample = await self.policy.sample(context, free)
            sample, reply = self._read(sample, request, node, free)
            if is_answer(request, reply) or not sample.token_ids:
                return sample, reply
            node.missed, node.untrained = sample.token_ids, "grammar"
        counts["shapes_missed"] += shaped
        sample = await self.policy.sample(context, params)
        return self._read(sample, request, node, params)

    def _read(
        self, sample: Sample, request: AgentRequest, node: Node, params: SampleParams
    ) -> tuple[Sample, Reply]:
        """Reads a reply. If it has several tool calls and only one is allowed, cuts it after the
        first, so that the calls cut off are neither answered nor trained."""
        ids, tools, arguments = sample.token_ids, request.tools, node.arguments
        shaped = _has_grammar(params)
        choice = request.choice if shaped or request.choice == "none" else "auto"
        read = partial(self.reader.read, tools=tools, arguments=arguments, shaped=shaped)
        reply = read(ids, choice=choice, stop=params.stop)
        if request.parallel or len(reply.calls) < 2:
            return sample, reply
        if (n := self.reader.first_call(ids, tools, arguments)) is None:
            return sample, replace(read(ids, choice="none", stop=params.stop), broken=True)
        kept = replace(
            sample, token_ids=ids[:n], logprobs=sample.logprobs[:n], finish_reason="stop"
        )
        return kept, read(kept.token_ids, choice=choice)

    async def _check_grammar(self, request: AgentRequest, params: SampleParams) -> None:
        """Raises Refused if the engine cannot follow the grammar of a request."""
        check = getattr(self.policy, "check_grammar", None)
        async with self.trying:  # one at a time, so that an attempt delays itself, not others
            if self.refused_grammars >= MOST_REFUSED:
                raise bad(f"an attempt may ask for at most {MOST_REFUSED} schemas that are refused")
            try:
                if check is not None:
                    await check(params)
            except RequestRefused as error:
                raise self._refused(request, error) from error
            except EpisodeError as error:
                self.fail(error)
                raise Refused(400, "attempt_failed", str(error)) from error

    def _refused(self, request: AgentRequest, error: RequestRefused) -> Refused:
        """Counts a request that the engine refuses. Names its grammar and the task."""
        if request.json_schema is None and not error.cause.startswith("grammar"):
            return bad(f"{error!s:.500}")
        self.metrics.agent["grammar_refused"] += 1
        self.refused_grammars += 1
        name = f"the schema {request.schema_name!r:.80}" if request.schema_name else "the schema"
        what = name if request.json_schema is not None else "the schemas of the tools"
        said = f"{what}, asked for in task {self.task.task_id}: {error!s:.500}"
        if self.metrics.agent["grammar_refused"] <= MOST_LOGGED:
            log.warning("a request of an agent is refused: %s", said)
        return bad(said)

    def fail(self, error: R3LError) -> None:
        """Ends the attempt with an error. Keeps the first of several errors."""
        self.problem = self.problem or error
        self.end()


def _has_grammar(params: SampleParams) -> bool:
    return params.json_schema is not None or params.structural_tag is not None


def _written(node: Node, read: int, sampled: int) -> Answer:
    cut = node.finish != "stop"
    return write(node.reply, node.number, cut=cut, read=read, sampled=sampled, stop=node.stop)


async def _until_over(answering: Awaitable[Answer]) -> Answer:
    """Returns an answer. Raises Refused if the attempt ends first."""
    try:
        return await answering
    except asyncio.CancelledError:
        raise Refused(400, "attempt_is_over", "this attempt has ended") from None
    except RecursionError:
        raise too_deep() from None
