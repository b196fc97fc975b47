"""Execution: settings of the process, threads, tasks, memory, and passes over arrays. `convt._core` belongs to this room.

It runs what it is given and decides nothing about problems. Algorithms and plans use it.

    config, cores                      number of threads, instruction set, backend and the other settings
    log                                lines about calls and other events
    kernels, flags, shares, team       C declarations: micro-kernels, atomic flags, tasks of a thread, delayed threads
    memory, workspace, execution       kept blocks, regions of a workspace, stores and threads of a plan
    addition, checksum                 passes over an output and over weights
"""
