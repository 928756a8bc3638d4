"""Records the calls of an attempt to other models and MCP servers, which are never trained."""

import time
from typing import Any

from msgspec import structs

from r3l.views.tape import WHOLE, TapedCall

LONGEST_KEPT = 64 << 10
"""The most characters kept of a request or a reply."""

Message = dict[str, Any]


class PassedCalls:
    """The calls of one attempt, in the order of their replies. `attempt_began`: when the attempt
    began, on the monotonic clock. `begun`: the number of requests to other models so far."""

    def __init__(self, attempt_began: float) -> None:
        self.attempt_began, self.begun = attempt_began, 0
        self.calls: list[TapedCall] = []

    def repeat(self, recorded: TapedCall) -> None:
        """Records a call that was answered from the tape of an earlier attempt."""
        began = time.monotonic() - self.attempt_began
        self.calls.append(structs.replace(recorded, began=began, seconds=0.0))

    def record(
        self, model: str, dialect: str, request_hash: str, asked: str, reply: Message, began: float
    ) -> None:
        """Records a finished call. If it failed, `reply["finish"]` is the reason."""
        said, finish = reply["content"], reply.pop("finish", WHOLE)
        call = TapedCall(
            dialect=dialect,
            request_hash=request_hash,
            parent=-1,
            messages=({"role": "user", "content": asked[:LONGEST_KEPT]},),
            reply=reply | {"content": said[:LONGEST_KEPT]},
            finish="cut" if finish == WHOLE and len(said) > LONGEST_KEPT else finish,
            began=began - self.attempt_began,
            seconds=time.monotonic() - began,
            trained=False,
            model=model,
        )
        self.calls.append(call)
