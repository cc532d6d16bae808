"""Benchmarks a user can repeat: ours beside what one would use instead, in one run.

Machines differ and are noisy; the ratio of two numbers of the same run is what counts.

::

    command ── scan                                      one scan, step by step, on one core
       └────── join ── patches                           which patches are compared
                └───── measure ── peers                  one contender in a process of its own
                └───── tables                            what comes out
"""
