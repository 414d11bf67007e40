"""What `rows` traits of several operators share: functions of the specs of operands, and of their axes of rows."""


def beside(trait, *weights):
    """Return a `rows` trait that holds if the operands at some positions, weights or tables, have no rows.

    For "sequence", all other operands have rows, since no sequence from outside of a step belongs to all of its rows.
    """

    def rows(specs, axes, **constants):
        others = [spec is None or axes[n] is not None for n, spec in enumerate(specs) if n not in weights]
        is_right = all(axes[n] is None for n in weights if n < len(axes)) and (trait == "each" or all(others))
        return trait if is_right else None

    return rows


def of_vectors(specs, axes, **constants):
    """Return the trait of an operator that computes over the last axis of its first operand, on every vector alone."""
    return "each" if axes[0] != len(specs[0].shape) - 1 else None
