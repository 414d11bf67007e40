"""What is run of each package: a function that takes the changed line, and returns a call with arrays as results.

The changed line is the argument `change` of each function; `change(model)` is `varlen_rnn.torch.replace(model)`, or
nothing.  Lengths are lognormal: 64 sequences, median 20.
"""

import copy
import functools
import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple
from unittest.mock import MagicMock, patch

import numpy as np
import torch

LENGTHS = np.sort(np.clip(np.random.default_rng(0).lognormal(3, 0.7, 64), 1, 200).astype(int))[::-1].copy()


CLIENTS = {}


class Client(NamedTuple):
    """A call of a package.

    Attributes
    ----------
    build : callable(change) -> callable() -> list of Tensor
    does : str
        What a call does.
    needs : tuple of str
        The distributions whose versions are shown; the first one is the package's.
    """

    build: callable
    does: str
    needs: tuple


def client(name, does, *needs):
    """Return a decorator that adds a function to `CLIENTS` under a name, with what else `Client` holds."""

    def add(build):
        CLIENTS[name] = Client(build, does, needs)
        return build

    return add


def unchanged(model):
    """Return a model as it is."""
    return model


def trained(model, call):
    """Return a call of a forward and backward pass; its results are outputs and the gradients of parameters."""

    def run():
        model.zero_grad()
        outputs = call()
        sum(output.square().sum() for output in outputs).backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        return [*(output.detach() for output in outputs), *gradients]

    return run


def padded(features):
    """Return a padded batch `(sequences, steps, features)`."""
    rows = np.random.default_rng(1).standard_normal((len(LENGTHS), LENGTHS.max(), features), np.float32)
    return torch.from_numpy(rows * (np.arange(LENGTHS.max()) < LENGTHS[:, None])[..., None])


def recurrent_ppo(change):
    """Return a RecurrentPPO on cart-poles that has played and trained once."""
    contrib = importlib.import_module("sb3_contrib")
    options = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "seed": 0, "device": "cpu"}
    algorithm = contrib.RecurrentPPO("MlpLstmPolicy", "CartPole-v1", policy_kwargs={"lstm_hidden_size": 256}, **options)
    change(algorithm.policy)
    return algorithm.learn(128)


@client("sb3-contrib", "RecurrentPPO.train, 256 units", "sb3-contrib")
def sb3_contrib(change):
    """Return the call of `train` of a RecurrentPPO on a rollout of cart-poles."""
    algorithm = recurrent_ppo(change)

    def run():
        np.random.seed(0)  # noqa: NPY002  # it chooses the parts of a batch
        algorithm.train()
        noted = algorithm.logger.name_to_value
        losses = [noted[f"train/{name}"] for name in ("loss", "policy_gradient_loss", "value_loss", "entropy_loss")]
        return [torch.tensor(losses), *(parameter.detach().clone() for parameter in algorithm.policy.parameters())]

    return run


@client("sb3-contrib, learn", "RecurrentPPO.learn, 256 units, 512 steps", "sb3-contrib")
def sb3_contrib_learn(change):
    """Return the call of `learn` of a RecurrentPPO: it plays four rollouts, and trains after each."""
    algorithm = recurrent_ppo(change)
    first = copy.deepcopy(algorithm.policy.state_dict()), copy.deepcopy(algorithm.policy.optimizer.state_dict())

    def run():
        algorithm.policy.load_state_dict(first[0])
        algorithm.policy.optimizer.load_state_dict(copy.deepcopy(first[1]))
        algorithm.set_random_seed(0)
        algorithm.learn(512)
        return [parameter.detach().clone() for parameter in algorithm.policy.parameters()]

    return run


@client("torchrl", "LSTMModule, forward and backward, 128 units", "torchrl", "tensordict")
def torchrl(change):
    """Return a forward and backward pass of an `LSTMModule` over 16 rollouts of 128 steps, with resets."""
    modules, tensordict = importlib.import_module("torchrl.modules"), importlib.import_module("tensordict")
    module = modules.LSTMModule(
        input_size=16, hidden_size=128, in_keys=["x", "h", "c"], out_keys=["y", ("next", "h"), ("next", "c")]
    )
    change(module)
    x, is_init = torch.randn(16, 128, 16), torch.rand(16, 128, 1) < 0.05
    states = torch.zeros(16, 128, 1, 128)

    def call():
        given = tensordict.TensorDict({"x": x, "h": states, "c": states, "is_init": is_init}, [16, 128])
        with modules.set_recurrent_mode(True):
            return [module(given)["y"]]

    return trained(module, call)


@client("silero-vad", "20 frames of 64 recordings", "silero-vad", "onnxruntime")
def silero_vad(change):
    """Return the call of the detector on a frame of 64 recordings side by side, after `change(model)`."""
    detector = voice_detector(change)
    frames = 0.1 * torch.randn(20, 64, 512)

    def run():
        detector.reset_states()
        return [detector(frame, 16000) for frame in frames]

    return run


@client("silero-vad, alone", "audio_forward of a recording of 10 s", "silero-vad", "onnxruntime")
def silero_vad_alone(change):
    """Return the call of the detector on a recording, frame by frame."""
    detector = voice_detector(change)
    recording = 0.1 * torch.randn(160_000)
    return lambda: [detector.audio_forward(recording, 16000)]


def voice_detector(change):
    """Return silero-vad's detector, on our program if `change` is not `unchanged`."""
    package = importlib.import_module("silero_vad")
    detector = package.load_silero_vad(onnx=True)
    if change is not unchanged:
        detector.session = Session(Path(package.__file__).parent / "data" / "silero_vad.onnx")
    return detector


class Session:
    """onnxruntime's session of a file of silero-vad for 16 kHz, on our programs."""

    def __init__(self, path):
        import varlen_rnn as vr
        import varlen_rnn.onnx

        self.is_recording = "sequence" in str(path)  # its rows are the frames of one recording
        fixed = {} if self.is_recording else {"sr": 16000, "input": (None, 576), "state": (2, None, 128)}
        self.program, self.executor, self.batch = vr.onnx.load(path, fixed=fixed), vr.Executor(), vr.create_lod_tensor

    def run(self, _, feeds):
        """Return the probabilities and the states after a frame, or after the frames of a recording."""
        given = {name: np.ascontiguousarray(array) for name, array in feeds.items() if name != "sr"}
        if self.is_recording:
            given["input"] = self.batch(given["input"], [[len(given["input"])]])
        return [np.asarray(found) for found in self.executor.run(self.program, given)]


@client("stanza", "HighwayLSTM, forward and backward, 2 x 200 units both ways", "stanza")
def stanza(change):
    """Return a pass of the HighwayLSTM of stanza's taggers and parsers, on packed sentences."""
    highway = importlib.import_module("stanza.models.common.hlstm").HighwayLSTM
    model = highway(100, 200, num_layers=2, batch_first=True, bidirectional=True, highway_func=torch.tanh)
    change(model)
    x, lengths = padded(100), torch.from_numpy(LENGTHS)
    return trained(model, lambda: [model(x, lengths)[0].data])


def stand_in_for_torchaudio():
    """Let speechbrain import torchaudio, no release of which fits PyTorch 2.13; its layers need none."""
    if importlib.util.find_spec("torchaudio") is None:
        spec = importlib.machinery.ModuleSpec("torchaudio", None)
        sys.modules["torchaudio"] = MagicMock(__version__="2.9", __spec__=spec)


@client("speechbrain", "LSTM, forward and backward, 2 x 128 units both ways", "speechbrain")
def speechbrain(change):
    """Return a pass of speechbrain's bidirectional LSTM, with relative lengths."""
    stand_in_for_torchaudio()
    model = importlib.import_module("speechbrain.nnet.RNN").LSTM(128, input_size=40, num_layers=2, bidirectional=True)
    change(model)
    x, lengths = padded(40), torch.from_numpy(LENGTHS / LENGTHS.max())
    return trained(model, lambda: [model(x, lengths=lengths)[0]])


def characters():
    """Return flair's dictionary of the small letters and the space."""
    dictionary = importlib.import_module("flair.data").Dictionary()
    for character in " abcdefghijklmnopqrstuvwxyz":
        dictionary.add_item(character)
    return dictionary


def texts():
    """Return sentences of random words of 1 to 10 small letters."""
    rng = np.random.default_rng(1)
    words = ["".join(map(chr, rng.integers(97, 123, size=rng.integers(1, 11)))) for _ in range(LENGTHS.sum())]
    return [" ".join(words[end - length : end]) for length, end in zip(LENGTHS, LENGTHS.cumsum(), strict=True)]


@client("flair", "SequenceTagger with characters and CRF, loss and backward, 256 units both ways", "flair")
def flair(change):
    """Return a pass of a tagger as Lample et al. (2016) built it, whose words are read letter by letter."""
    data, models = importlib.import_module("flair.data"), importlib.import_module("flair.models")
    embeddings = importlib.import_module("flair.embeddings").CharacterEmbeddings(characters())
    tags = data.Dictionary(add_unk=False)
    for tag in "ABCDE":
        tags.add_item(tag)
    model = models.SequenceTagger(embeddings, tags, "tag", word_dropout=0.0, locked_dropout=0.0)
    change(model)
    sentences = [data.Sentence(text.split(" ")) for text in texts()]
    for sentence in sentences:
        for number, token in enumerate(sentence):
            token.set_label("tag", "ABCDE"[number % 5])

    def loss():
        for sentence in sentences:
            sentence.clear_embeddings()
        return [model.forward_loss(sentences)[0] / LENGTHS.sum()]

    return trained(model, loss)


@client("flair, embeddings", "LanguageModel.get_representation of 64 texts, 1,024 units", "flair")
def flair_language_model(change):
    """Return the outputs of a character language model, which flair pads with spaces."""
    model = importlib.import_module("flair.models").LanguageModel(characters(), True, 1024, 1)
    change(model.eval())
    given = texts()
    return torch.no_grad()(lambda: [model.get_representation(given, "\n", "\n")])


STATES = {  # sizes of models of four layers and 256 units with matrix states
    "Qwen3NextConfig": {
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "num_experts": 0,
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    },
    "Mamba2Config": {"state_size": 64, "num_heads": 8, "n_groups": 1},
    "xLSTMConfig": {"num_heads": 4, "autocast_kernel_dtype": "float32"},
}  # fmt: skip


def language_model(change, kind, is_padded):
    """Return a pass of a language model on 16 texts: padded or one by one, or packed if the model is changed."""
    transformers = importlib.import_module("transformers")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=1000, hidden_size=256, num_hidden_layers=4, pad_token_id=0, **STATES[f"{kind}Config"]
    )
    model = change(getattr(transformers, f"{kind}ForCausalLM")(config)).train()
    lengths = torch.from_numpy(5 * LENGTHS[::4])
    ids, offsets = torch.randint(1, 1000, (int(lengths.sum()),)), [0, *lengths.cumsum(0).tolist()]
    texts = ids.split(lengths.tolist())
    padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    run = lambda ids, **named: model(input_ids=ids, use_cache=False, **named).logits

    def packed():
        with importlib.import_module("varlen_rnn.torch").packed(offsets):
            return [run(ids[None])[0]]

    def plain():
        if is_padded:
            mask = (padded != 0).long()
            return [run(padded, attention_mask=mask)[mask.bool()]]
        return [torch.cat([run(text[None])[0] for text in texts])]

    return trained(model, plain if change is unchanged else packed)


for _kind in ("Qwen3Next", "Mamba2", "xLSTM"):
    for _way in ("one by one", "padded"):
        _build = functools.partial(language_model, kind=_kind, is_padded=_way == "padded")
        _does = "language model, forward and backward of 16 texts, 4 x 256 units"
        client(f"transformers, {_kind}, {_way}", _does, "transformers")(_build)


def spread(model):
    """Return a model with random parameters, because some of the packages leave them as memory was."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.05)
    return model


def tirex_model(blocks):
    """Return a TiRex of the published sizes, 512 units in 4 heads, with fewer blocks than 12."""
    sizes = {"input_patch_size": 32, "output_patch_size": 32, "quantiles": [0.1, 0.5, 0.9], "input_ff_dim": 2048}
    kwargs = {"embedding_dim": 512, "num_heads": 4, "num_blocks": blocks}
    return spread(
        importlib.import_module("tirex.models.tirex").TiRexZero("torch", {**sizes, "block_kwargs": kwargs}, 2048)
    )


@client("tirex", "TiRexZero.forecast of 16 series, 32 numbers ahead, 2 blocks of 512 units", "tirex-ts")
def tirex(change):
    """Return the forecasts of series whose contexts have 2,048 numbers."""
    model, series = tirex_model(2), torch.randn(16, 2048, generator=torch.Generator().manual_seed(0)).cumsum(1)
    change(model.eval())
    return lambda: [model.forecast(context=series, prediction_length=32)[0]]


@client("tirex, training", "TiRexZero, forward and backward of 64 series of 64 tokens, 2 blocks", "tirex-ts")
def tirex_training(change):
    """Return a pass over tokens, as training has it."""
    model, tokens = tirex_model(2), torch.randn(64, 64, 64, generator=torch.Generator().manual_seed(0))
    change(model)
    return trained(model, lambda: [model._forward_model(tokens)])


@client("tirex, in float32", "TiRexZero, forward and backward of 64 series of 16 tokens, 2 blocks", "tirex-ts")
def tirex_in_float32(change):
    """Return a pass in which the package's own sLSTM computes in float32, as ours does, instead of bfloat16."""
    model, tokens = tirex_model(2), torch.randn(64, 16, 64, generator=torch.Generator().manual_seed(0))
    change(model)

    def outputs():
        with patch.object(torch, "bfloat16", torch.float32 if change is unchanged else torch.bfloat16):
            return [model._forward_model(tokens)]

    return trained(model, outputs)


@client("tirex, compiled", "the sLSTM alone, 64 series of 8 tokens; before: compiled by torch.compile", "tirex-ts")
def tirex_compiled(change):
    """Return the outputs of a cell; its own code is compiled, as by `load_model(..., compile=True)`."""
    cells = importlib.import_module("tirex.models.slstm.cell")
    cell = tirex_model(1).blocks[0].slstm_layer.slstm_cell
    if change is unchanged:
        cell._impl_forward_torch = torch.compile(cells.sLSTMCellTorch.slstm_forward)
    change(cell)
    gates = torch.randn(64, 8, 2048, generator=torch.Generator().manual_seed(0))
    return torch.no_grad()(lambda: [cell(gates, None)[0]])


@client("xlstm", "xLSTMBlockStack with an mLSTM and an sLSTM, forward and backward, 128 units", "xlstm")
def xlstm(change):
    """Return a pass over a padded batch."""
    package = importlib.import_module("xlstm")
    config = package.xLSTMBlockStackConfig(
        mlstm_block=package.mLSTMBlockConfig(), context_length=256, num_blocks=2, embedding_dim=128, slstm_at=[1],
        slstm_block=package.sLSTMBlockConfig(slstm=package.sLSTMLayerConfig(backend="vanilla")),
    )  # fmt: skip
    model, x = spread(package.xLSTMBlockStack(config)), padded(128)
    change(model)
    return trained(model, lambda: [model(x)])
