"""A nested block as its operator runs it: the step of a recurrence, once for each step."""

from functools import cached_property

from varlen_rnn.errors import ProgramError
from varlen_rnn.program.spec import of_var


class Nested:
    """A block of a description, and the values that it is given.

    It reads its own variables only: those that no operator of it computes are its arguments.  A block of gradients also
    reads those of the block that it differentiates.

    Parameters
    ----------
    desc : ProgramDesc
    index : int
    """

    def __init__(self, desc, index):
        self.desc, self.block = desc, desc.blocks[index]

    @property
    def nested(self):
        """Itself, as a block that is still being recorded has one."""
        return self

    @cached_property
    def specs(self):
        """What is known of the variables that it may read, by name."""
        forward = self.block.forward_block_idx
        of_forward = self.desc.blocks[forward].vars if forward >= 0 else ()
        return {var.name: of_var(var) for var in (*of_forward, *self.block.vars)}

    @cached_property
    def arguments(self):
        """The names of its own variables that it is given."""
        computed = {name for op in self.block.ops for name in op.output_names()}
        return [var.name for var in self.block.vars if var.name not in computed]

    def spec(self, name):
        """Return what is known of a variable, or raise if the block has none of this name."""
        if name not in self.specs:
            raise ProgramError(f"block {self.block.idx}", expected=f"a variable {name!r}", got="none")
        return self.specs[name]

    @cached_property
    def steps(self):
        """Its operators, ready to run."""
        from varlen_rnn.program.executor import Steps  # which runs operators, and so nested blocks

        own = [var.name for var in self.block.vars]
        return Steps(self.desc, self.block, kept=[name for name in self.specs if name in own], given=list(self.specs))

    def run(self, values):
        """Return all values of a run by name: those given, and those computed."""
        steps = self.steps
        held = steps.run({name: value for name, value in values.items() if name in steps.place})
        return {name: held[place] for name, place in steps.place.items()}
