"""Train a policy with memory on episodes of unequal length, without padding.

    python examples/recurrent_policy.py                            # a T-maze: remember a sign to the end of a corridor
    python examples/recurrent_policy.py --environment cart-pole    # balance a pole whose velocities are hidden
    python examples/recurrent_policy.py --environment CartPole-v1  # an environment of gymnasium, if it is installed

An LSTM reads the observations of an episode; one linear layer scores the actions, another one estimates the return.
All episodes of an update are one batch of rows: an episode is a sequence, and a reset is an offset.  The update is
proximal policy optimisation (Schulman et al., 2017, "Proximal policy optimization algorithms").  Each pass reads whole
episodes, so no state of the LSTM is stale.
"""

import argparse
import importlib.util
import time

import numpy as np

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

LAST = 10  # training ends when the mean return of so many turns is enough


class TMaze:
    """Corridors with a sign at the beginning, which says where to turn at the end (Bakker, 2002).

    Each corridor has its own length.  A right turn at the end gives 4 and a wrong one -0.1; both end the episode.  A
    step against a wall gives -0.1.  So the best return is 4, and without memory the mean is 1.95.
    """

    num_actions, num_features = 3, 4  # forward, left, right; the sign left, the sign right, a corridor, the end of it
    enough = 3.9  # the mean return of a policy that is right in 97.5 of 100 episodes

    def __init__(self, shortest=5, longest=40):
        self.shortest, self.longest = shortest, longest

    def reset(self, count, rng):
        """Begin `count` episodes; return their first observations."""
        self.lengths = rng.integers(self.shortest, self.longest + 1, count)
        self.places, self.signs, self.steps = np.zeros(count, int), rng.integers(2, size=count), 0
        return self._seen(np.arange(count))

    def _seen(self, episodes):
        rows = np.zeros((len(episodes), 4), np.float32)
        at_start, at_end = self.places[episodes] == 0, self.places[episodes] == self.lengths[episodes]
        rows[at_start, self.signs[episodes][at_start]] = 1
        rows[:, 2], rows[:, 3] = ~(at_start | at_end), at_end
        return rows

    def step(self, episodes, actions):
        """Return observations, rewards, and whether each of these episodes has ended."""
        at_end, forward = self.places[episodes] == self.lengths[episodes], actions == 0
        right = actions - 1 == self.signs[episodes]
        self.places[episodes] += forward & ~at_end
        self.steps += 1
        rewards = np.where(at_end & right, 4.0, np.where(forward & ~at_end, 0.0, -0.1))
        return self._seen(episodes), rewards, (at_end & ~forward) | (self.steps >= 4 * self.longest)


class CartPole:
    """Poles on carts (Barto, Sutton and Anderson, 1983); positions and angles are seen, velocities are not.

    Each step in which the pole stands gives 1.  An episode ends when the pole falls, when the cart leaves the track, or
    after 500 steps.
    """

    num_actions, num_features = 2, 2
    enough = 475.0

    def reset(self, count, rng):
        """Begin `count` episodes; return their first observations."""
        self.states, self.steps = rng.uniform(-0.05, 0.05, (count, 4)), 0
        return self._seen(np.arange(count))

    def _seen(self, episodes):
        return (self.states[episodes][:, [0, 2]] / [2.4, 0.21]).astype(np.float32)

    def step(self, episodes, actions):
        """Return observations, rewards, and whether each of these episodes has ended."""
        x, speed, angle, turn = self.states[episodes].T
        force, sine, cosine = np.where(actions == 1, 10.0, -10.0), np.sin(angle), np.cos(angle)
        push = (force + 0.05 * turn**2 * sine) / 1.1  # a cart of 1 kg, a pole of 0.1 kg and 1 m
        turning = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        going = push - 0.05 * turning * cosine / 1.1
        self.states[episodes] += 0.02 * np.stack([speed, going, turn, turning], axis=1)
        self.steps += 1
        x, _, angle, _ = self.states[episodes].T
        fallen = (np.abs(x) > 2.4) | (np.abs(angle) > 12 * np.pi / 180)
        return self._seen(episodes), np.ones(len(episodes)), fallen | (self.steps >= 500)


class Gymnasium:
    """Environments of gymnasium with vectors as observations and numbered actions."""

    def __init__(self, name):
        import gymnasium

        self.make, self.made = lambda: gymnasium.make(name), []
        one = self.make()
        self.num_actions, self.num_features = int(one.action_space.n), int(np.prod(one.observation_space.shape))
        self.enough = one.spec.reward_threshold or np.inf

    def reset(self, count, rng):
        """Begin `count` episodes; return their first observations."""
        self.made += [self.make() for _ in range(len(self.made), count)]
        seeds = rng.integers(2**31, size=count)
        rows = [one.reset(seed=int(seed))[0] for one, seed in zip(self.made, seeds, strict=False)]
        return np.reshape(rows, (count, -1)).astype(np.float32)

    def step(self, episodes, actions):
        """Return observations, rewards, and whether each of these episodes has ended."""
        found = [self.made[i].step(int(action)) for i, action in zip(episodes, actions, strict=True)]
        rows, rewards, terminated, truncated, _ = zip(*found, strict=True)
        return (
            np.reshape(rows, (len(rows), -1)).astype(np.float32),
            np.array(rewards),
            np.logical_or(terminated, truncated),
        )


class ActorCritic(vr.nn.Module):
    """Observations to the scores of actions, and to the return that is to be expected."""

    def __init__(self, num_features, num_actions, hidden_size):
        self.lstm = vr.nn.LSTM(num_features, hidden_size)
        self.actor, self.critic = vr.nn.Linear(hidden_size, num_actions), vr.nn.Linear(hidden_size, 1)

    def forward(self, observations):
        """Return scores and expected returns, one row per step of the episodes."""
        h, _ = self.lstm(observations)
        return self.actor(h), self.critic(h)


def play(model, environment, count, rng):
    """Return the steps of `count` episodes that begin together: at each step, arrays of the episodes that still run."""
    stream = model.lstm.stream(num_sequences=count)  # a frozen copy, which keeps the states of all episodes
    actor, critic = ([np.asarray(w) for w in (part.weight, part.bias)] for part in (model.actor, model.critic))
    rows, running, steps = environment.reset(count, rng), np.arange(count), []
    while len(running):
        h = stream(rows, at=running)
        scores, values = (h @ weight.T + bias for weight, bias in (actor, critic))
        actions = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
        seen, rewards, ended = environment.step(running, actions)
        steps.append((running, rows, actions, values[:, 0], rewards))
        rows, running = seen[~ended], running[~ended]
    return steps


def mean_return(steps, count):
    """Return the mean, over episodes, of the sum of rewards."""
    return sum(rewards.sum() for *_, rewards in steps) / count


def advantages(steps, count, gamma, decay, unit):
    """Return, for each step, how much better its actions were than expected (Schulman et al., 2016)."""
    found, later, expected = [], np.zeros(count), np.zeros(count)
    for running, _, _, values, rewards in reversed(steps):
        later[running] = rewards / unit + gamma * expected[running] - values + gamma * decay * later[running]
        expected[running] = values
        found.append(later[running])
    return found[::-1]


def unit_of(steps, count, gamma):
    """Return the root mean square of the discounted returns; rewards in this unit suit the critic's learning rate."""
    without_critic = [
        (running, rows, actions, 0 * values, rewards) for running, rows, actions, values, rewards in steps
    ]
    return np.sqrt(np.square(np.concatenate(advantages(without_critic, count, gamma, 1.0, 1.0))).mean())


def batch_of(steps, count, gamma, decay, unit):
    """Return the rows of all episodes, one episode after another: observations, actions, advantages and returns."""
    gains = advantages(steps, count, gamma, decay, unit)
    running, rows, actions, values, gains = map(np.concatenate, (*list(zip(*steps, strict=True))[:4], gains))
    order = np.argsort(running, kind="stable")  # from step by step to episode by episode
    episodes = vr.LoDTensor(rows[order], vr.LoD.from_lengths([np.bincount(running, minlength=count)]))
    scaled = ((gains - gains.mean()) / (gains.std() + 1e-8)).astype(np.float32)
    return episodes, actions[order], scaled[order], (gains + values)[order].astype(np.float32)[:, None]


def log_probs(scores, actions):
    """Return the log probability of each action."""
    return -F.cross_entropy(scores, actions, reduction="none")


def loss(model, batch, before, clip=0.2):
    """Return the loss of proximal policy optimisation; `before` has the log probabilities of the policy that played."""
    episodes, actions, gains, returns = batch
    scores, values = model(episodes)
    ratio = F.exp(log_probs(scores, actions) - before)
    clipped = F.minimum(F.maximum(ratio, 1 - clip), 1 + clip)
    entropy = -(F.softmax(scores) * F.log_softmax(scores)).sum(axis=1).mean()
    return 0.5 * F.mse_loss(values, returns) - F.minimum(ratio * gains, clipped * gains).mean() - 0.01 * entropy


def update_of(model, optimizer):
    """Return the function that makes an update from a batch; `vr.bound` runs it without its Python code."""

    @vr.bound
    def update(batch, before):
        optimizer.zero_grad()
        found = loss(model, batch, before)
        found.backward()
        vr.optim.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return found

    return update


def train(model, environment, settings, rng):
    """Play and learn in turns until the last returns are enough; return steps, and rows trained a second."""
    optimizer, played, means = vr.optim.Adam(model.parameters(), lr=settings.lr), 0, []
    update, unit, spent, learned = update_of(model, optimizer), 0.0, 0.0, 0.0
    while played < settings.steps:
        began = time.perf_counter()
        steps = play(model, environment, settings.episodes, rng)
        unit = unit or unit_of(steps, settings.episodes, settings.gamma)
        batch = batch_of(steps, settings.episodes, settings.gamma, 0.95, unit)
        with vr.no_grad():
            before = np.asarray(log_probs(model(batch[0])[0], batch[1]))
        learning = time.perf_counter()
        for _ in range(settings.passes):
            update(batch, before)
        learned += settings.passes * len(batch[1])
        spent += time.perf_counter() - learning
        played += len(batch[1])
        means.append(mean_return(steps, settings.episodes))
        print(f"{played:9} steps   return {means[-1]:8.2f}   {time.perf_counter() - began:.2f} s")
        if len(means) >= LAST and np.mean(means[-LAST:]) >= environment.enough:
            break
    return played, learned / spent


def environment_of(name):
    """Return an environment by its name, or end if there is none."""
    own = {"t-maze": TMaze, "cart-pole": CartPole}
    if name in own:
        return own[name]()
    if importlib.util.find_spec("gymnasium") is None:
        raise SystemExit(f"Unknown environment {name!r}. Expected t-maze or cart-pole; gymnasium is not installed")
    return Gymnasium(name)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--environment", default="t-maze", help="t-maze, cart-pole, or a name of gymnasium")
    parser.add_argument("--steps", type=int, default=1_000_000, help="at most so many steps are played")
    parser.add_argument("--episodes", type=int, default=64, help="episodes of a batch")
    parser.add_argument("--passes", type=int, default=6, help="over each batch")
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main():
    """Train, and print how many rows a second were trained."""
    settings = parse_arguments()
    vr.manual_seed(settings.seed)
    environment, rng = environment_of(settings.environment), np.random.default_rng(settings.seed)
    model = ActorCritic(environment.num_features, environment.num_actions, settings.hidden_size)
    played, rate = train(model, environment, settings, rng)
    print(f"\n{played} steps were played; {rate:.0f} rows trained a second")
    print(f"mean return of 500 new episodes {mean_return(play(model, environment, 500, rng), 500):8.2f}")


if __name__ == "__main__":
    main()
