"""`Choice` measures candidates on sequences that they were not trained on; `Parts` says which sequences these are.

The outputs of an estimator are a weighted sum of the outputs of its candidates.  For classes, this sum means the
product of the candidates' probabilities.  Each weight (a share, such as 2.1 or 0.8) is the factor that calibrates one
candidate on sequences that it was not trained on, times the factor that calibrates the product.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.communicator import Communicator
from varlen_rnn.errors import count
from varlen_rnn.sklearn import ranks
from varlen_rnn.sklearn.linear import MOST_LEFT_OUT, Targets

# With fewer sequences, no network is trained, because six trainings take much longer than a ridge, which takes a
# second.  On series of known equations, networks were better with 100 sequences (on four data sets of five), and also
# with 50.
_LEAST_SEQUENCES = 100
_FOLDS, _MOST_HELD = 5, 2000
# A network is not chosen on fewer than _LEAST_HELD sequences left out; on _ENOUGH_HELD sequences, the choice is final.
_LEAST_HELD, _ENOUGH_HELD = 50, 100
_LEAST_FOR_QUANTILES = 200  # sequences that calibrate; about 20 of them lie below the quantile 0.1
_LEAST_GAIN = 0.05  # a network must lower the loss by this share to be worth its cost


class Parts:
    """The indices of sequences that train, and of sequences that choose between candidates.

    Only the first `number` sequences train.  The other sequences come from an `eval_set`, and choose.
    """

    def __init__(self, labels: np.ndarray, rng: np.random.Generator, number: int) -> None:
        self.train = np.arange(number)  # the sequences that the final models are trained on
        self.apart = number < len(labels)  # whether the sequences that choose never train
        self.folds = folds(labels[:number], rng)  # indices of each fold, which one training leaves out
        # The only fold if there are many sequences; None if there are few: then each sequence is left out in turn.
        self.left_out = None if number <= MOST_LEFT_OUT else self.folds[0]
        self.held = self.train if self.left_out is None else self.left_out
        if self.apart:
            self.held = np.arange(number, len(labels))


class Choice:
    """Candidates with their outputs for sequences that they were not trained on, and the best of them so far."""

    def __init__(self, targets: Targets, verbose: int) -> None:
        self.targets, self.verbose = targets, verbose
        self.candidates: list[dict[str, Any]] = []
        self.outputs: dict[str, np.ndarray] = {}
        self.losses: dict[str, np.ndarray] = {}  # by candidate, the loss of each sequence
        self.shares_of: dict[str, dict[str, float]] = {}
        self.shift_of: dict[str, np.ndarray] = {}  # by candidate, the numbers that calibrate its quantiles
        self._shown = 0

    @property
    def shares(self) -> dict[str, float]:
        """The weights of the outputs (by candidate) whose sum is the best prediction."""
        return self.shares_of[self._best]

    @property
    def shift(self) -> np.ndarray | None:
        """The numbers that calibrate the best candidate's quantiles; None if no quantiles are predicted."""
        return self.shift_of.get(self._best)

    @property
    def _best(self) -> str:
        trained = [candidate for candidate in self.candidates if candidate["candidate"] in self.shares_of]
        return min(trained, key=lambda candidate: candidate["loss"])["candidate"]

    def add(self, name: str, outputs: np.ndarray, seconds: float) -> None:
        """Measure a candidate by its outputs for the sequences left out."""
        factor = self.targets.calibrated(outputs)[1]
        self.outputs[name] = outputs
        self._add(name, outputs, {name: factor}, factor, seconds)

    def add_network(self, outputs: np.ndarray, seconds: float, comm: Communicator | None) -> None:
        """Measure a network by its outputs, and measure the network and the first candidate together."""
        self.add("recurrent", outputs, seconds)
        self._add_product()
        self.agree(comm)

    def _add_product(self) -> None:
        """Measure both candidates together: the product of their probabilities, or the mean of numbers by 1 / loss."""
        losses = {candidate["candidate"]: candidate["loss"] for candidate in self.candidates}
        if self.targets.kind == "numbers":
            precisions = {name: 1 / max(loss, 1e-12) for name, loss in losses.items()}
            shares = {name: precision / sum(precisions.values()) for name, precision in precisions.items()}
        else:
            shares = {name: self.shares_of[name][name] for name in self.outputs}
        joint = np.sum([share * np.float64(self.outputs[name]) for name, share in shares.items()], axis=0)
        factor = self.targets.calibrated(joint)[1]
        shares = {name: share * factor for name, share in shares.items()}
        self._add(" and ".join(self.outputs), joint, shares, factor, 0.0)

    def among(self, places: np.ndarray) -> Choice:
        """Return the choice between the same candidates, measured on the sequences at `places` only.

        Shares and shifts stay as all sequences determined them.
        """
        found = Choice(self.targets.take(places), self.verbose)
        for name, outputs in self.outputs.items():
            found.outputs[name], shares = outputs[places], self.shares_of[name]
            seconds = self.candidates[len(found.candidates)]["seconds"]
            found._add(name, found.outputs[name], shares, shares[name], seconds)
        found._shown, found.shift_of = len(found.candidates), dict(self.shift_of)
        return found

    @property
    def least_held(self) -> int:
        """The least number of left-out sequences on which a network can be chosen, unless all are used."""
        return _LEAST_HELD if self.targets.levels is None else _LEAST_FOR_QUANTILES

    @property
    def enough_held(self) -> int:
        """The number of left-out sequences with which the choice is final, so that no further fold is trained."""
        return max(_ENOUGH_HELD, self.least_held)

    def network_is_worth_it(self, comm: Communicator | None) -> bool | None:
        """Return True if a network is clearly better, False if it is not worth its cost, None if more folds are needed.

        It is clearly better if its mean loss is lower by more than two standard errors, on at least `least_held`
        sequences.  It is not worth its cost if the difference of the losses, plus one standard error, is below 5 % of
        the first candidate's loss.  Rank 0 decides.
        """
        first, *others = (candidate["candidate"] for candidate in self.candidates)
        best = min(others, key=lambda name: self.targets.mean(self.losses[name]))
        gains = self.losses[first] - self.losses[best]
        gain, weights = self.targets.mean(gains), self.targets.weights / self.targets.weights.sum()
        error = float(np.sqrt((weights**2 * (gains - gain) ** 2).sum()))
        worth = True if gain > 2 * error and len(gains) >= self.least_held else None
        if gain + error < _LEAST_GAIN * self.targets.mean(self.losses[first]):
            worth = False
        return ranks.from_first(comm, lambda: ({}, worth))[1]

    def keep_first(self) -> None:
        """Choose the first candidate, even if another candidate has a smaller loss."""
        first = self.candidates[0]["candidate"]
        self.shares_of = {first: self.shares_of[first]}

    def show(self) -> None:
        """Print the candidates that were not printed before."""
        for candidate in self.candidates[self._shown :] if self.verbose else []:
            name, loss = candidate["candidate"], candidate["loss"]
            where = count(candidate["sequences"], "sequence")
            if self.targets.kind == "numbers":
                measure = f"{'squared error' if self.targets.levels is None else 'quantile loss'} {loss:.3f}"
            else:
                measure = f"log loss {loss:.3f}, {candidate['error']:.1%} wrong"
            print(f"{name}: {measure}, on {where} left out; {candidate['seconds']:.1f} s")
        self._shown = len(self.candidates)

    def _add(self, name: str, outputs: np.ndarray, shares: dict[str, float], factor: float, seconds: float) -> None:
        self.shares_of[name], self.losses[name] = shares, self.targets.losses(factor * outputs)
        if (shift := self.targets.shift(outputs)) is not None:
            self.shift_of[name] = shift
        loss, error = self.targets.mean(self.losses[name]), self.targets.errors(outputs)
        record = {"candidate": name, "loss": loss, "error": error, "sequences": len(outputs), "seconds": seconds}
        self.candidates.append(record | {"chosen": False})

    def agree(self, comm: Communicator | None) -> None:
        """Copy the losses, shares and shifts from rank 0 to all ranks, so that all ranks make the same choice."""
        state = lambda: (self.shift_of, [self.candidates, self.shares_of])
        self.shift_of, (self.candidates, self.shares_of) = ranks.from_first(comm, state)

    def asks_for_a_network(self, number: int) -> bool:
        """Return whether to train a network: if there are enough sequences and the first candidate makes errors."""
        if number < _LEAST_SEQUENCES:
            reason = f"{count(number, 'sequence')}, fewer than {_LEAST_SEQUENCES}"
        elif self.candidates[0]["error"] < 1e-6:
            reason = f"{self.candidates[0]['candidate']} makes no error"
        else:
            return True
        reason = f"not trained: {reason}"
        self.candidates.append({"candidate": "recurrent", "loss": None, "reason": reason, "chosen": False})
        self._shown += 1
        if self.verbose:
            print(f"recurrent: {reason}")
        return False

    def marked(self) -> list[dict[str, Any]]:
        """Return the candidates; the best so far is marked as chosen."""
        for candidate in self.candidates:
            candidate["chosen"] = candidate["candidate"] == self._best
        return self.candidates

    def close(self) -> None:
        """Print the candidates that were not printed before, then the name of the chosen candidate."""
        self.show()
        if self.verbose:
            print("chosen:", self._best)


def counted(weights: np.ndarray | None, number: int) -> np.ndarray:
    """Return weights as float64; return ones if `weights` is None or all weights are 0."""
    return np.ones(number) if weights is None or not weights.any() else np.asarray(weights, np.float64)


def folds(labels: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the indices of five folds of sequences, or of one fold if there are many; all have equal class shares."""
    order = rng.permutation(len(labels))
    if labels.dtype == np.int64:
        order = order[np.argsort(labels[order], kind="stable")]
    if len(labels) <= MOST_LEFT_OUT:
        return [np.sort(order[k::_FOLDS]) for k in range(min(_FOLDS, len(labels)))]
    held = min(len(labels) // _FOLDS, _MOST_HELD)
    return [np.sort(order[np.linspace(0, len(labels) - 1, held).round().astype(int)])]
