"""Recurrent policies of sb3-contrib and TorchRL by offsets: the same numbers as their own loops and padding."""

import copy
import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import varlen_rnn.torch as vt  # noqa: E402

LAYERS, UNITS, FEATURES = 2, 4, 3


class Policy(torch.nn.Module):
    """A policy that resets states as sb3-contrib's does, in a loop over steps."""

    __module__, __qualname__ = "sb3_contrib.common.recurrent.policies", "RecurrentActorCriticPolicy"

    def __init__(self):
        super().__init__()
        self.lstm_actor = torch.nn.LSTM(FEATURES, UNITS, num_layers=LAYERS)

    @staticmethod
    def _process_sequence(features, lstm_states, episode_starts, lstm):
        num, outputs = lstm_states[0].shape[1], []
        for row, start in zip(
            features.reshape(num, -1, FEATURES).swapaxes(0, 1), episode_starts.reshape(num, -1).T, strict=True
        ):
            output, lstm_states = lstm(row[None], tuple((1 - start).view(1, num, 1) * state for state in lstm_states))
            outputs.append(output)
        return torch.cat(outputs).transpose(0, 1).flatten(0, 1), lstm_states

    def forward(self, features, states, starts):
        return self._process_sequence(features, states, starts, self.lstm_actor)


class Trajectories(torch.nn.Module):
    """A module that calls the method of its backend "scan" as TorchRL's does, and loops over trajectories itself."""

    def __init__(self, backend, layer):
        super().__init__()
        self.recurrent_backend = backend
        setattr(self, "lstm" if isinstance(layer, torch.nn.LSTM) else "gru", layer)

    def forward(self, x, is_init, *states):
        is_lstm = hasattr(self, "lstm")
        if self.recurrent_backend == "scan":
            method = self._lstm_scan_with_resets if is_lstm else self._gru_scan_with_resets
            return method(x, *states, None, is_init)
        output, ends = torch.zeros(*x.shape[:2], UNITS, dtype=x.dtype), [torch.zeros_like(state) for state in states]
        for i in range(len(x)):
            begins = [0, *(k for k in range(1, x.shape[1]) if is_init[i, k]), x.shape[1]]
            for begin, end in itertools.pairwise(begins):
                hx = [state[i, begin][:, None].contiguous() for state in states]
                layer = self.lstm if is_lstm else self.gru
                output[i, begin:end], last = layer(x[i : i + 1, begin:end], tuple(hx) if is_lstm else hx[0])
                for of_state, state in zip(ends, last if is_lstm else [last], strict=True):
                    of_state[i, end - 1] = state[:, 0]
        return output, *ends


class LSTMModule(Trajectories):
    """With the seam of an LSTM."""

    __module__, __qualname__ = "torchrl.modules.tensordict_module.rnn", "LSTMModule"

    def _lstm_scan_with_resets(self, *given):
        raise NotImplementedError


class GRUModule(Trajectories):
    """With the seam of a GRU."""

    __module__, __qualname__ = "torchrl.modules.tensordict_module.rnn", "GRUModule"

    def _gru_scan_with_resets(self, *given):
        raise NotImplementedError


def numbers(model, *given):
    """Return the results of a model as a flat list, and the gradients of its parameters and inputs."""
    given = [g.clone().requires_grad_(g.is_floating_point()) if torch.is_tensor(g) else g for g in given]
    model.zero_grad()
    output, *states = model(*given)
    states = [state for each in states for state in (each if isinstance(each, tuple) else (each,))]
    (output.square().sum() + sum((3 * state).square().sum() for state in states)).backward()
    of_inputs = [g.grad for g in given if torch.is_tensor(g) and g.grad is not None]
    return [output, *states, *(parameter.grad.clone() for parameter in model.parameters()), *of_inputs]


def assert_same(model, *given):
    theirs = numbers(model, *given)
    before = type(model)
    for ours in (vt.replace(model), copy.deepcopy(model)):
        assert isinstance(ours, before)
        assert type(ours) is not before
        for one, other in zip(numbers(ours, *given), theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert type(vt.replace(model)) is not before
    assert type(vt.restore(model)) is before
    assert all(map(torch.equal, numbers(model, *given), theirs))


def starts_of(rng, num, steps):
    return torch.from_numpy(rng.random((num, steps)) < 0.4)


@pytest.mark.parametrize(("num", "steps"), [(3, 7), (4, 1), (1, 5)])
def test_episodes_of_sb3_contribs_policies_are_sequences(num, steps):
    rng = np.random.default_rng(0)
    model = Policy().double()
    starts = starts_of(rng, num, steps).double().flatten()

    class Call(torch.nn.Module):
        """A policy whose states are two tensors, as `numbers` gives them."""

        def __init__(self, starts):
            super().__init__()
            self.policy, self.starts = model, starts

        def forward(self, features, h, c):
            return self.policy(features, (h, c), self.starts)

    x = torch.from_numpy(rng.standard_normal((num * steps, FEATURES)))
    h, c = torch.from_numpy(rng.standard_normal((2, LAYERS, num, UNITS)))
    for call in map(Call, (starts, torch.zeros_like(starts), torch.ones_like(starts))):
        theirs = numbers(call, x, h, c)
        vt.replace(model)
        for one, other in zip(numbers(call, x, h, c), theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
        assert type(vt.restore(model)) is Policy


@pytest.mark.parametrize(("cls", "layer"), [(LSTMModule, torch.nn.LSTM), (GRUModule, torch.nn.GRU)])
@pytest.mark.parametrize("backend", ["pad", "auto"])
def test_trajectories_of_torchrls_modules_are_sequences(cls, layer, backend):
    rng = np.random.default_rng(1)
    model = cls(backend, layer(FEATURES, UNITS, num_layers=LAYERS, batch_first=True)).double()
    x = torch.from_numpy(rng.standard_normal((3, 6, FEATURES)))
    states = torch.from_numpy(rng.standard_normal((1 + (layer is torch.nn.LSTM), 3, 6, LAYERS, UNITS)))
    assert_same(model, x, starts_of(rng, 3, 6), *states)
    assert model.recurrent_backend == backend


def test_what_keeps_its_own_code():
    """A subclass with code of its own, a backend that was chosen, and a layer that could not be replaced."""

    class Own(Policy):
        def _process_sequence(self, *given):
            return super()._process_sequence(*given)

    assert type(vt.replace(Own())) is Own
    module = vt.replace(LSTMModule("triton", torch.nn.LSTM(FEATURES, UNITS)))
    assert module.recurrent_backend == "triton"
    module.recurrent_backend = "pad"
    assert module.recurrent_backend == "scan"
    module.lstm = torch.nn.LSTM(FEATURES, UNITS)
    assert module.recurrent_backend == "pad"
    policy = vt.replace(Policy())
    state, starts = torch.zeros(LAYERS, 1, UNITS), torch.tensor([0.0, 1.0])
    output, _ = policy._process_sequence(
        torch.zeros(2, FEATURES), (state, state), starts, module.lstm.__class__(3, 4, 2)
    )
    assert output.shape == (2, UNITS)


def test_a_policy_of_sb3_contrib_itself():
    contrib = pytest.importorskip("sb3_contrib")
    options = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "seed": 0, "device": "cpu"}
    found = []
    for change in (lambda policy: policy, vt.replace):
        algorithm = contrib.RecurrentPPO(
            "MlpLstmPolicy", "CartPole-v1", policy_kwargs={"lstm_hidden_size": 8}, **options
        )
        change(algorithm.policy)
        found.append([parameter.clone() for parameter in algorithm.learn(32).policy.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_module_of_torchrl_itself():
    modules = pytest.importorskip("torchrl.modules")
    tensordict = pytest.importorskip("tensordict")
    keys = {"in_keys": ["x", "h", "c"], "out_keys": ["y", "h_n", "c_n"]}
    module = modules.LSTMModule(input_size=FEATURES, hidden_size=UNITS, **keys).double()
    rng = np.random.default_rng(2)
    h, c = torch.from_numpy(rng.standard_normal((2, 3, 6, 1, UNITS)))

    class Call(torch.nn.Module):
        """The module, of tensors."""

        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, x, is_init):
            given = tensordict.TensorDict({"x": x, "h": h, "c": c, "is_init": is_init[..., None]}, [3, 6])
            with modules.set_recurrent_mode(True):
                found = module(given)
            return found["y"], found["h_n"], found["c_n"]

    call, given = Call(), (torch.from_numpy(rng.standard_normal((3, 6, FEATURES))), starts_of(rng, 3, 6))
    theirs = numbers(call, *given)
    vt.replace(module)
    for one, other in zip(numbers(call, *given), theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
