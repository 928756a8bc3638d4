"""A taskset of verifiers without tools: one question, one answer."""

import verifiers.v1 as vf


class ProductData(vf.TaskData):
    answer: str


class Product(vf.Task[ProductData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(len(trace.assistant_messages))


class Products(vf.Taskset[Product, vf.TasksetConfig]):
    def load(self):
        for number in range(3):
            prompt = f"Question {number}: what is 12 times 13?"
            yield Product(ProductData(prompt=prompt, answer="156"), self.config.task)


__all__ = ["Products"]
