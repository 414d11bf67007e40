"""Functions that several operators declare as their `rows` trait, which says how results depend on single rows.

They take the operands' specs, and for each operand the axis that runs over rows, or None if it has no rows.
"""


def beside(trait, *weights):
    """Return a function that returns `trait` if the operands at the positions `weights` have no rows, otherwise None.

    For "sequence", all other operands must have rows: a sequence from outside of a step has no rows of that step.
    """

    def rows(specs, axes, **constants):
        others = [spec is None or axes[n] is not None for n, spec in enumerate(specs) if n not in weights]
        is_right = all(axes[n] is None for n in weights if n < len(axes)) and (trait == "each" or all(others))
        return trait if is_right else None

    return rows


def of_vectors(specs, axes, **constants):
    """Return the trait "each" for an operator along the last axis, or None if the last axis is the axis of rows."""
    return "each" if axes[0] != len(specs[0].shape) - 1 else None
