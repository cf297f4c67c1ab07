"""How launches get along with graphs, streams and threads: results must be the bits of a plain call."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from fa3.runtime import attention
from torch import Tensor

from fa3gen.verify.cases import Case
from fa3gen.verify.inputs import Inputs, make
from fa3gen.verify.numerics import Verdict, different
from fa3gen.verify.target import Target

_ROUNDS = 8


def check_graphs(target: Target, case: Case) -> Verdict:
    """Two graphs of several calls each, replayed in turn, with eager calls between them and on another stream."""
    inputs = _inputs(target, case)
    call, expected = _caller(target, inputs)
    side = _stream(target)
    graphs: list[tuple[torch.cuda.CUDAGraph, list[Tensor]]] = []
    for calls in (1, 3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs = [call() for _ in range(calls)]
        graphs.append((graph, outs))
    problems = []
    for _ in range(_ROUNDS):
        for graph, outs in graphs:
            for out in outs:
                out.fill_(torch.nan)
            graph.replay()
            eager = call()
            torch.cuda.synchronize(target.device)
            for out in (*outs, eager):
                problems += different("out beside graphs", expected, out)
    with torch.cuda.stream(side):
        graphs[0][0].replay()
    eager = call()  # at the same time as the graph on the other stream
    torch.cuda.synchronize(target.device)
    problems += different("out of a graph on a side stream", expected, graphs[0][1][0])
    problems += different("out at the same time as a graph", expected, eager)
    return Verdict(0.0, tuple(problems))


def check_streams(target: Target, case: Case) -> Verdict:
    """Calls that run at the same time on several streams."""
    inputs = _inputs(target, case)
    call, expected = _caller(target, inputs)
    streams = [_stream(target) for _ in range(4)]
    outs: list[Tensor] = []
    torch.cuda.synchronize(target.device)
    for _ in range(_ROUNDS):
        for stream in streams:
            with torch.cuda.stream(stream):
                outs.append(call())
    torch.cuda.synchronize(target.device)
    return Verdict(0.0, tuple(problem for out in outs for problem in different("out on a stream", expected, out)))


def check_threads(target: Target, case: Case) -> Verdict:
    """Calls of several threads on streams of their own; and the launch of a thread that has no current context."""
    inputs = _inputs(target, case)
    call, expected = _caller(target, inputs)
    outs: list[Tensor] = []
    errors: list[str] = []
    bare = torch.full_like(expected, torch.nan)
    torch.cuda.synchronize(target.device)

    def on_a_stream() -> None:
        with torch.cuda.stream(_stream(target)):
            mine = [call() for _ in range(_ROUNDS)]
        outs.extend(mine)

    def without_context() -> None:
        target.launch(0, case.softmax_scale, inputs, bare, None)
        outs.append(bare)

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            errors.append(f"a thread's call failed: {error!r}")

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (*[on_a_stream] * 4, without_context)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize(target.device)
    problems = [problem for out in outs for problem in different("out of a thread", expected, out)]
    return Verdict(0.0, (*errors, *problems))


def _stream(target: Target) -> torch.cuda.Stream:
    return torch.cuda.Stream(target.device)  # type: ignore[no-untyped-call]


def _inputs(target: Target, case: Case) -> Inputs:
    return make(case, target.dtype, target.head_dim, target.head_dim_v, target.device)


def _caller(target: Target, inputs: Inputs) -> tuple[Callable[[], Tensor], Tensor]:
    """The public call, and what it gives when nothing else is going on."""

    def call() -> Tensor:
        out = attention(*inputs, causal=target.causal, bundle=target.bundle)
        assert isinstance(out, Tensor)
        return out

    expected = call()
    torch.cuda.synchronize(target.device)
    return call, expected
