"""The task of a policy with memory: an update of proximal policy optimisation over rollouts in which episodes begin."""

from benchmarks.policies.case import Case
