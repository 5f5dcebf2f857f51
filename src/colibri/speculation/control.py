"""How many guesses a step verifies: as many as make the expected tokens a second the most."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from colibri.config import Speculate

Cost = Callable[[int], float]

MOST = 8  # guesses of one sequence
MOST_ROWS = 32  # of a step that verifies any
SLOPE = 0.4  # what a row more is taken to cost, of a step with the first, until it was measured
MARGIN = 1.03  # what must be won
MEMORY = 0.9
OUTLIER = 3.0  # times of what is known: another process had the processors
HOPE = 0.7  # of what a guess must win alone: those behind it may be likelier
LIKELY = 0.6  # such guesses are always looked at
PATIENCE, SELDOM = 32, 16  # after so many steps without a guess, guesses are looked for in every sixteenth only
TRY_EVERY = 64  # steps without a guess, after which one that would have been made at the slope above is


class Control:
    """Learns from the steps of an engine what so many rows cost, reading experts included.

    speculate: "auto", or how many guesses are made wherever there are so many.
    """

    def __init__(self, speculate: Speculate) -> None:
        self._fixed = speculate if isinstance(speculate, int) else None
        self.most = MOST if self._fixed is None else self._fixed
        self._times: dict[int, float] = {}  # seconds of a step, by its rows
        self._seen: dict[int, int] = {}
        self._without = 0  # steps since the last guess

    def looks(self) -> bool:
        """Whether guesses are to be looked for in this step."""
        self._without += 1
        return self._without < PATIENCE or self._without % SELDOM == 0 or self._fixed is not None

    def note(self, rows: int, seconds: float) -> None:
        """A step in which every sequence waited for its next token took so long."""
        seen = self._seen[rows] = self._seen.get(rows, 0) + 1
        known = self._times.get(rows)
        if known is None or (seen <= 3 and seconds < known):  # the first step of its kind makes its views
            self._times[rows] = seconds
        else:
            self._times[rows] = MEMORY * known + (1 - MEMORY) * min(seconds, OUTLIER * known)

    def least(self, rows: int) -> float:
        """How likely a guess must be to be looked at, beside so many rows: about what one row more costs."""
        one, more = self._times.get(rows), self._times.get(rows + 1)
        if self._fixed is not None or one is None or more is None:
            return 0.0
        return min(LIKELY, HOPE * (more / one - 1))

    def choose(self, chances: Sequence[Sequence[float]]) -> list[int]:
        """How many guesses of each sequence to verify, given how likely each is once those before it were right."""
        if self._fixed is not None:
            return self._all(chances)
        best = self._best(chances, self.cost)
        if not any(best) and self._without >= TRY_EVERY:
            best = self._best(chances, lambda rows: 1 + SLOPE * (rows - len(chances)) / len(chances))
        if any(best):
            self._without = 0
        return best

    def cost(self, rows: int) -> float:
        """Seconds of a step of so many rows, measured or drawn from the nearest that were."""
        if rows in self._times:
            return self._times[rows]
        below = max((known for known in self._times if known < rows), default=None)
        above = min((known for known in self._times if known > rows), default=None)
        if below is None:
            return self._times[above] if above is not None else 1.0
        if above is None:
            return self._times[below] * (1 + SLOPE * (rows - below) / below)
        share = (rows - below) / (above - below)
        return (1 - share) * self._times[below] + share * self._times[above]

    def _all(self, chances: Sequence[Sequence[float]]) -> list[int]:
        room, counts = MOST_ROWS - len(chances), []
        for own in chances:
            counts.append(max(0, min(len(own), room)))
            room -= counts[-1]
        return counts

    def _best(self, chances: Sequence[Sequence[float]], cost: Cost) -> list[int]:
        """The likeliest guess of all first; of all numbers of rows the best."""
        counts = [0] * len(chances)
        left = [own[0] if own else 0.0 for own in chances]  # how likely the next guess of each is kept
        expected, rows = float(len(chances)), len(chances)
        best, most = counts.copy(), MARGIN * expected / cost(rows)
        while rows < MOST_ROWS and (chance := max(left)) > 0:
            at = left.index(chance)
            counts[at] += 1
            own = chances[at]
            left[at] = chance * own[counts[at]] if counts[at] < len(own) else 0.0
            expected, rows = expected + chance, rows + 1
            if expected / cost(rows) > most:
                best, most = counts.copy(), expected / cost(rows)
        return best
