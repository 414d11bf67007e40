"""The compiler of a user's step: trace it, move operators out of the loop, lower it to a cell or interpret it."""

from varlen_rnn.steps import dynamic_rnn, while_loop
