"""What needs a process of its own, on a GPU: first calls under capture, forks.  Uses the bundle in build/bundle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

BUNDLE = Path("build/bundle")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a Hopper GPU"),
    pytest.mark.skipif(not BUNDLE.is_dir(), reason="needs a built bundle: run `fa3gen build`"),
]

_START = f"""
import os, torch, fa3.runtime
from fa3.runtime import attention, reference
fa3.runtime.load_bundle({str(BUNDLE)!r})
def inputs():
    torch.manual_seed(0)
    return [torch.randn(2, 300, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
def right(out, q, k, v):
    exact = reference.attention(q, k, v, causal=True, out_dtype=torch.float32)
    return bool((out.float() - exact).abs().max() < 2e-2)
"""

_PROGRAMS = {
    "first call under capture": """
q, k, v = inputs()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = attention(q, k, v, causal=True)
for _ in range(3):
    out.fill_(float("nan"))
    graph.replay()
    assert right(out, q, k, v)
""",
    "a fork before CUDA is used": """
child = os.fork()
q, k, v = inputs()
assert right(attention(q, k, v, causal=True), q, k, v)
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
    "a fork after CUDA is used": """
q, k, v = inputs()
attention(q, k, v, causal=True)
torch.cuda.synchronize()
child = os.fork()
if child == 0:
    try:
        attention(q, k, v, causal=True)
    except RuntimeError as error:
        os._exit(0 if "fork" in str(error) or "CUDA" in str(error) else 3)
    os._exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert right(attention(q, k, v, causal=True), q, k, v)
""",
    "the current device and stream stay": """
q, k, v = inputs()
before = torch.cuda.current_device(), torch.cuda.current_stream()
attention(q, k, v, causal=True)
assert (torch.cuda.current_device(), torch.cuda.current_stream()) == before
""",
}


@pytest.mark.parametrize("program", [*_PROGRAMS.values()], ids=[*_PROGRAMS])
def test_program(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", _START + program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
