"""How good the estimators are with their defaults, beside simple baselines: `python -m benchmarks quality`.

Sets (`sets.py`) ship with packages.  Each has models (`models.py`): the estimator, and baselines that a reader would
try first.  A set, a model and a seed give a line of `results/quality.jsonl`, in a process for each set and model
(`worker.py`); a run that is broken off goes on where it stopped (`run.py`).  `page.py` writes docs/quality.md.

aeon has its own environment, since it pins versions of Numba.  Its packages need nothing of ours; PyTorch is for
MultiRocketHydra and QUANT:

    python -m venv out/aeon && out/aeon/bin/pip install aeon==1.6.0 statsmodels==0.15.0 torch==2.13.0

The series are read from the files in this environment; those of statsmodels stand there, too.
"""
