"""The division of a batch by work, in loops over lists; imports nothing of ours."""


def balanced_parts(lengths, parts, per_batch, per_row, per_step, per_sequence):
    """Give each sequence, longest first, to the first part of least load; the longest of a part pays for the steps."""
    found, loads = [[] for _ in range(parts)], [0.0] * parts
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        part = loads.index(min(loads))
        cost = per_row * lengths[index] + per_sequence
        if not found[part]:
            cost += per_step * lengths[index] + per_batch
        found[part].append(index)
        loads[part] += cost
    return [sorted(part) for part in found]
