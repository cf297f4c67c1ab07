"""The mainloops in a kernel's machine code: what a warp issues in a step, and what runs under the multiplies.

A loop is found as compilers define it: a jump back to a block that every way to the jump passes through.  What is not
on every way through a loop (retries of a barrier, the rescaling of a lazy softmax) is counted apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fa3gen.arch import ARCHS
from fa3gen.errors import Fa3genError
from fa3gen.model import ForwardPlan

#: By how much the instructions of a step, without :attr:`Step.repacking`, may miss the budget, as a share of it.
TOLERANCE = 0.1

_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@(?P<predicate>!?U?P\w+)\s+)?(?P<name>[A-Z][\w.]*)(?P<operands>[^;]*);")
_LABEL = re.compile(r"^(\.L_\w+):")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
#: Instructions after which what follows is not reached, unless they are predicated.
_ENDS = ("BRA", "EXIT", "RET", "BRX", "JMP", "KILL")


class CodeError(Fa3genError):
    """Machine code that is not as expected."""


@dataclass(frozen=True)
class Instruction:
    predicate: str
    name: str  # with its modifiers: MUFU.EX2
    operands: str

    @property
    def kind(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Loop:
    """A loop with WGMMAs and without a loop with WGMMAs in it, in the order of the code."""

    address: int  # of its first instruction, counted in instructions
    always: tuple[Instruction, ...]  # on every way through it
    sometimes: tuple[Instruction, ...]

    @cached_property
    def kinds(self) -> Mapping[str, int]:
        """How often each kind of instruction is issued each time round."""
        return Counter(instruction.kind for instruction in self.always)

    @property
    def exponentials(self) -> int:
        return _exponentials(self.always)

    @property
    def local(self) -> int:
        """Spills: loads and stores of local memory."""
        return sum(instruction.kind in ("LDL", "STL") for instruction in (*self.always, *self.sometimes))

    @property
    def barrier_waits(self) -> int:
        return sum(i.name.startswith("SYNCS.PHASECHK") for i in self.always) + self.kinds.get("BAR", 0)

    @property
    def masked(self) -> bool:
        """Whether scores are replaced by -inf: a select for each."""
        return 2 * self.kinds.get("FSEL", 0) > self.exponentials

    @property
    def under_pv(self) -> int:
        """Exponentials between a multiply and the wait for all that are under way.

        ptxas moves that wait up over arithmetic; those behind it do not run under PV.
        """
        found = since = 0
        for instruction in self.always:
            if instruction.kind == "HGMMA":
                since = 0
            elif instruction.name.startswith("WARPGROUP.DEPBAR") and re.search(r"\b0x0\b", instruction.operands):
                found, since = found + since, 0
            since += instruction.name == "MUFU.EX2"
        return found


def loops(text: str) -> tuple[Loop, ...]:
    """The innermost loops with WGMMAs of disassembled ``text`` (one function), in the order of the code."""
    blocks = _blocks(text)
    dominators = _dominators(blocks)
    found: dict[int, set[int]] = {}
    jumps: dict[int, list[int]] = {}
    for number, block in enumerate(blocks):
        for to in block.to:
            if to in dominators[number]:  # a jump back
                found.setdefault(to, set()).update(_body(blocks, to, number))
                jumps.setdefault(to, []).append(number)
    heads = [head for head, body in found.items() if any(blocks[b].multiplies for b in body)]
    inner = [h for h in heads if not any(other != h and other in found[h] for other in heads)]
    return tuple(_loop(blocks, sorted(found[head]), jumps[head], dominators) for head in sorted(inner))


def mainloop(text: str) -> Loop:
    """The loop over blocks that need no mask; raises CodeError.

    Of those that mask nothing one may multiply less, of a block half of which is seen, and another, of tiles that are
    done again, computes maxima.
    """
    unmasked = [loop for loop in loops(text) if not loop.masked]
    if not unmasked:
        raise CodeError("no loop with WGMMAs and without masks is in the machine code")
    return min(unmasked, key=lambda loop: (-loop.kinds.get("HGMMA", 0), len(loop.always)))


@dataclass(frozen=True)
class Step:
    """A step of the mainloop as it was compiled, beside its budget."""

    loop: Loop
    steps: int  # that the loop makes each time round
    instructions: Mapping[str, tuple[float, int]]  # by kind, of a step: made, and in the budget
    problems: tuple[str, ...]

    @property
    def made(self) -> float:
        return len(self.loop.always) / self.steps

    @property
    def repacking(self) -> float:
        """Instructions that put P together again: bf16 scores of a number that is no power of two are packed singly."""
        made, wanted = self.instructions["F2FP"]
        return self.loop.kinds.get("PRMT", 0) / self.steps + max(0.0, made - wanted)

    @property
    def exponentials(self) -> tuple[int, int]:
        """Those that run under PV, and all."""
        return self.loop.under_pv, self.loop.exponentials


def compare(plan: ForwardPlan, text: str) -> Step:
    """Holds the mainloop in disassembled ``text`` against the budget of ``plan``; raises CodeError without one."""
    budget = ARCHS[plan.variant.arch].budget(plan)
    loop = mainloop(text)
    wanted = budget.instructions
    steps = max(1, round(loop.kinds.get("HGMMA", 0) / wanted["HGMMA"]))
    made = {kind: loop.kinds.get(kind, 0) / steps for kind in wanted if kind != "other"}
    made["other"] = len(loop.always) / steps - sum(made.values())
    step = Step(loop, steps, {kind: (made[kind], wanted[kind]) for kind in wanted}, ())
    return replace(step, problems=tuple(_problems(plan, step, budget.issue_slots)))


def _problems(plan: ForwardPlan, step: Step, expected: int) -> list[str]:
    loop = step.loop
    pairs = [(kind, *step.instructions[kind]) for kind in ("HGMMA", "MUFU")]
    problems = [
        f"{made:g} {kind} a step, and the budget has {wanted}" for kind, made, wanted in pairs if made != wanted
    ]
    if abs(step.made - step.repacking - expected) > TOLERANCE * expected:
        problems.append(f"{step.made:g} instructions a step, and the budget has {expected} (within {TOLERANCE:.0%})")
    if loop.local:
        problems.append(f"{loop.local} loads and stores of local memory: spills")
    if plan.pin_pv_wait and loop.under_pv < step.steps * (plan.tile_n // 2):  # those of the scores
        problems.append(f"pin_pv_wait: {loop.under_pv} of {loop.exponentials} exponentials are before the wait for PV")
    return problems


# --- blocks and their order


@dataclass
class _Block:
    start: int
    instructions: list[Instruction]
    to: list[int]  # blocks that may follow

    @property
    def multiplies(self) -> bool:
        return any(instruction.kind == "HGMMA" for instruction in self.instructions)


def _blocks(text: str) -> list[_Block]:
    """The code cut at labels and behind jumps; what may follow is the next block, a jump's target or both."""
    blocks, targets = [_Block(0, [], [])], {}
    count = 0
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label or (blocks[-1].instructions and _leaves(blocks[-1].instructions[-1])):
            if blocks[-1].instructions:
                blocks.append(_Block(count, [], []))
            if label:
                targets[label[1]] = len(blocks) - 1
        match = _LINE.search(line)
        if match:
            blocks[-1].instructions.append(Instruction(match["predicate"] or "", match["name"], match["operands"]))
            count += 1
    for number, block in enumerate(blocks):
        last = block.instructions[-1] if block.instructions else None
        if last is not None and last.kind in ("BRA", "CALL", "JMP"):
            block.to += [targets[name] for name in _TARGET.findall(last.operands) if name in targets]
        if (last is None or not _ends(last)) and number + 1 < len(blocks):
            block.to.append(number + 1)
    return blocks


def _leaves(instruction: Instruction) -> bool:
    return instruction.kind in (*_ENDS, "CALL")


def _ends(instruction: Instruction) -> bool:
    """Whether the next instruction is not reached from this one."""
    conditional = instruction.predicate or "," in instruction.operands  # BRA may name a predicate of its own
    return instruction.kind in _ENDS and not conditional


def _dominators(blocks: Sequence[_Block]) -> list[set[int]]:
    """For each block, those on every way to it from the start; all of them where there is no way."""
    every = set(range(len(blocks)))
    found = [{0}, *(set(every) for _ in blocks[1:])]
    before: list[list[int]] = [[] for _ in blocks]
    for number, block in enumerate(blocks):
        for to in block.to:
            before[to].append(number)
    changed = True
    while changed:
        changed = False
        for number in range(1, len(blocks)):
            ways = [found[b] for b in before[number]]
            now = {number} | (set.intersection(*ways) if ways else every)
            if now != found[number]:
                found[number], changed = now, True
    return found


def _body(blocks: Sequence[_Block], head: int, jump: int) -> set[int]:
    """The blocks from which ``jump`` is reached without passing ``head``."""
    body, pending = {head}, [jump]
    while pending:
        number = pending.pop()
        if number not in body:
            body.add(number)
            pending += [k for k, block in enumerate(blocks) if number in block.to]
    return body


def _loop(blocks: Sequence[_Block], body: Sequence[int], jumps: Sequence[int], dominators: Sequence[set[int]]) -> Loop:
    always = [b for b in body if all(b in dominators[jump] for jump in jumps)]
    others = [b for b in body if b not in always]
    return Loop(
        min(blocks[b].start for b in body),
        tuple(i for b in always for i in blocks[b].instructions),
        tuple(i for b in others for i in blocks[b].instructions),
    )


def _exponentials(instructions: Sequence[Instruction]) -> int:
    return sum(instruction.name == "MUFU.EX2" for instruction in instructions)
