"""Rollouts of a policy: lengths of episodes, observations, actions, and the first weights of the policy."""

import dataclasses
import functools

import numpy as np

from benchmarks.layers.case import draw_weights, weight_shapes

FEATURES, ACTIONS = 8, 4
PASSES = 4  # over the rollouts in a step
CLIP, LEARNING_RATE, LARGEST_NORM = 0.2, 1e-3, 0.5
EPISODES = {  # how lengths of episodes are drawn
    "T-mazes": lambda rng: rng.integers(5, 41),
    "falls": lambda rng: np.clip(rng.lognormal(3.5, 0.8), 8, 500),  # of poles, while a policy learns
}


@dataclasses.dataclass(frozen=True)
class Case:
    """Rollouts of as many steps in each environment, as training algorithms collect them.

    Attributes
    ----------
    episodes : str
        A key of `EPISODES`.
    rollouts : int
        Environments that run side by side.
    steps : int
        Steps of each.
    hidden_size : int
    """

    episodes: str
    rollouts: int
    steps: int
    hidden_size: int

    def data(self):
        """Return the arrays of the rollouts, one rollout after another."""
        return _data(self)

    def weights(self):
        """Return the first weights, with PyTorch's names: the same in every process."""
        shapes = {
            **{f"lstm.{name}": shape for name, shape in weight_shapes("LSTM", FEATURES, self.hidden_size).items()},
            "actor.weight": (ACTIONS, self.hidden_size),
            "actor.bias": (ACTIONS,),
            "critic.weight": (1, self.hidden_size),
            "critic.bias": (1,),
        }
        return draw_weights(np.random.default_rng(0), shapes, self.hidden_size)

    def summary(self):
        """Return the fields of this case in a line of results, as a dict."""
        data = self.data()
        lengths = np.diff(data.offsets)
        named = {"episodes": self.episodes, "size": [self.rollouts, self.steps, self.hidden_size]}
        return named | {"rows": len(data.rows), "padded_rows": int(len(lengths) * lengths.max())}


@dataclasses.dataclass(frozen=True)
class Data:
    """The arrays that an update reads; each rollout's rows follow the rows of the rollout before it.

    Attributes
    ----------
    rows : (rows, features) observations
    starts : (rollouts, steps) whether an episode begins
    offsets : (parts + 1,) where each part of an episode begins; the first part of a rollout goes on with `states`
    whose : (parts,) the rollout of each part that begins one, otherwise -1
    states : (2, rollouts, hidden_size) the states before the rollouts
    actions, before, gains, returns : (rows,) actions, their log probabilities when chosen, advantages, returns
    """

    rows: np.ndarray
    starts: np.ndarray
    offsets: np.ndarray
    whose: np.ndarray
    states: np.ndarray
    actions: np.ndarray
    before: np.ndarray
    gains: np.ndarray
    returns: np.ndarray

    def states_of_parts(self):
        """Return the states before each part, `(2, parts, hidden_size)`: zeros where an episode begins."""
        return np.where(self.whose[:, None] >= 0, self.states[:, self.whose], 0).astype(np.float32)


@functools.cache
def _data(case):
    rng = np.random.default_rng(0)
    count, starts = case.rollouts * case.steps, np.zeros((case.rollouts, case.steps), bool)
    for rollout in starts:
        at = int(EPISODES[case.episodes](rng) * rng.random())  # the rest of an episode that began before
        while at < case.steps:
            rollout[at] = True
            at += int(EPISODES[case.episodes](rng))
    opens = starts.copy()
    opens[:, 0] = True
    begins = np.flatnonzero(opens)
    goes_on = (begins % case.steps == 0) & ~starts.reshape(-1)[begins]
    normal = functools.partial(rng.standard_normal, dtype=np.float32)
    return Data(
        rows=normal((count, FEATURES)),
        starts=starts,
        offsets=np.append(begins, count),
        whose=np.where(goes_on, begins // case.steps, -1),
        states=0.3 * normal((2, case.rollouts, case.hidden_size)),
        actions=rng.integers(ACTIONS, size=count),
        before=np.log(rng.uniform(0.2, 0.3, count)).astype(np.float32),
        gains=normal(count),
        returns=normal(count),
    )
