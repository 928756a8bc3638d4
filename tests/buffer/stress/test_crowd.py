"""Many actors at once: every acknowledged put is kept, in bounded memory."""

import asyncio
import random
import threading

import psutil
import pytest
import zmq

from buffer import AsyncBufferClient, BufferClient, Lease
from buffer.storage.store import Store
from buffer.tools.verify import verify
from r3l.records import GroupPlan
from tests.buffer.fakes import calls

pytestmark = pytest.mark.system

ROOMY = ("learner.groups_per_step=1000", "buffer.max_staleness=100")
CEILING = 300 << 20  # bytes of a service's own memory


class Crowd:
    """Workers that lease and put without end, of whom `most` are under way at a time."""

    def __init__(self, clients, done):
        self.clients, self.done, self.acked = clients, done, []
        self.turns, self.over = asyncio.Semaphore(0), False

    async def work(self, name):
        client, plan = self.clients[name % len(self.clients)], GroupPlan(1)
        while True:
            async with self.turns:
                if self.over:
                    return
                lease = await client.lease(f"a{name}", 0, plan)
                await client.put(lease.group_id, f"a{name}", self.done(reward=float(name)))
                self.acked.append((lease.group_id, float(name)))

    async def let(self, number):
        """Let so many go on in place of those before."""
        for _ in range(number):
            self.turns.release()

    async def see(self, acks):
        until = len(self.acked) + acks
        while len(self.acked) < until:
            await asyncio.sleep(0.001)


def test_results_acknowledged_in_large_batches_survive_kills(serve, tasks, done, soak, tmp_path):
    """One to 256 puts are under way when the service dies."""
    served, chance, workers = [serve("tcp://127.0.0.1:0", *ROOMY)], random.Random(0), 256

    async def live():
        clients = [AsyncBufferClient(served[0].endpoint, timeout_s=120) for _ in range(4)]
        await clients[0].add_tasks(tasks(50))
        crowd = Crowd(clients, done)
        async with asyncio.TaskGroup() as group:
            for name in range(workers):
                group.create_task(crowd.work(name))
            under_way = 0
            for trial in range(24 if soak else 4):
                wanted = (1, 16, 64, 256)[min(trial, 3)]
                await crowd.let(wanted - under_way if wanted > under_way else 0)
                under_way = max(under_way, wanted)
                await crowd.see(chance.randint(1, 2 * wanted))
                served[-1].kill()
                served.append(await asyncio.to_thread(serve, served[0].endpoint, *ROOMY))
            await crowd.see(1)
            crowd.over = True
            await crowd.let(workers)
        for client in clients:
            await client.close()
        return crowd.acked

    acked = asyncio.run(live())
    assert served[-1].stop() == 0
    store = Store(served[0].folder, read_only=True)
    assert verify(store) == []
    with store.read() as txn:
        assert [txn.row(g).rewards for g, _ in acked] == [(reward,) for _, reward in acked]
        assert len({g for g, _ in acked}) == len(acked) == txn.counts()["puts"]
    commits = store._env.info()["last_txnid"]
    print(f"crowd: {len(acked)} acknowledged puts in {commits} commits, {len(served) - 1} kills")
    store.close()


def test_200_actors_and_a_silent_learner_fit_into_memory(serve, tasks, done):
    served = serve("tcp://127.0.0.1:0", *ROOMY)
    process, most, over = psutil.Process(served.process.pid), [0], threading.Event()
    complete = list[str]()

    def watch():
        while not over.wait(0.02):
            memory = process.memory_info()
            most[0] = max(most[0], memory.rss - memory.shared)

    async def act(name):
        async with AsyncBufferClient(served.endpoint, timeout_s=120) as client:
            for _ in range(3):
                lease = await client.lease(name, 0, GroupPlan(8))
                assert isinstance(lease, Lease)
                results = [done(slot, length=1024) for slot in range(8)]
                assert (await client.put(lease.group_id, name, results)).complete
                complete.append(name)
                if len(complete) % 15 == 0:  # 40 batches of 1 MB, and nobody looks at one
                    draw = calls.draw(12, 0)
                    stuck.send_multipart(draw.frames(f"r{len(complete)}"))

    async def crowd():
        await asyncio.gather(*(act(f"a{number}") for number in range(200)))

    context = zmq.Context()
    stuck = context.socket(zmq.DEALER)
    stuck.set(zmq.RCVHWM, 1)
    stuck.connect(served.endpoint)
    with BufferClient(served.endpoint, timeout_s=60) as client:
        client.add_tasks(tasks(50))
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        asyncio.run(crowd())
        stats = client.stats()
        over.set()
        watcher.join()
    context.destroy(linger=0)
    assert stats.puts == 200 * 3 * 8 and stats.train["complete"] + stats.train["drawn"] == 600
    assert stats.draws == 40 and 0 < most[0] < CEILING
    print(f"200 actors and a stuck learner: {most[0] / 1e6:.0f} MB of the service's own at most")
