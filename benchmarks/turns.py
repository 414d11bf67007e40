"""Ranks of one thread and one process of as many threads, which compute the same batches in turns.

All are processes of their own.  Those whose turn it is not sleep in a read of a socket, whatever the engine: in a
barrier, ranks of MPI would spin.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

from benchmarks.processes import ROOT, EngineError
from benchmarks.quiet import wait_for_quiet
from benchmarks.ranks import WAYS
from benchmarks.survival import command, end_session

COMING_UP = 300.0  # seconds
ONE = ("one thread", "threads")  # ways of the one process


class Team:
    """The ranks of an engine, and the one process: who asks one of them lets the others sleep."""

    def __init__(self, links, ranks):
        self._one, self._ranks = links[0, 1], [links[rank, ranks] for rank in range(ranks)]

    def ask_one(self, do, **request):
        """Return the reply of the one process."""
        return _ask([self._one], do, request)[0]

    def ask_ranks(self, do, **request):
        """Return the replies of all ranks."""
        return _ask(self._ranks, do, request)

    def step(self, way, number):
        """Return the wall seconds of a step, of the slowest rank, and the CPU seconds of all."""
        if way in ONE:
            threads = 1 if way == "one thread" else len(self._ranks)
            return self.ask_one("step", way="work", number=number, threads=threads)
        every = self.ask_ranks("step", way=way, number=number)
        return max(wall for wall, _ in every), sum(cpu for _, cpu in every)


def _ask(links, do, request):
    for _, writes in links:
        print(json.dumps({"do": do, **request}), file=writes, flush=True)
    lines = [reads.readline() for reads, _ in links]
    if not all(lines):
        raise EngineError("a rank ended")
    return list(map(json.loads, lines))


@contextlib.contextmanager
def started(engine, ranks):
    """Yield a Team of processes that run."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server.settimeout(1.0)
        words = ["-m", "benchmarks.ranks", str(server.getsockname()[1])]
        processes, links = [], {}
        for each in ([sys.executable, *words], command(engine, ranks, *words)):
            processes.append(
                subprocess.Popen(each, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
            )
        try:
            end = time.monotonic() + COMING_UP
            while len(links) <= ranks:
                with contextlib.suppress(TimeoutError):
                    link = stack.enter_context(server.accept()[0])
                    link.settimeout(None)
                    reads, writes = (stack.enter_context(link.makefile(mode)) for mode in "rw")
                    links[tuple(json.loads(reads.readline()))] = reads, writes
                if time.monotonic() > end or any(process.poll() is not None for process in processes):
                    raise EngineError(f"{engine}: its ranks did not come up")
            yield Team(links, ranks)
            for reads, writes in links.values():
                writes.close()
                reads.close()
            stack.close()
            for process in processes:
                process.wait(COMING_UP)
        finally:
            for process in processes:
                end_session(process.pid)
                process.wait()


def compare(engine, ranks, case):
    """Return the wall and CPU seconds of each way for each batch, and the cost by which parts were made."""
    with started(engine, ranks) as team:
        lengths, cost = prepared(team, case)
        found = {way: {"wall": [], "cpu": []} for way in (*ONE, *WAYS)}
        for number in range(case.batches):
            wait_for_quiet(case.wait)
            for way, its in found.items():
                wall, cpu = team.step(way, number)
                its["wall"].append(wall)
                its["cpu"].append(cpu)
        return {"ways": found, "cost": cost, "lengths": lengths}


def prepared(team, case):
    """Let all make models and batches, and ranks make parts by the cost that the one process measures; return both."""
    lengths = team.ask_one("build", case=case._asdict())
    team.ask_ranks("build", case=case._asdict())
    wait_for_quiet(case.wait)
    cost = team.ask_one("cost")
    team.ask_one("divide", cost=cost)
    team.ask_ranks("divide", cost=cost)
    return lengths, cost


def look_up(engine, ranks, lookups):
    """Return the distinct rows of a large table that a step looks up on rank 0, and the bytes that the rank sends."""
    with started(engine, ranks) as team:
        return team.ask_ranks("look_up", lookups=lookups)[0]
