"""The sections on the swarm server: capacity, crashes, bytes sent and stored; and on what a sandbox costs."""

from __future__ import annotations

from collections.abc import Iterator

from rig.scale import shown

from performance.results import Figures
from performance.writing import table


def server_capacity(figures: Figures) -> Iterator[str]:
    """Yield how many calls one server process carries, and what it adds to a call."""
    calls, p50, p99 = figures["calls per second"], figures["p50 ms"], figures["p99 ms"]
    growth = figures["growth"]["CPU of turn 64 over turn 1"]
    tools = figures["slow tools"]["steps per hour over the tools' own bound"]
    tail = figures["p99 over p50"]
    yield (
        "One server process, durable capture included, beside a bare FastAPI route that returns the same bytes: 1,000 "
        f"open episodes, an engine that answers at once, both measured in turns on {figures['machine']['cpus']} cores "
        "shared with the load."
    )
    yield from table(("", ""), [
        ("calls per second, as a share of the bare route's", f"{figures['ratio of calls per second']:.2f} "
         f"({calls['server']:,} of {calls['bare']:,}); from four client processes "
         f"{figures['calls per second, 4 client processes']:,}"),
        ("latency added at half of that load (p50)", f"{figures['added p50 ms']:.1f} ms ({p50['server']:.1f} against "
                                                     f"{p50['bare']:.1f})"),
        ("p99 over p50 there", f"{tail:.0f} ({p99['server']:.0f} ms); the goal of 8 is "
                               f"{'kept' if tail <= 8 else '**missed**'}"),
        ("steps per hour of agents whose tools take four times the server's time limit for silent agents, as a share "
         "of what the tools' own time allows", f"{tools:.2f}"),
        ("memory of an open episode of 8 turns", f"{figures['memory']['KiB per open episode, 8 turns']:.0f} KiB"),
        ("CPU of a call in turn 64 over one in turn 1, equal new tokens", f"{growth:.1f}: the history's JSON is read, "
         "compared with what was served, and its ids copied; it is not tokenised again"),
    ])  # fmt: skip


def soak(figures: Figures) -> Iterator[str]:
    """Yield what became of every episode while server and clients were killed."""
    became = figures["served (clients' logs), by what became of it (server's store)"]
    trained, waiting = became["trained"]["episodes"], became["open: waits for its batch"]["episodes"]
    given_up = sum(
        found["episodes"] for name, found in became.items()
        if name.split(":")[0] in ("aborted", "fenced", "dropped")
    )  # fmt: skip
    must = figures["must be zero"]
    yield (
        f"Killed at random for {figures['minutes']:g} minutes, server and clients, then the clients' own books laid "
        f"beside the server's: {figures['server killed']} kills of the server and {figures['clients killed']} of "
        f"clients, {figures['steps']} steps; {trained:,} acknowledged episodes trained once each, {given_up:,} given "
        f"up with their reasons, {waiting:,} waiting, {must['acknowledged ends lost'] or 'none'} lost, "
        f"{must['episodes trained twice'] or 'none'} trained twice; {figures['seconds to roll again']['median']:.1f} s "
        "(median) from a kill to a server that serves again."
    )


def scale(figures: Figures) -> Iterator[str]:
    """Yield what an episode sends and stores, and what a parameter weighs."""
    formula = figures["formula over measured"]
    yield (
        "Bytes of HTTP between real clients and a server process (engine without a model, real tokenizer, SQLite), "
        "counted by a relay; rows and bytes of its store; safetensors files of a tiny model. Agents ask in messages of "
        "240 characters and are answered as much (48 tokens). Formulas with these constants, from 1 and 8 turns, give "
        f"{formula['up']:.3f} of the bytes up, {formula['down']:.3f} of those down and {formula['stored']:.3f} of "
        "those stored at 32 turns; what they come to for 1,000 clients, 8 servers and a model of 32B: "
        "[scale.md](scale.md)."
    )
    for head, rows in shown.measured(figures):
        yield from table(head, rows)


def sandbox(figures: Figures) -> Iterator[str]:
    """Yield what a container costs a client, beside a plain process."""
    start, calls, many = figures["start"]["seconds"], figures["calls"], figures["50 at once"]
    alone, memory = calls["1 connections"]["p50 ms"], many["container"]["MiB each"]
    shim = memory["host, the engine's shim"]
    shares = [found["ratio of calls per second"]["container"] for found in calls.values()]
    counts = [name.split()[0] for name in calls]
    yield (
        "Clients in containers beside plain processes, one swarm server with an engine that answers at once, in turns "
        f"on {figures['machine']['cpus']} cores."
    )
    yield from table(("", "process", "container"), [
        ("launch to the first model call (image there, median of 15)", f"{start['process']['to the first call']:.2f} s",
         f"{start['container']['to the first call']:.2f} s, {start['container']['imports']:.1f} s of it the client's "
         "imports"),
        ("latency of a call alone (p50)", f"{alone['process']:.2f} ms", f"{alone['container']:.2f} ms"),
        (f"calls per second at {', '.join(counts[:-1])} and {counts[-1]} connections, as a share of the process's", "1",
         ", ".join(f"{share:.2f}" for share in shares)),
        ("50 at once: started per second", *(f"{found['clients a second']:.1f}" for found in many.values())),
        ("50 at once: memory of each", f"{many['process']['MiB each']['host, processes in it']:.0f} MiB",
         f"{memory['cgroup, without page cache']:.0f} MiB and {shim:.1f} MiB of "
         "the engine"),
    ])  # fmt: skip
