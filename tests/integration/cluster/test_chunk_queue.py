"""Chunks of a phase over real members: each is run by one node."""

import asyncio

from tests.support.cluster.members import TIMEOUT_S, Background, master, plan


def collect(member, iteration=1):
    """Claims and reports until the phase is closed; the chunks of this node."""

    async def run():
        work, mine = member.work(iteration, "rollout"), []
        if member.is_master:
            work.on_lost = lambda shard: (0, set())
            await work.publish([[n] for n in range(60)], digest="d", weight_version=3)
            await work.publish([[n] for n in range(60, 100)], digest="d", weight_version=3)
        async with asyncio.TaskGroup() as jobs:
            close = jobs.create_task(close_when_complete(work)) if member.is_master else None
            while True:
                chunk = await work.next_chunk()
                if chunk is None:
                    if not await work.more_or_closed():
                        break
                    continue
                work.set_shard(f"shard-{member.rank}")
                mine.append(chunk)
                work.report(chunk.id)
        assert (work.sample_digest, work.weight_version) == ("d", 3)
        return mine, close.result() if close else None

    async def close_when_complete(work):
        parts = await work.all_complete()
        work.close()
        return parts

    return asyncio.run(run())


def test_every_chunk_is_run_by_one_node_and_the_parts_name_the_files(tmp_path):
    def work(member):
        order = member.next_order()
        mine, _ = collect(member)
        member.finish(order.iteration, order.phase, "done")
        return mine

    workers = [Background(plan(tmp_path, rank, 3), work) for rank in (1, 2)]
    with master(tmp_path, 3) as member:
        member.give_order(1, "rollout")
        mine, parts = collect(member)
        member.finish(1, "rollout", "done")
        member.wait_decision(1, "rollout", timeout_s=TIMEOUT_S)
        theirs = [worker.result() for worker in workers]
    chunks = [*mine, *theirs[0], *theirs[1]]
    assert sorted(index for chunk in chunks for index in chunk.indices) == list(range(100))
    with_work = [rank for rank, done in enumerate([mine, *theirs]) if done]
    assert [(part.name, part.rank, part.cut_bytes) for part in parts] == [
        (f"shard-{rank}", rank, None) for rank in with_work
    ]


def test_a_phase_broken_off_on_a_node_goes_on_with_its_claims(tmp_path):
    async def run(member):
        work = member.work(1, "rollout")
        await work.publish([[n] for n in range(24)], digest="d", weight_version=1)
        first, second = await work.next_chunk(), await work.next_chunk()
        work.report(first.id)
        again = member.work(1, "rollout")
        assert again.is_published and await again.next_chunk() == second
        assert (await again.next_chunk()).id not in (first.id, second.id)

    with master(tmp_path, 1) as member:
        member.give_order(1, "rollout")
        asyncio.run(run(member))
