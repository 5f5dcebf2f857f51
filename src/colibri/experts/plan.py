"""How a memory budget is divided: what every part of the process takes, and how many slots that leaves."""

from __future__ import annotations

from dataclasses import dataclass, replace

from colibri.config import readable
from colibri.errors import MemoryBudgetError
from colibri.experts.store import ExpertStore, slot_bytes
from colibri.machine import MachineMemory
from colibri.weights.tensor_info import Layout

MIB = 1 << 20
HUGE_PAGE = 2 * MIB
RESERVE_SHARE = 16  # of the memory available: left to the system by default, ...
RESERVE_LEAST = 256 * MIB  # ... but no less than this
ALLOCATOR_SLACK = 16 * MIB  # the interpreter's heap grows a little while it works


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes of everything but expert slots. `process` is what Python takes with all that is imported."""

    process: int
    dense: int
    cache: int
    workspace: int
    staging: int
    states: int = 0

    @property
    def total(self) -> int:
        """All of them, with slack."""
        return self.process + self.dense + self.kept + self.workspace + self.staging + ALLOCATOR_SLACK

    @property
    def kept(self) -> int:
        """What layers keep of past tokens: keys and values, and states."""
        return self.cache + self.states


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be resident.

    totals: all experts of each layout. least: slots that a layer needs. room: bytes for slots when the key-value cache
    is full; before that there may be more. token_bytes: what the experts of one token take.
    """

    budget: int
    floor: int
    needs: Needs
    totals: dict[Layout, int]
    least: dict[Layout, int]
    room: int
    token_bytes: int
    notes: tuple[str, ...]

    def limits_beside(self, cache_bytes: int) -> dict[Layout, int]:
        """The slots of each layout while the key-value cache takes so much of what it may take."""
        return divide(self.room + max(0, self.needs.cache - cache_bytes), self.totals, self.least)

    @property
    def limits(self) -> dict[Layout, int]:
        """The slots of each layout when the key-value cache is full."""
        return self.limits_beside(self.needs.cache)

    @property
    def expert_bytes(self) -> int:
        """What these take."""
        return slots_bytes(self.limits)

    @property
    def all_expert_bytes(self) -> int:
        """What a slot for every expert would take."""
        return slots_bytes(self.totals)

    def describe(self) -> str:
        """One line: the budget and its parts."""
        needs = self.needs
        slots, total = sum(self.limits_beside(0).values()), sum(self.totals.values())
        return (
            f"memory: {readable(self.budget)}, of it process {readable(needs.process)}, dense weights "
            f"{readable(needs.dense)}, key-value cache up to {readable(needs.cache)}, "
            + (f"states {readable(needs.states)}, " if needs.states else "")
            + f"buffers {readable(needs.workspace + needs.staging)}, experts up to {readable(self.most_expert_bytes)} "
            f"({slots} of {total} slots)"
        )

    @property
    def most_expert_bytes(self) -> int:
        """What the slots take while the key-value cache is empty."""
        return slots_bytes(self.limits_beside(0))

    @property
    def fits(self) -> bool:
        """Whether every expert has a slot."""
        return self.limits == self.totals

    @property
    def resident_share(self) -> float:
        """The part of all experts' bytes that has room: the hit rate of even routing."""
        return self.expert_bytes / self.all_expert_bytes


def default_budget(machine: MachineMemory) -> int:
    """What may be taken when nothing is asked for: available memory, less a reserve, with what is taken already."""
    reserve = max(RESERVE_LEAST, machine.available // RESERVE_SHARE)
    return machine.resident + max(0, machine.available - reserve)


def make_plan(
    store: ExpertStore, experts_per_token: int, needs: Needs, budget: int, *, beside: int = 0,
    machine: MachineMemory | None = None,
) -> Plan:  # fmt: skip
    """Divide `budget` bytes. Raises MemoryBudgetError below the floor, with the number that would do.

    beside: what another process takes of the same --ram. machine: where the budget was found and not asked for.
    """
    totals = store.layout_counts()
    least = dict.fromkeys(totals, experts_per_token)
    floor = needs.total + slots_bytes(least) + HUGE_PAGE * len(least)
    if budget < floor:
        parts = (
            f"({readable(needs.dense)} dense weights, {readable(needs.cache)} key-value cache, "
            + (f"{readable(needs.states)} states, " if needs.states else "")
            + f"{readable(needs.workspace + needs.staging)} buffers, {readable(needs.process + ALLOCATOR_SLACK)} the "
            f"process, {readable(slots_bytes(least))} the experts of one layer"
            + (f", {readable(beside)} the web server)" if beside else ")")
        )
        less = ("fewer --sequences, " if beside else "") + "a smaller --context or --kv-type q8_0"
        raise MemoryBudgetError(_too_little(budget + beside, floor + beside, parts, less, machine))
    token_bytes = experts_per_token * sum(store.slot_bytes(layer) for layer in store.moe_layers())
    room = budget - needs.total - HUGE_PAGE * len(totals)
    plan = Plan(budget, floor, needs, totals, least, room, token_bytes, ())
    if plan.expert_bytes >= token_bytes:
        return plan
    note = (
        f"the slots hold {readable(plan.expert_bytes)}, less than the experts of one token ({readable(token_bytes)}): "
        "most experts are read anew for every token; a part of them is kept"
    )
    return replace(plan, notes=(note,))


def _too_little(budget: int, floor: int, parts: str, less: str, machine: MachineMemory | None) -> str:
    enough = f"use --ram {-(-floor // MIB)}M or more"
    if machine is None:
        floors = f"is below the floor of this model: {readable(floor)} {parts}"
        return f"--ram {readable(budget)} {floors}; {enough}, or {less}"
    most = machine.resident + machine.available
    advice = f"end other programs or raise the container's limit, or use {less}"
    if floor <= most:
        advice = f"{enough} to take a part of what is left to the system, or {advice}"
    return (
        f"this model needs {readable(floor)} at least {parts}, but {readable(most)} are available here, of which "
        f"{readable(budget)} may be taken and the rest is left to the system; {advice}"
    )


def slots_bytes(slots: dict[Layout, int]) -> int:
    """Bytes of that many slots of each layout."""
    return sum(slot_bytes(layout) * count for layout, count in slots.items())


def divide(room: int, totals: dict[Layout, int], least: dict[Layout, int]) -> dict[Layout, int]:
    """The same share of each layout's experts, no fewer than the least; what is left over goes where it fits.

    All where there is room for them.
    """
    share = room / slots_bytes(totals)
    slots = {layout: max(least[layout], int(share * count)) for layout, count in totals.items()}
    largest_first = sorted(totals, key=slot_bytes, reverse=True)
    for layout in largest_first:  # a least may have taken more than its share
        while slots_bytes(slots) > room and slots[layout] > least[layout]:
            slots[layout] -= 1
    for layout in largest_first:
        spare = (room - slots_bytes(slots)) // slot_bytes(layout)
        slots[layout] = min(totals[layout], slots[layout] + spare)
    return slots
