"""Find out from the code of equations which items of an argument they may read, on any path."""

from numba.core import compiler, ir


def may_read_first(function, position, count):
    """Return whether a function may read the first item of its argument `position`, a tuple of `count` items.

    It cannot if its only use of the tuple is to take other items by constant indices.
    """
    if position >= function.__code__.co_argcount:
        return True
    blocks = compiler.run_frontend(function).blocks.values()
    statements = [statement for block in blocks for statement in block.body]
    assigned = [
        (statement.target.name, statement.value) for statement in statements if isinstance(statement, ir.Assign)
    ]
    constants = {name: value.value for name, value in assigned if isinstance(value, ir.Const)}
    argument = next(name for name, value in assigned if isinstance(value, ir.Arg) and value.index == position)
    for statement in statements:
        if argument not in {variable.name for variable in statement.list_vars()} or isinstance(statement, ir.Del):
            continue
        value = getattr(statement, "value", None)
        if isinstance(value, ir.Arg):
            continue
        item = constants.get(value.index.name) if getattr(value, "op", "") == "getitem" else None
        if not isinstance(item, int) or item % count == 0:
            return True
    return False
