"""Beam search: select the best continuations of hypotheses at each step, and finally read the texts."""

from collections.abc import Sequence

import numpy as np

from varlen_rnn.errors import LoDError, OutOfRangeError, ShapeError, check_int, check_list
from varlen_rnn.kernels.arithmetic import log
from varlen_rnn.ops.cost import per_input_element
from varlen_rnn.ops.indices import INT64
from varlen_rnn.rows.checks import ends_of
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.runtime.device import beside, to_host
from varlen_rnn.tape.checks import check_float, check_integer, check_rank, check_same_dtype
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import Variable, apply, required
from varlen_rnn.typing import Rows


def beam_search(
    pre_ids: Rows,
    pre_scores: Rows,
    ids: Rows | None,
    scores: Rows,
    beam_size: int,
    end_id: int,
    level: int = 0,
    is_accumulated: bool = True,
) -> tuple[Variable, Variable, Variable]:
    """Return the `beam_size` best continuations of the hypotheses of each source.

    A hypothesis that has ended continues only with `end_id`, and keeps its score.  If all kept hypotheses of a source
    had ended before, its search is over, and the result has no hypothesis for it.

    Parameters
    ----------
    pre_ids : Variable, integers, shape `(hypotheses,)` or `(hypotheses, 1)`
        The last symbol of each hypothesis.
    pre_scores : Variable, shape as `pre_ids`
        The scores of the hypotheses: logarithms of probabilities.
    ids : Variable, integers, shape `(hypotheses, candidates)`, or None
        The symbols that may follow, as from `topk`; None if a candidate's symbol is its column.
    scores : Variable, shape `(hypotheses, candidates)`, with a LoD
        The score of each hypothesis with each candidate; unless `is_accumulated`, the probability of each candidate.
        Level `level` of its LoD groups the hypotheses by source.
    beam_size : int
        How many hypotheses to keep per source.
    end_id : int
        The symbol that ends a hypothesis.

    Returns
    -------
    selected_ids : Variable, int64, shape `(kept,)`
        Its LoD has two levels: the previous hypotheses of each source, and the kept continuations of each hypothesis.
    selected_scores : Variable, shape `(kept,)`, with the same LoD
    parent_idx : Variable, int64, shape `(kept,)`
        The position of the previous hypothesis that each kept continuation continues.

    Raises
    ------
    ShapeError, DTypeError, LoDError, OutOfRangeError

    Notes
    -----
    Results are in the order of previous hypotheses, and best first for each of them.  If scores are equal, the earlier
    hypothesis and the earlier candidate win (in Fluid, the later candidate).  NaN is worse than any number.

    Examples
    --------
    >>> scores = LoDTensor(np.log([[0.6, 0.4], [0.3, 0.7]]), [[0, 2]])
    >>> start, best = np.array([5, 6]), np.zeros(2)
    >>> ids, scores, parents = beam_search(start, best, None, scores, beam_size=2, end_id=9)
    >>> np.asarray(ids), np.asarray(parents), ids.lod()
    (array([0, 1]), array([0, 1]), [[0, 2], [0, 1, 2]])

    Source: the operator `beam_search` of PaddlePaddle Fluid.
    """
    constants = {"beam_size": beam_size, "end_id": end_id, "level": level, "is_accumulated": is_accumulated}
    return tuple(apply("beam_search", pre_ids, pre_scores, scores, ids, **constants))


_OUTPUTS = "selected_ids", "selected_scores", "parent_idx"


@operator(name="beam_search", outputs=_OUTPUTS, cost=per_input_element, rows="batch")
def _search(pre_ids, pre_scores, scores, ids=None, *, beam_size: int, end_id: int, level: int, is_accumulated: bool):
    """Return the symbols, the scores and the parents of the best continuations of the hypotheses of each source.

    A parent is the position of the hypothesis that is continued.
    """
    place = scores.data
    pre_ids, pre_scores, scores, ids = _on_host(pre_ids, pre_scores, scores, ids)
    before, had = pre_ids.data.reshape(-1), pre_scores.data.reshape(-1)
    count, width = scores.shape
    sources = np.asarray(scores.structure.absolute()[level], np.int64)
    has_ended = before == end_id
    total = scores.data.copy() if is_accumulated else had[:, None] + log(scores.data)
    symbols = np.broadcast_to(np.arange(width), (count, width)).copy() if ids is None else ids.data.astype(np.int64)
    total[has_ended, :1], symbols[has_ended, :1] = had[has_ended, None], end_id
    may_follow = np.ones((count, width), bool)
    may_follow[has_ended, 1:] = False
    kept = _best(total, may_follow, np.repeat(np.arange(len(sources) - 1), np.diff(sources)), beam_size)
    kept = kept[~_is_over(kept // width, symbols.ravel()[kept] == end_id, has_ended, sources)]
    parents = kept // width
    below = ends_of(np.bincount(parents, minlength=count))
    lod = LoD([sources, below])
    picked = symbols.ravel()[kept], total.ravel()[kept]
    return *(LoDTensor.wrap(beside(values, place), lod) for values in picked), LoDTensor.wrap(beside(parents, place))


def _on_host(*tensors):
    """Return tensors with their numbers on the host, where the search runs because the result's LoD depends on them."""
    return [None if tensor is None else tensor.like(to_host(tensor.data)) for tensor in tensors]


def _best(total, may_follow, source, beam_size):
    """Return the flat positions in `total` of each source's best candidates, in the order of their hypotheses."""
    places = np.flatnonzero(may_follow)
    of_source = source[places // total.shape[1]]
    order = np.lexsort((-total.ravel()[places], of_source))  # a stable sort: of equal scores, the first wins
    of_source = of_source[order]
    rank = np.arange(len(order)) - np.searchsorted(of_source, of_source)
    best = places[order[rank < beam_size]]
    return best[np.argsort(best // total.shape[1], kind="stable")]


def _is_over(parents, ends, has_ended, sources):
    """Return, for each kept continuation, whether all kept hypotheses of its source had ended before."""
    source = np.searchsorted(sources, parents, side="right") - 1
    goes_on = np.bincount(source, weights=~(ends & has_ended[parents]), minlength=len(sources) - 1) > 0
    return ~goes_on[source]


@_search.infer
def _infer(pre_ids, pre_scores, scores, ids, beam_size, end_id, level, is_accumulated):
    name = "beam_search"
    check_integer(name, pre_ids=pre_ids, **({} if ids is None else {"ids": ids}))
    check_float(name, scores=scores)
    check_same_dtype(name, scores=scores, pre_scores=pre_scores)
    check_rank(name, "scores", scores, 2, "one row of candidates for each hypothesis")
    if not 0 <= level < scores.lod_level:
        got, hint = f"a LoD with {scores.lod_level} levels", "this level groups the hypotheses by source"
        raise LoDError(f"{name}, scores", expected=f"a LoD with level {level}", got=got, hint=hint)
    if scores.shape[1] == 0:
        raise ShapeError(f"{name}, scores", expected="at least one candidate", got=f"shape {scores.shape}")
    if beam_size < 1:
        raise OutOfRangeError(f"{name}, beam_size", expected="at least 1", got=beam_size)
    _check_end(name, end_id)
    for what, given in (("pre_ids", pre_ids), ("pre_scores", pre_scores)):
        if given.shape[1:] not in ((), (1,)) or not given.shape or not _may_be(given.shape[0], scores.shape[0]):
            raise ShapeError(f"{name}, {what}", expected=f"({scores.shape[0]},)", got=given.shape)
    if ids is not None and not (len(ids.shape) == 2 and all(map(_may_be, ids.shape, scores.shape))):
        raise ShapeError(f"{name}, ids", expected=f"shape {scores.shape}, as scores", got=ids.shape)
    return [TensorSpec((-1,), INT64, 2), TensorSpec((-1,), scores.dtype, 2), TensorSpec((-1,), INT64)]


def _check_end(op, end_id):
    if not -(2**63) <= end_id < 2**63:
        raise OutOfRangeError(f"{op}, end_id", expected="a number that int64 can hold", got=end_id)


def _may_be(size, other):
    return size == other or -1 in (size, other)


@_search.examples
def _examples(rng):
    constants = {"beam_size": 2, "end_id": 1, "level": 0, "is_accumulated": True}
    scores = LoDTensor(rng.standard_normal((5, 3)), [[0, 2, 2, 5], [0, 1, 2, 3, 4, 5]])
    yield [np.array([0, 1, 2, 1, 0]), rng.standard_normal(5), scores, rng.integers(0, 4, (5, 3))], constants
    lone = LoDTensor(rng.random((4, 2)), [[0, 4]])
    yield [np.array([0, 0, 1, 2]), rng.standard_normal(4), lone, None], constants | {"is_accumulated": False}
    nothing = LoDTensor(np.zeros((0, 2)), [[0, 0, 0]])
    yield [np.zeros(0, np.int64), np.zeros(0), nothing, None], constants


def beam_search_decode(
    ids: Sequence[Rows], scores: Sequence[Rows], beam_size: int, end_id: int
) -> tuple[Variable, Variable]:
    """Return the texts that a beam search has found, the best of each source first, and the scores of their prefixes.

    Parameters
    ----------
    ids, scores : lists of Variable
        The results of `beam_search` at each step, with their LoD; the initial hypotheses may come first.
    beam_size : int
        The largest number of texts to return per source.
    end_id : int
        The symbol that ends a text; each text keeps it once.

    Returns
    -------
    sentence_ids : Variable, int64, shape `(symbols,)`
        Its LoD has two levels: the texts of each source, and the symbols of each text.
    sentence_scores : Variable, shape `(symbols,)`, with the same LoD
        The score of a text up to each of its symbols.

    Raises
    ------
    ShapeError, DTypeError, LoDError
        If there are no steps, or a step does not continue the step before.

    Examples
    --------
    >>> ids = [LoDTensor(np.array([7]), [[0, 1], [0, 1]]), LoDTensor(np.array([3, 1]), [[0, 1], [0, 2]])]
    >>> scores = [LoDTensor(np.array([0.0]), ids[0].structure), LoDTensor(np.array([-2.0, -1.0]), ids[1].structure)]
    >>> text, _ = beam_search_decode(ids, scores, beam_size=2, end_id=1)
    >>> text.value.to_sequences()
    [[array([7, 1]), array([7, 3])]]

    Source: the operator `beam_search_decode` of PaddlePaddle Fluid.
    """
    steps = [
        [required(value, f"beam_search_decode, {name}") for value in check_list(values, f"beam_search_decode, {name}")]
        for name, values in (("ids", ids), ("scores", scores))
    ]
    if not steps[0] or len(steps[0]) != len(steps[1]):
        expected = "at least one step, with as many ids as scores"
        got = f"{len(steps[0])} ids and {len(steps[1])} scores"
        raise ShapeError("beam_search_decode", expected=expected, got=got)
    beam_size = check_int(beam_size, "beam_search_decode, beam_size", 1)
    return tuple(apply("beam_search_decode", *steps[0], *steps[1], beam_size=beam_size, end_id=end_id))


@operator(name="beam_search_decode", outputs=("sentence_ids", "sentence_scores"), cost=per_input_element, rows="batch")
def _decode(*steps, beam_size: int, end_id: int):
    """Return the texts of a beam search, and the scores of their prefixes, from the selections of each step."""
    place, steps = steps[-1].data, _on_host(*steps)
    ids, scores = steps[: len(steps) // 2], steps[len(steps) // 2 :]
    _check_steps(ids, scores)
    texts = _Texts()
    for step in range(len(ids) - 1, -1, -1):
        texts.take(step, ids[step], scores[step].data, end_id)
    found = texts.best(beam_size, ids[0].num_elements(0))
    return tuple(value.like(beside(value.data, place)) for value in found)


def _check_steps(ids, scores):
    """Raise unless each step has a score for each symbol, and continues the rows of the step before."""
    rows = None
    for number, (of_step, its_scores) in enumerate(zip(ids, scores, strict=True)):
        what = f"beam_search_decode, step {number}"
        if its_scores.structure != of_step.structure:
            raise LoDError(f"{what}, scores", expected="the LoD of ids", got=its_scores.lod())
        if of_step.num_elements(0) != ids[0].num_elements(0):
            raise LoDError(f"{what}, ids", expected=f"{ids[0].num_elements(0)} sources", got=of_step.num_elements(0))
        if rows is not None and of_step.num_elements(1) != rows:
            expected = f"{rows} sequences, one per row of the step before"
            raise LoDError(f"{what}, ids", expected=expected, got=of_step.num_elements(1))
        rows = len(of_step.data)


class _Texts:
    """Texts, read from their last symbol to their first.  A text ends at the last step that searches its source."""

    def __init__(self):
        self.sources, self.final, self.rows = np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64)
        self.symbols = []  # one tuple per step: indices of the texts that get a symbol, the step, their symbols, scores

    def take(self, step, ids, scores, end_id):
        """Add the symbols of a step; skip an `end_id` that is not the last symbol of its text."""
        symbols, scores, offsets = ids.data.reshape(-1), scores.reshape(-1), ids.structure.absolute()[0]
        waiting = np.setdiff1d(np.flatnonzero(np.diff(offsets)), self.sources)
        begun = [np.arange(offsets[source], offsets[source + 1]) for source in waiting]
        number, rows = len(self.rows), np.concatenate([self.rows, *begun])
        self.sources = np.concatenate([self.sources, np.repeat(waiting, [len(part) for part in begun])])
        self.final = np.concatenate([self.final, scores[rows[number:]]])
        taken = np.flatnonzero((np.arange(len(rows)) >= number) | (symbols[rows] != end_id))
        at = rows[taken]
        self.symbols.append((taken, np.full(len(taken), step), symbols[at], scores[at]))
        self.rows = np.searchsorted(ids.structure.levels[1], rows, side="right") - 1

    def best(self, beam_size, num_sources):
        """Return the symbols and the scores of the best texts of each source; the levels are sources and texts."""
        order = np.lexsort((-self.final, self.sources))
        of_source = self.sources[order]
        order = order[np.arange(len(order)) - np.searchsorted(of_source, of_source) < beam_size]
        place = np.full(len(self.sources), -1)
        place[order] = np.arange(len(order))
        text, step, symbols, scores = (np.concatenate(parts) for parts in zip(*self.symbols, strict=True))
        kept = np.flatnonzero(place[text] >= 0)
        kept = kept[np.lexsort((step[kept], place[text[kept]]))]
        of_texts = np.bincount(self.sources[order], minlength=num_sources)
        lengths = of_texts, np.bincount(place[text[kept]], minlength=len(order))
        lod = LoD([ends_of(counts) for counts in lengths])
        return LoDTensor.wrap(symbols[kept].astype(np.int64), lod), LoDTensor.wrap(scores[kept], lod)


@_decode.infer
def _infer_decode(*steps, beam_size, end_id):
    name = "beam_search_decode"
    _check_end(name, end_id)
    if not steps or len(steps) % 2:
        raise ShapeError(name, expected="the ids of all steps, then as many scores", got=f"{len(steps)} inputs")
    ids, scores = steps[: len(steps) // 2], steps[len(steps) // 2 :]
    for number, (of_step, its_scores) in enumerate(zip(ids, scores, strict=True)):
        check_integer(name, **{f"ids[{number}]": of_step})
        check_float(name, **{f"scores[{number}]": its_scores})
        check_same_dtype(name, **{"scores[0]": scores[0], f"scores[{number}]": its_scores})
        for what, given in (("ids", of_step), ("scores", its_scores)):
            if given.lod_level != 2:
                hint = "pass the results of beam_search: sources of hypotheses, and hypotheses with continuations"
                raise LoDError(f"{name}, {what}[{number}]", expected="2 levels", got=given.lod_level, hint=hint)
            if given.shape[1:] not in ((), (1,)):
                raise ShapeError(f"{name}, {what}[{number}]", expected="one number per row", got=given.shape)
    return [TensorSpec((-1,), INT64, 2), TensorSpec((-1,), scores[0].dtype, 2)]


@_decode.examples
def _examples_of_decode(rng):
    lods = [[0, 1, 2], [0, 1, 2]], [[0, 1, 2], [0, 2, 3]], [[0, 2, 3], [0, 0, 2, 2]]
    ids = [LoDTensor(rng.integers(0, 4, lod[1][-1]), lod) for lod in lods]
    yield [*ids, *(one.like(rng.standard_normal(len(one.data))) for one in ids)], {"beam_size": 2, "end_id": 1}
